"""How many drafts a server accepted during a benchmark, by its `/metrics` before and after.

Upstream twin: `vllm/benchmarks/serve.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mini_vllm.metrics.text_format import MetricsText


@dataclass
class SpecDecodeMetrics:
    """Upstream: upstream/vllm/benchmarks/serve.py:96 — `SpecDecodeMetrics`."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    accepted_per_pos: dict[int, int]


async def fetch_spec_decode_metrics(base_url: str, session: Any) -> SpecDecodeMetrics | None:
    """None where nobody makes drafts, or where the server has no metrics.

    Upstream: upstream/vllm/benchmarks/serve.py:105 — `fetch_spec_decode_metrics`.
    """
    try:
        response = await session.get(f"{base_url}/metrics")
    except Exception:
        return None
    if response.status_code != 200:
        return None
    found = MetricsText.parse(response.text)
    if not found.has("vllm:spec_decode"):
        return None
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    counts = [int(found.total(f"vllm:spec_decode_{name}") or 0) for name in names]
    per_position: dict[int, int] = {}
    for labels, value in found.each("vllm:spec_decode_num_accepted_tokens_per_pos"):
        at = int(labels["position"])
        per_position[at] = per_position.get(at, 0) + int(value)
    return SpecDecodeMetrics(counts[0], counts[1], counts[2], per_position)


def spec_decode_fields(before: SpecDecodeMetrics | None, after: SpecDecodeMetrics | None) -> dict[str, Any]:
    """Fields of the result file; {} where no draft was made meanwhile.

    Upstream: upstream/vllm/benchmarks/serve.py:1023 — "spec_decode_acceptance_rate".
    """
    if before is None or after is None or after.num_draft_tokens == before.num_draft_tokens:
        return {}
    drafts = after.num_drafts - before.num_drafts
    tokens = after.num_draft_tokens - before.num_draft_tokens
    accepted = after.num_accepted_tokens - before.num_accepted_tokens
    places = sorted({*before.accepted_per_pos, *after.accepted_per_pos}) if drafts > 0 else []
    gained = [after.accepted_per_pos.get(at, 0) - before.accepted_per_pos.get(at, 0) for at in places]
    return {
        "spec_decode_acceptance_rate": accepted / tokens * 100,
        "spec_decode_acceptance_length": 1 + accepted / drafts if drafts > 0 else 0.0,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": tokens,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": [each / drafts for each in gained],
    }

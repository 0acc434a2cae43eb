"""Small arithmetic of speculative decoding. Upstream twin: `vllm/v1/spec_decode/utils.py`."""

from __future__ import annotations

from collections.abc import Sequence


def unconditional_to_conditional_rates(rates: Sequence[float]) -> list[float]:
    """From "the first i drafts are all accepted" to "draft i is, if those before it are".

    Upstream: upstream/vllm/v1/spec_decode/utils.py:599 — `unconditional_to_conditional_rates`.
    """
    return [rate / before if before > 0 else 0.0 for rate, before in zip(rates, [1.0, *rates[:-1]], strict=True)]

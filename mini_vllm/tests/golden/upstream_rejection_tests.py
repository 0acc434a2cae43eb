"""Runs the pinned release's own `tests/v1/sample/test_rejection_sampler.py` against our rejection sampler.

Run by hand from the repository root under the CPU build of the pinned release:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/upstream_rejection_tests.py

The test functions are upstream's, and so are their tensors and settings. In their module `RejectionSampler` and
`sample_recovered_tokens` are ours behind an adapter, which turns tensors into arrays and back, and upstream's sampling
metadata into our rows. A random stream of theirs stays one: its numbers come from the same `torch.Generator`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import vllm.v1.request  # noqa: E402, F401  # the installed one; below only `tests` comes from the pinned tree

sys.path.append(str(ROOT / "upstream"))

from mini_vllm.outputs import SamplerOutput  # noqa: E402
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow  # noqa: E402
from mini_vllm.sample.ops import rejection_sample as ops  # noqa: E402
from mini_vllm.sample.rejection_sampler import RejectionSampler  # noqa: E402
from mini_vllm.sample.sampler import Sampler  # noqa: E402
from mini_vllm.sampling_params import SamplingParams  # noqa: E402
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata  # noqa: E402

MODULE = "tests.v1.sample.test_rejection_sampler"
CALLS: list[str] = []


class Stream:
    """A `torch.Generator` that is asked as numpy's. `fixed`: the same noise again and again, as for one request's
    recovered tokens."""

    def __init__(self, generator: torch.Generator, fixed: bool = False) -> None:
        self.generator, self.fixed = generator, fixed
        self.noise: Any = None

    def standard_exponential(self, out: Any) -> None:
        """Fills `out`."""
        if self.noise is None or not self.fixed:
            self.noise = torch.empty(len(out)).exponential_(generator=self.generator).numpy()
        out[:] = self.noise

    def random(self, count: int) -> Any:
        """In [0, 1)."""
        return torch.empty(count, dtype=torch.float64).uniform_(generator=self.generator).numpy()


def array(tensor: Any) -> Any:
    """None stays None."""
    return None if tensor is None else tensor.detach().cpu().numpy()


def our_metadata(theirs: Any) -> SpecDecodeMetadata:
    """Field by field."""
    drafts = np.array(theirs.num_draft_tokens, np.int64)
    return SpecDecodeMetadata(
        array(theirs.draft_token_ids).reshape(-1).astype(np.int64),
        drafts.tolist(),
        np.cumsum(drafts),
        np.cumsum(drafts + 1),
        array(theirs.target_logits_indices).astype(np.int64),
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
    )


def our_rows(theirs: Any, num_requests: int, vocab_size: int, fixed: bool = False) -> list[SamplingRow]:
    """A request for each; those without a seed share a stream, as there."""
    shared: Any = np.random.default_rng()
    common: dict[Any, SamplingParams] = {}
    rows = []
    for i in range(num_requests):
        given: dict[str, Any] = {"temperature": 0.0 if theirs.all_greedy else float(theirs.temperature[i])}
        for name in ("top_k", "top_p"):
            if getattr(theirs, name) is not None:
                given[name] = getattr(theirs, name)[i].item()
        if not theirs.no_penalties:
            for name in ("frequency", "presence", "repetition"):
                given[f"{name}_penalty"] = round(getattr(theirs, f"{name}_penalties")[i].item(), 6)
        if theirs.allowed_token_ids_mask is not None:
            given["allowed_token_ids"] = np.flatnonzero(~array(theirs.allowed_token_ids_mask[i])).tolist()
        key = repr(given)
        params = common.get(key) or common.setdefault(key, SamplingParams(**given))
        if i in theirs.bad_words_token_ids:
            params = SamplingParams(**given)
            params.bad_words_token_ids = theirs.bad_words_token_ids[i]
        prompt = [] if theirs.prompt_token_ids is None else theirs.prompt_token_ids[i].tolist()
        output = list(theirs.output_token_ids[i]) if theirs.output_token_ids else []
        stream = Stream(theirs.generators[i], fixed) if i in theirs.generators else shared
        rows.append(SamplingRow(params, prompt, output, stream))
    return rows


class Adapted:
    """Our sampler, called as upstream's."""

    def __init__(self, sampler: Any, spec_config: Any = None, device: Any = None) -> None:
        self.sampler = sampler
        ours = SimpleNamespace(
            forward=lambda logits, metadata: SamplerOutput(array(sampler.return_value.sampled_token_ids).reshape(-1)),
            apply_logits_processors=Sampler.apply_logits_processors,
        )
        self.ours = RejectionSampler(ours, spec_config)  # type: ignore[arg-type]

    def __call__(self, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        CALLS.append("RejectionSampler")
        rows = our_rows(sampling_metadata, len(metadata.num_draft_tokens), logits.shape[1])
        sampling = SamplingMetadata.from_rows(rows, logits.shape[1])
        output = self.ours.forward(our_metadata(metadata), array(draft_probs), array(logits), sampling, rows)
        return SimpleNamespace(sampled_token_ids=torch.from_numpy(output.sampled_token_ids).to(torch.int))


def sample_recovered_tokens(
    max_spec_len: int, num_draft_tokens: list[int], cu_num_draft_tokens: Any, draft_token_ids: Any, draft_probs: Any,
    target_probs: Any, sampling_metadata: Any, device: Any,
) -> Any:  # fmt: skip
    """Ours for all drafts, each request with one noise."""
    CALLS.append("sample_recovered_tokens")
    counts = np.array(num_draft_tokens)
    of = np.repeat(np.arange(len(counts)), counts)
    rows = our_rows(sampling_metadata, len(counts), target_probs.shape[1], fixed=True)
    found = ops.sample_recovered_tokens(
        np.arange(len(of)), of, array(draft_token_ids).reshape(-1), array(draft_probs), array(target_probs),
        [row.generator for row in rows],
    )  # fmt: skip
    return torch.from_numpy(found).to(draft_token_ids.dtype).reshape(draft_token_ids.shape)


class Plugin:
    """Puts ours into upstream's module, and counts."""

    def __init__(self) -> None:
        self.results: dict[str, list[str]] = {}

    def pytest_itemcollected(self, item: Any) -> None:
        item.module.RejectionSampler = Adapted
        item.module.sample_recovered_tokens = sample_recovered_tokens

    def pytest_runtest_setup(self, item: Any) -> None:
        CALLS.clear()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            if report.when != "call" and report.passed:
                return
            name = report.nodeid.rpartition("::")[2].partition("[")[0]
            said = "passes" if report.passed and CALLS else "fails" if report.failed else "not ours"
            self.results.setdefault(name, []).append(said)


def main() -> int:
    path = importlib.import_module(MODULE).__file__
    plugin = Plugin()
    code = pytest.main(
        ["-q", "--noconftest", "-p", "no:cacheprovider", str(path), "--rootdir", str(ROOT / "upstream")], [plugin]
    )
    cases = [one for outcomes in plugin.results.values() for one in outcomes]
    for name, outcomes in plugin.results.items():
        passed = outcomes.count("passes")
        print(f"{name}: {passed} of {len(outcomes)}")
    print(f"{cases.count('passes')} of {len(cases)} cases pass")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

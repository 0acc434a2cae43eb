"""Runs the pinned release's own tests of the sampler and of logits processors against ours, through an adapter.

Run by hand from the repository root under the CPU build of the pinned release:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/upstream_sampler_tests.py

Each test function is upstream's (`tests/v1/sample/test_sampler.py`, `tests/v1/logits_processors/test_correctness.py`),
and so are its batches and updates; in its module `Sampler` and `build_logitsprocs` make ours. Tensors and our arrays
share their memory. A test counts as carried only where ours was used. The result stands in `docs/upstream-tests.md`.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import vllm.v1.sample.logits_processor as theirs  # noqa: E402
import vllm.v1.sample.sampler  # noqa: E402, F401  # the installed one; below only `tests` comes from the pinned tree

sys.path.append(str(ROOT / "upstream"))

from mini_vllm.sample import logits_processor as ours  # noqa: E402
from mini_vllm.sample.metadata import SamplingMetadata  # noqa: E402
from mini_vllm.sample.ops.penalties import PenaltyState, apply_penalties  # noqa: E402
from mini_vllm.sample.sampler import Sampler  # noqa: E402
from mini_vllm.sampling_params import SamplingParams  # noqa: E402

FILES = ("sample/test_sampler.py", "logits_processors/test_correctness.py")
USED: list[str] = []


class OurSampler:
    """Our sampler behind upstream's calls."""

    def apply_penalties(self, logits: Any, metadata: Any, output_token_ids: list[list[int]]) -> Any:
        """Penalties alone."""
        USED.append("penalties")
        array, vocab_size = logits.numpy(), logits.shape[1]
        prompts = [[t for t in row if t < vocab_size] for row in metadata.prompt_token_ids.tolist()]
        columns = metadata.presence_penalties, metadata.frequency_penalties, metadata.repetition_penalties
        rows = zip(*(column.tolist() for column in columns), strict=True)
        names = ("presence_penalty", "frequency_penalty", "repetition_penalty")
        state = PenaltyState([SamplingParams(**dict(zip(names, row, strict=True))) for row in rows], prompts)
        state.update(output_token_ids)
        apply_penalties(array, state)
        return logits

    def apply_logits_processors(self, logits: Any, metadata: Any, predict_bonus_token: bool) -> Any:
        """Masks, bad words, processors."""
        USED.append("apply_logits_processors")
        mask = metadata.allowed_token_ids_mask
        allowed = {} if mask is None else {i: np.flatnonzero(~row) for i, row in enumerate(mask.numpy()) if row.any()}
        made = SamplingMetadata(
            all_greedy=True, all_random=False, temperature=np.zeros(len(logits)), top_k=None, top_p=None,
            generators=[None] * len(logits), output_token_ids=metadata.output_token_ids, penalties=None,
            allowed_token_ids=allowed, bad_words=metadata.bad_words_token_ids, num_logprobs={},
        )  # fmt: skip
        Sampler.apply_logits_processors(logits.numpy(), made)
        return logits


def adapted(name: str) -> type:
    """A class of upstream's name and kind whose work one of ours does."""

    class Adapted(getattr(theirs, name)):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            self.ours = getattr(ours, name)(*args)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["ours"], name)

        def is_argmax_invariant(self) -> bool:
            return self.ours.is_argmax_invariant()

        def update_state(self, batch_update: Any) -> None:
            if batch_update is None:
                self.ours.update_state(None)
                return
            moved = [(a, b, ours.MoveDirectionality[direction.name]) for a, b, direction in batch_update.moved]
            self.ours.update_state(
                ours.BatchUpdate(batch_update.batch_size, batch_update.removed, batch_update.added, moved)
            )

        def apply(self, logits: Any) -> Any:
            USED.append(name)
            self.ours.apply(logits.numpy())
            return logits

    return Adapted


def build_logitsprocs(vllm_config: Any, device: Any, is_pin_memory: bool, **others: Any) -> Any:
    """Ours in upstream's container, as upstream orders them."""
    names = [each.__name__ for each in ours.BUILTIN_LOGITS_PROCESSORS]
    assert names == [each.__name__ for each in theirs.BUILTIN_LOGITS_PROCESSORS]
    return theirs.LogitsProcessors(adapted(name)(vllm_config, device, is_pin_memory) for name in names)


class Plugin:
    """Puts our names into upstream's test modules, and notes what became of each test."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}

    def pytest_itemcollected(self, item: Any) -> None:
        for name, one in {"Sampler": OurSampler, "build_logitsprocs": build_logitsprocs}.items():
            if hasattr(item.module, name):
                setattr(item.module, name, one)
        item.obj = inspect.unwrap(item.obj)  # upstream runs some in a process of their own, whose notes would be lost

    def pytest_runtest_setup(self, item: Any) -> None:
        USED.clear()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and not (report.failed or report.skipped):
            return
        name = report.nodeid.rpartition("/")[2]
        if report.passed:
            self.results[name] = "passes" if USED else "does not touch what is ours"
        else:
            self.results[name] = "fails: " + str(report.longrepr).strip().splitlines()[-1][:150]


def main() -> int:
    """Run them, and print what became of each."""
    plugin = Plugin()
    paths = [str(ROOT / "upstream/tests/v1" / file) for file in FILES]
    pytest.main([*paths, "-q", "-p", "no:cacheprovider", "--noconftest", "--rootdir", str(ROOT / "upstream")], [plugin])
    for name, result in sorted(plugin.results.items()):
        print(f"{result:28} {name}")
    counts = {result: list(plugin.results.values()).count(result) for result in set(plugin.results.values())}
    print(counts)
    return 0 if all(not result.startswith("fails") for result in plugin.results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

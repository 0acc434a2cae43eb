"""What each step from the plain model to its compiled form is worth: `python -m benchmarks.compiled`.

One process, one set of weights (models/pocket), an engine for each variant; the variants take turns, step by step, and
what is compared is the time inside the model, attention included (the same backend for all). In the compiled form one
idea at a time is switched off. Writes results/compiled.{json,md}.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.common import machine, save, table
from benchmarks.instrument import StepTimer
from mini_vllm import LLM, load_model
from mini_vllm.compilation import cpu_fused, cpu_models, cpu_scratch
from mini_vllm.platforms.cpu import threads
from mini_vllm.platforms.cpu.memory import aligned_empty
from mini_vllm.platforms.cpu.workspace import Workspace

POCKET = Path(__file__).parents[1] / "models" / "pocket"
BATCHES, PROMPTS, PROMPT_LEN = (1, 8, 32, 64), 4, 700
ENDLESS = 1 << 30


def uncut(weight: Any, x: Any, out: Any) -> None:
    """`project` as one product."""
    np.matmul(weight, x, out=out)


@contextmanager
def whole_products() -> Iterator[None]:
    """Products as BLAS gets them from anybody."""
    with patch.object(cpu_fused, "project", uncut), patch.object(cpu_models, "project", uncut):
        yield


@contextmanager
def fresh_scratch() -> Iterator[None]:
    """Every step allocates what it needs."""
    forward = cpu_fused.FusedDecoder.forward

    def forgetful(self: Any, *args: Any) -> Any:
        self._scratch.num_tokens = -1
        return forward(self, *args)

    fresh = lambda self, name, *shape: aligned_empty(shape, self.dtype)  # noqa: E731
    with patch.object(Workspace, "get", fresh), patch.object(cpu_fused.FusedDecoder, "forward", forgetful):
        yield


@contextmanager
def one_tile() -> Iterator[None]:
    """All tokens of a step (or of a thread) together."""
    with patch.object(cpu_scratch, "TILE", ENDLESS):
        yield


@contextmanager
def no_shares() -> Iterator[None]:
    """Threads only inside BLAS."""
    with patch.object(threads, "MIN_ROWS", ENDLESS):
        yield


OFF: dict[str, Callable[[], Any]] = {
    "without cut products": whole_products,
    "without kept scratch": fresh_scratch,
    "without tiles": one_tile,
    "without shares for threads": no_shares,
}
PLAIN, LAYOUT, WHOLE = "the model file", "features first, nothing else", "compiled"
VARIANTS: dict[str, tuple[Callable[[], Any], ...]] = {
    PLAIN: (), LAYOUT: tuple(OFF.values()), WHOLE: (), **{name: (off,) for name, off in OFF.items()},
}  # fmt: skip


class Variant:
    """An engine whose model runs with some ideas switched off."""

    def __init__(self, name: str, model: Any) -> None:
        self.off = VARIANTS[name]
        backend = {"attention_backend": "paged_gather", "enforce_eager": name == PLAIN}
        self.llm = LLM(model, num_blocks=900, max_num_batched_tokens=4096, enable_prefix_caching=False, **backend)
        with self.switched():  # some of them count when scratch is laid out
            self.timer = StepTimer(self.llm)

    @contextmanager
    def switched(self) -> Iterator[None]:
        """While inside, what this variant lacks is off."""
        with ExitStack() as stack:
            for off in self.off:
                stack.enter_context(off())
            yield

    def prefill(self) -> float:
        """Seconds inside the model for one step with all prompts."""
        self.timer.add(PROMPTS, PROMPT_LEN, 1)
        return self._step()

    def start_decoding(self, batch: int) -> None:
        """Requests of 64 tokens that will not end."""
        self.timer.add(batch, 64, 400)
        self.timer.run_until_decoding(batch)

    def decode(self, steps: int) -> float:
        """Seconds inside the model for a decode step: the median of some."""
        return statistics.median(self._step() for _ in range(steps))

    def stop(self) -> None:
        """End all requests."""
        self.llm.llm_engine.abort_request(list(self.llm.llm_engine.scheduler.requests))

    def _step(self) -> float:
        with self.switched():
            total, outside = self.timer.step()
        return total - outside


def measure(rounds: int, steps: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds: job -> variant -> one figure per round."""
    model = load_model(POCKET)
    variants = {name: Variant(name, model) for name in VARIANTS}
    found: dict[str, dict[str, list[float]]] = {}

    def take_turns(job: str, run: Callable[[Variant], float]) -> None:
        times: dict[str, list[float]] = {name: [] for name in variants}
        for round_ in range(rounds + 1):
            for name in list(variants)[:: 1 if round_ % 2 else -1]:
                seconds = run(variants[name])
                if round_:  # the first warms up
                    times[name].append(1e3 * seconds)
        found[job] = times

    for batch in BATCHES:
        for variant in variants.values():
            variant.start_decoding(batch)
        take_turns(f"decode, {batch}", lambda variant: variant.decode(steps))
        for variant in variants.values():
            variant.stop()
    take_turns(f"prefill, {PROMPTS} x {PROMPT_LEN}", Variant.prefill)
    return found


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=9, help="decode steps of a round")
    parser.add_argument("--quick", action="store_true", help="two rounds, nothing written")
    args = parser.parse_args()
    where = machine()
    where["threads"] = threads.num_threads()
    found = measure(2 if args.quick else args.rounds, args.steps)
    times = {job: {name: statistics.median(values) for name, values in of.items()} for job, of in found.items()}
    ratios = {
        job: {name: statistics.median(np.divide(values, of[WHOLE]).tolist()) for name, values in of.items()}
        for job, of in found.items()
    }
    ms = [[name, *(times[job][name] for job in times)] for name in VARIANTS]
    relative = [[name, *(ratios[job][name] for job in ratios)] for name in VARIANTS]
    text = [
        f"{where['processor']}, {where['threads']} threads, load at the start {where['load_average_at_start'][0]:.1f}",
        "Milliseconds inside the model, for one step:", table(["", *times], ms),
        "Times that of the compiled form (median of the rounds):", table(["", *ratios], relative),
    ]  # fmt: skip
    save("compiled", {"machine": where, "ms": found}, "\n\n".join(text), keep=not args.quick)


if __name__ == "__main__":
    main()

"""Step times of a running engine, split into the model's part and everything outside it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from mini_vllm import LLM, SamplingParams


class StepTimer:
    """Wraps what one engine calls of its model, `forward` and `compute_logits`, and times whole steps."""

    def __init__(self, llm: LLM) -> None:
        self.engine: Any = llm.llm_engine
        self.inside = 0.0
        runner = self.engine.engine_core.model_runner
        runner.forward = self._timed(runner.forward)
        runner.compute_logits = self._timed(runner.compute_logits)
        self._ids = 0

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            start = time.perf_counter()
            result = call(*args)
            self.inside += time.perf_counter() - start
            return result

        return wrapped

    def add(self, count: int, prompt_len: int, max_tokens: int) -> None:
        """Queue greedy requests with random prompts."""
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        source = random.Random(self._ids)
        for _ in range(count):
            prompt = [source.randrange(3, self.engine.model.vocab_size) for _ in range(prompt_len)]
            self.engine.add_request(f"bench-{self._ids}", {"prompt_token_ids": prompt}, params)
            self._ids += 1

    def step(self) -> tuple[float, float]:
        """One step: seconds in all, and seconds outside the model."""
        self.inside = 0.0
        start = time.perf_counter()
        self.engine.step()
        total = time.perf_counter() - start
        return total, total - self.inside

    def run_until_decoding(self, count: int) -> None:
        """Step until `count` requests have their first token."""
        requests = self.engine.scheduler.requests
        while sum(r.num_output_tokens > 0 for r in requests.values()) < count:
            self.engine.step()

    def decode(self, steps: int) -> tuple[float, float]:
        """Medians over decode steps: seconds in all, and outside the model."""
        totals, outside = zip(*(self.step() for _ in range(steps)), strict=True)
        return statistics.median(totals), statistics.median(outside)

    def clear(self) -> None:
        """Abort what is left, and let the runner hear of it."""
        self.engine.abort_request(list(self.engine.scheduler.requests))
        while self.engine.engine_core.has_requests():
            self.engine.step()

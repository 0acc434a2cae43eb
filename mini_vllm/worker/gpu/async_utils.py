"""Tokens that are still on the device: what comes out of a step before anybody has waited for it.

Upstream twin: `vllm/v1/worker/gpu/async_utils.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from mini_vllm.utils.arrays import Array
from mini_vllm.worker.states import CachedRequestState

if TYPE_CHECKING:
    from mini_vllm.worker.gpu.model_runner import GPUModelRunner

UNKNOWN = -1
"""Stands in a request's output until the token is here."""


class AsyncOutput:
    """A `ModelRunnerOutput` whose tokens are fetched when somebody looks at them; the runner's rows learn them then.

    Args:
        tokens, bad: of the sampled rows, [n] on the device: ids, and whether a row's logits hold a NaN.
        rows: of the batch as it is now.

    Attributes:
        sources: request id -> its place in `tokens`. positions [n]: of the tokens in their requests.

    Upstream: upstream/vllm/v1/worker/gpu/async_utils.py:12 — `AsyncOutput`.
    """

    logprobs = None

    def __init__(self, runner: GPUModelRunner, tokens: torch.Tensor, bad: torch.Tensor, rows: Array) -> None:
        batch = runner.input_batch
        self._runner, self.req_ids, self._rows = runner, list(batch.req_ids), rows.tolist()
        self.prompt_logprobs_dict: dict[str, list[dict[int, tuple[float, int]] | None]] = {}
        self.states: list[CachedRequestState] = [batch.states[row] for row in self._rows]
        self.sources = {state.req_id: at for at, state in enumerate(self.states)}
        self.positions = batch.num_tokens[rows].copy()
        self._places = [len(state.output_token_ids) for state in self.states]
        for state in self.states:
            state.output_token_ids.append(UNKNOWN)
        batch.num_tokens[rows] += 1
        self._sampled: list[list[int]] | None = None
        self._errors: dict[str, str] = {}
        pinned = tokens.is_cuda
        self._host = torch.empty(2, len(tokens), dtype=torch.int64, pin_memory=pinned)
        self._host[0].copy_(tokens, non_blocking=True)
        self._host[1].copy_(bad, non_blocking=True)
        self._event = torch.cuda.Event() if pinned else None
        if self._event is not None:
            self._event.record()

    @property
    def sampled_token_ids(self) -> list[list[int]]:
        """See `ModelRunnerOutput`; waits for the device at the first call."""
        if self._sampled is None:
            self._sampled = self._fetch()
        return self._sampled

    @property
    def errors(self) -> dict[str, str]:
        """See `ModelRunnerOutput`; waits for the device at the first call."""
        assert self.sampled_token_ids is not None
        return self._errors

    def _fetch(self) -> list[list[int]]:
        if self._event is not None:
            self._event.synchronize()
        tokens, bad = self._host.tolist()
        sampled: list[list[int]] = [[] for _ in self.req_ids]
        batch = self._runner.input_batch
        for at, (row, state, token) in enumerate(zip(self._rows, self.states, tokens, strict=True)):
            if bad[at]:
                self._runner.report_bad_row(state, int(self.positions[at]) - 1, self._errors)
                continue
            sampled[row] = [token]
            output, place = state.output_token_ids, self._places[at]
            if place < len(output) and output[place] == UNKNOWN:
                output[place] = token
            now = batch.req_id_to_index.get(state.req_id)
            if now is not None and batch.states[now] is state:
                batch.token_ids[now, min(int(self.positions[at]), batch.token_ids.shape[1] - 1)] = token
        self._runner.forget(self)
        return sampled

    def sources_of(self, req_ids: list[str], query_start_loc: Array, positions: Array) -> Array:
        """For each token of the next step its place among these, or -1. Only a request's last token can be one."""
        sources = np.full(len(positions), -1, np.int64)
        for row, req_id in enumerate(req_ids):
            at = self.sources.get(req_id)
            if at is not None:
                last = query_start_loc[row + 1] - 1
                if positions[last] == self.positions[at]:
                    sources[last] = at
        return sources

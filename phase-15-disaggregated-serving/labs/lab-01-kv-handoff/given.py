"""Given: an engine whose keys and values can be read and written by slot, and which can get or lose a running request.

Who knows a running request? The scheduler and the KV cache manager, which are your business, and two more: the model
runner, which keeps its tokens and its block table, and the front end, which turns its tokens into text. `introduce`
and `dismiss` speak to these two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import KVOracle, LLMEngine, Request, SamplingParams
from mini_vllm.core.sched.output import NewRequestData

POCKET = Path(__file__).resolve().parents[3] / "models" / "pocket"
PROMPT = "The quick brown fox jumps"
"""25 tokens of the toy engine, one a byte."""


class Host(LLMEngine):
    """An `LLMEngine` with four more methods.

    `Host()` runs the toy model under the KV oracle: a row of its cache is one number, a hash of all tokens up to its
    own, and a step that would read a wrong one raises `KVMismatchError`. `Host("pocket")` runs `models/pocket`: a row
    is the keys and values of all its layers, and a wrong one changes the tokens.
    """

    def __init__(self, model: str | None = None, *, block_size: int = 4, num_blocks: int = 40, **args: Any) -> None:
        args = {"block_size": block_size, "num_blocks": num_blocks, "max_num_seqs": 4, **args}
        super().__init__(None if model is None else _pocket(), **args)
        self.runner = self.engine_core.model_runner
        self.block_size = block_size
        if model is None:
            self.runner.kv_oracle = KVOracle(num_blocks, block_size)

    def _rows(self) -> np.ndarray:
        """[slots, ...], a view: what each slot of the pool holds."""
        if self.runner.kv_oracle is not None:
            return self.runner.kv_oracle.slots
        data = self.runner.kv_cache.data  # [layers, blocks, block_size, 2, heads, head_dim]
        return data.reshape(len(data), -1, *data.shape[3:]).swapaxes(0, 1)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one row."""
        return self._rows()[0].nbytes

    def read_kv(self, slots: Sequence[int]) -> np.ndarray:
        """The rows of these slots, [len(slots), ...], in the order asked for: a copy."""
        return self._rows()[np.asarray(slots, dtype=np.int64)].copy()

    def write_kv(self, slots: Sequence[int], rows: np.ndarray) -> None:
        """Put a row in each of these slots.

        Raises:
            ValueError: there are not as many rows as slots, or they are of another shape or type than this engine's;
                nothing has been written.
        """
        mine = self._rows()
        wanted = (len(slots), *mine.shape[1:])
        if np.shape(rows) != wanted or np.asarray(rows).dtype != mine.dtype:
            found = f"{np.shape(rows)} of {np.asarray(rows).dtype}"
            raise ValueError(f"rows must be {wanted} of {mine.dtype}, got {found}")
        mine[np.asarray(slots, dtype=np.int64)] = rows

    def introduce(self, request: Request) -> None:
        """Tell the model runner of a request that runs here from now on. Its blocks have to be there."""
        request_id, runner = request.request_id, self.runner
        self.scheduler.finished_req_ids.discard(request_id)  # it was here before
        runner.input_batch.remove_request(request_id)
        blocks = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        new = NewRequestData(
            request_id, request.prompt_token_ids, request.sampling_params, blocks, request.num_computed_tokens
        )
        runner.states._new_state(new)
        self.scheduler.prev_step_scheduled_req_ids.discard(request_id)  # the next plan names all its tokens

    def dismiss(self, request_id: str) -> None:
        """Tell the model runner, with the next plan, and the front end, now, that a request is not here any more."""
        self.scheduler.finished_req_ids.add(request_id)
        self.output_processor.forget([request_id])


def greedy(max_tokens: int = 12) -> SamplingParams:
    """The likeliest token each time, `max_tokens` of them."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def drawn(seed: int, max_tokens: int = 12) -> SamplingParams:
    """Tokens drawn at random, always the same for a seed."""
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=max_tokens, ignore_eos=True)


def start(engine: Host, request_id: str, prompt: Any = PROMPT, params: Any = None, steps: int = 1) -> Request:
    """Queue a prompt and make `steps` steps with it; the request as the scheduler has it."""
    engine.add_request(request_id, prompt, params or greedy())
    request = engine.scheduler.requests[request_id]
    for _ in range(steps):
        engine.step()
    return request


@cache
def unmoved(model: str | None, prompt: Any, temperature: float, seed: int | None, max_tokens: int) -> tuple[int, ...]:
    """The tokens of a request that stays where it began."""
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, ignore_eos=True)
    engine = Host(model)
    request = start(engine, "stays", list(prompt) if isinstance(prompt, tuple) else prompt, params)
    while not request.is_finished():
        engine.step()
    return tuple(request.output_token_ids)


@cache
def _pocket() -> Any:
    """The checkpoint in float64, read once."""
    args: dict[str, Any] = {"dtype": "float64", "enforce_eager": True, "num_blocks": 8}
    return LLMEngine(str(POCKET), **args).model

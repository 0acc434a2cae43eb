"""Functions that tests have the workers run: they go there by name, so they stand in a module of their own."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np


def on_token(worker: Any, token: int, layer: int, act: Any) -> None:
    """From now on `act(v, rows)` is called in this layer of every step that has the token; rows: where it stands."""
    runner = worker.model_runner
    original = runner.forward

    def forward(input_ids: Any, positions: Any, attn: Any) -> Any:
        def attend(i: int, q: Any, k: Any, v: Any) -> Any:
            rows = np.asarray(input_ids) == token
            if i == layer and rows.any():
                act(v, rows)
            return attn(i, q, k, v)

        return original(input_ids, positions, attend)

    replace_forward(runner, forward)


def orphan(worker: Any) -> None:
    """Every rank but the first takes the engine's process for another one, as where it has died."""
    if worker.rank:
        worker.group.check.__self__.parent = -1


def restore(worker: Any) -> None:
    """What the functions of this module have put into the rank is gone."""
    runner = worker.model_runner
    runner.forward = vars(runner).pop("untouched_forward", runner.forward)
    vars(runner.sampler).pop("forward", None)


def replace_forward(runner: Any, forward: Any) -> None:
    """Until `restore`."""
    vars(runner).setdefault("untouched_forward", runner.forward)
    runner.forward = forward


def poison(worker: Any, token: int) -> None:
    """The token's values become NaN."""

    def act(v: Any, rows: Any) -> None:
        v[rows] = np.nan

    on_token(worker, token, 0, act)


def fail_on(worker: Any, token: int, rank: int) -> None:
    """A step with the token fails on this rank, in the midst of the layers."""

    def act(v: Any, rows: Any) -> None:
        if worker.rank == rank:
            raise ArithmeticError("no such token")

    on_token(worker, token, 1, act)


def fail_in_sampling(worker: Any, rank: int) -> None:
    """The next sampling fails on this rank."""
    runner, original = worker.model_runner, worker.model_runner.sampler.forward

    def forward(*args: Any) -> Any:
        runner.sampler.forward = original
        raise ArithmeticError("no sample")

    if worker.rank == rank:
        runner.sampler.forward = forward


def stop_on(worker: Any, token: int, rank: int, signum: int = signal.SIGSTOP) -> None:
    """A step with the token stops (or kills) this rank's process in the midst of the layers."""

    def act(v: Any, rows: Any) -> None:
        if worker.rank == rank:
            os.kill(os.getpid(), signum)

    on_token(worker, token, 1, act)


def sleep_on(worker: Any, token: int, rank: int, seconds: float) -> None:
    """A step with the token takes so long on this rank in every layer."""

    def forward(input_ids: Any, positions: Any, attn: Any) -> Any:
        def attend(i: int, q: Any, k: Any, v: Any) -> Any:
            if worker.rank == rank and token in input_ids:
                time.sleep(seconds)
            return attn(i, q, k, v)

        return original(input_ids, positions, attend)

    original = worker.model_runner.forward
    replace_forward(worker.model_runner, forward)


def stop_here(worker: Any, rank: int) -> None:
    """This rank's process is stopped now."""
    if worker.rank == rank:
        os.kill(os.getpid(), signal.SIGSTOP)


def batch_of(worker: Any) -> Any:
    """Rows, tokens, blocks and random streams as this rank has them."""
    batch = worker.model_runner.input_batch
    n = batch.num_reqs
    states = [(i, s.output_token_ids, s.block_ids, _draw(s.generator)) for i, s in worker.model_runner.requests.items()]
    tables = [table.table for table in batch.block_table.block_tables]
    arrays = [array[:n].tolist() for array in (batch.token_ids, *tables, batch.num_tokens)]
    return batch.req_ids, arrays, states


def _draw(generator: Any) -> Any:
    return None if generator is None else generator.bit_generator.state["state"]


def has_nan(worker: Any) -> bool:
    """Whether a NaN is in this rank's KV cache."""
    return bool(np.isnan(worker.model_runner.kv_cache.data).any())


def num_heads(model: Any) -> int:
    """Query heads of a rank's part."""
    return int(model.num_heads)


def raise_unpicklable(worker: Any, rank: int) -> None:
    """An exception that does not survive the way, on this rank."""
    if worker.rank != rank:
        return

    class Odd(Exception):
        pass

    raise Odd("from inside")


def lambda_of(worker: Any) -> Any:
    """A result that cannot be sent."""
    return lambda: None


def pid_of(worker: Any) -> int:
    """The worker's process."""
    return os.getpid()


def echo(worker: Any, value: Any) -> Any:
    """Back it comes."""
    return value


def num_layers(model: Any) -> int:
    """Layers of a stage."""
    return int(model.num_layers)


def cache_layers(worker: Any) -> int:
    """Layers for which this rank keeps keys and values."""
    return len(worker.model_runner.kv_cache.data)


def poison_on(worker: Any, token: int, rank: int) -> None:
    """The token's values become NaN on one rank."""
    if worker.rank == rank:
        poison(worker, token)

"""The time below which the work of a batch cannot go here: its products, gather and attention, and nothing else.

Prefill: the matrix products of all prompt tokens. Decode: those of one token per request, the gather of keys and values
and the attention at the mean context, times the steps. No norms, no rotation, no activation, no sampling, no Python
between the products. Everything is laid out as suits it best, and of two ways to multiply the faster one counts.

The cores can be used in two ways: one process whose BLAS has all threads, or a process a core, each with its share of
the heads, of the MLP and of the vocabulary. Both are measured (`Bound`, `BoundOfRanks`); the faster one is the bound.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common import median_time
from mini_vllm import AttentionMetadata, KVCache, PagedGatherBackend
from mini_vllm.platforms.cpu.products import project

PREFILL_TILE = 2048
PARTS = ("prefill_products", "decode_products_per_step", "attention_per_step")


class Bound:
    """For one of `ranks` processes that share a loaded Llama-like model. Times are in seconds.

    Args:
        ranks: each has 1 / `ranks` of the heads, the MLP and the vocabulary; of a weight only the shape matters here,
            so every rank takes the first share.
        meet: called before each part is timed, so that all ranks are at work at the same time.
    """

    def __init__(
        self, model: Any, block_size: int = 16, ranks: int = 1, meet: Callable[[], Any] = lambda: None
    ) -> None:
        self.model, self.block_size, self.ranks, self.meet = model, block_size, ranks, meet
        layers = model.model.layers
        of_rows = [(x.self_attn.qkv_proj, x.mlp.gate_up_proj) for x in layers]
        of_columns = [(x.self_attn.o_proj, x.mlp.down_proj) for x in layers]
        self.layers = [
            [self._rows(qkv), self._columns(o), self._rows(gate_up), self._columns(down)]
            for (qkv, gate_up), (o, down) in zip(of_rows, of_columns, strict=True)
        ]
        self.lm_head = self._rows(model.lm_head)

    def _rows(self, linear: Any) -> Any:
        return linear.weight[: len(linear.weight) // self.ranks]

    def _columns(self, linear: Any) -> Any:
        return np.ascontiguousarray(linear.weight[:, : linear.weight.shape[1] // self.ranks])

    def products_time(self, num_tokens: int, num_logits: int, repeats: int) -> float:
        """All products of one step: every layer's four with `num_tokens`, the output embedding with `num_logits`."""
        rng = np.random.default_rng(0)
        dtype = self.model.dtype
        layers, lm_head = self.layers, self.lm_head
        widths = {w.shape[1] for w in layers[0]} | {lm_head.shape[1]}
        inputs = {n: rng.standard_normal((n, num_tokens)).astype(dtype) for n in widths}
        outputs = {len(w): np.empty((len(w), num_tokens), dtype) for w in layers[0]}
        last = np.ascontiguousarray(inputs[lm_head.shape[1]][:, :num_logits])
        logits = np.empty((len(lm_head), num_logits), dtype)

        def products(multiply: Callable[[Any, Any, Any], Any]) -> None:
            for weights in layers:
                for weight in weights:
                    multiply(weight, inputs[weight.shape[1]], outputs[len(weight)])
            multiply(lm_head, last, logits)

        times = []
        for way in (np.matmul, project):
            self.meet()
            times.append(median_time(partial(products, way), repeats))
        return min(times)

    def attention_time(self, batch: int, context: int, repeats: int) -> float:
        """Gather and attention of all layers for one decode step with `context` tokens in each request."""
        m, size = self.model, self.block_size
        heads, kv_heads = m.num_heads // self.ranks, m.num_kv_heads // self.ranks
        blocks = -(-context // size)
        cache = KVCache(m.num_layers, batch * blocks + 1, size, kv_heads, m.head_dim, m.dtype)
        cache.data[:] = 0.5
        backend = PagedGatherBackend(cache, heads, m.sliding_windows)
        tables = np.arange(1, batch * blocks + 1).reshape(batch, blocks)
        slots = tables[:, -1] * size + (context - 1) % size
        step = backend.begin_step(AttentionMetadata(np.arange(batch + 1), np.full(batch, context), tables, slots))
        q, k, v = (np.full((batch, n, m.head_dim), 0.1, m.dtype) for n in (heads, kv_heads, kv_heads))

        def attention() -> None:
            for layer in range(m.num_layers):
                step(layer, q, k, v)

        self.meet()
        return median_time(attention, repeats)

    def parts(self, batch: int, prompt_len: int, output_len: int, repeats: int) -> dict[str, float]:
        """Seconds of the products of the whole prefill, and of the products and the attention of one decode step."""
        total = batch * prompt_len
        whole, rest = divmod(total, PREFILL_TILE)
        prefill = whole * self.products_time(PREFILL_TILE, batch, 3) if whole else 0.0
        prefill += self.products_time(rest, batch, 3) if rest else 0.0
        products = self.products_time(batch, batch, repeats)
        attention = self.attention_time(batch, prompt_len + output_len // 2, repeats)
        return dict(zip(PARTS, (prefill, products, attention), strict=True))


def time_of(parts: dict[str, float], output_len: int) -> dict[str, float]:
    """`parts`, and what they come to; the first output token comes from the prefill, the rest from decode steps."""
    prefill, products, attention = (parts[name] for name in PARTS)
    steps = output_len - 1
    return {**parts, "products_only": prefill + steps * products, "total": prefill + steps * (products + attention)}


class BoundOfRanks:
    """`Bound` measured in `ranks` processes at the same time, one thread of BLAS in each; a part takes as long as in
    its slowest rank. No rank waits for another between two products."""

    def __init__(self, model: str, ranks: int) -> None:
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(ranks)
        threads = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        os.environ.update(dict.fromkeys(threads, "1"))  # the ranks read them when they import numpy
        self._pipes = []
        for _ in range(ranks):
            ours, theirs = context.Pipe()
            context.Process(target=_answer, args=(model, ranks, barrier, theirs), daemon=True).start()
            self._pipes.append(ours)
        for pipe in self._pipes:
            pipe.recv()
        os.environ.update({name: value for name, value in threads.items() if value is not None})

    def parts(self, *question: int) -> dict[str, float]:
        """As `Bound.parts`."""
        for pipe in self._pipes:
            pipe.send(question)
        answers = [pipe.recv() for pipe in self._pipes]
        return {name: max(answer[name] for answer in answers) for name in PARTS}


def _answer(model: str, ranks: int, barrier: Any, pipe: Any) -> None:
    """What a rank of `BoundOfRanks` does: load, then measure whatever it is asked for."""
    from mini_vllm import load_model

    bound = Bound(load_model(model), ranks=ranks, meet=barrier.wait)
    pipe.send("ready")
    while True:
        try:
            question = pipe.recv()
        except EOFError:  # whoever asked has ended
            return
        pipe.send(bound.parts(*question))


def matvec_bandwidth(gib: float = 1.0, repeats: int = 5) -> float:
    """Bytes per second of a matrix-vector product over `gib` GiB of float32: what memory gives to a decode step."""
    columns = 16384
    rows = int(gib * 2**30) // (4 * columns)
    matrix = np.ones((rows, columns), np.float32)
    vector, out = np.ones(columns, np.float32), np.empty(rows, np.float32)
    return matrix.nbytes / median_time(lambda: np.dot(matrix, vector, out=out), repeats)

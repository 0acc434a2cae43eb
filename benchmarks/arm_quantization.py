"""One arm: one way of storing weights and KV, in a process of its own. Run by `quantization.py`.

Its job: {"model", "engine": arguments of `LLM`, "text": npz with rows of token ids and what to score, or null,
"choices": where to put the likeliest tokens, "batches", "prompt_len", "output_len", "repeats"}.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.arm_mini import peak_bytes, proc_bytes
from benchmarks.common import make_prompts
from mini_vllm import LLM, AttentionMetadata, SamplingParams
from mini_vllm.utils.arrays import Array

TOKENS_AT_ONCE = 2048


def together(lengths: Array) -> Iterator[Array]:
    """Rows in groups of at most `TOKENS_AT_ONCE` tokens."""
    group: list[int] = []
    for row, length in enumerate(lengths.tolist()):
        if group and lengths[group].sum() + length > TOKENS_AT_ONCE:
            yield np.array(group)
            group = []
        group.append(row)
    yield np.array(group)


def score(llm: LLM, ids: Array, lengths: Array, scored: Array) -> tuple[float, Array]:
    """Mean negative log-likelihood of the scored tokens, and the likeliest token in the place of each.

    Each conversation is one prefill over the engine's own KV cache.

    Args:
        ids: the rows one after the other [tokens]; lengths [rows]; scored [tokens], true for tokens to be predicted.
    """
    runner: Any = llm.llm_engine.engine_core.model_runner
    size = runner.block_size
    starts = np.concatenate([[0], np.cumsum(lengths)])
    total, choices = 0.0, []
    for rows in together(lengths):
        lens = lengths[rows]
        blocks = -(-lens // size)
        first_block = 1 + np.concatenate([[0], np.cumsum(blocks)[:-1]])
        tables = first_block[:, None] + np.arange(blocks.max())
        positions = np.concatenate([np.arange(n) for n in lens])
        slots = np.repeat(first_block * size, lens) + positions
        tokens = slice(starts[rows[0]], starts[rows[-1] + 1])
        metadata = AttentionMetadata(np.concatenate([[0], np.cumsum(lens)]), lens, tables, slots)
        hidden = runner.forward(ids[tokens], positions, runner.attention.begin_step(metadata))
        wanted = np.flatnonzero(scored[tokens])  # never the first of a row
        logits = runner.compute_logits(hidden[wanted - 1]).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(len(wanted)), ids[tokens][wanted]]
        total += float((np.log(np.exp(logits).sum(axis=1)) - chosen).sum())
        choices.append(logits.argmax(axis=1).astype(np.int32))
    likeliest = np.concatenate(choices)
    return total / len(likeliest), likeliest


def speed(llm: LLM, job: dict[str, Any]) -> dict[str, float]:
    """Output tokens per second by batch size, medians."""
    params = SamplingParams(temperature=0.0, max_tokens=job["output_len"], ignore_eos=True, detokenize=False)
    found = {}
    for batch in job["batches"]:
        times = []
        for repeat in range(job["repeats"] + 1):  # the first is a warm-up
            prompts = make_prompts(batch, job["prompt_len"], llm.llm_engine.model.vocab_size, 1000 * batch + repeat)
            start = time.perf_counter()
            llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
            times.append(time.perf_counter() - start)
        found[str(batch)] = batch * job["output_len"] / statistics.median(times[1:])
    return found


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Bytes as counted and as resident, perplexity, speed."""
    before = proc_bytes("self/status", "VmRSS")
    llm = LLM(job["model"], enable_prefix_caching=False, **job["engine"])
    gc.collect()
    engine: Any = llm.llm_engine
    cache = engine.engine_core.model_runner.kv_cache
    result: dict[str, Any] = {
        "weights": engine.model.weight_nbytes,
        "resident": proc_bytes("self/status", "VmRSS") - before,
        "peak": peak_bytes() - before,
        "kv_bytes_per_token": cache.nbytes // (cache.num_blocks * cache.block_size),
        "kv_tokens": (engine.engine_core.num_blocks - 1) * cache.block_size,
    }
    if job["text"]:
        text = np.load(job["text"])
        nats, likeliest = score(llm, text["ids"], text["lengths"], text["scored"])
        np.save(job["choices"], likeliest)
        result |= {"nats": nats, "perplexity": math.exp(nats), "scored": len(likeliest)}
    result["tokens_per_second"] = speed(llm, job)
    return result


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))

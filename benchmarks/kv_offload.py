"""What offloading is worth: computing a prompt again beside loading it from the host or a disk, on pocket.

    python -m benchmarks.kv_offload            # two minutes on two idle cores
    python -m benchmarks.kv_offload --quick    # a few seconds, nothing written

Everything goes through the engine: a prompt of N tokens and one more, one token out, until the answer is there.

    compute     the pool is empty: all tokens are computed
    host        the pool is empty, the host's memory has N tokens
    disk        pool and host are empty, N tokens are files (in the system's page cache: they were written just now)

The arms take turns. Then conversations that do not fit the pool, in a circle and at random: the share of tokens that
need not be computed, for several sizes of the host's memory and both policies.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import ROOT, limit_threads, machine, make_prompts, save, table

LENGTHS = (16, 64, 128, 256, 512, 1024, 1920)
CONVERSATIONS, BLOCKS, POOL = 12, 8, 34
HOST_SIZES = (0, 32, 64, 88, 96, 110)


def connector(num_bytes: int, folder: str | None = None, policy: str = "lru") -> dict[str, Any]:
    """Settings of a connector that keeps so many bytes in the host, and files below it."""
    extra: dict[str, Any] = {"cpu_bytes_to_use": num_bytes, "eviction_policy": policy}
    if folder is not None:
        tiers = [{"type": "fs_python", "root_dir": folder}]
        extra = {**extra, "spec_name": "TieringOffloadingSpec", "secondary_tiers": tiers}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def make(transfer: dict[str, Any] | None, num_blocks: int = 300) -> Any:
    """An engine on pocket."""
    from mini_vllm import LLM

    return LLM(str(ROOT / "models" / "pocket"), num_blocks=num_blocks, kv_transfer_config=transfer)


def serve(llm: Any, prompt: list[int]) -> Any:
    """A prompt, and the one token that it gets."""
    from mini_vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    return llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0]


def settle(llm: Any) -> Any:
    """Let all copies end; the manager, None without one."""
    core = llm.llm_engine.engine_core
    while core.has_requests():
        core.step_fn()
    if core.scheduler.connector is None:
        return None
    manager = core.scheduler.connector.connector.connector_scheduler.manager
    for tier in getattr(manager, "secondary_tiers", ()):
        tier._pool.wait_idle()
        list(manager.take_events())
    return manager


def empty_pool(llm: Any) -> None:
    """Only what is offloaded is left."""
    settle(llm)
    assert llm.reset_prefix_cache()


def empty_pool_and_host(llm: Any) -> None:
    """Only the files are left."""
    empty_pool(llm)
    settle(llm).primary_tier.reset_cache()


def timed(llm: Any, prompt: list[int], prepare: Callable[[Any], None], cached: int) -> tuple[float, list[int]]:
    """Milliseconds of a prompt of which so many tokens are found, and its answer."""
    prepare(llm)
    start = time.perf_counter()
    output = serve(llm, prompt)
    took = (time.perf_counter() - start) * 1e3
    assert output.num_cached_tokens == cached, (output.num_cached_tokens, cached)
    return took, output.outputs[0].token_ids


def spread(times: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
    return {"low": low, "median": middle, "high": high}


def break_even(lengths: Sequence[int], repeats: int, folder: str) -> dict[str, Any]:
    """Each length and arm: milliseconds; and what a first prompt costs while it is stored."""
    arms = {
        "compute": (make(None), empty_pool),
        "host": (make(connector(1 << 26)), empty_pool),
        "disk": (make(connector(1 << 26, folder)), empty_pool_and_host),
    }
    vocab = arms["compute"][0].llm_engine.model.vocab_size
    rows, cold = [], []
    for length in lengths:
        times: dict[str, list[float]] = {name: [] for name in arms}
        first: dict[str, list[float]] = {name: [] for name in arms}
        for turn in range(repeats):
            [prompt] = make_prompts(1, length + 1, vocab, 1000 * length + turn)
            answers = []
            for name, (llm, prepare) in arms.items():
                first[name].append(timed(llm, prompt, empty_pool, 0)[0])
                took, answer = timed(llm, prompt, prepare, 0 if name == "compute" else length)
                times[name].append(took)
                answers.append(answer)
            assert answers.count(answers[0]) == len(answers), "a load changed an answer"
        rows.append({"tokens": length, **{name: spread(each) for name, each in times.items()}})
        cold.append({"tokens": length, **{name: spread(each) for name, each in first.items()}})
    return {"loaded": rows, "first": cold, "copies": copies(arms["host"][0])}


def copies(llm: Any) -> dict[str, float]:
    """GB/s of the threads that copy between pool and host."""
    worker = llm.llm_engine.engine_core.model_runner.kv_connector.kv_connector.connector_worker
    rates = {"->".join(kind): worker.num_bytes[kind] / worker.seconds[kind] / 1e9 for kind in worker.num_bytes}
    return {name: round(rate, 2) for name, rate in rates.items()}


def hit_rates(rounds: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Share of the prompts' tokens that were found, and milliseconds of a request, conversations in turn."""
    from mini_vllm import LLM

    block_bytes = 16 * 2 * 2 * 64 * 4 * 8  # tokens, key and value, heads, numbers, bytes, layers
    probe: LLM = make(None, POOL)
    vocab = probe.llm_engine.model.vocab_size
    prompts = make_prompts(CONVERSATIONS, 16 * BLOCKS + 1, vocab, 5)
    orders = {"in a circle": list(range(CONVERSATIONS)) * rounds}
    rng = random.Random(0)
    orders["at random"] = [rng.randrange(CONVERSATIONS) for _ in orders["in a circle"]]
    found = []
    for order, numbers in orders.items():
        for size in sizes:
            for policy in ("lru", "arc") if size else ("none",):
                llm = make(connector(size * block_bytes, policy=policy) if size else None, POOL)
                cached, start = 0, time.perf_counter()
                for number in numbers:
                    cached += serve(llm, prompts[number]).num_cached_tokens
                took = (time.perf_counter() - start) / len(numbers) * 1e3
                of = len(numbers) * 16 * BLOCKS
                found.append({"order": order, "host": size, "policy": policy, "hits": cached / of, "ms": took})
    return found


def cell(times: dict[str, float]) -> str:
    """Median and quartiles, as in the table."""
    return f"{times['median']:.2f} ({times['low']:.2f} to {times['high']:.2f})"


def page(result: dict[str, Any], repeats: int, threads: int) -> str:
    """The tables, and how they were made."""
    rows = [
        [r["tokens"], cell(r["compute"]), cell(r["host"]), cell(r["disk"]),
         round(r["compute"]["median"] / r["host"]["median"], 1), round(r["compute"]["median"] / r["disk"]["median"], 1)]
        for r in result["loaded"]
    ]  # fmt: skip
    first = [[r["tokens"], cell(r["compute"]), cell(r["host"]), cell(r["disk"])] for r in result["first"]]
    hits = [[r["order"], r["host"], r["policy"], round(r["hits"], 3), round(r["ms"], 1)] for r in result["hits"]]
    return (
        f"# Offloading\n\n{result['machine']}\n\nPocket in float32, {threads} threads, medians and quartiles of "
        f"{repeats} prompts a length, no two alike; arms in turns, all answers equal. Milliseconds from the prompt to "
        "its one token. Of N + 1 tokens N are found, but for `compute`. The files are in the system's page cache.\n\n"
        + table(["tokens", "compute", "host", "disk", "compute / host", "compute / disk"], rows)
        + "\n\nThe same prompts when they come first, and are stored:\n\n"
        + table(["tokens", "nowhere", "in the host", "and in files"], first)
        + f"\n\nThreads that copy, GB/s: {result['copies']}. Of small copies the start counts most.\n\n"
        f"{CONVERSATIONS} conversations of {BLOCKS} blocks ({CONVERSATIONS * BLOCKS} together), a pool of {POOL - 1} "
        "blocks; hits: tokens found in pool or host, of those in whole blocks:\n\n"
        + table(["asked", "host, blocks", "policy", "hits", "ms a request"], hits)
        + "\n"
    )


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="three lengths, one repeat, one size; writes nothing")
    args = parser.parse_args()
    os.environ.update(limit_threads(args.threads, {}))
    lengths, repeats = (LENGTHS[:3], 1) if args.quick else (LENGTHS, args.repeats)
    with tempfile.TemporaryDirectory() as folder:
        result = break_even(lengths, repeats, folder)
    sizes, rounds = ((0, 110), 2) if args.quick else (HOST_SIZES, args.rounds)
    result = {"machine": machine(), **result, "hits": hit_rates(rounds, sizes)}
    save("kv_offload", result, page(result, repeats, args.threads), keep=not args.quick)


if __name__ == "__main__":
    main()

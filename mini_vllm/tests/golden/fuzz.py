"""What fuzzers share that hold fresh random workloads against vLLM 0.22.1: the comparison, step by step, and the count.

Imported by `fuzz_*.py`, which put this folder on the path and say what is made, recorded, replayed and counted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from record_scheduler import STEP_LIMIT, stand_in_model
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

ODD_BLOCKS = (3, 5, 6, 7, 12)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """`--seeds` and `--minutes`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:500", help="A:B, the first and the one after the last")
    parser.add_argument("--minutes", type=float, default=30.0)
    return parser


def plain(value: Any) -> Any:
    """As JSON has it, so that tuples equal lists."""
    return json.loads(json.dumps(value, default=lambda one: one.hex() if isinstance(one, bytes) else list(one)))


def first_difference(
    real: Any, mini: Any, is_busy: Callable[[Any], bool], each_step: Callable[[Any], None]
) -> tuple[int, str]:
    """How many steps were the same, and what then was not; "" where all were.

    Args:
        real, mini: a recorder and a replay of one workload; `last` of each is what is compared where a step differs.
        is_busy: of either, whether it has anything left to do. each_step: is told what the real one's step gave.
    """
    workload, index = mini.workload, 0
    while index < len(workload.arrivals) or is_busy(real):
        if index == STEP_LIMIT:
            return index, f"workload {workload.seed} {workload.config}: it does not end"
        theirs, ours = real._step(index), mini.step(index)
        if theirs != ours:
            where = f"workload {workload.seed} {workload.config}, step {index}"
            there, here = plain(real.last), plain(mini.last)
            for key, value in there.items():
                if value != here[key]:
                    return index, f"{where}, {key}:\n  vLLM 0.22.1 {value}\n  mini_vllm   {here[key]}"
        index += 1
        each_step(theirs)
    return index, "ours goes on" if is_busy(mini) else ""


def run(
    args: argparse.Namespace, make: Callable[[int], Any], compare: Callable[[Any, str, Counter[str]], tuple[int, str]],
    features: Callable[[Any], Iterable[str]], patches: Iterable[AbstractContextManager[Any]],
) -> int:  # fmt: skip
    """Compare one workload after the other until the seeds or the minutes are over; 1 where anything differed.

    Args:
        make: seed -> workload. features: what a workload has, to be counted. patches: of the release.
        compare: (workload, folder of the stand-in model, counts) -> see `first_difference`.
    """
    start, stop = (int(part) for part in args.seeds.split(":"))
    until, done, steps, differences, seen = time.monotonic() + 60 * args.minutes, 0, 0, 0, Counter[str]()
    init_none_hash(sha256)
    with stand_in_model() as folder, ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        for seed in range(start, stop):
            if time.monotonic() > until:
                break
            workload = make(seed)
            same, difference = compare(workload, folder, seen)
            if difference:
                print(seed, difference[:6000], flush=True)
            done, steps, differences = done + 1, steps + same, differences + bool(difference)
            seen.update(features(workload))
            seen["odd blocks"] += workload.config["block_size"] in ODD_BLOCKS
            seen["salts"] += any(arrival.salt for step in workload.arrivals for arrival in step)
    print(f"seeds {start}:{start + done}, {done} workloads, {steps} steps, {differences} differences")
    print(dict(sorted(seen.items())))
    return int(bool(differences))

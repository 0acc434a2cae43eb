"""Random workloads for the scheduler over groups that keep a state, attend to an encoder's output, or to a chunk.

Used under real vLLM and under mini_vllm; it imports neither.
"""

from __future__ import annotations

import random
from typing import Any

from mini_vllm.tests.golden.connector_workload import (
    checksum_of,
    draw_aborts,
    draw_aborts_in_flight,
    use_ids_again,
)
from mini_vllm.tests.golden.group_workload import make_arrival
from mini_vllm.tests.golden.scheduler_workload import Arrival, Workload

KINDS = ("mamba", "hybrid", "hybrid", "hybrid", "chunked", "cross")


def make_state_workload(seed: int, wide: bool = False) -> Workload:
    """The workload of this seed. wide: blocks of odd sizes, states that are kept without prefix caching, and more
    happening at once, beyond what is recorded.

    `config["groups"]` has for each KV cache group: a window or chunk (None: neither), tokens of a block, and its kind:
    "full", "sliding", "chunked", "cross" or "mamba". `config["mamba"]`: "mode" and "spec", blocks for drafts.
    `config["drafts"]`: as in `draft_workload.py`. `config["encoder"]`: "budget" and "cache", in tokens of the encoder,
    and "lengths", of each request's input. `aborts` are lists of numbers; `config["aborts_in_flight"]`: step -> such
    a list, of those that end between plan and result.
    """
    rng = random.Random(f"states/{wide}/{seed}")
    kind = rng.choice(KINDS)
    config = _config(rng, kind, wide)
    workload = Workload(seed, config)
    pieces = [[rng.randrange(5) for _ in range(rng.randint(1, 24))] for _ in range(4)]
    earlier: list[Arrival] = []
    length = rng.randint(30, 60)
    for step in range(length):
        arrivals = []
        for _ in range(rng.choice([1, 1, 2, 4]) if rng.random() < 0.4 else 0):
            arrivals.append(make_arrival(rng, workload, pieces, earlier, len(earlier), step))
            earlier.append(arrivals[-1])
        workload.arrivals.append(arrivals)
        workload.resets.append(rng.random() < 0.5 if rng.random() < (0.1 if wide else 0.05) else None)
    if config["async"] and "drafts" in config:  # a reset with a step in flight drops too many results there
        workload.resets = [None] * length
    often = 0.15 if wide else 0.08
    workload.aborts = draw_aborts(rng, length, often)
    config["aborts_in_flight"] = draw_aborts_in_flight(rng, length, 0.04)
    use_ids_again(rng, workload, 0.3 if wide else 0.1)
    return workload


def _config(rng: random.Random, kind: str, wide: bool) -> dict[str, Any]:
    size = rng.choice([3, 5, 6, 7, 12]) if wide and rng.random() < 0.4 else rng.choice([1, 2, 4, 8, 16])
    max_model_len = rng.choice([48, 64, 128])
    caching = kind != "cross" and rng.random() < 0.8
    mode = rng.choice(["align", "align", "all"]) if caching else "none"
    if wide and not caching:
        mode = rng.choice(["none", "align", "all"])
    config: dict[str, Any] = {"kind": kind, "block_size": size, "max_model_len": max_model_len, "caching": caching}
    config["policy"], config["async"] = rng.choice(["fcfs", "fcfs", "priority"]), rng.random() < 0.4
    k = 0
    if kind != "cross" and rng.random() < 0.4:
        methods = ["draft_model"] if kind == "chunked" else ["draft_model", "eagle", "eagle"]
        k = rng.choice([1, 2, 3, 5])
        config["drafts"] = {"k": k, "method": rng.choice(methods if config["async"] else [*methods, "ngram"])}
    if kind in ("mamba", "hybrid"):
        config["mamba"] = {"mode": mode, "spec": k}
    config["groups"] = _groups(rng, kind, size, max_model_len if mode == "none" else size)
    chunked = (mode == "align" and kind != "chunked") or rng.random() < 0.8
    budget = rng.choice([8, 16, 32, 64, 256]) if chunked else rng.choice([max_model_len, 2 * max_model_len])
    budget = max(budget, size) if mode == "align" else budget
    config["max_num_seqs"] = rng.randint(1, min(budget, 12))
    config["threshold"] = rng.choice([0, 0, 5, 20])
    if config["threshold"] and mode == "align":
        config["threshold"] = max(size, config["threshold"])
    if config.get("drafts", {}).get("method") == "draft_model":
        budget += config["max_num_seqs"]
    config |= {"max_num_batched_tokens": budget, "chunked": chunked, "reserve": rng.random() < 0.6}
    if kind == "cross":
        most = rng.choice([4, 12, 30])
        config["encoder"] = {"budget": most + rng.choice([0, 5, 40]), "cache": most + rng.choice([0, 5, 40])}
        config["encoder"]["most"] = most
    enough = 1 + sum(_most_blocks(config, *group) for group in config["groups"])
    config["num_blocks"] = enough + rng.choice([0, 1, 3, enough // 2, enough])
    return config


def _groups(rng: random.Random, kind: str, size: int, state_size: int) -> list[tuple[int | None, int, str]]:
    full, mamba, cross = (None, size, "full"), (None, state_size, "mamba"), (None, size, "cross")
    window = rng.choice([2, 3, 5, 8, 13, 24, 40]), size * rng.choice([1, 1, 2]), "sliding"
    chunked = rng.choice([1, 3, 8, 13, 24]), size, "chunked"
    if kind == "mamba":
        return [mamba]
    if kind == "chunked":
        return rng.choice([[chunked], [full, chunked], [chunked, full, chunked]])
    if kind == "cross":
        return rng.choice([[full, cross], [cross, full]])
    return rng.choice([[full, mamba], [full, mamba], [mamba, full], [full, mamba, mamba, mamba], [mamba, full, window],
                       [window, mamba]])  # fmt: skip


def _most_blocks(config: dict[str, Any], window: int | None, size: int, kind: str) -> int:
    """What one request holds of a group at most, so that every workload ends."""
    k, longest, budget = config.get("drafts", {}).get("k", 0), config["max_model_len"], config["max_num_batched_tokens"]
    if kind == "cross":
        return -(-config["encoder"]["most"] // size)
    if kind == "mamba" and config["mamba"]["mode"] == "align":
        return 3 + k
    most = -(-longest // size) + (k if kind == "mamba" else k // size + 1)
    return most if window is None else min(most, -(-(window + budget + k) // size) + 2)


def encoder_length(workload: Workload, request_id: str) -> int:
    """Tokens of the encoder's output for a request."""
    most = workload.config["encoder"]["most"]
    rng = random.Random(f"{workload.seed}/{request_id}/encoder")
    return rng.choice([1, most, rng.randint(1, most)])


def short(record: dict[str, Any], drafts: dict[str, list[int]], rest: list[Any]) -> dict[str, Any]:
    """A step's record in few bytes: who gets how many tokens and drafts, who is preempted; a checksum over all."""
    kept = {"tokens": record["tokens"], "drafts": {k: len(v) for k, v in drafts.items()}}
    return {**kept, "preempted": record["preempted"], "rest": checksum_of(record, drafts, rest)}

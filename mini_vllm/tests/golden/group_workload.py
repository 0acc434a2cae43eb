"""Random workloads for the scheduler over KV cache groups, wider than those of `scheduler_workload.py`.

Sliding windows and hybrids, blocks of two sizes, cache salts, follow-up turns, equal arrival times, thresholds without
chunking.

Used under real vLLM and under mini_vllm; it imports neither.
"""

from __future__ import annotations

import random
from typing import Any

from mini_vllm.tests.golden.scheduler_workload import Arrival, Workload, sampled_token


def make_group_workload(seed: int, kind: str = "") -> Workload:
    """The workload of this seed. `kind`: "full", "sliding" or "hybrid"; by default the seed chooses.

    `config["groups"]` has a pair for each KV cache group: the window (None: full attention) and tokens of a block.
    """
    rng = random.Random(f"groups/{seed}")
    kind = kind or rng.choice(["full", "sliding", "hybrid", "hybrid"])
    config = _config(rng, kind)
    workload = Workload(seed, config)
    pieces = [[rng.randrange(5) for _ in range(rng.randint(1, 24))] for _ in range(4)]
    earlier: list[Arrival] = []
    for step in range(rng.randint(20, 45)):
        arrivals = []
        for _ in range(rng.choice([1, 1, 2, 4]) if rng.random() < 0.4 else 0):
            arrivals.append(make_arrival(rng, workload, pieces, earlier, len(earlier), step))
            earlier.append(arrivals[-1])
        workload.arrivals.append(arrivals)
        workload.aborts.append(rng.randrange(1000) if rng.random() < 0.08 else None)
        workload.resets.append(rng.random() < 0.5 if rng.random() < 0.05 else None)
    return workload


def _config(rng: random.Random, kind: str) -> dict[str, Any]:
    size = rng.choice([1, 2, 4, 8, 16])
    windows = [rng.choice([1, 2, 3, 5, 8, 13, 24, 40]) for _ in range(2)]
    groups: list[tuple[int | None, int]] = [(None, size)]
    if kind == "sliding":
        groups = [(windows[0], size)]
    elif kind == "hybrid":
        ratio = rng.choice([1, 1, 1, 2, 4])
        full, sliding = (None, size * ratio), (windows[0], size)
        more = [full, sliding, (windows[1], size)]
        groups = rng.choice([[full, sliding], [sliding, full], [full, sliding, sliding], more])
    max_model_len = rng.choice([48, 64, 128])
    chunked = rng.random() < 0.8
    budget = rng.choice([8, 16, 32, 64, 256]) if chunked else rng.choice([max_model_len, 2 * max_model_len])
    # What one request holds at most, so that every workload ends.
    enough = 1
    for window, block in groups:
        most = -(-max_model_len // block)
        enough += most if window is None else min(most, -(-min(window - 1 + budget, max_model_len) // block) + 1)
    return {
        "groups": groups,
        "block_size": size,
        "max_model_len": max_model_len,
        "max_num_batched_tokens": budget,
        "max_num_seqs": rng.randint(1, min(budget, 12)),
        "threshold": rng.choice([0, 0, 5, 20]),
        "chunked": chunked,
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "reserve": rng.random() < 0.6,
        "caching": rng.random() < 0.85,
        "num_blocks": enough + rng.choice([0, 1, 3, enough // 2, enough]),
        "async": rng.random() < 0.4,
    }


def make_arrival(
    rng: random.Random, workload: Workload, pieces: list[list[int]], earlier: list[Arrival], number: int, step: int
) -> Arrival:
    prompt = [token for _ in range(rng.randint(1, 4)) for token in rng.choice(pieces)]
    salt = rng.choice(["a", "b"]) if rng.random() < 0.15 else None
    if earlier and rng.random() < 0.35:  # the next turn of a conversation: what was said before, and more
        before = rng.choice(earlier)
        answer = [sampled_token(workload.seed, before.request_id, i) for i in range(before.max_tokens)]
        prompt, salt = before.prompt + answer + rng.choice(pieces)[: rng.randint(1, 6)], before.salt
    return Arrival(
        f"r{number}",
        prompt[: workload.config["max_model_len"] - 2],
        rng.randint(1, 24),
        [rng.randrange(5)] if rng.random() < 0.2 else [],
        rng.random() < 0.7,
        rng.randrange(3) if workload.config["policy"] == "priority" else 0,
        salt,
        float(step // 3),
        rng.random() < 0.05,
    )

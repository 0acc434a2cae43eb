"""The workloads that judge the two patches, as plain data. Given: nothing to edit."""

from __future__ import annotations

from typing import Any

from mini_vllm.tests.golden.scheduler_workload import (
    EOS,
    Workload,
    arrival_time,
    make_pressed_workload,
    make_workload,
    sampled_token,
)

COMMON = {
    "block_size": 4,
    "max_model_len": 128,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 4,
    "policy": "priority",
    "threshold": 0,
    "reserve": True,
    "caching": True,
    "async": False,
}


def _arrival(name: str, first: int, length: int, max_tokens: int, priority: int, time: float) -> dict[str, Any]:
    prompt = list(range(first, first + length))
    return {
        "name": name,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "priority": priority,
        "time": time,
        "stop_token_ids": [],
        "eos": None,
    }


MISSED_TURN = {
    "config": {**COMMON, "num_blocks": 7, "caching": False, "async": True},
    "arrivals": [
        [_arrival("v", 100, 7, 2, 9, 0.0)],
        [_arrival("x", 200, 8, 8, 0, 1.0), _arrival("y", 300, 8, 8, 0, 2.0)],
    ],
    "num_steps": 3,
    "tokens": {},
}
"""Defect A: `v` awaits its last token and is passed over; `x` needs a block; what becomes of `y`?"""

UNWRITTEN = {
    "config": {**COMMON, "num_blocks": 9, "threshold": 8},
    "arrivals": [[_arrival("low", 100, 24, 2, 9, 0.0)], [_arrival("high", 500, 8, 3, 0, 1.0)]],
    "tokens": {},
}
"""Defect B: `low` loses the share that it has in this very step; with how many tokens does it resume?"""

CHUNKS_OF_SIX = {**UNWRITTEN, "config": {**COMMON, "num_blocks": 9, "threshold": 6}}
"""Defect B again: 18 tokens of `low` are computed, so its fifth block is written in part."""

BEHIND = {
    "config": {**COMMON, "num_blocks": 7, "caching": False},
    "arrivals": [
        [
            _arrival("a", 100, 7, 4, 0, 0.0),
            _arrival("b", 200, 8, 4, 1, 1.0),
            _arrival("z", 300, 8, 4, 9, 2.0),
        ]
    ],
    "tokens": {},
}
"""The victim `z` stands behind the cursor."""


def plain(workload: Workload) -> dict[str, Any]:
    """A random workload of the engine's own tests in the form of this file; its aborts and resets are left out."""
    arrivals = [
        [
            {
                "name": arrival.request_id,
                "prompt": arrival.prompt,
                "max_tokens": arrival.max_tokens,
                "priority": arrival.priority,
                "time": arrival_time(arrival),
                "stop_token_ids": arrival.stop_token_ids,
                "eos": None if arrival.ignore_eos else EOS,
            }
            for arrival in step
        ]
        for step in workload.arrivals
    ]
    tokens = {
        one["name"]: [sampled_token(workload.seed, one["name"], index) for index in range(one["max_tokens"] + 2)]
        for step in arrivals
        for one in step
    }
    return {"config": workload.config, "arrivals": arrivals, "tokens": tokens}


def pressed(seed: int) -> dict[str, Any]:
    """A crowd under the priority policy in a pool that is too small for it."""
    return plain(make_pressed_workload(seed))


def first_come_first_served(number: int) -> list[dict[str, Any]]:
    """The first workloads of the engine's own tests that run under FCFS."""
    found: list[dict[str, Any]] = []
    seed = 0
    while len(found) < number:
        workload = make_workload(seed)
        if workload.config["policy"] == "fcfs":
            found.append(plain(workload))
        seed += 1
    return found

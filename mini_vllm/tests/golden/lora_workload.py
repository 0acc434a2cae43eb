"""Random workloads for the scheduler with adapters, from a seed: who has which, and how many fit into a step.

Used under real vLLM and under mini_vllm; it imports neither.
"""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

from mini_vllm.tests.golden.group_workload import make_group_workload
from mini_vllm.tests.golden.scheduler_workload import Workload, make_pressed_workload


def make_lora_workload(seed: int) -> Workload:
    """The workload of this seed: as `make_group_workload`, every fourth as `make_pressed_workload`, with adapters.

    `config["loras"]`: "max_loras", slots of a step, and "of", the number of each request's adapter, 0: none. A turn
    that follows another's may have another adapter, so the prefix cache is asked for the same tokens of both.
    """
    rng = random.Random(f"loras/{seed}")
    workload = make_pressed_workload(seed) if seed % 4 == 3 else make_group_workload(seed)
    workload.config.setdefault("groups", [(None, workload.config["block_size"])])
    num_adapters = rng.choice([2, 3, 5, 9])
    share = rng.choice([0.3, 0.8, 1.0])
    of = {
        arrival.request_id: rng.randint(1, num_adapters) if rng.random() < share else 0
        for arrivals in workload.arrivals
        for arrival in arrivals
    }
    workload.config["loras"] = {"max_loras": rng.choice([1, 1, 2, 3, 4]), "of": of}
    return workload


def short(record: dict[str, Any], waits: list[list[str]]) -> dict[str, Any]:
    """A step's record in few bytes: who gets how many tokens, who is passed over, who is preempted; a checksum over
    the rest. waits: ids in the waiting queue and in that of the skipped, in order."""
    kept = {"tokens": record["tokens"], "skipped": waits[1], "preempted": record["preempted"]}
    rest = {key: value for key, value in record.items() if key not in kept}
    return {**kept, "rest": zlib.crc32(json.dumps([rest, waits], default=list).encode())}

"""Random workloads for the scheduler, from a seed: no model, only who arrives when, with what, and in what engine.

Used by the recorder (under real vLLM) and by the replay (under mini_vllm); it imports neither.
"""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import dataclass, field
from typing import Any

EOS = 6
VOCAB = 7


@dataclass
class Arrival:
    """A request that comes in before some step.

    `salt`: keeps its prefix to itself; `arrival_time`: None: its number; `skip_reading`: it computes its whole prompt.
    """

    request_id: str
    prompt: list[int]
    max_tokens: int
    stop_token_ids: list[int]
    ignore_eos: bool
    priority: int
    salt: str | None = None
    arrival_time: float | None = None
    skip_reading: bool = False


@dataclass
class Workload:
    """Engine settings and, for each step, what happens before it: arrivals, aborts (a number that chooses), resets."""

    seed: int
    config: dict[str, Any]
    arrivals: list[list[Arrival]] = field(default_factory=list)
    aborts: list[int | None] = field(default_factory=list)
    resets: list[bool | None] = field(default_factory=list)

    @property
    def features(self) -> set[str]:
        """What this workload exercises, for the counts in the trace's header."""
        config = self.config
        found = {
            f"policy={config['policy']}",
            f"block_size={config['block_size']}",
            f"reserve_full_isl={config['reserve']}",
            f"prefix_caching={config['caching']}",
            f"async_scheduling={config['async']}",
            f"long_prefill_token_threshold={'on' if config['threshold'] else 'off'}",
        }
        arrivals = [arrival for step in self.arrivals for arrival in step]
        if any(arrival.stop_token_ids for arrival in arrivals):
            found.add("stop_token_ids")
        if not all(arrival.ignore_eos for arrival in arrivals):
            found.add("eos")
        if any(abort is not None for abort in self.aborts):
            found.add("abort")
        if any(reset is not None for reset in self.resets):
            found.add("reset_prefix_cache")
        return found


def make_workload(seed: int) -> Workload:
    """The workload of this seed; the same on every Python."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4, 8, 16, 32, 64])
    max_model_len = rng.choice([64, 128])
    budget = rng.choice([8, 16, 32, 64, 256])
    enough = -(-max_model_len // block_size) + 1
    config = {
        "block_size": block_size,
        "max_model_len": max_model_len,
        "max_num_batched_tokens": budget,
        "max_num_seqs": rng.randint(1, min(budget, 12)),
        "threshold": rng.choice([0, 0, 5, 20]),
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "reserve": rng.random() < 0.6,
        "caching": rng.random() < 0.75,
        "num_blocks": enough + rng.choice([0, 1, 3, enough]),
        "async": random.Random(f"async/{seed}").random() < 0.35,
    }
    workload = Workload(seed, config)
    pieces = [[rng.randrange(5) for _ in range(rng.randint(1, 24))] for _ in range(4)]
    count = 0
    for _ in range(rng.randint(20, 50)):
        arrivals = []
        for _ in range(rng.choice([1, 1, 2, 4]) if rng.random() < 0.4 else 0):
            prompt = [token for _ in range(rng.randint(1, 4)) for token in rng.choice(pieces)][: max_model_len - 2]
            arrivals.append(
                Arrival(
                    f"r{count}",
                    prompt,
                    rng.randint(1, 24),
                    [rng.randrange(5)] if rng.random() < 0.2 else [],
                    rng.random() < 0.7,
                    rng.randrange(3) if config["policy"] == "priority" else 0,
                )
            )
            count += 1
        workload.arrivals.append(arrivals)
        workload.aborts.append(rng.randrange(1000) if rng.random() < 0.06 else None)
        workload.resets.append(rng.random() < 0.5 if rng.random() < 0.04 else None)
    return workload


def make_pressed_workload(seed: int) -> Workload:
    """A crowd under the priority policy in a pool that is too small for it: victims of the same step, and hits on what
    they leave behind."""
    rng = random.Random(f"pressed/{seed}")
    config = {
        "block_size": rng.choice([2, 4]),
        "max_model_len": 64,
        "max_num_batched_tokens": rng.choice([16, 32, 64]),
        "max_num_seqs": rng.randint(3, 6),
        "threshold": rng.choice([0, 8]),
        "policy": "priority",
        "reserve": rng.random() < 0.5,
        "caching": True,
        "num_blocks": 0,
        "async": rng.random() < 0.6,
    }
    config["num_blocks"] = -(-64 // config["block_size"]) + 1 + rng.choice([0, 0, 1, 2])
    workload = Workload(seed, config)
    pieces = [[rng.randrange(5) for _ in range(rng.choice([8, 16]))] for _ in range(2)]
    for _ in range(rng.randint(8, 14)):
        arrivals = []
        for _ in range(rng.choice([0, 1, 2])):
            number = sum(map(len, workload.arrivals)) + len(arrivals)
            prompt = [token for _ in range(rng.randint(1, 3)) for token in rng.choice(pieces)]
            arrivals.append(Arrival(f"r{number}", prompt, rng.randint(1, 8), [], True, rng.randrange(5)))
        workload.arrivals.append(arrivals)
    workload.aborts = [None] * len(workload.arrivals)
    workload.resets = [None] * len(workload.arrivals)
    return workload


def arrival_time(arrival: Arrival) -> float:
    """Its own, or the number in its id."""
    return float(arrival.request_id[1:]) if arrival.arrival_time is None else arrival.arrival_time


def sampled_token(seed: int, request_id: str, index: int) -> int:
    """Stand-in for the model: the request's output token number `index`."""
    return random.Random(f"{seed}/{request_id}/{index}").randrange(VOCAB)


def pick(ids: list[str], number: int) -> str:
    """The request that an abort means."""
    return sorted(ids)[number % len(ids)]


def checksum(block_ids: list[int], events: list[Any]) -> int:
    """Of the free queue and the events of a step; hashes as hexadecimal text, tuples as lists."""
    text = json.dumps([block_ids, events], default=lambda value: value.hex())
    return zlib.crc32(text.encode())

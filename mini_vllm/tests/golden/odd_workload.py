"""Random workloads that reach what `group_workload.py` leaves alone, from a seed; whose recordings stay as they are.

Blocks of 3, 5, 6, 7 and 12 tokens, two groups of full attention beside a window (the release refuses two alone),
contexts of any length, priorities from -9 to 9,
`min_tokens`, `prompt_logprobs`, repetition detection, several aborts in one call, and names that are used again once
their request has ended. Used under real vLLM and under mini_vllm; it imports neither.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.tests.golden.group_workload import make_arrival
from mini_vllm.tests.golden.scheduler_workload import Arrival, Workload

ODD_BLOCKS = (3, 5, 6, 7, 12)


@dataclass
class OddArrival(Arrival):
    """With further parameters; `repetition`: pattern lengths and how often one has to come, or None."""

    more: dict[str, Any] = field(default_factory=dict)
    repetition: tuple[int, int, int] | None = None


@dataclass
class OddWorkload(Workload):
    """`crowds`: for each step how many requests are aborted in one call, or 0."""

    crowds: list[int] = field(default_factory=list)

    @property
    def odd_features(self) -> set[str]:
        """What it has of the module's list."""
        arrivals = [each for step in self.arrivals for each in step]
        assert all(isinstance(each, OddArrival) for each in arrivals)
        found = {f"block {self.config['block_size']}", f"groups {len(self.config['groups'])}"}
        found |= {name for each in arrivals for name in each.more}  # type: ignore[attr-defined]
        names = [each.request_id for each in arrivals]
        asked = {
            "repetition": any(each.repetition for each in arrivals),  # type: ignore[attr-defined]
            "several aborts": any(count > 1 for count in self.crowds),
            "a name again": len(set(names)) < len(names),
            "two full groups": [window for window, _ in self.config["groups"]].count(None) == 2,
        }
        return found | {name for name, is_there in asked.items() if is_there}


def make_odd_workload(seed: int) -> OddWorkload:
    """The workload of this seed."""
    rng = random.Random(f"odd/{seed}")
    workload = OddWorkload(seed, _config(rng))
    pieces = [[rng.randrange(5) for _ in range(rng.randint(1, 24))] for _ in range(4)]
    earlier: list[Arrival] = []
    for step in range(rng.randint(20, 40)):
        arrivals: list[Arrival] = []
        for _ in range(rng.choice([1, 1, 2, 4]) if rng.random() < 0.45 else 0):
            plain = make_arrival(rng, workload, pieces, earlier, len(earlier), step)
            arrivals.append(_odd(rng, plain, len(earlier), workload.config["max_model_len"]))
            earlier.append(arrivals[-1])
        workload.arrivals.append(arrivals)
        workload.aborts.append(None)
        workload.crowds.append(rng.randint(1, 4) if rng.random() < 0.1 else 0)
        workload.resets.append(rng.random() < 0.5 if rng.random() < 0.05 else None)
    return workload


def _config(rng: random.Random) -> dict[str, Any]:
    size = rng.choice(ODD_BLOCKS)
    window = rng.choice([1, 2, 4, 7, 11, 30])
    kinds: list[list[tuple[int | None, int]]] = [
        [(None, size)], [(window, size)], [(None, size), (None, size), (window, size)],
        [(None, 2 * size), (window, size)],
    ]  # fmt: skip
    groups, length = rng.choice(kinds), rng.randint(30, 150)
    budget = rng.choice([7, 19, 50, 200])
    enough = 1 + sum(-(-length // block) + 2 for _, block in groups)
    return {
        "groups": groups, "block_size": size, "max_model_len": length, "max_num_batched_tokens": budget,
        "max_num_seqs": rng.randint(1, min(budget, 9)), "threshold": rng.choice([0, 3, 17]), "chunked": True,
        "policy": rng.choice(["fcfs", "priority"]), "reserve": rng.random() < 0.6, "caching": rng.random() < 0.85,
        "num_blocks": enough + rng.choice([0, 1, 3, enough]), "async": rng.random() < 0.4,
    }  # fmt: skip


def _odd(rng: random.Random, plain: Arrival, number: int, max_model_len: int) -> OddArrival:
    """`min_tokens` fit the context: beyond it the release never ends a request, and ours does (`check_stop`)."""
    more: dict[str, Any] = {}
    if rng.random() < 0.3:
        more["min_tokens"] = rng.randint(1, min(plain.max_tokens, max_model_len - len(plain.prompt)))
    if rng.random() < 0.15:
        more["prompt_logprobs"] = rng.choice([0, 1, 3])
    longest = rng.randint(1, 3)
    repetition = (longest, rng.randint(1, longest), rng.randint(2, 4)) if rng.random() < 0.2 else None
    fields = {**vars(plain), "priority": rng.randint(-9, 9), "more": more, "repetition": repetition}
    if number and rng.random() < 0.2:
        fields["request_id"] = f"r{rng.randrange(number)}"
    return OddArrival(**fields)

"""Random uses of an `OffloadingManager` in the host's memory: the same for vLLM's and for ours.

A seed means capacity, policy, threshold and what is asked, one thing after the other. What depends on answers (which
blocks can be loaded, which stores are under way) depends on the manager's own answers, so that a wrong one shows.
"""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

NUM_SEEDS, NUM_ASKED = 260, 160


def settings_of(seed: int) -> dict[str, Any]:
    """Arguments of `CPUOffloadingManager`."""
    rng = random.Random(seed)
    return {
        "num_blocks": rng.choice([1, 3, 6, 12, 24]),
        "cache_policy": ("lru", "arc")[seed % 2],
        "enable_events": rng.random() < 0.7,
        "store_threshold": rng.choice([0, 0, 1, 2, 3]),
        "max_tracker_size": rng.choice([5, 64_000]),
    }


class OffloadWorkload:
    """Args:
    manager: to be asked.
    seed: of the workload.
    """

    def __init__(self, manager: Any, seed: int) -> None:
        self.manager, self.rng = manager, random.Random(f"asked {seed}")
        self.num_conversations, self.length = self.rng.choice([2, 4, 8]), self.rng.choice([3, 6, 10])
        self.stores: list[list[bytes]] = []
        self.loads: list[list[bytes]] = []

    def run(self) -> list[Any]:
        """What the manager answered, and a checksum over all that it knows then."""
        return [(answer, self._state()) for answer in (self._ask() for _ in range(NUM_ASKED))]

    def _chain(self) -> list[bytes]:
        """A prefix of a conversation; the later ones are asked for less often."""
        number = min(self.rng.randrange(self.num_conversations), self.rng.randrange(self.num_conversations))
        length = self.rng.randint(1, self.length)
        return [bytes([number, i, 0, 0, 0, i % 2]) for i in range(length)]

    def _ask(self) -> Any:
        kinds = ("lookup", "touch", "store", "stored", "load", "loaded", "events", "reset")
        kind = self.rng.choices(kinds, (5, 4, 6, 6, 4, 4, 2, 0.1))[0]
        return [kind, getattr(self, f"_{kind}")()]

    def _lookup(self) -> list[bool | None]:
        return [self.manager.lookup(key, None) for key in self._chain()]

    def _touch(self) -> None:
        self.manager.touch(self._chain(), None)

    def _store(self) -> Any:
        chain = self._chain()
        output = self.manager.prepare_store(chain[self.rng.randrange(len(chain)) :], None)
        if output is None:
            return None
        if output.keys_to_store:
            self.stores.append(output.keys_to_store)
        return [*map(_names, (output.keys_to_store, output.evicted_keys)), output.store_spec.block_ids.tolist()]

    def _stored(self) -> Any:
        if not self.stores:
            return None
        keys = self.stores.pop(self.rng.randrange(len(self.stores)))
        success = self.rng.random() < 0.85
        self.manager.complete_store(keys, None, success)
        return [_names(keys), success]

    def _load(self) -> Any:
        keys = []
        for key in self._chain():
            if not self.manager.lookup(key, None):
                break
            keys.append(key)
        if not keys:
            return None
        self.loads.append(keys)
        return self.manager.prepare_load(keys, None).block_ids.tolist()

    def _loaded(self) -> Any:
        if not self.loads:
            return None
        keys = self.loads.pop(self.rng.randrange(len(self.loads)))
        self.manager.complete_load(keys, None)
        return _names(keys)

    def _events(self) -> list[Any]:
        return [[_names(event.keys), event.medium, event.removed] for event in self.manager.take_events()]

    def _reset(self) -> None:
        self.manager.reset_cache()
        self.stores, self.loads = [], []

    def _state(self) -> str:
        """All rows of the policy in their order, the free places, the counts of lookups."""
        policy, manager = self.manager._policy, self.manager
        rows = [getattr(policy, name) for name in ("blocks", "t1", "t2", "b1", "b2") if hasattr(policy, name)]
        held = [[[key.hex(), block and [block.block_id, block.ref_cnt]] for key, block in row.items()] for row in rows]
        counts = [[key.hex(), count] for key, count in (manager.counts or {}).items()]
        target = round(getattr(policy, "target_t1_size", 0.0), 9)
        known = [held, target, manager._free_list, manager._num_allocated_blocks, counts]
        return f"{zlib.crc32(json.dumps(known).encode()) & 0xFFFF:04x}"


def _names(keys: Any) -> list[str]:
    return [f"{key[0]}.{key[1]}" for key in keys]


def packed(records: list[Any]) -> str:
    """Answers and states as four letters each; what is in them can be had by running the workload again."""
    sums = (zlib.crc32(json.dumps(answer).encode()) & 0xFFFF for answer, _ in records)
    return "".join(f"{number:04x}{state}" for number, (_, state) in zip(sums, records, strict=True))

"""Given: conversations, what their blocks hold, and a model of two tiers that counts keys and holds none."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

SHAPE = (16, 2)
HERE = Path(__file__).resolve().parent
Key = tuple[int, int]


@cache
def content_of(key: Key) -> np.ndarray:
    """What a block with this key holds, float32 [16, 2], nobody else's."""
    rows = np.random.default_rng([*key, 7]).standard_normal(SHAPE).astype(np.float32)
    rows.setflags(write=False)
    return rows


def conversation(number: int, blocks: int) -> list[Key]:
    """The keys of a prompt."""
    return [(number, at) for at in range(blocks)]


def in_turn(number: int = 12, rounds: int = 10) -> list[int]:
    """Conversations one after the other, round and round."""
    return list(range(number)) * rounds


def at_random(number: int = 12, rounds: int = 10, seed: int = 0) -> list[int]:
    """As many, each drawn from all."""
    chance = random.Random(seed)
    return [chance.randrange(number) for _ in range(number * rounds)]


def serve(tiers: Any, order: Sequence[int], blocks: int = 8) -> dict[str, Any]:
    """One request after the other, each to its end.

    Returns:
        "hit_rate": of all blocks asked for. "hits": per request, (from the pool, from the host). "wrong": what a hit
        held that was not its own, in words, "" if all was right.
    """
    hits, wrong = [], ""
    for step, number in enumerate(order):
        keys = conversation(number, blocks)
        ids, pool, host = tiers.admit(keys)
        for at, (block_id, key) in enumerate(zip(ids, keys, strict=True)):
            if at >= pool + host:
                tiers.write(block_id, content_of(key))
            elif not np.array_equal(tiers.gpu[block_id], content_of(key)) and not wrong:
                wrong = f"request {step}: block {at} of conversation {number} {where(at, pool)} with another's rows"
        tiers.finish(ids)
        hits.append((pool, host))
    return {"hit_rate": sum(map(sum, hits)) / (blocks * len(order)), "hits": hits, "wrong": wrong}


def where(at: int, pool: int) -> str:
    """A hit, in words."""
    return "came from the pool" if at < pool else "came back from the host"


def hit_rate(when: str, host_blocks: int, order: Sequence[int], gpu_blocks: int = 32, blocks: int = 8) -> float:
    """The share of blocks found, by two lists of keys. when: a block goes to the host at the "end" of its request, or
    at its "eviction" from the pool."""
    pool: OrderedDict[Key, None] = OrderedDict()
    host: OrderedDict[Key, None] = OrderedDict()
    found = 0
    for number in order:
        keys = conversation(number, blocks)
        hits = _leading(keys, pool)
        hits += _leading(keys[hits:], host)
        found += hits
        _use(host, keys[:hits], add=False)
        out = _use(pool, keys, room=gpu_blocks)
        _use(host, keys if when == "end" else out[::-1], room=host_blocks)
    return found / (blocks * len(order))


def _leading(keys: list[Key], cache: OrderedDict[Key, None]) -> int:
    return next((at for at, key in enumerate(keys) if key not in cache), len(keys))


def _use(cache: OrderedDict[Key, None], keys: list[Key], room: int = 0, add: bool = True) -> list[Key]:
    """The keys are used, the first one last; what goes for them, in the order in which it goes."""
    for key in reversed(keys):
        if add or key in cache:
            cache[key] = None
            cache.move_to_end(key)
    return [cache.popitem(last=False)[0] for _ in range(len(cache) - room)] if add else []


@cache
def pocket(what: str) -> tuple[list[int], list[float]]:
    """(numbers of tokens, milliseconds) of the measured table; what: "compute" or "load"."""
    table = json.loads((HERE / "captured" / "pocket.json").read_text(encoding="utf-8"))[what]
    return [int(tokens) for tokens in table], [row["best"] for row in table.values()]


def milliseconds(what: str, tokens: float) -> float:
    """By pocket's table, in between on a straight line; none for no tokens."""
    at, ms = pocket(what)
    return float(np.interp(tokens, [0, *at], [0.0, *ms]))


def saved(hits: Sequence[tuple[int, int]]) -> float:
    """Milliseconds of prefill that a request is spared on average, less what its loads take."""
    rows = [milliseconds("compute", 16 * (pool + host)) - milliseconds("load", 16 * host) for pool, host in hits]
    return sum(rows) / len(rows)

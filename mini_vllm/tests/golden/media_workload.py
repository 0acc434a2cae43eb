"""Random workloads for the scheduler with media, from a seed: items in the prompts, shared, repeated and masked, and an
encoder whose budget and cache are small.

Used under real vLLM and under mini_vllm; it imports neither.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from mini_vllm.tests.golden.connector_workload import (
    checksum_of,
    draw_aborts,
    draw_aborts_in_flight,
    make_connector_workload,
    take_odd_blocks,
    use_ids_again,
)
from mini_vllm.tests.golden.draft_workload import make_draft_workload
from mini_vllm.tests.golden.group_workload import make_group_workload
from mini_vllm.tests.golden.scheduler_workload import Arrival, Workload, make_pressed_workload, sampled_token

PLACEHOLDER = 5


@dataclass
class Item:
    """An item: its identifier, its first placeholder and their number, and which of them embeddings replace."""

    identifier: str
    length: int
    mask: list[bool] | None
    offset: int = 0


@dataclass
class MediaArrival(Arrival):
    """A request with items, in the order of their places."""

    items: list[Item] = field(default_factory=list)


def make_media_workload(seed: int, wide: bool = False) -> Workload:
    """The workload of this seed: `make_group_workload`, `make_pressed_workload` or `make_draft_workload`, with items.

    wide: blocks of odd sizes and more happening at once, beyond what is recorded.

    `config["media"]`: "largest", embeddings of the largest item; "budget", "cache", `max_num_encoder_input_tokens` and
    `encoder_cache_size`; "whole", `disable_chunked_mm_input`; "decoder", it is an encoder-decoder model, whose requests
    have one item each, in front. `aborts` are lists of numbers; `config["encoder_resets"]`: the steps before which the
    encoder's cache is reset; "crowd": small items all along the prompts, where many fight for few blocks.
    """
    rng = random.Random(f"media/{wide}/{seed}")
    base, draw = rng.randrange(1 << 30), rng.random()
    decoder = rng.random() < 0.15
    if draw < 0.35 and not decoder:
        workload = make_draft_workload(base)
    elif draw < 0.65:
        workload = make_pressed_workload(base)
        workload.config["crowd"] = True
        workload.config["threshold"], workload.config["reserve"] = rng.choice([2, 3, 4]), rng.random() < 0.2
        workload.config["max_num_seqs"] += 2
    else:
        workload = make_group_workload(base, "full" if rng.random() < 0.7 else "")
    config = workload.config
    config.setdefault("groups", [(None, config["block_size"])])
    if wide and len(config["groups"]) == 1 and rng.random() < 0.4:
        take_odd_blocks(rng, config)
    pool = _pool(rng, config)
    config["media"] = _settings(rng, config, pool, decoder)
    config.setdefault("crowd", False)
    if decoder:  # as the release does
        config["caching"], config["chunked"] = False, False
        config["max_num_batched_tokens"] = max(config["max_num_batched_tokens"], config["max_model_len"])
        config["num_blocks"] += sum(config["max_model_len"] // size + 1 for window, size in config["groups"] if window)
    _give_items(rng, workload, pool)
    length, often = len(workload.arrivals), 0.12 if wide else 0.06
    workload.aborts = draw_aborts(rng, length, often)
    config["aborts_in_flight"] = draw_aborts_in_flight(rng, length, 0.04)
    config["encoder_resets"] = [step for step in range(length) if rng.random() < 0.02]
    use_ids_again(rng, workload, 0.3 if wide else 0.1)
    return workload


def make_media_connector_workload(seed: int) -> Workload:
    """As `make_connector_workload`, wide, with items: no encoder-decoder, and no crowd."""
    workload = make_connector_workload(seed, wide=True)
    rng, config = random.Random(f"media connector/{seed}"), workload.config
    pool = _pool(rng, config)
    config["media"], config["crowd"], config["encoder_resets"] = _settings(rng, config, pool, False), False, []
    _give_items(rng, workload, pool)
    return workload


def _pool(rng: random.Random, config: dict[str, Any]) -> list[Item]:
    """Items that the requests of a workload share; some are equally long, so that their placeholders are equal."""
    lengths = [rng.choice([1, 2, 3, 5, 8, 12, 20]) for _ in range(rng.randint(1, 3))]
    if "crowd" in config:
        lengths = [1, 2, 3]
    pool = []
    for number in range(rng.choice([8, 20, 40]) if "crowd" in config else rng.randint(2, 7)):
        length = min(rng.choice(lengths), config["max_model_len"] // 3)
        mask = [rng.random() < 0.6 for _ in range(length)] if rng.random() < 0.3 else None
        pool.append(Item(f"i{number}", length, mask))
    return pool


def _settings(rng: random.Random, config: dict[str, Any], pool: list[Item], decoder: bool) -> dict[str, Any]:
    largest = max(1, *(num_embeds(item) for item in pool))
    return {
        "largest": largest,
        "budget": rng.choice([1, largest, largest + 1, 2 * largest, 64, *[64] * 4 * ("crowd" in config)]),
        "cache": rng.choice([1, largest, largest + 2, 2 * largest, 64, *[8, 12, 20] * 2 * ("crowd" in config)]),
        "whole": decoder or (rng.random() < 0.4 and largest <= config["max_num_batched_tokens"]),
        "decoder": decoder,
    }


def num_embeds(item: Item) -> int:
    """What the encoder makes of it."""
    return item.length if item.mask is None else sum(item.mask)


def _give_items(rng: random.Random, workload: Workload, pool: list[Item]) -> None:
    earlier: list[MediaArrival] = []
    for step in workload.arrivals:
        for place, arrival in enumerate(step):
            made = _with_items(rng, workload, pool, arrival, earlier)
            if workload.config["crowd"] and rng.random() < 0.8:  # the last to come goes before all others
                made.priority = max(0, 9 - len(earlier))
            step[place] = made
            earlier.append(made)


def _with_items(
    rng: random.Random, workload: Workload, pool: list[Item], arrival: Arrival, earlier: list[MediaArrival]
) -> MediaArrival:
    most = workload.config["max_model_len"] - 2
    salt = arrival.salt
    if workload.config["media"]["decoder"]:  # the encoder's input is no part of the prompt
        items = [rng.choice(pool)] if rng.random() < 0.9 else []
        return MediaArrival(**vars(replace(arrival, prompt=arrival.prompt[: most // 2])), items=items)
    prompt, items = [], []
    if earlier and rng.random() < 0.45:  # what somebody has said, perhaps about other pictures of the same size
        before = rng.choice(earlier)
        prompt, items, salt = list(before.prompt), list(before.items), before.salt
        if rng.random() < 0.4:
            items = [_twin(rng, pool, item) for item in items]
        if rng.random() < 0.5:
            prompt += [sampled_token(workload.seed, before.request_id, i) for i in range(before.max_tokens)]
    text = arrival.prompt
    crowd = workload.config["crowd"]
    for _ in range(rng.choice([6, 9, 12, 16] if crowd else [0, 1, 1, 2, 3, 5])):
        cut = rng.choice([0, 0, 1, 1 if crowd else rng.randint(0, len(text))])
        item = rng.choice(pool)
        prompt, text = prompt + text[:cut], text[cut:]
        items.append(replace(item, offset=len(prompt)))
        prompt += [PLACEHOLDER] * item.length
    prompt = [*prompt, *text][:most]
    items = [item for item in items if item.offset + item.length <= len(prompt)]
    return MediaArrival(**vars(replace(arrival, prompt=prompt, salt=salt)), items=items)


def _twin(rng: random.Random, pool: list[Item], item: Item) -> Item:
    """An item of the same length."""
    return replace(rng.choice([one for one in pool if one.length == item.length]), offset=item.offset)


def encoder_state(manager: Any) -> list[Any]:
    """All that an `EncoderCacheManager` knows; of an `EncoderDecoderCacheManager` its room."""
    if hasattr(manager, "to_free"):
        return [manager.num_free_slots, manager.allocated, manager.to_free]
    cached = [[identifier, sorted(users)] for identifier, users in manager.cached.items()]
    counts = [manager.num_free_slots, manager.num_freeable_slots]
    return [cached, list(manager.freeable.items()), manager.freed, *counts]


def short(record: dict[str, Any], drafts: dict[str, list[int]], rest: list[Any]) -> dict[str, Any]:
    """A step's record in few bytes: the plan's tokens, what is encoded and forgotten, the victims; a checksum over
    all."""
    kept = {name: record[name] for name in ("encoder", "forgotten") if record[name]}
    kept |= {"tokens": record["tokens"], "preempted": record["preempted"]}
    return {**kept, "rest": checksum_of(record, drafts, rest)}

"""Generated conversations as padded rows of token ids in length buckets; each shard has a seed and a process."""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from models.training.chat_format import CLASS_PAD, SPECIAL_TOKENS, to_ids
from models.training.conversations import make_conversation

BUCKETS = (64, 128, 256, 512, 1024, 2048)
SHARD = 5_000


@dataclass
class Rows:
    """One bucket: `ids` and `classes`, both [rows, length]; padding is id 0, class 0."""

    ids: np.ndarray
    classes: np.ndarray


def encoder(tokenizer: Tokenizer):
    """`encode` without special tokens, and the ids of the special tokens."""
    special = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, special


def make_shard(seed: int, tokenizer_file: str, count: int = SHARD) -> dict[int, Rows]:
    """`count` conversations of one seed, by bucket; the rare longer ones are cut."""
    encode, special = encoder(Tokenizer.from_file(tokenizer_file))
    rng = random.Random(seed)
    found: dict[int, list[tuple[list[int], list[int]]]] = {length: [] for length in BUCKETS}
    for _ in range(count):
        ids, classes = to_ids(make_conversation(rng), encode, special)
        ids, classes = ids[: BUCKETS[-1]], classes[: BUCKETS[-1]]
        found[next(length for length in BUCKETS if len(ids) <= length)].append((ids, classes))
    return {length: pad(rows, length) for length, rows in found.items()}


def pad(rows: list[tuple[list[int], list[int]]], length: int) -> Rows:
    """Rows of one length, padded on the right."""
    ids = np.zeros((len(rows), length), np.uint16)
    classes = np.full((len(rows), length), CLASS_PAD, np.uint8)
    for i, (row, cls) in enumerate(rows):
        ids[i, : len(row)], classes[i, : len(row)] = row, cls
    return Rows(ids, classes)


def make_dataset(tokenizer_file: Path, shards: int, first_seed: int, workers: int) -> dict[int, Rows]:
    """All shards together, by bucket; the result does not depend on the number of workers."""
    seeds = range(first_seed, first_seed + shards)
    job = partial(make_shard, tokenizer_file=str(tokenizer_file))
    if workers <= 1:
        parts = [job(seed) for seed in seeds]
    else:
        with ProcessPoolExecutor(workers) as pool:
            parts = list(pool.map(job, seeds))
    return {
        length: Rows(np.concatenate([p[length].ids for p in parts]), np.concatenate([p[length].classes for p in parts]))
        for length in BUCKETS
    }

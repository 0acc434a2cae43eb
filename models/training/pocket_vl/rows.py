"""Chats as rows of token ids with loss classes and pictures; batches by worker processes, each batch from its seed."""

from __future__ import annotations

import functools
import multiprocessing as mp
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from mini_vllm import load_tokenizer
from models.training.chat_format import Conversation, to_ids
from models.training.pocket_vl.conversations import LETTERS, Chat, make_chat
from models.training.pocket_vl.layout import IMAGE_ID, IMAGE_SIZE, NUM_PATCHES, SPECIAL_TOKENS, TOKEN_IDS
from models.training.pocket_vl.pictures import BACKGROUNDS, COLOURS, SHAPES, Picture

LENGTH = 224
END_ID = TOKEN_IDS["eos_token_id"]
CONCEPTS = {name: i for i, name in enumerate([*BACKGROUNDS, *COLOURS, *SHAPES, *"0123456789", *LETTERS])}


@dataclass
class Batch:
    """`ids` uint16 and `classes` uint8 [rows, length]; `pixels` uint8 [pictures, 64, 64, 3]; `concepts` uint8
    [pictures, concepts]: 1 where the picture shows it."""

    ids: np.ndarray
    classes: np.ndarray
    pixels: np.ndarray
    concepts: np.ndarray


def make_encoder(folder: Path) -> tuple[Callable[[str], list[int]], dict[str, int]]:
    """`encode` without special tokens around, which remembers, and the ids of the special tokens."""
    tokenizer = load_tokenizer(folder)

    @functools.lru_cache(maxsize=300_000)
    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    return lambda text: list(encode(text)), {token: i for i, token in enumerate(SPECIAL_TOKENS)}


def chat_ids(chat: Chat, encode: Callable[[str], list[int]], special: dict[str, int]) -> tuple[list[int], list[int]]:
    """Ids and classes of a chat; each `<image>` stands as often as the tower gives vectors, with class 0 (no loss)."""
    found_ids: list[int] = []
    found_classes: list[int] = []
    for i, kind in zip(*to_ids(Conversation(messages=chat.messages), encode, special), strict=True):
        found_ids += [i] * NUM_PATCHES if i == IMAGE_ID else [i]
        found_classes += [0] * NUM_PATCHES if i == IMAGE_ID else [kind]
    return found_ids, found_classes


def cut(ids: list[int], classes: list[int], length: int) -> tuple[list[int], list[int]]:
    """The whole turns that fit into `length`.

    Raises:
        ValueError: not even the first answer fits.
    """
    if len(ids) > length:
        ends = [i for i in range(length) if ids[i] == END_ID and classes[i] == 2]
        if not ends:
            raise ValueError(f"a first turn of {len(ids)} tokens does not fit into {length}")
        ids, classes = ids[: ends[-1] + 1], classes[: ends[-1] + 1]
    return ids, classes


def concepts_of(picture: Picture) -> np.ndarray:
    """What the picture shows, uint8 [concepts]."""
    found = np.zeros(len(CONCEPTS), np.uint8)
    names = [name for thing in picture.things for name in (thing.colour, thing.shape)]
    names += [picture.background, *picture.text, *([picture.ink] if picture.ink else [])]
    found[[CONCEPTS[name] for name in names]] = 1
    return found


def pictures_of(rows: int) -> list[int]:
    """Pictures of each row of a batch: mostly one, some with two, three or none."""
    three, two, none = rows // 40, rows // 10, rows // 32
    return [1] * (rows - three - two - none) + [2] * two + [3] * three + [0] * none


def _fitting(
    rng: np.random.Generator, count: int, length: int, encode: Callable, special: dict[str, int]
) -> tuple[Chat, list[int], list[int]]:
    """A chat whose first answer fits; others are drawn again, 100 times at most.

    Raises:
        ValueError: none of them fits; of the last.
    """
    for tries in range(100, 0, -1):
        chat = make_chat(rng, count)
        try:
            return chat, *cut(*chat_ids(chat, encode, special), length)
        except ValueError:
            if tries == 1:
                raise
    raise AssertionError("the last try returns or raises")


def make_batch(seed: int, index: int, rows: int, length: int, encode: Callable, special: dict[str, int]) -> Batch:
    """Batch number `index` of a run with this seed; nothing else has a say."""
    rng = np.random.default_rng([seed, index])
    ids, classes = np.zeros((rows, length), np.uint16), np.zeros((rows, length), np.uint8)
    pictures: list[Picture] = []
    for row, count in enumerate(pictures_of(rows)):
        chat, row_ids, row_classes = _fitting(rng, count, length, encode, special)
        ids[row, : len(row_ids)], classes[row, : len(row_ids)] = row_ids, row_classes
        pictures += chat.pictures
    pixels = np.stack([picture.pixels for picture in pictures])
    return Batch(ids, classes, pixels, np.stack([concepts_of(picture) for picture in pictures]))


def _work(pipe: Connection, folder: Path, seed: int, indices: range, rows: int, length: int) -> None:
    """A worker: makes the batches of its indices and sends their bytes; ends when nobody listens any more."""
    encode, special = make_encoder(folder)
    try:
        for index in indices:
            batch = make_batch(seed, index, rows, length, encode, special)
            for array in (batch.ids, batch.classes, batch.pixels, batch.concepts):
                pipe.send_bytes(np.ascontiguousarray(array).data.cast("B"))
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass


def _receive(pipe: Connection, rows: int, length: int) -> Batch:
    ids, classes, pixels, concepts = (np.frombuffer(bytearray(pipe.recv_bytes()), np.uint8) for _ in range(4))
    return Batch(
        ids.view(np.uint16).reshape(rows, length),
        classes.reshape(rows, length),
        pixels.reshape(-1, IMAGE_SIZE, IMAGE_SIZE, 3),
        concepts.reshape(-1, len(CONCEPTS)),
    )


def batches(folder: Path, seed: int, first: int, workers: int, rows: int, length: int = LENGTH) -> Iterator[Batch]:
    """Batches number `first`, `first` + 1, …, for ever; the same with any number of workers (0: in this process)."""
    if workers == 0:
        encode, special = make_encoder(folder)
        for index in range(first, 1 << 40):
            yield make_batch(seed, index, rows, length, encode, special)
    context = mp.get_context("spawn")
    pipes, processes = [], []
    for worker in range(workers):
        ours, theirs = context.Pipe(duplex=False)
        indices = range(first + worker, 1 << 40, workers)
        arguments = (theirs, folder, seed, indices, rows, length)
        processes.append(context.Process(target=_work, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    ready: queue.Queue[Batch | None] = queue.Queue(maxsize=6)
    stop = threading.Event()
    reader = threading.Thread(target=_read, args=(pipes, ready, stop, rows, length), daemon=True)
    reader.start()
    try:
        while (batch := ready.get()) is not None:
            yield batch
        raise RuntimeError("a worker that makes batches has ended; its message stands above")
    finally:
        stop.set()
        for process in processes:
            process.terminate()


def _read(pipes: list[Connection], ready: queue.Queue, stop: threading.Event, rows: int, length: int) -> None:
    """The thread that waits for the pipes, one after the other."""
    turn = 0
    while not stop.is_set():
        try:
            batch = _receive(pipes[turn % len(pipes)], rows, length)
        except (EOFError, OSError):
            ready.put(None)
            return
        while not stop.is_set():
            try:
                ready.put(batch, timeout=0.5)
                break
            except queue.Full:
                continue
        turn += 1

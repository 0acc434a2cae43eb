"""The queue from one writer to many readers: order, sizes, a full ring, sleepers, messages that are broken off."""

import multiprocessing
import pickle
import threading
import time

import numpy as np
import pytest

from mini_vllm.distributed import shared_memory
from mini_vllm.distributed.device_communicators import shm_broadcast
from mini_vllm.distributed.device_communicators.shm_broadcast import MessageQueue

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="needs Linux on x86-64")


def nothing():
    pass


def pipes(count):
    made = [multiprocessing.Pipe() for _ in range(count)]
    return [ours for ours, _ in made], [theirs for _, theirs in made]


def test_every_reader_gets_every_message_in_order_whatever_its_size():
    queue = MessageQueue(2, max_chunk_bytes=64, max_chunks=3)
    wakers, beds = pipes(2)
    rng = np.random.default_rng(0)
    messages = [bytes(rng.integers(0, 256, int(rng.choice([0, 1, 40, 64, 65, 500])), np.uint8)) for _ in range(200)]
    found = [[], []]

    def read(reader):
        for _ in messages:
            found[reader].append(queue.dequeue(reader, beds[reader], nothing))
            if len(found[reader]) % 50 == reader:
                time.sleep(0.01)

    threads = [threading.Thread(target=read, args=(reader,)) for reader in range(2)]
    for thread in threads:
        thread.start()
    for message in messages:
        queue.enqueue(message, wakers, nothing)
    for thread in threads:
        thread.join(60)
    assert found == [messages, messages]


def echo(queue, reader, bed):
    while True:
        message = queue.dequeue(reader, bed, nothing)
        bed.send(message)
        if message is None:
            return


def test_a_spawned_reader_that_sleeps_is_woken_up():
    queue = MessageQueue(1)
    [waker], [bed] = pipes(1)
    child = multiprocessing.get_context("spawn").Process(target=echo, args=(queue, 0, bed), daemon=True)
    child.start()
    bed.close()
    for message in ({"a": [1, 2]}, "x" * (3 << 20), None):
        time.sleep(0.02)  # longer than it stays awake
        queue.enqueue(message, [waker], nothing)
        assert waker.poll(60) and waker.recv() == message
    child.join(60)
    assert child.exitcode == 0


def test_a_full_ring_waits_for_the_slowest_reader_and_asks():
    queue = MessageQueue(2, max_chunks=2)
    wakers, beds = pipes(2)
    for number in range(2):
        queue.enqueue(number, wakers, nothing)
    assert queue.dequeue(0, beds[0], nothing) == 0

    def give_up():
        raise TimeoutError("reader 1 is not there")

    with pytest.raises(TimeoutError, match="reader 1"):
        queue.enqueue(2, wakers, give_up)
    assert queue.dequeue(1, beds[1], nothing) == 0
    queue.enqueue(3, wakers, give_up)
    assert [queue.dequeue(1, beds[1], nothing) for _ in range(2)] == [1, 3]  # 2 was never sent


def test_a_message_that_is_broken_off_is_forgotten_by_the_readers():
    queue = MessageQueue(1, max_chunk_bytes=100, max_chunks=4)
    wakers, [bed] = pipes(1)
    read = []

    def interrupt():
        if not read:  # the user's Ctrl-C while the ring is full; then the reader gets on
            read.append(threading.Thread(target=lambda: read.append(queue.dequeue(0, bed, nothing))))
            read[0].start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.enqueue(b"x" * 1000, wakers, interrupt)
    queue.enqueue("next", wakers, nothing)
    read[0].join(60)
    assert read[1] == "next"


def test_a_closed_pipe_ends_a_sleeping_reader():
    queue = MessageQueue(1)
    [waker], [bed] = pipes(1)
    waker.close()
    with pytest.raises(EOFError):
        queue.dequeue(0, bed, nothing)


def test_a_message_that_cannot_be_pickled_is_not_sent():
    queue = MessageQueue(1)
    [waker], [bed] = pipes(1)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        queue.enqueue(lambda: None, [waker], nothing)
    queue.enqueue("good", [waker], nothing)
    assert queue.dequeue(0, bed, nothing) == "good"
    assert shm_broadcast.AWAKE_S < 0.01

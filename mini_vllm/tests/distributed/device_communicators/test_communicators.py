"""One interface, three transports: the same arrays come out, and the same bits on all ranks."""

import re
import threading

import numpy as np
import pytest

from mini_vllm.compilation.registry import compiled_form
from mini_vllm.distributed import shared_memory
from mini_vllm.distributed.device_communicators.counting_communicator import CountingCommunicator
from mini_vllm.distributed.device_communicators.tcp_communicator import TcpCommunicator
from mini_vllm.distributed.tcp_links import PeerLostError
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.tests.compilation.test_cpu_fused import step
from mini_vllm.tests.distributed.worlds import in_shared_memory, meet
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

NUM_ELEMENTS = 600


def on_group(transport, world_size, task, dtype=np.float64, num_elements=NUM_ELEMENTS):
    """What `task(group)` returns on each rank. transport: "shm", "tcp", or the class of another group over links."""
    if transport == "shm":
        if not shared_memory.is_supported():
            pytest.skip("shared memory needs Linux on x86-64")
        return in_shared_memory(world_size, task, num_elements, dtype)
    communicator = TcpCommunicator if transport == "tcp" else transport
    ranks = tuple(range(world_size))
    found = meet(world_size, lambda world: task(communicator(world.links, ranks, num_elements, dtype)))
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


def of_rank(rank, *shape):
    return np.random.default_rng(rank).standard_normal(shape)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_collective_on_every_transport(transport, world_size):
    check_every_collective(transport, world_size)


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.parametrize("world_size", [2, 3])
def test_every_collective_over_gloo(world_size):
    pytest.importorskip("torch")
    from mini_vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    check_every_collective(CpuCommunicator, world_size)


def check_every_collective(transport, world_size):
    def task(group):
        rank, size = group.rank, group.world_size
        group.begin_step(1)
        x = of_rank(rank, 5, 7)
        found = [group.all_reduce(x), group.all_reduce(x.T), group.all_gather(x), group.broadcast(x, size - 1)]
        group.barrier()
        parts = group.parts(0, 4, 3, 2)
        parts[rank][...] = rank + 1
        group.exchange([parts])
        found.append(sum(parts))
        group.barrier()
        if rank == 0:
            group.send(of_rank(0, 40, 33), size - 1)
        if rank == size - 1:
            np.testing.assert_array_equal(group.recv((40, 33), np.float64, 0), of_rank(0, 40, 33))
        assert group.num_meetings(rank)[0] == 1 and group.num_meetings(rank)[1] >= 6
        return found

    results = on_group(transport, world_size, task)
    arrays = [of_rank(rank, 5, 7) for rank in range(world_size)]
    for found in results:
        for i, expected in enumerate((sum(arrays), sum(arrays).T)):
            np.testing.assert_allclose(found[i], expected, atol=1e-14)
        np.testing.assert_array_equal(found[2], np.concatenate(arrays, axis=1))
        np.testing.assert_array_equal(found[3], arrays[-1])
        np.testing.assert_array_equal(found[4], np.full((3, 2), sum(range(1, world_size + 1))))
        for ours, firsts in zip(found, results[0], strict=True):
            assert ours.tobytes() == firsts.tobytes()


@pytest.mark.parametrize("count", [1, 3001, 100_003])
def test_tcp_adds_up_in_the_order_of_the_ranks_as_shared_memory_does(count):
    """Small arrays and large ones, whose sum depends on the order; more bytes than a socket's buffer holds."""

    def task(group):
        return group.all_reduce(of_rank(group.rank, count).astype(np.float32) * 10.0 ** (3 * group.rank))

    parts = [of_rank(rank, count).astype(np.float32) * 10.0 ** (3 * rank) for rank in range(3)]
    expected = (parts[0] + parts[1]) + parts[2]
    for found in on_group("tcp", 3, task, np.float32):
        assert found.tobytes() == expected.tobytes()


def test_large_arrays_go_both_ways_at_once():
    def task(group):
        return float(group.all_gather(np.full(3_000_000, float(group.rank))).sum())

    assert on_group("tcp", 2, task) == [3e6, 3e6]


def test_a_count_of_what_a_rank_does():
    def task(group):
        group = CountingCommunicator(group)
        group.rank = group.rank
        x = np.ones((2, 3), np.float64)
        group.all_reduce(x)
        group.all_gather(x)
        group.exchange([group.parts(0, 0, 4), group.parts(0, 4, 2)])
        if group.rank:
            group.recv((3,), np.float32, 0)
        else:
            group.send(np.ones(3, np.float32), 1)
        group.barrier()
        return group.calls, group.num_bytes

    first, second = on_group("tcp", 2, task)
    assert first[0] == {"all_reduce": 2, "all_gather": 1, "send": 1, "barrier": 1}
    assert first[1] == {"all_reduce": 48 + 48, "all_gather": 48, "send": 12, "barrier": 0}
    assert second[0] == {"all_reduce": 2, "all_gather": 1, "recv": 1, "barrier": 1} and second[1]["recv"] == 12


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_step_has_two_sums_for_each_layer_one_for_the_embedding_and_one_gather(tmp_path, is_compiled):
    folder = save_tiny("llama", tmp_path)

    def task(group):
        group = CountingCommunicator(group)
        model = load_model(folder, "float64", group=group)
        program = compiled_form(model) if is_compiled else model
        hidden, _ = step(program, 5, 499)
        config = model.config
        return group.calls, group.num_bytes, (config.num_hidden_layers, hidden.nbytes, config.vocab_size)

    for calls, num_bytes, (layers, hidden_bytes, vocab_size) in on_group("tcp", 2, task, num_elements=4096):
        assert calls == {"all_reduce": 2 * layers + 1, "all_gather": 1}
        assert num_bytes["all_reduce"] == (2 * layers + 1) * hidden_bytes
        assert num_bytes["all_gather"] == 5 * vocab_size // 2 * 8


def test_a_rank_that_ends_is_an_error_on_all_others():
    def task(group):
        group.barrier()
        if group.rank == 1:
            return group.close()
        for _ in range(2):  # and it stays so
            with pytest.raises(PeerLostError) as caught:
                group.all_reduce(np.ones(4))
        group.close()
        return str(caught.value)

    found = on_group("tcp", 3, task)
    assert "rank 1 at 127.0.0.1 has closed its connection" in found[0] + found[2]


def test_ranks_at_different_calls_are_told_apart():
    def task(group):
        try:
            group.all_reduce(np.ones(4 if group.rank else 5))
        except PeerLostError as error:
            return str(error)

    found = on_group("tcp", 2, task)
    assert any("where array 1 of" in str(each) and "not at the same call" in str(each) for each in found)


@pytest.mark.parametrize("reason", ["silence", "check"])
def test_a_rank_does_not_wait_for_ever(reason):
    """A silent one is named; and what `check` raises ends the wait, after which nothing goes any more."""
    over = threading.Event()

    def task(group):
        if group.rank:
            return over.wait(60)
        if reason == "silence":
            group.links.timeout, said = 0.05, "rank 0 has waited 0.05 s for rank 1 at 127.0.0.1, and nothing came"
        else:
            group.check, said = lambda: 1 / 0, "division by zero"
        try:
            with pytest.raises((PeerLostError, ZeroDivisionError), match=re.escape(said)):
                group.barrier()
            with pytest.raises(PeerLostError, match=re.escape(said)):
                group.barrier()
        finally:
            over.set()

    on_group("tcp", 2, task)

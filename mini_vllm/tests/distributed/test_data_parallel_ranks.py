"""Replicas hand each other rows: what arrives, what it costs, and what happens to those that wait for nobody."""

import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from mini_vllm.distributed import shared_memory
from mini_vllm.distributed.data_parallel_ranks import DataParallelGroup
from mini_vllm.distributed.parallel_state import initialize_model_parallel
from mini_vllm.distributed.replica_patience import ReplicaGoneError
from mini_vllm.executor.local_workers import state_of
from mini_vllm.tests.distributed.replicas import run_replicas

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
SIZES = ([3, 5], [0, 4], [0, 0], [7, 0, 2])


def rows(rank, count, width=4):
    return np.random.default_rng(10 * rank + count).normal(size=(count, width))


def all_kinds(sizes):
    """Every exchange once, twice over, so that both sides of the memory are used."""

    def task(group, tp):
        me, found = group.dp_rank, []
        for _ in range(2):
            own = rows(me, sizes[me])
            gathered, counts = group.all_gatherv([own, np.arange(sizes[me], dtype=np.int32) + 100 * me])
            summed = group.reduce_scatterv(rows(me, sum(sizes)), sizes)
            sent = [[np.full((me + dst, 2), 10 * me + dst)] for dst in range(group.dp_size)]
            found.append((gathered, counts, summed, group.all_to_allv(sent), group.all_reduce(np.array([me, 1]))))
        return found, group.num_exchanges, group.num_bytes_sent

    return task


@pytest.mark.parametrize("num_bytes", [1 << 20, 24])
@pytest.mark.parametrize("sizes", SIZES)
def test_every_replica_gets_what_is_its(sizes, num_bytes):
    """In one piece, and in pieces of 24 bytes that end in the middle of a row."""
    size, first = len(sizes), np.concatenate([[0], np.cumsum(sizes)])
    for me, (found, exchanges, _) in enumerate(run_replicas(all_kinds(sizes), size, num_bytes=num_bytes)):
        assert exchanges == 8
        for (all_rows, ids), counts, summed, received, reduced in found:
            assert counts == list(sizes)
            assert np.array_equal(all_rows, np.concatenate([rows(r, n) for r, n in enumerate(sizes)]))
            assert ids.tolist() == [100 * r + i for r, n in enumerate(sizes) for i in range(n)]
            parts = [rows(r, sum(sizes))[first[me] : first[me + 1]] for r in range(size)]
            assert np.array_equal(summed, sum(parts, np.zeros_like(parts[0])))
            for src, (part,) in enumerate(received):
                assert part.shape == (src + me, 2) and (part == 10 * src + me).all()
            assert reduced.tolist() == [sum(range(size)), size]


def test_bytes_are_those_for_others():
    sizes = [3, 5]
    for me, (_, _, num_bytes) in enumerate(run_replicas(all_kinds(sizes))):
        gathered, scattered, sent = sizes[me] * (4 * 8 + 4), sizes[1 - me] * 4 * 8, (me + 1 - me) * 2 * 8
        assert num_bytes == 2 * (gathered + scattered + sent + 2 * 8)


def test_columns_do_not_mix():
    def task(group, tp):
        (found,), _ = group.all_gatherv([np.array([group.ep_rank])])
        return found.tolist()

    assert run_replicas(task, dp_size=2, tp_size=2) == [[0, 2], [1, 3], [0, 2], [1, 3]]


def test_ranks_and_columns_are_the_groups_that_are_numbered_elsewhere():
    group = DataParallelGroup(3, 2)
    for rank in range(6):
        state = initialize_model_parallel(rank, tensor_model_parallel_size=2, data_parallel_size=3)
        group.of_replica(state.dp.rank_in_group).join(state.tp.rank_in_group)
        assert group.ep_rank == state.ep.rank_in_group and state.ep.world_size == group.world_size
        assert state.dp.ranks == tuple(dp * 2 + group.tp_rank for dp in range(3))


def test_replicas_that_are_not_at_the_same_exchange_are_told():
    def task(group, tp):
        try:
            group.all_gatherv([np.zeros((2, 3 + group.dp_rank))])
        except RuntimeError as error:
            return str(error)

    first, second = run_replicas(task)
    assert (
        first.startswith("data-parallel rank 1 (pid") and " is at another exchange than data-parallel rank 0" in first
    )
    assert second.startswith("data-parallel rank 0 (pid")


@pytest.mark.parametrize("how", ["dies", "fails", "leaves", "stops"])
def test_nobody_waits_for_a_rank_that_does_not_come(how):
    """The others raise an error that names it, and go on raising it."""

    def task(group, tp):
        group.all_reduce(np.array([1]))
        if group.dp_rank == 1:
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "stops":
                os.kill(os.getpid(), signal.SIGSTOP)
            group.abort("failed in its step: no memory" if how == "fails" else "has been shut down")
            return "gone"
        while how == "stops" and state_of(group.pid(1)) != "T":
            time.sleep(0.001)
        group.timeout = 0.0 if how == "stops" else group.timeout
        said = []
        for _ in range(2):
            try:
                group.all_reduce(np.array([1]))
            except ReplicaGoneError as error:
                said.append(str(error))
                group.abort("could not go on")
        return said

    others = (0,) if how == "stops" else (0, 2)  # of two that have no patience each might name the other
    found = run_replicas(task, len(others) + 1, silent=(1,))
    words = {"dies": "died", "fails": "failed in its step: no memory", "leaves": "has been shut down"}
    wanted = words.get(how, "SIGSTOP")
    for rank in others:
        first, again = found[rank]
        other = "could not go on"  # the other one that waits may say so first
        assert ("data-parallel rank 1 (pid" in first and wanted in first) or other in first
        assert "make a new engine" in first and "make a new engine" in again
    assert any(wanted in found[rank][0] for rank in others)


def test_the_ranks_go_to_other_processes_with_their_replica():
    group = DataParallelGroup(3, 2).of_replica(2)
    with pytest.raises(ValueError, match=r"data_parallel_rank must be from 0 to 2, got 3"):
        group.of_replica(3)
    group.join(1)
    assert (group.ep_rank, group.world_size) == (5, 6)
    assert group.name(5) == f"data-parallel rank 2, tensor-parallel rank 1 (pid {os.getpid()})"


PROGRAM = """
import pickle, sys
import numpy as np
group = pickle.load(sys.stdin.buffer).open()
group.join()
print(group.dp_rank, group.all_reduce(np.array([10 + group.dp_rank])).tolist())
"""


def test_the_ranks_go_to_programs_that_inherit_their_memory():
    """As cores are started: not by multiprocessing, and with a pickle on standard input."""
    group = DataParallelGroup(2, timeout=60.0)
    programs = []
    for dp_rank in range(2):
        inherited = group.inherited(dp_rank)
        programs.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=inherited.fds,
            )
        )  # fmt: skip
        programs[-1].stdin.write(pickle.dumps(inherited))
        programs[-1].stdin.close()
    found = [program.stdout.read().decode().split(maxsplit=1) for program in programs]
    assert found == [["0", "[21]\n"], ["1", "[21]\n"]]
    assert [program.wait() for program in programs] == [0, 0]

"""The coordinator of replicas: counts for the router, and waves of those that share experts."""

import asyncio
import os
import random
import time

import pytest

from mini_vllm import EngineDeadError
from mini_vllm.tests.engine.async_helpers import collect
from mini_vllm.tests.engine.core_thread import CoreThread
from mini_vllm.tests.engine.engines import greedy
from mini_vllm.tests.engine.lockstep import MEETINGS, InStep, Meeting
from mini_vllm.tests.engine.replicas import PROMPTS, alone, has_begun, until, with_replicas
from mini_vllm.toy_model import ToyModel

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
from mini_vllm.engine.coordinator import CoordinatorState, DPCoordinator
from mini_vllm.engine.coordinator_links import COUNTS, CoordinatorAddresses, CoordinatorLink, ReplicaLink
from mini_vllm.engine.dp_core_proc import STEPS_BETWEEN_SYNCS


def test_a_wave_begins_with_a_request_and_ends_when_the_first_replica_says_so():
    state = CoordinatorState(3)
    assert state.first_request(1, 0) == (0, 1)  # all but the one that has the request
    assert state.first_request(2, 0) is None  # another front end, which has not heard of it
    assert state.wave_complete(0) and (state.current_wave, state.engines_running) == (1, False)
    assert not state.wave_complete(0)  # the same words again
    assert state.first_request(0, 1) == (1, 0)


def test_a_request_for_a_wave_that_has_ended_starts_the_next_one_once():
    state = CoordinatorState(2)
    state.first_request(0, 0)
    state.wave_complete(0)
    assert state.first_request(0, 0) == (1, None)  # sent as of wave 0: even its replica may not know of wave 1
    state.wave_complete(1)
    assert state.start_wave(1, 2) == (2, 1)  # a replica got a request of wave 1
    assert state.start_wave(0, 2) is None and state.start_wave(0, 1) is None  # so did another, and a late one
    assert state.start_wave(0, 5) == (5, 0)  # a replica is ahead
    assert (state.current_wave, state.engines_running) == (5, True)


def test_replicas_share_the_cores_unless_the_user_has_said_it(monkeypatch):
    from mini_vllm.engine import utils

    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(utils, "num_cores", lambda: 7)
    assert utils.share_of_cores(1) == {} and utils.share_of_cores(3) == dict.fromkeys(names, "2")
    assert set(utils.share_of_cores(9).values()) == {"1"}
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert utils.share_of_cores(3) == {}


def test_counts_of_a_step_that_all_have_told_are_published_before_those_of_the_next():
    state = CoordinatorState(2)
    state.take_counts(0, 1, 2, 0, 1)
    state.take_counts(1, 3, 4, 0, 1)
    state.take_counts(0, 9, 9, 0, 2)
    assert state.take_to_publish() == [[1, 2], [3, 4]] and state.stats_changed
    assert state.take_to_publish() == [[9, 9], [3, 4]] and not state.stats_changed
    state.take_counts(1, 0, 0, 0, 1)  # late, and taken all the same
    assert state.stats_changed and state.counts == [[9, 9], [0, 0]]


def heard(link, condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
        link.update()


def test_what_front_ends_hear_and_from_whom_it_is_taken():
    import zmq

    coordinator, context = DPCoordinator(2), zmq.Context()
    addresses = coordinator.addresses
    first, second = (CoordinatorLink(addresses, 2) for _ in range(2))
    replicas = [ReplicaLink(context, addresses, rank) for rank in range(2)]
    strange = CoordinatorAddresses(addresses.inputs, addresses.engines, addresses.front, os.urandom(16))
    stranger = ReplicaLink(context, strange, 0)
    try:
        stranger.tell(COUNTS, 7, 7, 0, 0)
        replicas[1].tell(COUNTS, 2, 5, 0, 0)
        for link in (first, second):
            heard(link, lambda link=link: link.counts != [[0, 0], [0, 0]])
            assert link.counts == [[0, 0], [2, 5]] and not link.engines_running
        first.first_request(0)
        heard(second, lambda: second.engines_running)
        replicas[0].tell("wave_complete", 0)
        for link in (first, second):
            heard(link, lambda link=link: link.current_wave == 1)
            assert not link.engines_running and link.counts == [[0, 0], [2, 5]]
    finally:
        for each in (*replicas, stranger):
            each.close()
        context.destroy(0)
        first.close()
        second.close()
        coordinator.shutdown()
        coordinator.shutdown()


@pytest.fixture
def waves(monkeypatch):
    """Replicas in threads that meet in each forward pass."""
    monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", CoreThread)
    monkeypatch.setattr("mini_vllm.engine.replicas.make_dp_group", lambda setup: Meeting(2))
    yield
    MEETINGS.pop()


async def paused(client, wave):
    def is_paused():
        client.link.update()
        return client.link.current_wave == wave and not client.link.engines_running

    await until(is_paused)


def test_idle_replicas_step_along_and_all_pause_together(waves):
    expected = [output.outputs[0].token_ids for output in alone(PROMPTS, greedy(), ToyModel())]

    async def body(llm):
        client = llm.core_client
        assert client.in_lockstep
        (outputs,) = await asyncio.gather(collect(llm, "a", PROMPTS[0]))  # replica 1 has nothing to do
        assert outputs[-1].outputs[0].token_ids == expected[0]
        await paused(client, 1)
        streams = [collect(llm, str(at), prompt) for at, prompt in enumerate(PROMPTS)]
        assert [found[-1].outputs[0].token_ids for found in await asyncio.gather(*streams)] == expected
        await paused(client, 2)
        long = asyncio.create_task(collect(llm, "long", "x", greedy(max_tokens=3 * STEPS_BETWEEN_SYNCS)))
        await until(lambda: has_begun(llm, "long", long))
        await collect(llm, "short", "y", greedy(max_tokens=40))  # it ends in the middle of the wave
        assert len((await long)[-1].outputs[0].token_ids) == 3 * STEPS_BETWEEN_SYNCS
        await paused(client, 3)

    with_replicas(body, InStep())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_of_an_ended_wave_is_not_left_lying(waves, rank, monkeypatch):
    """The front end has not heard that the wave ended: it tells nobody that a request comes."""

    async def body(llm):
        client = llm.core_client
        for wave in range(1, 4):
            await collect(llm, "first")
            await paused(client, wave + (wave - 1))
            client.link.current_wave, client.link.engines_running = 0, True
            with monkeypatch.context() as deaf:
                deaf.setattr(client.link, "update", lambda: None)
                outputs = await collect(llm, "late", data_parallel_rank=rank)
            assert outputs[-1].finished
            await paused(client, 2 * wave)

    with_replicas(body, InStep())


def test_no_request_is_left_lying_whatever_the_front_end_has_heard(waves):
    chance = random.Random(5)

    async def body(llm):
        link = llm.core_client.link

        async def client(name):
            for at in range(10):
                await asyncio.sleep(chance.choice([0, 0, 0.002, 0.02, 0.06]))
                if chance.random() < 0.3:
                    link.current_wave, link.engines_running = max(0, link.current_wave - 1), True
                asked = asyncio.create_task(collect(llm, f"{name}-{at}", "x", greedy(max_tokens=chance.randint(1, 40))))
                if chance.random() < 0.2:
                    await until(lambda at=at, asked=asked: has_begun(llm, f"{name}-{at}", asked))
                    await llm.abort(f"{name}-{at}")
                assert (await asked)[-1].finished

        await asyncio.gather(*[client(name) for name in "abc"])

    with_replicas(body, InStep())


def test_the_death_of_one_is_that_of_all(waves):
    async def body(llm):
        task = asyncio.create_task(collect(llm, "a", "x", greedy(max_tokens=1500)))
        states = llm.output_processor.request_states
        await until(lambda: "a" in states and states["a"].token_ids)
        llm.core_client.core_engines[1].manager.kill()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(found, EngineDeadError) and llm.errored
        assert "is gone" in str(found) and "and the others share experts with it. Make a new engine." in str(found)

    with_replicas(body, InStep())

"""A replica dies: its requests go on in another one, and nobody notices. The cores are threads here."""

import asyncio
import itertools
from concurrent.futures import thread as futures
from types import SimpleNamespace

import pytest

from mini_vllm import EngineDeadError, SamplingParams
from mini_vllm.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from mini_vllm.engine.requests_in_flight import RequestsInFlight
from mini_vllm.structured_output.request import catch_up
from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.tests.engine.async_helpers import collect
from mini_vllm.tests.engine.core_thread import CoreThread
from mini_vllm.tests.engine.replicas import PROMPTS, alone, slowed, streams_of, until, with_replicas
from mini_vllm.tests.engine.trapped import Trapped

pytest.importorskip("zmq")
pytest.importorskip("msgspec")


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", CoreThread)


def shown(outputs):
    """What a request ended with, of each of its completions."""
    keys = "text", "token_ids", "finish_reason", "stop_reason", "cumulative_logprob"
    last = {each.index: each for output in outputs for each in output.outputs}
    found = {index: {key: getattr(each, key) for key in keys} for index, each in last.items()}
    return found, outputs[-1].prompt_logprobs is not None


def lose_one(params, prompts=PROMPTS, rank=0, **kwargs):
    """The streams of `prompts` with two replicas of which one dies, and what one core gives."""

    async def body(llm):
        async def kill():
            llm.core_client.core_engines[rank].manager.kill()
            await until(lambda: rank in llm.core_client.dead)

        found = await streams_of(llm, prompts, params, kill, **kwargs.pop("how", {}))
        assert list(llm.core_client.dead) == [rank] and llm.is_running and llm.core_client.alive == [1 - rank]
        return found, (await collect(llm, "after", "and one more"))[-1]

    found, after = with_replicas(body, Trapped(slow=True), **kwargs)
    assert after.finished and len(after.outputs[0].token_ids) == 8
    expected = [shown([output]) for output in alone(prompts, params, **kwargs)]
    assert [shown(outputs) for outputs in found] == expected
    return found


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 1.0, "seed": 7, "top_p": 0.9},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "min_tokens": 20},
        {"logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 1.0, "seed": 3, "n": 2},
    ],
    ids=["greedy", "seeded", "penalties", "logprobs", "n"],
)
def test_streams_go_on_without_lost_or_doubled_tokens(more):
    found = lose_one(slowed(**more))
    for outputs in found:
        texts = [output.outputs[0].text for output in outputs if output.outputs[0].index == 0]
        assert all(later.startswith(before) for before, later in itertools.pairwise(texts))


def test_a_stop_string_that_lies_on_both_sides_is_found():
    (output,) = alone(PROMPTS[:1], slowed())
    stop = output.outputs[0].text[6:18]
    outputs = lose_one(slowed(stop=[stop], include_stop_str_in_output=True))
    assert outputs[0][-1].outputs[0].stop_reason == stop


def test_a_grammar_goes_on_where_it_stood():
    pattern = StructuredOutputsParams(regex="(ab|cd){8}(xy){3}")
    outputs = lose_one(slowed(structured_outputs=pattern, ignore_eos=False, max_tokens=60))
    for each in outputs:
        assert each[-1].outputs[0].finish_reason == "stop" and each[-1].outputs[0].text.endswith("xyxyxy")


class Thinks:
    """Token 9 ends the thinking."""

    def is_reasoning_end_streaming(self, told, new):
        return 9 in new


class Remembers:
    def __init__(self, refuses=()):
        self.accepted, self.refuses = None, refuses

    def accept_tokens(self, request_id, tokens):
        self.accepted = tokens
        return not set(tokens) & set(self.refuses)


@pytest.mark.parametrize(
    ("tokens", "thinks", "accepted", "ended"),
    [
        ([1, 2], False, [1, 2], None),
        ([1, 2], True, None, None),
        ([1, 9], True, [], True),
        ([1, 9, 3, 4], True, [3, 4], True),
    ],
)
def test_a_grammar_is_given_what_is_its_own(tokens, thinks, accepted, ended):
    grammar, state = Remembers(), SimpleNamespace(reasoning_ended=None)
    request = SimpleNamespace(
        request_id="a", all_token_ids=[9, 5, *tokens], num_prompt_tokens=2, structured_output_request=state
    )
    catch_up(grammar, request, Thinks() if thinks else None)
    assert grammar.accepted == accepted and state.reasoning_ended is ended
    with pytest.raises(ValueError, match="which it had accepted in another replica"):
        catch_up(Remembers([2, 4, 5]), SimpleNamespace(**{**vars(request), "all_token_ids": [9, 5, 2, 4]}), None)


def test_deltas_add_up():
    from mini_vllm.sampling_params import RequestOutputKind

    params = slowed(output_kind=RequestOutputKind.DELTA)

    async def body(llm):
        async def kill():
            llm.core_client.core_engines[1].manager.kill()

        return await streams_of(llm, PROMPTS, params, kill)

    found = with_replicas(body, Trapped(slow=True))
    expected = [output.outputs[0].token_ids for output in alone(PROMPTS, slowed())]
    assert [[token for o in outputs for token in o.outputs[0].token_ids] for outputs in found] == expected


def test_without_a_replica_left_everybody_hears_it():
    async def body(llm):
        async def kill():
            for client in llm.core_client.core_engines:
                client.manager.kill()

        found = await streams_of(llm, PROMPTS, slowed(max_tokens=1500), kill)
        assert {type(each) for each in found} == {EngineDeadError}
        assert all("it was killed" in str(each) for each in found) and llm.errored
        for call in (collect(llm, "new"), llm.check_health(), llm.get_stats(), llm.reset_prefix_cache()):
            with pytest.raises(EngineDeadError, match="it was killed"):
                await call

    with_replicas(body, Trapped(slow=True))


def test_a_dead_replica_that_nobody_waited_for_is_noticed_and_passed_by():
    async def body(llm):
        client = llm.core_client
        await collect(llm, "first")
        client.core_engines[0].manager.kill()
        client.core_engines[0].manager._thread.join()
        await asyncio.gather(*[collect(llm, str(at)) for at in range(4)])
        await llm.check_health()
        assert list(client.dead) == [0] and "it was killed" in client.dead[0].reason
        assert (await llm.get_stats()).num_steps and await llm.reset_prefix_cache()
        with pytest.raises(ValueError, match=r"data_parallel_rank=0 is gone \(.*it was killed.*\[1\]"):
            await collect(llm, "x", data_parallel_rank=0)

    with_replicas(body)


def test_a_prompt_that_kills_two_replicas_ends_alone():
    """The third one goes on with what the others left behind."""

    async def body(llm):
        async def poison():
            return (await collect(llm, "bad", "!", slowed(), data_parallel_rank=0))[-1]

        bad = None

        async def during():
            nonlocal bad
            bad = await poison()

        found = await streams_of(llm, [], slowed(), during)
        assert found == [] and bad.outputs[0].finish_reason == "error" and not bad.outputs[0].token_ids
        assert bad.outputs[0].stop_reason == "2 replicas died while this request was in them"
        assert len(llm.core_client.alive) == 1
        assert (await collect(llm, "after"))[-1].finished

    with_replicas(body, size=3)


def test_what_is_known_of_requests_in_flight():
    flight = RequestsInFlight()
    params = SamplingParams(prompt_logprobs=1)
    for at, name in enumerate("abc"):
        flight.add(EngineCoreRequest(name, [1, 2], params, data_parallel_rank=0), at % 2)
    told = flight.note(0, [EngineCoreOutput("a", [7]), EngineCoreOutput("b", [8]), EngineCoreOutput("gone", [9])])
    assert [output.request_id for output in told] == ["a", "gone"]  # b is in replica 1
    moved, given_up = flight.take_from(0)
    assert [(each.request_id, each.output_token_ids, each.data_parallel_rank) for each in moved] == [
        ("a", [7], None),
        ("c", [], None),
    ]
    assert [each.sampling_params.prompt_logprobs for each in moved] == [None, 1] and not given_up
    for request in moved:
        flight.add(request, 1)
    flight.note(1, [EngineCoreOutput("a", [8]), EngineCoreOutput("c", [5], finish_reason=FinishReason.LENGTH)])
    assert "c" not in flight and flight.forget(["b", "c", "x"]) == {1: ["b"]}
    moved, given_up = flight.take_from(1)
    assert [each.output_token_ids for each in moved] == [[7, 8]] and not given_up  # replica 1 has computed it


@pytest.mark.parametrize(("tokens", "deaths"), [([[], []], 2), ([[5], [], []], 3), ([[5], [], [6], []], 4),
                                                ([[5], [6], [7], [8]], 4)])  # fmt: skip
def test_who_has_seen_too_many_replicas_die_ends_with_an_error(tokens, deaths):
    flight, request, given_up = RequestsInFlight(), EngineCoreRequest("a", [1], SamplingParams()), []
    for rank, new in enumerate(tokens):
        assert not given_up
        flight.add(request, rank)
        if new:
            flight.note(rank, [EngineCoreOutput("a", new)])
        _, given_up = flight.take_from(rank)
    (output,) = given_up
    assert len(tokens) == deaths and "a" not in flight and output.finish_reason == FinishReason.ERROR
    assert output.stop_reason == f"{deaths} replicas died while this request was in them"


def test_replicas_end_where_the_collector_runs_in_the_midst_of_a_pool():
    """It may run while somebody has the lock of all pools of threads, and end an engine there."""

    async def body(llm):
        await collect(llm, "first")
        with futures._global_shutdown_lock:
            llm.shutdown()

    with_replicas(body)

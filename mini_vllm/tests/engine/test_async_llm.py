"""Many streams in one event loop, with the core in a thread and in a process of its own."""

import asyncio
import gc
import os
import signal
import threading

import pytest

from mini_vllm import LLM, AsyncLLM, EngineDeadError, EngineGenerateError, RequestOutputKind, SamplingParams
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.engine import async_llm
from mini_vllm.engine.output_processor import RequestOutputCollector
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.tests.engine.trapped import Trapped

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
BOTH = pytest.mark.parametrize("elsewhere", [False, True], ids=["in-process", "own-process"])
posix = pytest.mark.skipif(os.name != "posix", reason="signals")
LONG = 1500


def greedy(**kwargs):
    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 8, **kwargs})


def in_loop(elsewhere, body, model=None, **kwargs):
    """Run `body(llm)` in an event loop, with a limit that only a hang reaches."""

    async def main():
        llm = AsyncLLM(Trapped() if model is None else model, enable_multiprocessing=elsewhere, **kwargs)
        try:
            return await asyncio.wait_for(body(llm), 60)
        finally:
            llm.shutdown()

    return asyncio.run(main())


async def collect(llm, request_id, prompt="hello", params=None, **kwargs):
    return [output async for output in llm.generate(prompt, params or greedy(), request_id, **kwargs)]


async def idle(llm):
    """Wait until the core has forgotten everything: then its prefix cache can be reset."""
    while not await llm.reset_prefix_cache():
        await asyncio.sleep(0.005)
    stats = await llm.get_stats()
    assert not llm.output_processor.request_states
    return stats


@BOTH
@pytest.mark.parametrize("kind", RequestOutputKind, ids=lambda kind: kind.name)
def test_twenty_streams_at_once(elsewhere, kind):
    prompts = [f"prompt number {at}" for at in range(20)]
    params = [greedy(max_tokens=3 + at, logprobs=1) for at in range(20)]
    expected = [output.outputs[0] for output in LLM(Trapped(), num_blocks=256).generate(prompts, params)]

    async def body(llm):
        jobs = (collect(llm, str(at), prompts[at], params[at], output_kind=kind) for at in range(20))
        return await asyncio.gather(*jobs)

    for outputs, wanted in zip(in_loop(elsewhere, body), expected, strict=True):
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        parts = [output.outputs[0] for output in outputs]
        if kind is RequestOutputKind.DELTA:
            assert "".join(part.text for part in parts) == wanted.text
            assert [t for part in parts for t in part.token_ids] == wanted.token_ids
            assert sum(len(part.logprobs) for part in parts) == len(wanted.token_ids)
        else:
            assert vars(parts[-1]) == vars(wanted)
        assert len(outputs) == 1 or kind is not RequestOutputKind.FINAL_ONLY


@BOTH
def test_several_completions_come_as_they_are_made(elsewhere):
    params = SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True)
    [expected] = LLM(Trapped(), num_blocks=64).generate("hello", params)

    async def body(llm):
        streamed = await collect(llm, "a", params=params, output_kind=RequestOutputKind.DELTA)
        [whole] = await collect(llm, "a", params=params, output_kind=RequestOutputKind.FINAL_ONLY)
        return streamed, whole

    streamed, whole = in_loop(elsewhere, body)
    assert [c.token_ids for c in whole.outputs] == [c.token_ids for c in expected.outputs]
    for index, completion in enumerate(expected.outputs):
        mine = [c for output in streamed for c in output.outputs if c.index == index]
        assert [t for c in mine for t in c.token_ids] == completion.token_ids and mine[-1].finish_reason == "length"


@BOTH
def test_a_stop_string_ends_the_request_in_the_core(elsewhere):
    [plain] = LLM(Trapped(), num_blocks=64).generate("hello", greedy(max_tokens=30))
    stop = plain.outputs[0].text[8:10]

    async def body(llm):
        outputs = await collect(llm, "a", params=greedy(max_tokens=LONG, stop=[stop]))
        return outputs[-1].outputs[0], await idle(llm)

    completion, stats = in_loop(elsewhere, body)
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert stats.num_steps < LONG / 2


@BOTH
def test_a_consumer_that_leaves_ends_its_request(elsewhere):
    async def body(llm):
        async for output in llm.generate("hello", greedy(max_tokens=LONG), "left"):
            assert not output.finished
            break
        stream = llm.generate("hello", greedy(max_tokens=LONG), "closed")
        await anext(stream)
        await stream.aclose()
        task = asyncio.create_task(collect(llm, "cancelled", params=greedy(max_tokens=LONG)))
        while "cancelled" not in llm.output_processor.request_states:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gc.collect()
        return await idle(llm)

    stats = in_loop(elsewhere, body)
    assert stats.finished == {"abort": 3} and stats.num_steps < LONG


@BOTH
def test_an_abort_gives_the_consumer_a_last_output(elsewhere):
    async def body(llm):
        await llm.abort("nobody")
        await llm.abort(["nobody", "nobody else"])
        task = asyncio.create_task(collect(llm, "a", params=greedy(max_tokens=LONG)))
        parent = asyncio.create_task(collect(llm, "p", params=SamplingParams(n=2, max_tokens=LONG, ignore_eos=True)))
        while len(llm.output_processor.request_states) < 3:
            await asyncio.sleep(0)
        await llm.abort(["a", "nobody", "p"])
        await llm.abort("a")
        outputs, children = await task, await parent
        assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "abort"
        assert children[-1].finished
        await idle(llm)

    in_loop(elsewhere, body)


@BOTH
def test_an_id_in_use_again_after_an_abort(elsewhere):
    expected = LLM(Trapped(), num_blocks=64).generate("other", greedy(max_tokens=5))[0].outputs[0].token_ids

    async def body(llm):
        for _ in range(10):
            stream = llm.generate("hello", greedy(max_tokens=LONG), "a")
            await anext(stream)
            await stream.aclose()
            outputs = await collect(llm, "a", "other", greedy(max_tokens=5))
            assert outputs[-1].outputs[0].token_ids == expected

    in_loop(elsewhere, body)


@BOTH
def test_a_slow_consumer_gets_everything_at_once(elsewhere):
    async def body(llm):
        pieces = []
        async for output in llm.generate("hello", greedy(max_tokens=200), "slow", output_kind=RequestOutputKind.DELTA):
            pieces.append(output.outputs[0].token_ids)
            if len(pieces) == 1:
                await collect(llm, "fast", params=greedy(max_tokens=250))
        return pieces

    pieces = in_loop(elsewhere, body)
    [expected] = LLM(Trapped(), num_blocks=64).generate("hello", greedy(max_tokens=200))
    assert [t for ids in pieces for t in ids] == expected.outputs[0].token_ids and len(pieces) == 2


@BOTH
def test_the_event_loop_goes_on_while_the_model_computes(elsewhere):
    async def body(llm):
        task = asyncio.create_task(collect(llm, "a", "~ slow", greedy(max_tokens=20)))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        return turns

    assert in_loop(elsewhere, body) > 40  # 20 steps of 20 ms; a blocked loop would turn once a step


@BOTH
def test_bad_input_is_refused_and_the_others_go_on(elsewhere):
    async def body(llm):
        good = asyncio.create_task(collect(llm, "good", params=greedy(max_tokens=50)))
        await asyncio.sleep(0)
        with pytest.raises(ValueError, match="empty prompt"):
            await collect(llm, "a", {"prompt_token_ids": []})
        with pytest.raises(ValueError, match="needs room for 207 tokens"):
            await collect(llm, "a", "x" * 200)
        with pytest.raises(TypeError, match="sampling_params must be a SamplingParams"):
            await collect(llm, "a", "x", {"max_tokens": 3})
        with pytest.raises(ValueError, match="request_id 'good' belongs to an unfinished request"):
            await collect(llm, "good")
        assert (await good)[-1].outputs[0].finish_reason == "length"
        [*_, bad] = await collect(llm, "bad", "what?")
        assert bad.outputs[0].finish_reason == "error" and "NaN in the logits" in bad.outputs[0].stop_reason
        assert not llm.errored and llm.is_running
        await llm.check_health()

    in_loop(elsewhere, body, num_blocks=8)


@BOTH
def test_a_core_that_breaks_ends_every_stream_with_one_named_error(elsewhere):
    async def body(llm):
        tasks = [asyncio.create_task(collect(llm, str(at), "~", greedy(max_tokens=LONG))) for at in range(5)]
        await asyncio.sleep(0.05)
        tasks.append(asyncio.create_task(collect(llm, "trap", "!")))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {EngineDeadError}
        assert {str(result) for result in results} == {str(llm.dead_error)}
        assert "ArithmeticError: the model broke" in str(llm.dead_error)
        assert llm.errored and not llm.is_running and not llm.output_processor.request_states
        for call in (collect(llm, "new"), llm.check_health(), llm.get_stats(), llm.reset_prefix_cache()):
            with pytest.raises(EngineDeadError, match="the model broke"):
                await call
        await llm.abort("0")

    in_loop(elsewhere, body)
    assert in_loop(elsewhere, lambda llm: collect(llm, "a"))[-1].finished  # a new engine


@posix
def test_a_killed_core_ends_every_stream():
    async def body(llm):
        tasks = [asyncio.create_task(collect(llm, str(at), "~", greedy(max_tokens=LONG))) for at in range(5)]
        while not any(state.token_ids for state in llm.output_processor.request_states.values()):
            await asyncio.sleep(0.005)
        os.kill(llm.core_client.manager.pid, signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {str(result) for result in results} == {str(llm.dead_error)} and "SIGKILL" in str(llm.dead_error)

    in_loop(True, body)


@posix
def test_a_stopped_core_is_noticed():
    async def body(llm):
        assert not await llm.check_health(60)
        os.kill(llm.core_client.manager.pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError, match=r"gave no sign of life in 0\.2 s"):
            await llm.check_health(0.2)
        llm.core_client.iteration_timeout_s = 1
        with pytest.raises(EngineDeadError, match="has given no sign of life for 1 s"):
            await collect(llm, "a")

    in_loop(True, body)


@BOTH
def test_shutdown_with_requests_in_flight(elsewhere):
    async def body(llm):
        tasks = [asyncio.create_task(collect(llm, str(at), "~", greedy(max_tokens=LONG))) for at in range(3)]
        await asyncio.sleep(0.05)
        llm.shutdown()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {str(result) for result in results} == {str(EngineDeadError("it was shut down"))}
        with pytest.raises(EngineDeadError, match="it was shut down"):
            await collect(llm, "new")
        llm.shutdown()

    in_loop(elsewhere, body)


@BOTH
def test_shutdown_from_another_thread_and_before_any_request(elsewhere):
    async def body(llm):
        task = asyncio.create_task(collect(llm, "a", "~", greedy(max_tokens=LONG)))
        await asyncio.sleep(0.05)
        thread = threading.Thread(target=llm.shutdown)
        thread.start()
        with pytest.raises(EngineDeadError, match="it was shut down"):
            await task
        await asyncio.to_thread(thread.join)

    in_loop(elsewhere, body)
    AsyncLLM(num_blocks=8, enable_multiprocessing=elsewhere).shutdown()  # outside of any loop


@BOTH
def test_an_engine_that_nobody_holds_ends(elsewhere):
    async def main():
        llm = AsyncLLM(Trapped(), num_blocks=64, enable_multiprocessing=elsewhere)
        await collect(llm, "a")
        process = llm.core_client.manager.process if elsewhere else None
        del llm
        gc.collect()
        await asyncio.sleep(0)
        return process

    before = threading.active_count()
    process = asyncio.run(main())
    assert process is None or process.wait(30) == 0
    assert threading.active_count() <= before


def test_an_engine_belongs_to_one_loop():
    llm = AsyncLLM(num_blocks=8, enable_multiprocessing=True)
    assert asyncio.run(collect(llm, "a"))[-1].finished
    with pytest.raises(EngineDeadError, match="the event loop to which it belonged has ended"):
        asyncio.run(collect(llm, "b"))
    llm.shutdown()


@BOTH
def test_outputs_are_handled_in_chunks(elsewhere, monkeypatch):
    """With chunks of one, other tasks get a turn between two outputs of the same step."""
    monkeypatch.setattr(async_llm, "OUTPUT_PROC_CHUNK_SIZE", 1)
    sizes = []

    async def body(llm):
        process = llm.output_processor.process_outputs
        llm.output_processor.process_outputs = lambda outputs, now: sizes.append(len(outputs)) or process(outputs, now)
        return await asyncio.gather(*(collect(llm, str(at), params=greedy(max_tokens=30)) for at in range(4)))

    assert all(len(outputs[-1].outputs[0].token_ids) == 30 for outputs in in_loop(elsewhere, body))
    assert max(sizes) == 1 and sum(sizes) == 120


@BOTH
def test_another_fault_of_a_request_is_named_and_the_engine_goes_on(elsewhere):
    async def body(llm):
        process = llm.input_processor.process_inputs
        llm.input_processor.process_inputs = lambda *args: 1 / 0
        with pytest.raises(EngineGenerateError, match="ZeroDivisionError") as caught:
            await collect(llm, "a")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        llm.input_processor.process_inputs = process
        assert (await collect(llm, "a"))[-1].finished

    in_loop(elsewhere, body)


def test_engine_args_make_an_engine():
    class Args:
        model, tokenizer = None, None

        def create_engine_config(self):
            return EngineConfig(num_blocks=32, block_size=4)

    async def main():
        llm = AsyncLLM.from_engine_args(Args())
        outputs = await collect(llm, "a")
        assert llm.engine_core.num_blocks == 32 and llm.get_tokenizer() is llm.tokenizer
        llm.shutdown()
        return outputs

    assert asyncio.run(main())[-1].finished


def output(text, ids, finished=False, index=0):
    return RequestOutput("a", None, [1], [CompletionOutput(index, text, ids)], finished)


def test_the_collector_joins_deltas_and_replaces_the_rest():
    async def main():
        delta = RequestOutputCollector(RequestOutputKind.DELTA, "a")
        whole = RequestOutputCollector(RequestOutputKind.CUMULATIVE, "a")
        assert delta.get_nowait() is None
        for collector in (delta, whole):
            collector.put(output("x", [1]))
            collector.put(output("yz", [2, 3], True))
            collector.put(output("other", [9], True, index=1))
        joined, last = await delta.get(), await whole.get()
        assert [(c.text, c.token_ids) for c in joined.outputs] == [
            ("xyz", [1, 2, 3]),
            ("other", [9]),
        ] and joined.finished
        assert [(c.text, c.token_ids) for c in last.outputs] == [("yz", [2, 3]), ("other", [9])]
        assert delta.get_nowait() is None
        waiting = asyncio.create_task(delta.get())
        await asyncio.sleep(0)
        assert not waiting.done()
        delta.put(EngineDeadError("x"))
        delta.put(output("late", [4]))
        with pytest.raises(EngineDeadError):
            await waiting
        with pytest.raises(EngineDeadError):
            delta.get_nowait()

    asyncio.run(main())


@BOTH
def test_a_hundred_streams_that_come_and_go(elsewhere):
    """Some finish, some leave, some are aborted; in the end nobody holds a block, and the finished ones are right."""
    expected = LLM(Trapped(), num_blocks=64).generate("hello", greedy(max_tokens=40))[0].outputs[0].token_ids

    async def one(llm, at):
        await asyncio.sleep(at % 7 * 0.003)
        if at % 3 == 0:
            async for result in llm.generate("hello", greedy(max_tokens=40), str(at % 30 + at // 30 * 100)):
                if at % 2 and len(result.outputs[0].token_ids) > at % 11:
                    return
            assert result.outputs[0].token_ids == expected
        else:
            task = asyncio.create_task(collect(llm, f"t{at}", params=greedy(max_tokens=40)))
            await asyncio.sleep(0.01 * (at % 5))
            if at % 2:
                await llm.abort(f"t{at}")
            result = (await task)[-1]
            assert result.outputs[0].token_ids == expected[: len(result.outputs[0].token_ids)]

    async def body(llm):
        await asyncio.gather(*(one(llm, at) for at in range(100)))
        gc.collect()
        return await idle(llm)

    stats = in_loop(elsewhere, body, num_blocks=64)
    assert sum(stats.finished.values()) == 100

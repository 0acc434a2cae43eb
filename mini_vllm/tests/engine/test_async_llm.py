"""Many streams in one event loop, with the core in a thread and in a process of its own."""

import asyncio
import collections
import gc

import pytest

from mini_vllm import LLM, EngineDeadError, RequestOutputKind, SamplingParams
from mini_vllm.engine import output_handler
from mini_vllm.engine.request_output_collector import RequestOutputCollector
from mini_vllm.outputs import CompletionOutput, RequestOutput
from mini_vllm.tests.engine.async_helpers import BOTH, BOTH_SLOWLY, LONG, collect, greedy, idle, in_loop
from mini_vllm.tests.engine.trapped import GatedToy, Trapped

pytest.importorskip("zmq")
pytest.importorskip("msgspec")


@BOTH
def test_twenty_streams_at_once(run):
    prompts = [f"prompt number {at}" for at in range(20)]
    params = [greedy(max_tokens=3 + at, logprobs=1) for at in range(20)]
    expected = [output.outputs[0] for output in LLM(Trapped(), num_blocks=256).generate(prompts, params)]

    async def body(llm):
        found = {}
        for kind in RequestOutputKind:
            jobs = (collect(llm, str(at), prompts[at], params[at], output_kind=kind) for at in range(20))
            found[kind] = await asyncio.gather(*jobs)
        return found

    for kind, streams in run(body).items():
        for outputs, wanted in zip(streams, expected, strict=True):
            _is_stream_of(kind, outputs, wanted)


def _is_stream_of(kind, outputs, wanted):
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
def test_several_completions_come_as_they_are_made(run):
    params = SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True)
    [expected] = LLM(Trapped(), num_blocks=64).generate("hello", params)

    async def body(llm):
        streamed = await collect(llm, "a", params=params, output_kind=RequestOutputKind.DELTA)
        [whole] = await collect(llm, "a", params=params, output_kind=RequestOutputKind.FINAL_ONLY)
        return streamed, whole

    streamed, whole = run(body)
    assert [c.token_ids for c in whole.outputs] == [c.token_ids for c in expected.outputs]
    for index, completion in enumerate(expected.outputs):
        mine = [c for output in streamed for c in output.outputs if c.index == index]
        assert [t for c in mine for t in c.token_ids] == completion.token_ids and mine[-1].finish_reason == "length"


@BOTH
def test_a_stop_string_ends_the_request_in_the_core(run_slowly):
    [plain] = LLM(Trapped(), num_blocks=64).generate("hello", greedy(max_tokens=30))
    stop = plain.outputs[0].text[8:10]

    async def body(llm):
        before = (await llm.get_stats()).num_steps
        outputs = await collect(llm, "a", params=greedy(max_tokens=LONG, stop=[stop]))
        return outputs[-1].outputs[0], (await idle(llm)).num_steps - before

    completion, num_steps = run_slowly(body)
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert num_steps < LONG / 2


@BOTH
def test_a_consumer_that_leaves_ends_its_request(run_slowly):
    async def body(llm):
        before = await llm.get_stats()
        before = before.num_steps, collections.Counter(before.finished)
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
        stats = await idle(llm)
        return stats.num_steps - before[0], collections.Counter(stats.finished) - before[1]

    num_steps, finished = run_slowly(body)
    assert finished == {"abort": 3} and num_steps < LONG


@BOTH
def test_a_consumer_that_is_cancelled_twice_ends_its_request(run_slowly):
    """As a server does it whose client has gone: it cancels again while the abort waits for the step under way."""

    async def body(llm):
        before = (await llm.get_stats()).num_steps
        task = asyncio.create_task(collect(llm, "a", params=greedy(max_tokens=LONG)))
        while (await llm.get_stats()).num_steps == before:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        assert (await idle(llm)).num_steps - before < LONG / 2, "the core has heard of the abort"

    run_slowly(body)


@BOTH
def test_an_abort_gives_the_consumer_a_last_output(run_slowly):
    async def body(llm):
        before = (await llm.get_stats()).num_steps
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
        assert (await idle(llm)).num_steps - before < LONG / 2, "the core has heard of all aborts"

    run_slowly(body)


@BOTH
def test_an_id_in_use_again_after_an_abort(run):
    expected = LLM(Trapped(), num_blocks=64).generate("other", greedy(max_tokens=5))[0].outputs[0].token_ids

    async def body(llm):
        for _ in range(10):
            stream = llm.generate("hello", greedy(max_tokens=LONG), "a")
            await anext(stream)
            await stream.aclose()
            outputs = await collect(llm, "a", "other", greedy(max_tokens=5))
            assert outputs[-1].outputs[0].token_ids == expected

    run(body)


@BOTH_SLOWLY
def test_a_slow_consumer_gets_everything_at_once(run):
    async def body(llm):
        pieces = [[]]
        while len(pieces) == 1:  # and again, where the first look came so late that all was there
            pieces = []
            async for output in llm.generate("hello", greedy(max_tokens=40), "s", output_kind=RequestOutputKind.DELTA):
                pieces.append(output.outputs[0].token_ids)
                if len(pieces) == 1:
                    await collect(llm, "fast", params=greedy(max_tokens=60))
        return pieces

    pieces = run(body)
    [expected] = LLM(Trapped(), num_blocks=64).generate("hello", greedy(max_tokens=40))
    assert [t for ids in pieces for t in ids] == expected.outputs[0].token_ids and len(pieces) == 2


@BOTH_SLOWLY
def test_the_event_loop_goes_on_while_the_model_computes(elsewhere, tmp_path):
    """The first step takes until the loop has turned twenty times; a blocked loop would not turn."""

    async def body(llm):
        task = asyncio.create_task(collect(llm, "a", "slow", greedy(max_tokens=3)))
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert not task.done()
        (tmp_path / "go").touch()
        return await task

    assert in_loop(elsewhere, body, GatedToy(tmp_path / "go"))[-1].finished


@BOTH_SLOWLY
def test_outputs_are_handled_in_chunks(elsewhere, monkeypatch):
    """With chunks of one, other tasks get a turn between two outputs of the same step."""
    monkeypatch.setattr(output_handler, "OUTPUT_PROC_CHUNK_SIZE", 1)
    sizes = []

    async def body(llm):
        process = llm.output_processor.process_outputs
        llm.output_processor.process_outputs = lambda outputs, now: sizes.append(len(outputs)) or process(outputs, now)
        return await asyncio.gather(*(collect(llm, str(at), params=greedy(max_tokens=30)) for at in range(4)))

    assert all(len(outputs[-1].outputs[0].token_ids) == 30 for outputs in in_loop(elsewhere, body))
    assert max(sizes) == 1 and sum(sizes) == 120


def output(text, ids, finished=False, index=0):
    return RequestOutput("a", None, [1], None, [CompletionOutput(index, text, ids)], finished)


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


@pytest.mark.slow
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


@pytest.mark.parametrize("interval", [1, 3, 100])
def test_stream_interval_shows_the_first_token_at_once_and_then_several_together(interval):
    async def body(llm):
        return await collect(llm, "r", params=greedy(max_tokens=8, output_kind=RequestOutputKind.DELTA))

    outputs = in_loop(False, body, stream_interval=interval)
    sizes = [len(output.outputs[0].token_ids) for output in outputs]
    assert sum(sizes) == 8
    assert interval == 1 or all(size >= interval for size in sizes[1:-1])  # of two outputs at once comes one
    assert len(sizes) <= 2 + 7 // interval
    assert outputs[-1].finished and "".join(output.outputs[0].text for output in outputs)

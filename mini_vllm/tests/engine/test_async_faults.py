"""`AsyncLLM` when something goes wrong: bad input, a core that breaks or dies, and its own end."""

import asyncio
import gc
import os
import signal
import threading
import time

import pytest

from mini_vllm import AsyncLLM, EngineArgs, EngineDeadError, EngineGenerateError
from mini_vllm.tests.engine.async_helpers import BOTH, BOTH_SLOWLY, LONG, collect, greedy, in_loop
from mini_vllm.tests.engine.engines import TRIES
from mini_vllm.tests.engine.trapped import Trapped, stop

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


@BOTH
def test_bad_input_is_refused_and_the_others_go_on(elsewhere):
    async def taken(llm):
        """A stream, and whether its name is refused to another one: it may have come to its end before."""
        good = asyncio.create_task(collect(llm, "good", params=greedy(max_tokens=50)))
        await asyncio.sleep(0)
        try:
            await collect(llm, "good")
        except ValueError as error:
            assert str(error).startswith("request_id 'good' belongs to an unfinished request")
            return good, True
        return good, False

    async def body(llm):
        good, is_refused = await taken(llm)
        while not is_refused:
            await good
            good, is_refused = await taken(llm)
        with pytest.raises(ValueError, match="empty prompt"):
            await collect(llm, "a", {"prompt_token_ids": []})
        with pytest.raises(ValueError, match="needs room for 207 tokens"):
            await collect(llm, "a", "x" * 200)
        with pytest.raises(TypeError, match="sampling_params must be a SamplingParams"):
            await collect(llm, "a", "x", {"max_tokens": 3})
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
@pytest.mark.parametrize("sent", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_core_that_ends_while_nothing_runs_is_noticed_without_traffic(sent):
    async def body(llm):
        assert not llm.errored and llm.is_running
        os.kill(llm.core_client.manager.pid, sent)
        while not llm.errored:
            await asyncio.sleep(0.005)
        assert not llm.is_running and "its process" in str(llm.dead_error)
        with pytest.raises(EngineDeadError, match="its process"):
            await collect(llm, "a")

    in_loop(True, body)


@posix
@pytest.mark.slow
def test_a_core_that_ends_before_there_is_an_event_loop_is_noticed(patience=600):
    llm = AsyncLLM(num_blocks=8, enable_multiprocessing=True)
    assert not llm.errored
    os.kill(llm.core_client.manager.pid, signal.SIGKILL)
    deadline = time.monotonic() + patience
    while not llm.errored:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "SIGKILL" in str(llm.dead_error)
    llm.shutdown()


@pytest.mark.slow
@posix
def test_a_stopped_core_is_noticed(monkeypatch):
    monkeypatch.setattr("mini_vllm.engine.async_mp_client.SILENCE_S", 0.1)

    async def body(llm):
        assert not await llm.check_health(60)
        stop(llm.core_client.manager.pid)
        with pytest.raises(TimeoutError, match=r"gave no sign of life in 0\.2 s"):
            await llm.check_health(0.2)
        llm.core_client.iteration_timeout_s = 1
        with pytest.raises(EngineDeadError, match="has given no sign of life for 1 s"):
            await collect(llm, "a")

    in_loop(True, body)


@BOTH_SLOWLY
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


@BOTH_SLOWLY
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


@BOTH_SLOWLY
def test_an_engine_that_nobody_holds_ends(elsewhere):
    async def main():
        llm = AsyncLLM(Trapped(), num_blocks=64, enable_multiprocessing=elsewhere)
        await collect(llm, "a")
        process = llm.core_client.manager.process if elsewhere else None
        begun = set(threading.enumerate()) - before
        del llm
        gc.collect()
        await asyncio.sleep(0)
        return process, begun

    for _ in range(TRIES):
        before = set(threading.enumerate())
        process, begun = asyncio.run(main())
        code = None if process is None else process.wait(120)
        for thread in begun:
            thread.join(120)
        assert not any(thread.is_alive() for thread in begun)
        if not code:
            return
    raise AssertionError("a core never ends by itself")


@pytest.mark.slow
def test_an_engine_belongs_to_one_loop():
    llm = AsyncLLM(num_blocks=8, enable_multiprocessing=True)
    assert asyncio.run(collect(llm, "a"))[-1].finished
    with pytest.raises(EngineDeadError, match="the event loop to which it belonged has ended"):
        asyncio.run(collect(llm, "b"))
    llm.shutdown()


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


def test_engine_args_make_an_engine(monkeypatch):
    async def main():
        llm = AsyncLLM.from_engine_args(EngineArgs(num_blocks=32, block_size=4))
        outputs = await collect(llm, "a")
        assert llm.engine_core.num_blocks == 32 and llm.get_tokenizer() is llm.tokenizer
        llm.shutdown()
        return outputs

    assert asyncio.run(main())[-1].finished
    taken = []
    monkeypatch.setattr(AsyncLLM, "__init__", lambda self, **kwargs: taken.append(kwargs))
    args = EngineArgs(model="x", tokenizer="y", with_labs="all", compilation_config=0, num_gpu_blocks_override=8)
    AsyncLLM.from_engine_args(args, enable_multiprocessing=True)
    expected = {"enable_multiprocessing": True, "shared_core": None, **args.as_kwargs()}
    assert taken == [expected]  # nothing is picked out, nothing lost

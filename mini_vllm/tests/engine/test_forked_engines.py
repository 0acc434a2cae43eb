"""A forked child of a process with an engine: each of its calls says so at once, and the parent's engine goes on."""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mini_vllm import LLM, AsyncLLM, LLMEngine
from mini_vllm.distributed import shared_memory
from mini_vllm.tests.engine.engines import greedy, start
from mini_vllm.tests.executor import in_workers
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks need a POSIX system")
needs_ranks = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
slow = pytest.mark.slow
PROMPTS = [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": [8, 9, 10]}]
LIMIT_S = 60
"""That only a hang reaches."""


def in_child(calls: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """What each call came to in a forked child, that ends as Python's own processes do."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        found = {}
        for name, call in calls.items():
            try:
                found[name] = f"returned {call()!r}"
            except BaseException as error:
                found[name] = f"{type(error).__name__}: {error}"
        os.write(write, pickle.dumps(found))
        os._exit(0)
    os.close(write)
    answered = bool(select.select([read], [], [], LIMIT_S)[0])
    if not answered:
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(read, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    assert answered, "the child hangs"
    return pickle.loads(content)


def all_refused(found: dict[str, str]) -> None:
    words = f"was forked from process {os.getpid()}, to which the engine belongs: ask it there. Make a new engine here"
    assert found and not {name: said for name, said in found.items() if words not in said}


def of_an_engine(engine: LLMEngine) -> dict[str, Callable[[], Any]]:
    """What leaves the process. A core in this process is a copy in the child: only its ranks are elsewhere."""
    if engine.core_client.engine_core is not None:
        return {"step": engine.step, "rpc": lambda: engine.collective_rpc(in_workers.pid_of)}
    return {
        "step": engine.step, "step again": engine.step, "stats": lambda: engine.stats,
        "reset_prefix_cache": engine.reset_prefix_cache, "check_health": engine.check_health,
        "add": lambda: engine.add_request("new", PROMPTS[0], greedy()),
    }  # fmt: skip


def finish(engine: LLMEngine) -> list[list[int]]:
    outputs = {}
    while engine.has_unfinished_requests():
        outputs.update({output.request_id: output for output in engine.step()})
    return [outputs[key].outputs[0].token_ids for key in sorted(outputs)]


def ask(engine: LLMEngine, before_the_end: Callable[[], None] = lambda: None) -> list[list[int]]:
    for index, prompt in enumerate(PROMPTS):
        engine.add_request(str(index), prompt, greedy())
    engine.step()
    before_the_end()
    return finish(engine)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("llama", tmp_path_factory.mktemp("llama")))


@pytest.fixture(params=["core", pytest.param("tensor", marks=[needs_ranks, slow]),
                        pytest.param("pipeline", marks=[needs_ranks, slow]),
                        pytest.param("core of ranks", marks=[needs_ranks, slow])])  # fmt: skip
def engine(request: pytest.FixtureRequest, folder: str) -> Iterator[LLMEngine]:
    if request.param.startswith("core"):
        pytest.importorskip("zmq")
        pytest.importorskip("msgspec")
    sizes = {"tensor": {"tensor_parallel_size": 2}, "pipeline": {"pipeline_parallel_size": 2}}.get(request.param, {})
    if request.param == "core":
        made = start()
    elif request.param == "core of ranks":
        made = start(folder, num_blocks=64, tensor_parallel_size=2)
    else:
        made = LLMEngine(folder, num_blocks=64, **sizes)
    yield made
    made.shutdown()


def test_a_child_is_refused_and_the_parent_goes_on(engine: LLMEngine) -> None:
    """Between two requests and in the middle of them; the child shuts down, too, which ends nothing."""
    expected = ask(engine)
    all_refused(in_child(of_an_engine(engine)))

    def in_the_middle() -> None:
        all_refused(in_child(of_an_engine(engine)))
        assert in_child({"shutdown": engine.shutdown}) == {"shutdown": "returned None"}

    assert ask(engine, in_the_middle) == expected
    assert ask(engine) == expected


@needs_ranks
@slow
def test_what_goes_to_the_ranks_directly_is_refused_too(folder: str) -> None:
    llm = LLM(folder, num_blocks=64, tensor_parallel_size=2)
    executor = llm.llm_engine.engine_core.model_executor
    expected = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, greedy(), use_tqdm=False)]
    all_refused(in_child({
        "rpc": lambda: llm.llm_engine.collective_rpc(in_workers.pid_of),
        "apply_model": lambda: llm.apply_model(in_workers.num_heads),
        "generate": lambda: llm.generate(PROMPTS, greedy(), use_tqdm=False),
        "health": executor.check_health,
    }))  # fmt: skip
    assert [o.outputs[0].token_ids for o in llm.generate(PROMPTS, greedy(), use_tqdm=False)] == expected
    llm.llm_engine.engine_core.shutdown()


def of_a_loop(llm: AsyncLLM) -> dict[str, Callable[[], Any]]:
    """Each in an event loop of its own, as a child has to."""

    async def stream() -> Any:
        return [output async for output in llm.generate("hi", greedy(), "of the child")]

    async def encode() -> Any:
        return [output async for output in llm.encode("hi", greedy(), "of the child")]

    def run(make: Callable[[], Any]) -> Callable[[], Any]:
        async def main() -> Any:
            return await make()

        return lambda: asyncio.run(main())

    return {
        "generate": run(stream), "encode": run(encode), "stats": run(llm.get_stats), "health": run(llm.check_health),
        "reset": run(llm.reset_prefix_cache), "loras": run(llm.list_loras), "dead_error": lambda: _raise(llm),
    }  # fmt: skip


def _raise(llm: AsyncLLM) -> None:
    assert llm.errored and not llm.is_running
    raise llm.dead_error


@pytest.mark.parametrize("elsewhere", [False, pytest.param(True, marks=slow)], ids=["in a thread", "in a process"])
def test_a_child_of_an_event_loop_is_refused_and_the_streams_go_on(elsewhere: bool) -> None:
    if elsewhere:
        pytest.importorskip("zmq")
        pytest.importorskip("msgspec")

    async def main() -> None:
        llm = AsyncLLM(num_blocks=64, enable_multiprocessing=elsewhere)
        try:
            stream = llm.generate("hi", greedy(max_tokens=60), "0")
            await anext(stream)
            all_refused(in_child(of_a_loop(llm)))
            found = in_child({"abort": lambda: asyncio.run(llm.abort("0")), "shutdown": llm.shutdown})
            assert set(found.values()) == {"returned None"}
            assert len([output async for output in stream][-1].outputs[0].token_ids) == 60
            await llm.check_health()
            assert not llm.errored
        finally:
            llm.shutdown()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_a_copy_of_a_plain_engine_is_one_of_its_own() -> None:
    """Nothing of it is elsewhere, so a child may use it."""
    llm = LLM(num_blocks=64)
    expected = llm.generate("hi", greedy(), use_tqdm=False)[0].outputs[0].text
    call = {"text": lambda: llm.generate("hi", greedy(), use_tqdm=False)[0].outputs[0].text}
    assert in_child(call) == {"text": f"returned {expected!r}"}

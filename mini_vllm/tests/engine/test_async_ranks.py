"""`AsyncLLM` over two ranks, the core in a process of its own: streams, aborts, faults, ends; and NaN among others."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, EngineDeadError
from mini_vllm.distributed import shared_memory
from mini_vllm.model_loader.random_checkpoint import write_safetensors
from mini_vllm.model_loader.safetensors_reader import Checkpoint
from mini_vllm.tests.engine.async_helpers import BOTH, collect, greedy, idle, in_loop
from mini_vllm.tests.engine.engines import with_a_limit
from mini_vllm.tests.engine.trapped import stop
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
needs_ranks = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
ROOT = Path(__file__).resolve().parents[3]
BAD = 499
SLOW_STAGES = pytest.param("pipeline_parallel_size", marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The embedding of token 499 is NaN."""
    made = Path(save_tiny("llama", tmp_path_factory.mktemp("llama")))
    with Checkpoint(made) as stored:
        tensors = {name: stored.read(name) for name in stored.names()}
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.embed_tokens.weight"][BAD] = np.nan
    write_safetensors(made / "model.safetensors", tensors)
    return str(made)


def on_two_ranks(folder, body, cut="tensor_parallel_size", **kwargs):
    """cut: what each rank has a part of, every layer or the list of layers."""
    return in_loop(True, body, folder, num_blocks=64, max_num_seqs=8, **{cut: 2}, **kwargs)


def workers_of(pid):
    """Ranks that a process has started; Python's resource tracker is a child as well."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(*pids):
    deadline = time.monotonic() + 60
    while any(map(is_there, pids)):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.02)


async def endless(llm, name):
    """Request after request."""
    for number in itertools.count():
        await collect(llm, f"{name}-{number}", {"prompt_token_ids": [5 + number % 50, 6, 7]}, greedy(max_tokens=200))


async def running(llm, count):
    """That many streams without end, of which one has begun."""
    tasks = [asyncio.create_task(endless(llm, name)) for name in range(count)]
    while not any(state.token_ids for state in llm.output_processor.request_states.values()):
        if llm.errored:
            raise llm.dead_error
        await asyncio.sleep(0.005)
    return tasks


@pytest.mark.slow
@needs_ranks
@pytest.mark.parametrize("cut", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_streams_aborts_nan_and_two_shutdowns(folder, cut):
    """NaN in one of three requests ends that one alone, whatever its neighbours."""
    prompts = [{"prompt_token_ids": ids} for ids in ([5, 6, 7], [5, BAD, 7], [8, 9, 10, 11])]
    llm = LLM(folder, num_blocks=64)
    expected = [o.outputs[0].token_ids for o in llm.generate([prompts[0], prompts[2]], greedy(max_tokens=20))]

    async def body(llm):
        core = llm.core_client.manager.pid
        [worker] = workers_of(core)
        found = await asyncio.gather(*(collect(llm, str(i), p, greedy(max_tokens=20)) for i, p in enumerate(prompts)))
        again = itertools.count()
        while len(found[0]) == 1:  # who looks late gets all at once
            found[0] = await collect(llm, f"again {next(again)}", prompts[0], greedy(max_tokens=20))
        first, bad, last = (outputs[-1].outputs[0] for outputs in found)
        assert [first.token_ids, last.token_ids] == expected and len(found[0]) > 1
        assert bad.finish_reason == "error" and "NaN in the logits of request '1'" in bad.stop_reason
        stats = None
        while stats is None or "abort" not in stats.finished:  # the core may come to the end before it hears of it
            task = asyncio.create_task(collect(llm, "aborted", prompts[0]))
            await asyncio.sleep(0)
            await llm.abort("aborted")
            assert (await task)[-1].outputs[0].finish_reason == "abort"
            stats, late = await idle(llm), next(again)
        assert stats.finished == {"length": 2 + late, "error": 1, "abort": 1}
        await llm.check_health()
        tasks = await running(llm, 3)
        llm.shutdown()
        assert {str(e) for e in await asyncio.gather(*tasks, return_exceptions=True)} == {str(llm.dead_error)}
        llm.shutdown()
        gone(core, worker)

    on_two_ranks(folder, body, cut)


@needs_ranks
@pytest.mark.parametrize("cut", ["tensor_parallel_size", SLOW_STAGES])
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)], ids=lambda s: s.name
)
def test_a_worker_that_is_killed_or_stopped_ends_every_stream_with_one_named_error(folder, how, cut):
    async def body(llm, limit):
        core = llm.core_client.manager.pid
        [worker] = workers_of(core)
        tasks = await running(llm, 4)
        os.kill(worker, how) if how == signal.SIGKILL else stop(worker)
        said = {str(each) for each in await asyncio.gather(*tasks, return_exceptions=True)}
        stopped = f"has made no progress for {limit:g} s in .* is stopped"
        what = "died in .* by signal 9" if how == signal.SIGKILL else stopped
        assert said == {str(llm.dead_error)} and str(llm.dead_error).count("Make a new engine") == 1
        for call in (lambda: collect(llm, "new", {"prompt_token_ids": [5]}), llm.check_health, llm.get_stats):
            with pytest.raises(EngineDeadError, match=rf"RuntimeError: rank 1 \(pid {worker}\) {what}"):
                await call()
        gone(core, worker)

    def with_limit(limit):
        on_two_ranks(folder, lambda llm: body(llm, limit), cut, execute_model_timeout_seconds=limit)

    with_limit(300.0) if how == signal.SIGKILL else with_a_limit(with_limit)


@BOTH
def test_nan_among_three_requests_at_once(elsewhere):
    """ "?" has NaN in its logits; the others finish as they do alone."""

    async def body(llm):
        alone = [(await collect(llm, "0", text))[-1].outputs[0].token_ids for text in ("abc", "xyz")]
        one, bad, two = await asyncio.gather(*(collect(llm, text, text) for text in ("abc", "what?", "xyz")))
        assert [outputs[-1].outputs[0].token_ids for outputs in (one, two)] == alone
        assert bad[-1].outputs[0].finish_reason == "error" and "'what?'" in bad[-1].outputs[0].stop_reason
        assert bad[-1].finished and not bad[-1].outputs[0].token_ids and not llm.errored
        assert (await idle(llm)).finished == {"length": 4, "error": 1}

    in_loop(elsewhere, body)


SCRIPT = """
import asyncio, itertools, sys
from mini_vllm import AsyncLLM, SamplingParams
from mini_vllm.tests.engine.test_async_ranks import workers_of
async def main():
    llm = AsyncLLM(sys.argv[1], num_blocks=128, tensor_parallel_size=int(sys.argv[2]), enable_multiprocessing=True)
    core = llm.core_client.manager.pid
    print(core, *workers_of(core), flush=True)
    async def stream(name):
        prompt, params = {"prompt_token_ids": [5, 6]}, SamplingParams(max_tokens=200, ignore_eos=True)
        return [output async for output in llm.generate(prompt, params, name)]
    async def endless(name):
        for number in itertools.count():
            await stream(f"{name}-{number}")
            if name == "a" and number == 0:
                print("go", flush=True)
    try:
        await asyncio.gather(*map(endless, "abc"))
    except asyncio.CancelledError:
        print(llm.is_running, len(llm.output_processor.request_states), len(await stream("again")) > 1, flush=True)
        raise
asyncio.run(main())
"""


@needs_ranks
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_control_c_cancels_the_streams_and_nothing_is_left(folder, ranks):
    """It reaches every process, as from a terminal. Until the loop ends, the engine works."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, folder, str(ranks)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True,
    )  # fmt: skip
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == ranks and process.stdout.readline() == "go\n"
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert errors.splitlines()[-1] == "KeyboardInterrupt" and process.returncode == -signal.SIGINT
    assert "leaked" not in errors and "never awaited" not in errors
    if sys.version_info >= (3, 11):  # before, it could strike anywhere in the loop
        assert out == "True 0 True\n"
    gone(*pids)

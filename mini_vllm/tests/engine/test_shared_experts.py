"""Replicas that share experts, as they are served: processes, coordinator, waves, exchanges."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from mini_vllm import AsyncLLM, EngineDeadError
from mini_vllm.config.parallel import ALL2ALL_BACKENDS
from mini_vllm.distributed import shared_memory
from mini_vllm.tests.engine.async_helpers import collect
from mini_vllm.tests.engine.engines import greedy
from mini_vllm.tests.engine.replicas import alone, until, with_replicas
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
POCKET_MOE = str(Path(__file__).resolve().parents[3] / "models" / "pocket-moe")
PROMPTS = [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": list(range(8, 40))}, {"prompt_token_ids": [9]}]


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    return str(save_tiny("mixtral", tmp_path_factory.mktemp("mixtral")))


def check(model, prompts, **kwargs):
    """All at once; then one alone, whose replica is not the one that is idle then; in a second wave."""
    params = greedy(max_tokens=12)
    expected = [output.outputs[0].token_ids for output in alone(prompts, params, model)]

    async def body(llm):
        streams = [collect(llm, str(at), prompt, params) for at, prompt in enumerate(prompts)]
        found = [outputs[-1].outputs[0].token_ids for outputs in await asyncio.gather(*streams)]
        for rank in range(llm.config.data_parallel_size):
            outputs = await collect(llm, f"alone {rank}", prompts[0], params, data_parallel_rank=rank)
            assert outputs[-1].outputs[0].token_ids == expected[0]
        return found

    assert with_replicas(body, model, enable_expert_parallel=True, **kwargs) == expected


def test_processes_that_share_experts(mixtral):
    check(mixtral, PROMPTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend, sizes", [(ALL2ALL_BACKENDS[0], {"tensor_parallel_size": 2}), (ALL2ALL_BACKENDS[1], {"size": 3})]
)
def test_and_the_pocket_mixture(backend, sizes):
    check(POCKET_MOE, ["Once upon a time", "The cat sat", "x"], all2all_backend=backend, **sizes)


@pytest.mark.slow
def test_a_server_of_them():
    pytest.importorskip("httpx", reason="needs the extra serve")
    from mini_vllm.tests.entrypoints.openai.test_process import process

    flags = ["--data-parallel-size", "2", "--enable-expert-parallel", "--dtype", "float64"]
    (expected,) = alone(["Once upon a time"], greedy(max_tokens=12), POCKET_MOE)
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    with process(*flags, model=POCKET_MOE) as (_, client):
        answers = [client.post("/v1/completions", json={"model": POCKET_MOE, **body}).json() for _ in range(3)]
    assert [answer["choices"][0]["text"] for answer in answers] == [expected.outputs[0].text] * 3


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["core", "rank"])
def test_the_death_of_one_is_told_to_all(victim):
    """Nobody waits for a replica that is gone, nor for one whose rank is."""

    async def body(llm):
        tasks = [
            asyncio.create_task(collect(llm, str(at), "x", greedy(max_tokens=400), data_parallel_rank=at))
            for at in (0, 1)
        ]
        states = llm.output_processor.request_states
        await until(lambda: len(states) == 2 and all(state.token_ids for state in states.values()))
        pid = llm.core_client.core_engines[1].manager.pid
        if victim == "rank":
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[-1])
        os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(*tasks, return_exceptions=True)

    ranks = {"tensor_parallel_size": 2} if victim == "rank" else {}
    for error in with_replicas(body, POCKET_MOE, enable_expert_parallel=True, **ranks):
        assert isinstance(error, EngineDeadError)
        assert "gone" in str(error) and "ake a new engine" in str(error)


def test_what_they_cannot_do_is_refused_before_any_process_starts(mixtral, monkeypatch):
    monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", lambda *_: pytest.fail("it started one"))
    for more, message in (
        ({"enable_lora": True}, "enable_lora=True is not served where replicas share experts"),
        ({"data_parallel_size": 9}, "an expert for each of 9 ranks, got 8"),
        ({"enable_eplb": True}, "enable_eplb must be unset"),
    ):
        args = {"enable_expert_parallel": True, "data_parallel_size": 2, "num_blocks": 64, **more}
        with pytest.raises(ValueError, match=message):
            AsyncLLM(mixtral, enable_multiprocessing=True, skip_tokenizer_init=True, **args)

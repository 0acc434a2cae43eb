"""Ranks that share every layer give the answers of one process, and end with an error where one of them breaks."""

import gc
import multiprocessing
import time

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.distributed import shared_memory
from mini_vllm.executor.multiproc_executor import StepBuffer, StepInputs
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.tests.models.test_golden_vllm import checkpoint, compare, load
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": [8, 9, 10]}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(save_tiny("llama", tmp_path_factory.mktemp("llama")), "float64")


def tokens(llm, prompts, params):
    return [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]


def workload(seed):
    """Shared prefixes that arrive together, so that one request hits blocks that another one is filling."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(3, 500, 40).tolist()
    prompts = [
        shared[: int(rng.integers(8, 40))] + rng.integers(3, 500, int(rng.integers(1, 30))).tolist() for _ in range(9)
    ]
    params = [
        SamplingParams(temperature=0.0 if i % 2 else 1.0, seed=i, max_tokens=int(rng.integers(1, 16)), ignore_eos=True)
        for i in range(9)
    ]
    return [{"prompt_token_ids": p} for p in prompts], params


@pytest.mark.parametrize("seed", range(6))
def test_same_tokens_as_one_process(model, seed):
    prompts, params = workload(seed)
    rng = np.random.default_rng(seed)
    args = {
        "block_size": int(rng.choice([4, 8])),
        "num_blocks": int(rng.choice([30, 200])),
        "max_num_batched_tokens": int(rng.choice([24, 512])),
        "max_num_seqs": 8,
        "async_scheduling": bool(seed % 2),
    }
    expected = tokens(LLM(model, **args), prompts, params)
    llm = LLM(model, tensor_parallel_size=2, **args)
    for _ in range(2):  # the second time with prefixes in the cache
        assert tokens(llm, prompts, params) == expected
    assert len(llm.llm_engine.engine_core.model_runner._executor.workers) == 1


def test_steps_of_many_tiles(model):
    """Six tiles of 512 tokens, so that the ranks meet after four of them and again after two."""
    prompts = [{"prompt_token_ids": [3 + (i * n) % 490 for i in range(90)]} for n in range(1, 34)]
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    args = {"max_num_batched_tokens": 4096, "max_num_seqs": 33, "num_blocks": 256}
    expected = tokens(LLM(model, **args), prompts, params)
    assert tokens(LLM(model, tensor_parallel_size=2, **args), prompts, params) == expected


@pytest.mark.parametrize("name", ["qwen3", "qwen2", "mistral-window"])
def test_same_answers_as_real_vllm(name, tmp_path):
    golden = load(name)
    llm = LLM(str(checkpoint(name, tmp_path)), tensor_parallel_size=2, **golden["engine_args"])
    params = [SamplingParams(**answer["params"]) for answer in golden["answers"]]
    prompts = [{"prompt_token_ids": answer["prompt_token_ids"]} for answer in golden["answers"]]
    for answer, output in zip(golden["answers"], llm.generate(prompts, params, use_tqdm=False), strict=True):
        compare(answer, output.outputs[0])


def test_a_step_survives_its_way_through_shared_memory():
    buffer = StepBuffer(max_tokens=8, max_reqs=4, max_blocks_per_req=3, num_blocks=10)
    meta = AttentionMetadata(np.array([0, 1, 4]), np.array([5, 3]), np.array([[1, 2, 0], [3, 0, 0]]), np.arange(4) + 16)
    for bad in ([], [7, 8]):
        sent = StepInputs(np.arange(4), np.arange(4) + 3, np.array([0, 3]), meta, np.array(bad, np.int64))
        buffer.write(sent)
        got = buffer.read()
        for name in ("input_ids", "positions", "logits_indices", "bad_blocks"):
            np.testing.assert_array_equal(getattr(got, name), getattr(sent, name))
        for name in ("query_start_loc", "seq_lens", "block_tables", "slot_mapping"):
            np.testing.assert_array_equal(getattr(got.metadata, name), getattr(meta, name))


def test_a_nan_ends_its_request_and_is_wiped_from_the_cache_of_every_rank(model, monkeypatch):
    original = type(model).forward

    def poisoned(self, input_ids, positions, attn):
        def attend(layer, q, k, v):
            v[np.asarray(input_ids) == 499] = np.nan
            return attn(layer, q, k, v)

        return original(self, input_ids, positions, attend)

    monkeypatch.setattr(type(model), "forward", poisoned)
    llm = LLM(model, num_blocks=6, block_size=4, max_model_len=16, tensor_parallel_size=2)
    [expected] = tokens(LLM(model, num_blocks=6, block_size=4, max_model_len=16), PROMPTS[:1], GREEDY)
    good, bad = llm.generate([PROMPTS[0], {"prompt_token_ids": [5, 6, 499]}], GREEDY, use_tqdm=False)
    assert good.outputs[0].finish_reason == "length" and bad.outputs[0].finish_reason == "error"
    assert good.outputs[0].token_ids == expected
    for _ in range(4):  # the pool is so small that the poisoned block comes round again
        assert tokens(llm, PROMPTS[:1], GREEDY) == [expected]
        llm.llm_engine.reset_prefix_cache()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_is_an_error_and_the_next_step_works(model, monkeypatch, rank):
    original = type(model).forward

    def failing(self, input_ids, positions, attn):
        def attend(layer, q, k, v):
            if layer == 1 and self.rank == rank and 499 in input_ids:
                raise ArithmeticError("no such token")
            return attn(layer, q, k, v)

        return original(self, input_ids, positions, attend)

    monkeypatch.setattr(type(model), "forward", failing)
    llm = LLM(model, num_blocks=64, tensor_parallel_size=2)
    expected = tokens(llm, PROMPTS, GREEDY)
    error, message = (RuntimeError, "a worker process failed: ArithmeticError: no such token") if rank else (
        ArithmeticError, "no such token")  # fmt: skip
    for _ in range(3):
        with pytest.raises(error, match=message):
            llm.generate([{"prompt_token_ids": [5, 499]}], GREEDY, use_tqdm=False)
        assert tokens(llm, PROMPTS, GREEDY) == expected


def test_a_dead_worker_is_an_error_not_a_hang(model):
    llm = LLM(model, num_blocks=64, tensor_parallel_size=2)
    tokens(llm, PROMPTS, GREEDY)
    [worker] = llm.llm_engine.engine_core.model_runner._executor.workers
    worker.kill()
    worker.join()
    with pytest.raises(RuntimeError, match="a worker process died; make a new engine"):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)


def test_a_worker_sleeps_between_requests_and_wakes_up(model):
    llm = LLM(model, num_blocks=64, tensor_parallel_size=2)
    expected = tokens(llm, PROMPTS, GREEDY)
    [worker] = llm.llm_engine.engine_core.model_runner._executor.workers
    time.sleep(0.3)
    before = cpu_seconds(worker.pid)
    time.sleep(0.5)
    assert cpu_seconds(worker.pid) - before < 0.25
    assert tokens(llm, PROMPTS, GREEDY) == expected


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / 100


def test_workers_end_with_their_engine(model):
    before = set(multiprocessing.active_children())
    llm = LLM(model, num_blocks=64, tensor_parallel_size=2)
    tokens(llm, PROMPTS, GREEDY)
    [child] = set(multiprocessing.active_children()) - before
    del llm
    gc.collect()
    child.join(timeout=20)
    assert child.exitcode == 0

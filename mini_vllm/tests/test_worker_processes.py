"""Two processes over one KV cache give the answers of one, whatever the scheduler does."""

import gc

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams, worker_processes
from mini_vllm.models.loader import load_model
from mini_vllm.tests.test_golden_vllm import checkpoint, compare, load
from mini_vllm.tests.tiny_checkpoints import save_tiny

pytestmark = pytest.mark.skipif(not worker_processes.is_supported(), reason="processes are forked on Linux only")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(save_tiny("llama", tmp_path_factory.mktemp("llama")), "float64")


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


@pytest.mark.parametrize("num_processes", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_same_tokens_as_one_process(model, seed, num_processes):
    prompts, params = workload(seed)
    rng = np.random.default_rng(seed)
    args = {
        "block_size": int(rng.choice([4, 8])),
        "num_blocks": int(rng.choice([30, 200])),
        "max_num_batched_tokens": int(rng.choice([24, 512])),
        "max_num_seqs": 8,
        "async_scheduling": bool(seed % 2),
    }
    expected = [o.outputs[0].token_ids for o in LLM(model, **args).generate(prompts, params, use_tqdm=False)]
    llm = LLM(model, worker_processes=num_processes, **args)
    for _ in range(2):  # the second time with prefixes in the cache, written by whichever process
        assert [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)] == expected
    assert llm.llm_engine.engine_core.model_runner._workers is not None


def test_same_answers_as_real_vllm(tmp_path):
    golden = load("qwen3")
    llm = LLM(str(checkpoint("qwen3", tmp_path)), worker_processes=2, **golden["engine_args"])
    params = [SamplingParams(**answer["params"]) for answer in golden["answers"]]
    prompts = [{"prompt_token_ids": answer["prompt_token_ids"]} for answer in golden["answers"]]
    for answer, output in zip(golden["answers"], llm.generate(prompts, params, use_tqdm=False), strict=True):
        compare(answer, output.outputs[0])


def test_shares_that_depend_on_each_other_are_told(model):
    """A prefix hit on a block of the same step: the two requests must not be parted."""
    llm = LLM(model, num_blocks=64, block_size=4, worker_processes=2)
    runner = llm.llm_engine.engine_core.model_runner
    seen = []
    original = runner._compute_step
    runner._compute_step = lambda inputs: (
        seen.append(worker_processes.depend_on_each_other(worker_processes.share_rows(inputs, 2), 4)),
        original(inputs),
    )[1]
    common = list(range(10, 30))
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    llm.generate([{"prompt_token_ids": [*common, 7]}, {"prompt_token_ids": [*common, 8]}], params, use_tqdm=False)
    assert seen == [True, False, False]
    llm.generate(
        [{"prompt_token_ids": [*range(100, 120)]}, {"prompt_token_ids": [*range(200, 230)]}], params, use_tqdm=False
    )
    assert seen[3:] == [False, False, False]


def test_a_nan_in_a_workers_row_ends_that_request(model, monkeypatch):
    original = type(model).forward

    def poisoned(self, input_ids, positions, attn):
        hidden = original(self, input_ids, positions, attn)
        hidden[np.asarray(input_ids) == 499] = np.nan
        return hidden

    monkeypatch.setattr(type(model), "forward", poisoned)
    llm = LLM(model, num_blocks=64, worker_processes=2)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    good, bad = llm.generate(
        [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": [5, 6, 499]}], params, use_tqdm=False
    )
    assert good.outputs[0].finish_reason == "length" and bad.outputs[0].finish_reason == "error"


def test_failing_and_dead_workers_are_errors_not_hangs(model, monkeypatch):
    prompts = [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": [8, 9, 10]}]
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    llm = LLM(model, num_blocks=64, worker_processes=2)
    expected = [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]
    workers = llm.llm_engine.engine_core.model_runner._workers
    send = workers._connections[0].send
    monkeypatch.setattr(workers, "_connections", [_Sender(workers._connections[0], lambda step: send((step, None, 0)))])
    with pytest.raises(RuntimeError, match="a worker process failed: AttributeError"):
        llm.generate(prompts, params, use_tqdm=False)
    monkeypatch.undo()
    assert [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)] == expected
    for child in worker_processes.multiprocessing.active_children():
        child.kill()
        child.join()
    with pytest.raises(RuntimeError, match="a worker process died; make a new engine"):
        llm.generate(prompts, params, use_tqdm=False)


class _Sender:
    """A connection that sends something else."""

    def __init__(self, connection, send):
        self.connection, self._send = connection, send

    def send(self, message):
        self._send(message[0])

    def recv(self):
        return self.connection.recv()


def test_workers_end_with_their_engine(model):
    before = len(worker_processes.multiprocessing.active_children())
    llm = LLM(model, num_blocks=64, worker_processes=2)
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    llm.generate([{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [7, 8]}], params, use_tqdm=False)
    [child] = [c for c in worker_processes.multiprocessing.active_children()][before:]
    del llm
    gc.collect()
    child.join(timeout=20)
    assert child.exitcode == 0

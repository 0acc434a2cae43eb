"""Ranks that share every layer give the answers of one process, and their batches stay in step."""

import copy
import threading

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.distributed import shared_memory
from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.tests.executor import in_workers
from mini_vllm.tests.models.test_golden_vllm import checkpoint, compare, load
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": [8, 9, 10]}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny("llama", tmp_path_factory.mktemp("llama")))


def make(folder, ranks=2, **args):
    return LLM(folder, dtype="float64", tensor_parallel_size=ranks, **{"num_blocks": 64, **args})


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
        SamplingParams(
            temperature=0.0 if i % 2 else 1.0, seed=None if i % 3 else i, max_tokens=int(rng.integers(1, 16)),
            ignore_eos=True, logprobs=2 if i == 4 else None,
        )
        for i in range(9)
    ]  # fmt: skip
    return [{"prompt_token_ids": p} for p in prompts], params


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3))])
def test_same_tokens_as_one_process(folder, seed):
    prompts, params = workload(seed)
    rng = np.random.default_rng(seed)
    args = {
        "block_size": int(rng.choice([4, 8])),
        "num_blocks": int(rng.choice([30, 200])),
        "max_num_batched_tokens": int(rng.choice([24, 512])),
        "max_num_seqs": 8,
        "async_scheduling": bool(seed % 2),
    }
    one, two = make(folder, 1, **args), make(folder, **args)
    for _ in range(2):  # the second time with prefixes in the cache
        found, expected = ([o.outputs[0] for o in llm.generate(prompts, params, use_tqdm=False)] for llm in (two, one))
        assert [o.token_ids for o in found] == [o.token_ids for o in expected]
        for ours, theirs in zip(found[4].logprobs, expected[4].logprobs, strict=True):
            assert ours.keys() == theirs.keys()
    here, there = two.llm_engine.collective_rpc(in_workers.batch_of)
    assert here == there


def test_batches_stay_in_step_in_the_middle_of_a_workload(folder):
    """After each step: rows, blocks, tokens and random streams of the ranks are the same, whatever order sets have."""
    prompts, params = workload(7)
    engine = make(folder, num_blocks=24, block_size=8, max_num_batched_tokens=40, max_num_seqs=6).llm_engine
    for i, (prompt, its_params) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(f"request {i}", prompt, its_params)
    steps = 0
    while engine.has_unfinished_requests():
        engine.step()
        steps += 1
        if steps == 6:
            engine.abort_request("request 2")
        here, there = engine.collective_rpc(in_workers.batch_of)
        assert here == there
    assert steps > 10


def test_steps_of_many_tiles(folder):
    """Six tiles of 512 tokens, so that the ranks meet after four of them and again after two."""
    prompts = [{"prompt_token_ids": [3 + (i * n) % 490 for i in range(90)]} for n in range(1, 34)]
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    args = {"max_num_batched_tokens": 4096, "max_num_seqs": 33, "num_blocks": 256}
    expected = tokens(make(folder, 1, **args), prompts, params)
    assert tokens(make(folder, **args), prompts, params) == expected


@pytest.mark.parametrize(
    "name", ["qwen3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen2", "mistral-window"))]
)
def test_same_answers_as_real_vllm(name, tmp_path):
    golden = load(name)
    llm = LLM(str(checkpoint(name, tmp_path)), tensor_parallel_size=2, **golden["engine_args"])
    params = [SamplingParams(**answer["params"]) for answer in golden["answers"]]
    prompts = [{"prompt_token_ids": answer["prompt_token_ids"]} for answer in golden["answers"]]
    for answer, output in zip(golden["answers"], llm.generate(prompts, params, use_tqdm=False), strict=True):
        compare(answer, output.outputs[0])


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL_AND_PIECEWISE"])
def test_every_rank_has_its_own_graphs(folder, mode):
    args = {"cudagraph_mode": mode, "cudagraph_capture_sizes": [2, 4, 8]}
    llm = make(folder, **args)
    assert tokens(llm, PROMPTS, GREEDY) == tokens(make(folder, 1), PROMPTS, GREEDY)
    stats = llm.llm_engine.stats.cudagraph
    assert stats is not None and sum(stats.replays.values()) == 4
    for graphs, _ in llm.llm_engine.collective_rpc("get_stats"):
        assert graphs.steps == stats.steps


def test_the_oracle_watches_every_rank(folder):
    assert tokens(make(folder, kv_oracle=True), PROMPTS, GREEDY) == tokens(make(folder, 1), PROMPTS, GREEDY)


def test_ranks_hold_their_own_heads(folder):
    assert make(folder).llm_engine.apply_model(in_workers.num_heads) == [2, 2]


def test_sizes_that_do_not_divide_are_errors_as_if_the_model_were_loaded_here(folder):
    with pytest.raises(ValueError, match="tensor_parallel_size must divide num_heads of the model, 4, got 3"):
        make(folder, 3)


def test_a_nan_ends_its_request_and_is_wiped_from_the_cache_of_every_rank(folder):
    args = {"num_blocks": 6, "block_size": 4, "max_model_len": 16}
    llm = make(folder, **args)
    llm.llm_engine.collective_rpc(in_workers.poison, args=(499,))
    [expected] = tokens(make(folder, 1, **args), PROMPTS[:1], GREEDY)
    good, bad = llm.generate([PROMPTS[0], {"prompt_token_ids": [5, 6, 499]}], GREEDY, use_tqdm=False)
    assert good.outputs[0].finish_reason == "length" and bad.outputs[0].finish_reason == "error"
    assert good.outputs[0].token_ids == expected
    assert llm.llm_engine.collective_rpc(in_workers.has_nan) == [False, False]
    for _ in range(4):  # the pool is so small that the poisoned block comes round again
        assert tokens(llm, PROMPTS[:1], GREEDY) == [expected]
        llm.llm_engine.reset_prefix_cache()


def on_ranks(group, work):
    """`work(group)` on every rank, each in a thread; what they return, by rank."""
    found = [None] * group.world_size

    def run(rank):
        mine = copy.copy(group)
        mine.rank = rank
        found[rank] = work(mine)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(group.world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.mark.parametrize("num_elements", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 1000))])
def test_all_gather_puts_the_arrays_of_all_ranks_side_by_side(num_elements):
    """As many rows at a time as fit, again and again: nobody writes where another still reads."""
    group = TensorParallelGroup(3, num_elements, np.float64)

    def work(mine):
        found = []
        for i in range(40):
            found.append(mine.all_gather(np.full((5, 3), 10.0 * i) + mine.rank))
            mine.barrier()  # as between two steps
        return found

    for mine in on_ranks(group, work):
        for i, gathered in enumerate(mine):
            np.testing.assert_array_equal(gathered, np.repeat([[0, 1, 2]], 3, axis=1).repeat(5, axis=0) + 10.0 * i)


def test_a_barrier_of_a_later_step_lets_a_rank_that_lags_go_on():
    group = TensorParallelGroup(2, 1, np.float64)
    ahead, behind = copy.copy(group), copy.copy(group)
    ahead.rank, behind.rank = 0, 1
    ahead.begin_step(8)
    ahead._arrived[0] = (8 << 32) + 1
    behind.begin_step(7)
    behind.barrier()
    assert group.num_meetings(0) == (8, 1) and group.num_meetings(1) == (7, 1)

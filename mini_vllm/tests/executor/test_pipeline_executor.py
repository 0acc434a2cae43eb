"""Stages in processes: the same tokens as in one process, several steps in flight, and what is said when one fails."""

import gc
import os
import re
import signal

import pytest

from mini_vllm import LLM, LLMEngine, SamplingParams
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed import shared_memory
from mini_vllm.tests.engine.engines import with_a_limit
from mini_vllm.tests.executor import in_workers
from mini_vllm.tests.executor.test_multiproc_executor import executor_of, is_there, nothing_new, pids, wait_until
from mini_vllm.tests.models.decoder_checkpoints import save_decoder
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [5 + i, *range(40 + 9 * i, 40 + 9 * i + 3 + 7 * i)]} for i in range(5)]
MARKED = [{"prompt_token_ids": [5, 499]}]
SMALL = {"num_blocks": 64, "block_size": 4, "max_num_batched_tokens": 16, "max_num_seqs": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny("llama", tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def expected(folder):
    return results(LLM(folder, dtype="float64", **SMALL))


@pytest.fixture(scope="module")
def llm(folder):
    """Two stages, for all tests that leave them alive."""
    made = make(folder)
    yield made
    made.llm_engine.engine_core.shutdown()


def make(folder, **args):
    return LLM(folder, **{"dtype": "float64", "pipeline_parallel_size": 2, **SMALL, **args})


def results(llm, prompts=PROMPTS, params=GREEDY):
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [(o.outputs[0].token_ids, o.outputs[0].finish_reason) for o in outputs]


def test_two_stages_give_the_tokens_of_one_process(llm, expected):
    assert results(llm) == expected
    engine = llm.llm_engine
    assert engine.collective_rpc(in_workers.pid_of) == [os.getpid(), *pids(llm)] and len(pids(llm)) == 1
    assert engine.apply_model(in_workers.num_layers) == [2, 1]


def test_a_batch_for_each_stage_is_in_flight(llm, expected):
    """Prompts longer than a step's budget: the next chunk is sent while the one before is on its way."""
    queue, seen = llm.llm_engine.engine_core.batch_queue, set()
    send = executor_of(llm).sample_tokens_non_block

    def watched(grammar_output=None):
        seen.add(len(queue) + 1)
        return send(grammar_output)

    executor_of(llm).sample_tokens_non_block = watched
    try:
        assert results(llm) == expected
    finally:
        del executor_of(llm).sample_tokens_non_block
    assert executor_of(llm).max_concurrent_batches == queue.size == max(seen) == 2


def test_an_id_that_is_used_again_gets_nothing_of_what_is_in_flight(llm, expected):
    engine = llm.llm_engine
    engine.add_request("a", PROMPTS[1], GREEDY)
    engine.step()
    assert engine.engine_core.batch_queue
    engine.abort_request("a")
    engine.add_request("a", PROMPTS[2], GREEDY)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].outputs[0].token_ids == expected[2][0]


@pytest.mark.slow
def test_blocks_are_counted_over_all_stages(folder, llm):
    alone = LLM(folder, dtype="float64", kv_cache_memory_bytes=1 << 20)
    staged = make(folder, num_blocks=None, block_size=16, kv_cache_memory_bytes=1 << 20)
    try:
        assert staged.llm_engine.engine_core.num_blocks == alone.llm_engine.engine_core.num_blocks
        layers = staged.llm_engine.collective_rpc(in_workers.cache_layers)
        assert layers == [2, 1]
    finally:
        staged.llm_engine.engine_core.shutdown()


REFUSED = [
    ({"async_scheduling": True}, "async_scheduling=True"),
    ({"enable_lora": True}, "enable_lora=True"),
    ({"runner": "pooling"}, "runner='pooling'"),
    ({"kv_oracle": True}, "kv_oracle=True"),
    ({"cudagraph_mode": "FULL"}, "cudagraph_mode='FULL'"),
    ({"distributed_executor_backend": "uni"}, "distributed_executor_backend='uni'"),
    ({"speculative_config": {"method": "draft_model", "model": "x", "num_speculative_tokens": 2}}, "method='draft_mo"),
    (
        {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
                                "kv_connector_extra_config": {"shared_storage_path": "/tmp/none"}}},
        "kv_transfer_config=",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("args", "words"), REFUSED, ids=[next(iter(args)) for args, _ in REFUSED])
def test_what_is_not_served_with_stages_is_refused_before_a_process_starts(args, words):
    is_refused(args, words)


@pytest.mark.needs_torch
def test_a_device_is_not_served_with_stages():
    pytest.importorskip("torch")
    is_refused({"device": "torch", "async_scheduling": False}, "device='torch'")


def is_refused(args, words):
    message = re.escape(words) + ".* is not served with stages: pipeline_parallel_size must be 1 with it, got 2"
    with pytest.raises(ValueError, match=message):
        EngineConfig.from_args(pipeline_parallel_size=2, **args)
    EngineConfig.from_args(pipeline_parallel_size=1)


@pytest.mark.parametrize("size", [0, -1, "2", 1.5, True])
def test_a_size_is_a_whole_number(size):
    with pytest.raises((TypeError, ValueError), match="pipeline_parallel_size"):
        EngineConfig.from_args(pipeline_parallel_size=size)


def test_a_finished_model_and_more_stages_than_layers_are_refused(folder):
    with pytest.raises(ValueError, match="pipeline_parallel_size=2 needs a checkpoint folder"):
        LLM(pipeline_parallel_size=2)
    with pytest.raises(ValueError, match="pipeline_parallel_size must be at most the 3 layers of the model, got 4"):
        make(folder, pipeline_parallel_size=4)


@pytest.mark.slow
@pytest.mark.parametrize(("stages", "ranks", "eager"), [(3, 1, False), (2, 2, False), (2, 1, True), (3, 1, True)])
def test_any_number_of_stages_gives_the_tokens_of_one_process(folder, expected, stages, ranks, eager):
    made = make(folder, pipeline_parallel_size=stages, tensor_parallel_size=ranks, enforce_eager=eager)
    assert results(made) == expected and results(made) == expected
    made.llm_engine.engine_core.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gemma3", "deepseek-v2", "gpt-oss", "opt", "qwen3-moe", "mistral-window"])
def test_groups_experts_windows_and_latents_are_dealt_to_the_stages(family, tmp_path):
    decoder = family in ("gemma3", "deepseek-v2", "gpt-oss")
    folder = str((save_decoder if decoder else save_tiny)(family, tmp_path))
    prompts = [{"prompt_token_ids": [7 + i, *range(30 + i, 60 + 2 * i)]} for i in range(4)]
    one = LLM(folder, dtype="float64", num_blocks=128, block_size=4, max_num_batched_tokens=16)
    two = LLM(
        folder, dtype="float64", num_blocks=128, block_size=4, max_num_batched_tokens=16, pipeline_parallel_size=2
    )
    assert results(two, prompts) == results(one, prompts)
    loads = [llm.llm_engine.engine_core.make_stats().expert_load for llm in (one, two)]
    if loads[0] is not None:
        assert loads[0].counts.tolist() == loads[1].counts.tolist()
    two.llm_engine.engine_core.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 3])
def test_preemption_seeds_penalties_log_probabilities_and_drafts(folder, stages):
    tight = {"num_blocks": 30, "block_size": 4, "max_num_batched_tokens": 16, "max_model_len": 100, "max_num_seqs": 8}
    drafts = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
    prompts = [{"prompt_token_ids": [5 + i, 6, 7, 8] * (2 + i % 3)} for i in range(10)]
    params = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=20) if i % 3 else
        SamplingParams(temperature=0.0, max_tokens=20, repetition_penalty=1.2, logprobs=2, prompt_logprobs=1)
        for i in range(10)
    ]  # fmt: skip
    for more in ({}, drafts, {"scheduler_reserve_full_isl": False}):
        one, staged = (LLM(folder, dtype="float64", **tight, **more), make(folder, **tight, **more))
        if more is drafts:
            params = [SamplingParams(temperature=0.0, max_tokens=20)] * 10
        wanted, got = (llm.generate(prompts, params, use_tqdm=False) for llm in (one, staged))
        for a, b in zip(wanted, got, strict=True):
            assert a.outputs[0].token_ids == b.outputs[0].token_ids
            assert (a.prompt_logprobs is None) == (b.prompt_logprobs is None)
        assert staged.llm_engine.stats.num_preemptions > 0 or more is drafts
        if more is drafts:
            assert staged.llm_engine.engine_core.make_stats().spec_decoding_stats.num_accepted_tokens > 0
        staged.llm_engine.engine_core.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_nan_ends_one_request_and_every_stage_cleans_its_blocks(folder, expected, rank):
    made = make(folder)
    made.llm_engine.collective_rpc(in_workers.poison_on, args=(499, rank))
    [output, other] = made.generate([*MARKED, PROMPTS[1]], GREEDY, use_tqdm=False)
    assert output.outputs[0].finish_reason == "error" and "NaN in the logits" in output.outputs[0].stop_reason
    assert other.outputs[0].token_ids == expected[1][0]
    assert made.llm_engine.collective_rpc(in_workers.has_nan) == [False, False]
    made.llm_engine.engine_core.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stage_that_fails_is_the_end_and_says_why(folder, expected, rank, monkeypatch):
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "2,1" if rank == 0 else "1,2")
    made = make(folder)
    workers = pids(made)
    made.llm_engine.collective_rpc(in_workers.fail_on, args=(499, rank))
    error, message = ArithmeticError, "no such token"
    if rank == 1:
        error = RuntimeError
        message = rf"rank 1 \(pid {workers[0]}\) failed in execute_model: ArithmeticError: no such token \(in_wor"
    with pytest.raises(error, match=message):
        made.generate(MARKED, GREEDY, use_tqdm=False)
    with pytest.raises(RuntimeError, match=r"no such token.*cannot go on without this step: make a new engine"):
        made.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert executor_of(made).is_failed and not made.llm_engine.has_unfinished_requests()
    wait_until(lambda: not any(map(is_there, workers)))


@pytest.mark.slow
def test_a_function_that_fails_on_a_stage_leaves_the_engine_working(folder, llm, expected):
    with pytest.raises(RuntimeError, match=r"rank 1 .* failed in raise_unpicklable: Odd: from inside"):
        llm.llm_engine.collective_rpc(in_workers.raise_unpicklable, args=(1,))
    with pytest.raises(AttributeError, match="no_such_method"):
        llm.llm_engine.collective_rpc("no_such_method")
    assert results(llm) == expected


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 3])
def test_a_stage_that_is_killed_is_named_and_no_process_is_left(folder, stages):
    made = make(folder, pipeline_parallel_size=stages)
    results(made)
    workers = pids(made)
    os.kill(workers[-1], signal.SIGKILL)
    message = rf"rank {stages - 1} \(pid {workers[-1]}\) died in .*, by signal 9 \(SIGKILL\); .* Make a new engine\."
    for _ in range(2):
        with pytest.raises(RuntimeError, match=message):
            made.generate(PROMPTS, GREEDY, use_tqdm=False)
    wait_until(lambda: not any(map(is_there, workers)))


@pytest.mark.slow
@pytest.mark.parametrize("last", [True, False])
def test_a_stage_that_is_stopped_is_named(folder, last):
    def body(limit):
        made = make(folder, pipeline_parallel_size=3, execute_model_timeout_seconds=limit)
        workers = pids(made)
        os.kill(workers[1 if last else 0], signal.SIGSTOP)
        message = rf"rank {2 if last else 1} .* no progress for {limit:g} s in .*\. The process is stopped"
        with pytest.raises(RuntimeError, match=message):
            made.generate(PROMPTS, GREEDY, use_tqdm=False)
        wait_until(lambda: not any(map(is_there, workers)))

    with_a_limit(body)


@pytest.mark.slow
def test_ctrl_c_in_the_first_stage_leaves_a_working_engine(folder, llm, expected):
    runner = llm.llm_engine.engine_core.model_runner
    original = runner.forward

    def forward(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return original(*args)

    in_workers.replace_forward(runner, forward)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    llm.llm_engine.collective_rpc(in_workers.restore)
    assert not llm.llm_engine.has_unfinished_requests() and results(llm) == expected


@pytest.mark.slow
def test_the_core_may_be_in_a_process_of_its_own(folder, expected):
    pytest.importorskip("zmq")
    engine = LLMEngine(folder, dtype="float64", pipeline_parallel_size=2, enable_multiprocessing=True, **SMALL)
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, GREEDY)
    found = {}
    while engine.has_unfinished_requests():
        found.update({o.request_id: o.outputs[0].token_ids for o in engine.step()})
    assert [found[str(i)] for i in range(len(PROMPTS))] == [token_ids for token_ids, _ in expected]
    engine.shutdown()


@pytest.mark.slow
def test_stages_end_with_their_engine_and_nothing_is_left(folder):
    warm = make(folder)
    del warm
    gc.collect()
    nothing = nothing_new()
    made = make(folder)
    results(made)
    workers = pids(made)
    del made
    gc.collect()
    wait_until(lambda: not any(map(is_there, workers)))
    wait_until(nothing)

"""Offloading to the host's memory through the whole engine: the same tokens with and without, from a pool that is too
small for all conversations; what is counted; what comes in between."""

import itertools
import threading
import time

import pytest

from mini_vllm import LLM, LLMEngine, SamplingParams
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.kv_offload.cpu import gpu_worker
from mini_vllm.logger import warning_once
from mini_vllm.tests.distributed.kv_transfer.offloading import (
    GREEDY,
    SIZE,
    check,
    conversations,
    hits_of,
    make,
    save,
    serve,
    tokens_of,
    worker_of,
)

PROMPTS = conversations()
NATIVE = {"kv_offloading_size": SIZE}
LATE_STEPS = 10


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: save(tmp_path_factory.mktemp(kind), kind) for kind in ("full", "sliding", "hybrid")}


@pytest.fixture(scope="module")
def folder(folders):
    return folders["full"]


@pytest.fixture(scope="module")
def plain(folders):
    return {kind: tokens_of(serve(make(each, offload=False), PROMPTS)) for kind, each in folders.items()}


@pytest.mark.parametrize("kind", ["full", "sliding", "hybrid"])
@pytest.mark.parametrize(
    ("settings", "extra"),
    [
        ({}, None),
        ({"async_scheduling": True, "max_num_batched_tokens": 24}, None),
        ({"enable_prefix_caching": False}, None),
        ({"dtype": "float32"}, {"eviction_policy": "arc"}),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, None),
        ({"max_num_batched_tokens": 16, "num_blocks": 30}, {"block_size": 8}),
    ],
    ids=["plain", "ahead", "no-caching", "float32-arc", "drafts", "large-blocks"],
)
def test_the_same_tokens_and_no_block_is_lost(kind, settings, extra, folders, plain):
    llm = make(folders[kind], extra=extra, **settings)
    outputs = serve(llm, PROMPTS, rounds=3)
    expected = plain[kind]
    if settings.get("dtype") == "float32":
        expected = tokens_of(serve(make(folders[kind], offload=False, dtype="float32"), PROMPTS))
    assert tokens_of(outputs) == expected + expected[: len(PROMPTS)]
    assert hits_of(llm) > 0 and all(output.num_cached_tokens > 0 for output in outputs[len(PROMPTS) :])


def test_hits_in_the_host_are_counted_after_those_in_the_pool(folder, plain):
    llm = make(folder, num_blocks=16, disable_log_stats=False)
    first, second = (serve(llm, PROMPTS, rounds=1, at_once=False) for _ in range(2))
    assert tokens_of(first + second) == plain["full"]
    assert [output.num_cached_tokens for output in first] == [0, *[8] * 5], "the beginning is shared"
    assert [output.num_cached_tokens for output in second] == [32] * 6, "eight whole blocks of 33 tokens"
    stats = llm.llm_engine.scheduler.connector.prefix_cache_stats
    assert stats.requests == 12 and stats.hits == 6 * (32 - 8), "but for the beginning, which is in the pool"
    found = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    assert found["vllm:external_prefix_cache_hits"] == stats.hits
    assert found["vllm:external_prefix_cache_queries"] == stats.queries
    block = 4 * 2 * 2 * 8 * 8 * 3  # tokens, key and value, heads, numbers, bytes, layers
    assert worker_of(llm).num_bytes["CPU", "GPU"] == stats.hits // 4 * block


def test_a_prompt_that_is_there_as_a_whole_computes_one_token(folder):
    prompt = [{"prompt_token_ids": PROMPTS[0]["prompt_token_ids"][:32]}]
    llm = make(folder)
    first = serve(llm, prompt, rounds=1)
    llm.reset_prefix_cache()
    second = serve(llm, prompt, rounds=1)
    assert tokens_of(first) == tokens_of(second) and second[0].num_cached_tokens == 32
    assert llm.llm_engine.engine_core.num_scheduled_tokens == 32 + 8 + 1 + 8


def test_more_conversations_than_the_host_has_room_for(folder, plain):
    block = 4 * 2 * 2 * 8 * 8 * 3
    for policy in ("lru", "arc"):
        extra = {"cpu_bytes_to_use": 20 * block, "eviction_policy": policy}
        transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
        llm = LLM(str(folder), dtype="float64", block_size=4, num_blocks=16, kv_transfer_config=transfer)
        outputs = serve(llm, PROMPTS, at_once=False)
        assert tokens_of(outputs) == plain["full"]
        half = llm.llm_engine.scheduler.connector.connector.connector_scheduler
        assert half.manager._num_allocated_blocks == 20


def test_a_store_of_more_than_there_is_room_for_is_refused_and_said_once(folder, plain, caplog):
    warning_once.cache_clear()
    extra = {"cpu_bytes_to_use": 3 * 4 * 2 * 2 * 8 * 8 * 3}
    transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    llm = LLM(str(folder), dtype="float64", block_size=4, num_blocks=40, kv_transfer_config=transfer)
    assert tokens_of(serve(llm, PROMPTS)) == plain["full"]
    assert caplog.text.count("some blocks cannot be stored") == 1


@pytest.mark.parametrize("ahead", [False, True])
def test_a_slow_copy_reads_what_was_there_when_it_began(ahead, folder, plain, monkeypatch):
    """With a pool that is given to others again and again, and copies that take longer than a step."""
    copy = gpu_worker.SingleDirectionOffloadingHandler._copy

    def slow(self, spec):
        time.sleep(0.003)
        return copy(self, spec)

    monkeypatch.setattr(gpu_worker.SingleDirectionOffloadingHandler, "_copy", slow)
    llm = make(folder, num_blocks=18, async_scheduling=ahead)
    assert tokens_of(serve(llm, PROMPTS, rounds=3)) == plain["full"] + plain["full"][:6]


def test_without_waiting_for_copies_wrong_tokens_come_out(folder, plain, monkeypatch):
    """So that the test before this one proves something: nobody waits, and copies come some steps late."""
    copy, late, steps, over = gpu_worker.SingleDirectionOffloadingHandler._copy, [], [0], threading.Event()

    def slow(self, spec):
        begun = steps[0]
        while steps[0] < begun + LATE_STEPS and not over.wait(0.0005):
            pass
        return copy(self, spec)

    monkeypatch.setattr(gpu_worker.SingleDirectionOffloadingHandler, "_copy", slow)
    monkeypatch.setattr(gpu_worker.SingleDirectionOffloadingHandler, "wait", lambda self, ids: late.extend(ids))
    llm = make(folder, num_blocks=18)
    core = llm.llm_engine.engine_core
    step = core.step_fn

    def counted():
        steps[0] += 1
        return step()

    core.step_fn = counted
    outputs = []
    for _ in range(3):
        outputs += llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    over.set()
    assert late and tokens_of(outputs) != plain["full"] + plain["full"][:6]


def test_an_abort_while_its_tokens_load_and_while_they_are_stored(folder, plain, monkeypatch):
    llm = make(folder)
    engine = llm.llm_engine
    serve(llm, PROMPTS, rounds=1)
    llm.reset_prefix_cache()
    core = engine.engine_core
    engine.add_request("a", PROMPTS[0], GREEDY)
    engine.step()
    assert len(engine.scheduler.skipped_waiting) == 1, "it loads"
    engine.abort_request(["a"])
    engine.add_request("b", {"prompt_token_ids": [1] * 30}, GREEDY)
    engine.step()
    engine.abort_request(["b"])
    engine.add_request("b", {"prompt_token_ids": [2] * 30}, GREEDY)  # the same name, while stores are under way
    while core.has_requests():
        engine.step()
    check(llm)
    assert tokens_of(serve(llm, PROMPTS)) == plain["full"]


def test_a_reset_forgets_the_host_too(folder, plain):
    llm = make(folder)
    serve(llm, PROMPTS, rounds=1)
    assert llm.reset_prefix_cache(reset_connector=True)
    before = hits_of(llm)
    outputs = serve(llm, PROMPTS, rounds=1)
    assert hits_of(llm) == before and outputs[0].num_cached_tokens == 0
    assert tokens_of(outputs) == plain["full"][:6]


@pytest.mark.parametrize("kind", ["full", "hybrid"])
@pytest.mark.parametrize("ahead", [False, True])
def test_resets_between_steps(kind, ahead, folders, plain):
    llm = make(folders[kind], num_blocks=40, async_scheduling=ahead)
    engine = llm.llm_engine
    for round_ in range(3):
        found = {}
        for i, prompt in enumerate(PROMPTS):
            engine.add_request(f"{round_}-{i}", prompt, GREEDY)
        for step in itertools.count():
            if not engine.has_unfinished_requests():
                break
            for output in engine.step():
                if output.finished:
                    found[output.request_id] = output
            if step % 3 == round_:
                try:
                    engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
                except RuntimeError as error:  # tokens are being loaded
                    assert "transfers have ended" in str(error)
                    engine.reset_prefix_cache(reset_connector=True)
        assert [found[f"{round_}-{i}"].outputs[0].token_ids for i in range(6)] == plain[kind][:6]
        check(llm)


def test_a_salt_keeps_prompts_apart(folder):
    llm = make(folder)
    salted = [{**prompt, "cache_salt": "mine"} for prompt in PROMPTS]
    serve(llm, PROMPTS, rounds=1)
    llm.reset_prefix_cache()
    assert serve(llm, salted, rounds=1)[0].num_cached_tokens == 0
    llm.reset_prefix_cache()
    assert serve(llm, salted, rounds=1)[0].num_cached_tokens == 32


def test_what_a_request_with_a_nan_has_computed_is_not_found(folder):
    """Of a chunk that was computed before as well: its blocks were in the host already."""
    llm = make(folder, max_num_batched_tokens=16)
    runner = llm.llm_engine.engine_core.model_runner
    logits = runner.compute_logits
    runner.compute_logits = lambda hidden: logits(hidden) * float("nan")
    output = llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)[0]
    assert output.outputs[0].finish_reason == "error"
    runner.compute_logits = logits
    check(llm)
    assert serve(llm, PROMPTS[:1], rounds=1)[0].num_cached_tokens == 0


def test_a_core_in_a_process_of_its_own(folder, plain):
    llm = make(folder, num_blocks=18, enable_multiprocessing=True)
    try:
        outputs = [o for _ in range(2) for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
        assert tokens_of(outputs) == plain["full"] and outputs[-1].num_cached_tokens == 32
    finally:
        llm.llm_engine.shutdown()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_offloading_size": 1e7}, r"kv_offloading_size=10000000.0 needs .* GiB, but this machine has .*: ask for"),
        ({"kv_offloading_size": 0}, "kv_offloading_size must be a number of GiB above 0, got 0"),
        ({"kv_offloading_size": "1"}, "kv_offloading_size must be a number of GiB above 0, got '1'"),
        ({**NATIVE, "kv_offloading_backend": "lmcache"}, "kv_offloading_backend must be 'native', got 'lmcache'"),
        ({**NATIVE, "kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}}, "'MultiConn"),
        ({**NATIVE, "kv_cache_dtype": "int8"}, "kv_cache_dtype must be 'auto' with kv_connector='OffloadingConnector'"),
        ({**NATIVE, "pipeline_parallel_size": 2}, "pipeline_parallel_size must be 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**settings)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"cpu_bytes_to_use": 1 << 60}, "cpu_bytes_to_use=1152921504606846976 needs .* but this machine has"),
        ({}, "cpu_bytes_to_use must be specified in kv_connector_extra_config, as a number of bytes above 0, got None"),
        ({"cpu_bytes_to_use": 3071}, "cpu_bytes_to_use must be at least 3072, which is one block, got 3071"),
        ({"cpu_bytes_to_use": 1e6, "eviction_policy": "fifo"}, "eviction_policy must be 'lru' or 'arc', got 'fifo'"),
        ({"cpu_bytes_to_use": 1e6, "block_size": 6}, r"\['block_size'\] must be a multiple of the block size .* \(4\)"),
        ({"cpu_bytes_to_use": 1e6, "store_threshold": -1}, r"\['store_threshold'\] must be a whole number of at least"),
        ({"cpu_bytes_to_use": 1e6, "evict": 1}, "kv_connector_extra_config: unknown key 'evict'"),
        ({"spec_name": "CPUOffloadngSpec"}, "spec_name='CPUOffloadngSpec'; did you mean 'CPUOffloadingSpec'"),
    ],
)
def test_settings_of_the_connector_that_cannot_be_are_refused(extra, message, folder):
    transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    with pytest.raises(ValueError, match=message):
        LLM(str(folder), dtype="float64", block_size=4, num_blocks=40, kv_transfer_config=transfer)


def test_a_model_without_keys_and_values_has_nothing_to_offload():
    with pytest.raises(ValueError, match="needs a model with keys and values, got one without"):
        LLMEngine(num_blocks=16, **NATIVE)


def test_the_callers_settings_stay_as_they_are():
    given = {"kv_connector_extra_config": {"eviction_policy": "arc"}, "kv_load_failure_policy": "recompute"}
    config = EngineConfig(**NATIVE, kv_transfer_config=given).kv_transfer_config
    assert config.kv_connector == "OffloadingConnector" and config.kv_role == "kv_both"
    assert config.kv_connector_extra_config == {"eviction_policy": "arc", "cpu_bytes_to_use": 1 << 20}
    assert config.kv_load_failure_policy == "recompute"
    assert given["kv_connector_extra_config"] == {"eviction_policy": "arc"}


def test_a_threshold_stores_what_was_asked_for_before(folder):
    llm = make(folder, extra={"store_threshold": 2})
    params = SamplingParams(temperature=0.0, max_tokens=1)
    counts = []
    for _ in range(3):
        llm.generate(PROMPTS[:1], params, use_tqdm=False)
        check(llm)
        counts.append(llm.llm_engine.scheduler.connector.connector.connector_scheduler.manager._num_allocated_blocks)
        llm.reset_prefix_cache()
    assert counts[0] == 0 < counts[1]

"""Loads in the background, through the whole engine and on real arrays: requests wait for their keys and values while
others run, blocks are kept after the end, an abort meets a load under way, a file is damaged."""

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.tests.distributed.kv_transfer import background_connector
from mini_vllm.tests.distributed.kv_transfer.background_connector import BackgroundConnector
from mini_vllm.tests.helpers import POCKET

pytestmark = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
LONG = "A block of keys and values went to the disk, where it slept for a long time, and nobody knew. " * 2
PROMPTS = [LONG, "Hello", LONG + "The end is not the end.", "Once upon a time there was a block, and it was full."]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def make(folder, policy="fail", **settings):
    transfer = {
        "kv_connector": "BackgroundConnector", "kv_connector_module_path": BackgroundConnector.__module__,
        "kv_role": "kv_both", "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }  # fmt: skip
    return LLM(str(POCKET), kv_transfer_config=transfer, **{"num_blocks": 48, **settings})


def drain(core):
    """Until all transfers have ended; nothing holds a block then."""
    steps = 0
    while core.has_requests():
        core.step_fn()
        steps += 1
        assert steps < 50
    manager = core.kv_cache_manager
    assert not core.scheduler.requests and manager.block_pool.get_num_free_blocks() == core.num_blocks - 1
    return steps


def serve(llm):
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    drain(llm.llm_engine.engine_core)
    return outputs


def tokens_of(outputs):
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def plain():
    return tokens_of(LLM(str(POCKET)).generate(PROMPTS, GREEDY, use_tqdm=False))


@pytest.mark.parametrize(
    ("ahead", "caching"),
    [
        (True, True),
        *(pytest.param(*both, marks=pytest.mark.slow) for both in [(False, True), (True, False), (False, False)]),
    ],
)
def test_the_same_tokens_and_no_block_is_lost(ahead, caching, plain, tmp_path):
    settings = {"async_scheduling": ahead, "enable_prefix_caching": caching, "max_num_batched_tokens": 24}
    assert tokens_of(serve(make(tmp_path, **settings))) == plain
    llm = make(tmp_path, **settings)
    outputs = serve(llm)
    assert tokens_of(outputs) == plain
    assert outputs[0].num_cached_tokens > 0 == outputs[1].num_cached_tokens
    assert outputs[0].kv_transfer_params["blocks"] >= 3
    stats = llm.llm_engine.scheduler.connector.prefix_cache_stats
    assert stats.hits > 0


@pytest.mark.parametrize("ahead", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_damaged_file_follows_the_policy(ahead, plain, tmp_path):
    serve(make(tmp_path))
    for policy in ("recompute", "fail"):
        sizes = {file: file.stat().st_size for file in sorted(tmp_path.glob("*/*.safetensors"))}
        file = max(sizes, key=lambda file: sizes[file])
        file.write_bytes(file.read_bytes()[:-5])
        outputs = serve(make(tmp_path, policy, async_scheduling=ahead))
        reasons = [output.outputs[0].finish_reason for output in outputs]
        assert reasons.count("error") == (policy == "fail")
        good = [i for i, reason in enumerate(reasons) if reason != "error"]
        assert [outputs[i].outputs[0].token_ids for i in good] == [plain[i] for i in good]
        assert tokens_of(serve(make(tmp_path))) == plain  # stored again


def test_an_abort_while_it_loads(plain, tmp_path):
    serve(make(tmp_path))
    llm = make(tmp_path)
    engine = llm.llm_engine
    core = engine.engine_core
    engine.add_request("a", LONG, GREEDY)
    engine.step()
    held = core.num_blocks - 1 - core.kv_cache_manager.block_pool.get_num_free_blocks()
    assert held > 0 and len(engine.scheduler.skipped_waiting) == 1
    engine.abort_request(["a"])
    assert core.num_blocks - 1 - core.kv_cache_manager.block_pool.get_num_free_blocks() == held
    assert drain(core) > 0
    assert tokens_of(serve(llm)) == plain


def test_a_request_that_waits_for_blocks_that_are_sent_is_not_stuck(tmp_path, monkeypatch):
    monkeypatch.setattr(background_connector, "STEPS", 25)
    llm = make(tmp_path, num_blocks=4)
    engine = llm.llm_engine
    ended = []
    for name in "ab":
        engine.add_request(name, "one two three four five six seven eight nine ten " + name, GREEDY)
    while len(ended) < 2:
        ended += [output.request_id for output in engine.step() if output.finished]
    assert ended == ["a", "b"] and engine.engine_core.num_steps < 25
    drain(engine.engine_core)


def test_a_core_in_a_process_of_its_own(plain, tmp_path):
    serve(make(tmp_path))
    llm = make(tmp_path, enable_multiprocessing=True)
    try:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert tokens_of(outputs) == plain and outputs[0].num_cached_tokens > 0
        assert outputs[0].kv_transfer_params["blocks"] >= 3
    finally:
        llm.llm_engine.shutdown()

"""Two engines, one folder: the second finds on disk what the first has computed, and gives the same tokens; where a
file is damaged, the policy says what happens."""

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.tests.helpers import POCKET

pytestmark = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
LONG = "A block of keys and values went to the disk, where it slept for a long time, and nobody knew. " * 2
PROMPTS = [LONG, "Hello", LONG + "The end is not the end."]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def serve(folder, policy="fail", prompts=PROMPTS, **settings):
    """(tokens, cached tokens, finish reason, stop reason) of each prompt, from a new engine."""
    transfer = None
    if folder is not None:
        extra = {"shared_storage_path": str(folder)}
        transfer = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_load_failure_policy": policy}
        transfer["kv_connector_extra_config"] = extra
    llm = LLM(str(POCKET), kv_transfer_config=transfer, **settings)
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    one = [output.outputs[0] for output in outputs]
    cached = [output.num_cached_tokens for output in outputs]
    return [(o.token_ids, n, o.finish_reason, o.stop_reason) for o, n in zip(one, cached, strict=True)]


def tokens_of(results):
    return [tokens for tokens, *_ in results]


@pytest.fixture(scope="module")
def plain():
    return serve(None)


def damage(folder):
    """Cut the end off one layer of the longest prompt."""
    sizes = {file: file.stat().st_size for file in sorted(folder.glob("*/*.safetensors"))}
    file = max(sizes, key=lambda file: sizes[file])
    with file.open("r+b") as handle:
        handle.truncate(sizes[file] - 5)


def test_a_second_engine_finds_the_prompts_and_a_damaged_file_follows_the_policy(plain, tmp_path):
    assert tokens_of(serve(tmp_path)) == tokens_of(plain)
    found = serve(tmp_path)
    assert tokens_of(found) == tokens_of(plain)
    assert [n for _, n, *_ in found] > [n for _, n, *_ in plain] and found[0][1] > 0 == found[1][1]
    damage(tmp_path)
    failed = serve(tmp_path, prompts=PROMPTS[2:])
    assert failed[0][2] == "error" and "could not be loaded" in failed[0][3]
    assert serve(tmp_path, prompts=PROMPTS[2:])[0][0] == plain[2][0]  # the damaged one is gone, and stored again


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 16},
        {"async_scheduling": True, "max_num_batched_tokens": 16},
        {"enforce_eager": True},
        {"enable_prefix_caching": False},
        {"block_size": 4, "long_prefill_token_threshold": 6},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_in_chunks_ahead_without_a_cache_with_drafts(settings, plain, tmp_path):
    for policy in ("recompute", "recompute", "fail"):
        assert tokens_of(serve(tmp_path, policy, **settings)) == tokens_of(plain)
    damage(tmp_path)
    results = serve(tmp_path, "recompute", **settings)
    assert tokens_of(results) == tokens_of(plain) and {reason for _, _, reason, _ in results} == {"length"}
    damage(tmp_path)
    results = serve(tmp_path, "fail", **settings)
    assert [reason for _, _, reason, _ in results].count("error") == 1


def test_a_salt_and_a_prompt_without_a_whole_block_are_not_shared(tmp_path):
    transfer = {
        "kv_connector": "ExampleConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }  # fmt: skip
    llm = LLM(str(POCKET), kv_transfer_config=transfer, enable_prefix_caching=False)

    def cached(**prompt):
        return llm.generate({"prompt": LONG, **prompt}, GREEDY, use_tqdm=False)[0].num_cached_tokens

    assert [cached(), cached(), cached(cache_salt="a"), cached(cache_salt="a"), cached(cache_salt="b")].count(0) == 3
    before = len(list(tmp_path.iterdir()))
    llm.generate("Hi", GREEDY, use_tqdm=False)
    assert len(list(tmp_path.iterdir())) == before == 3


def test_a_model_of_two_groups_has_one_for_it(tmp_path):
    from mini_vllm.config.vllm import EngineConfig

    transfer = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    transfer["kv_connector_extra_config"] = {"shared_storage_path": str(tmp_path)}
    assert EngineConfig(kv_transfer_config=transfer).disable_hybrid_kv_cache_manager is True
    assert EngineConfig().disable_hybrid_kv_cache_manager is False

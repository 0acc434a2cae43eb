"""What the real vLLM v0.22.1 shows of its offline API on models/pocket (`golden/record_api.py`), and ours."""

import pytest

from mini_vllm import LLM, FlatLogprobs, RepetitionDetectionParams, SamplingParams
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN, POCKET

RECORD = read_packed(GOLDEN / "api.json.xz")
PERFORMANCE = (
    "vllm:estimated_flops_per_gpu",
    "vllm:estimated_read_bytes_per_gpu",
    "vllm:estimated_write_bytes_per_gpu",
)
"""Counters of upstream's own performance model, which phase 18 speaks of."""
pytestmark = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")


@pytest.fixture(scope="module")
def llm():
    return LLM(str(POCKET), num_blocks=256, max_num_seqs=8, max_num_batched_tokens=512)


def params(**given):
    if "repetition_detection" in given:
        given["repetition_detection"] = RepetitionDetectionParams(*given["repetition_detection"])
    if "logit_bias" in given:
        given["logit_bias"] = {int(k): v for k, v in given["logit_bias"].items()}
    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **given})


def test_metrics_have_upstreams_names_labels_buckets_and_counts():
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "disable_log_stats": False}
    llm = LLM(str(POCKET), num_blocks=256, **settings)
    llm.generate(RECORD["prompts"], params(max_tokens=5), use_tqdm=False)
    ours, theirs = llm.get_metrics(), [m for m in RECORD["metrics"] if m["name"] not in PERFORMANCE]
    assert [(type(m).__name__, m.name) for m in ours] == [(m["kind"], m["name"]) for m in theirs]
    for mine, recorded in zip(ours, theirs, strict=True):
        labels = {k: v for k, v in mine.labels.items() if k != "model_name"}
        if mine.name == "vllm:cache_config_info":
            assert set(labels) == set(recorded["labels"])
            continue
        assert labels == recorded["labels"], mine.name
        if "value" in recorded:
            assert mine.value == recorded["value"], mine.name
        if "buckets" in recorded:
            assert list(mine.buckets) == recorded["buckets"], mine.name
            assert mine.count == recorded["count"] == mine.buckets["+Inf"], mine.name


@pytest.mark.parametrize("name", [name for name in RECORD["sampling"] if "cached" not in name and name != "skipped"])
def test_sampling_parameters_do_what_they_do_there(llm, name):
    recorded = RECORD["sampling"][name]
    done = llm.generate(RECORD["prompts"][0], params(**recorded["given"]), use_tqdm=False)[0].outputs[0]
    assert done.text == recorded["text"] and done.token_ids == recorded["token_ids"]
    assert (done.finish_reason, done.stop_reason) == (recorded["finish_reason"], recorded["stop_reason"])
    assert isinstance(done.logprobs, FlatLogprobs) == bool(recorded["flat"])
    entries = [[[t, e.logprob, e.rank, e.decoded_token] for t, e in step.items()] for step in done.logprobs or ()]
    assert [[(t, rank, text) for t, _, rank, text in step] for step in entries] == [
        [(t, rank, text) for t, _, rank, text in step] for step in recorded["logprobs"]
    ]
    ours = [value for step in entries for _, value, _, _ in step]
    assert ours == pytest.approx([value for step in recorded["logprobs"] for _, value, _, _ in step], abs=1e-4)
    assert done.cumulative_logprob == pytest.approx(recorded["cumulative_logprob"], abs=1e-4)


def test_skip_reading_prefix_cache_computes_the_whole_prompt(llm):
    llm.reset_prefix_cache()
    for name in ("cached once", "cached again", "skipped"):
        recorded = RECORD["sampling"][name]
        output = llm.generate(RECORD["long"], params(max_tokens=2, **recorded["given"]), use_tqdm=False)[0]
        assert output.num_cached_tokens == recorded["num_cached_tokens"], name
        assert output.outputs[0].token_ids == recorded["token_ids"], name


@pytest.mark.parametrize("name", RECORD["chat"])
def test_conversations_become_the_same_prompts(llm, name):
    recorded = RECORD["chat"][name]
    given = {k: v for k, v in recorded["given"].items() if k != "messages"}
    prompt = llm.render_chat(recorded["given"]["messages"], **given)
    assert (prompt["prompt"], prompt["prompt_token_ids"]) == (recorded["prompt"], recorded["ids"])


def test_the_text_of_a_token_inside_a_character_is_empty_and_the_last_has_all_of_it(llm):
    recorded = RECORD["text"]
    steps = iter(recorded["ids"])
    sampler = llm.llm_engine.sampler
    plain = sampler.forward

    def forward(logits, metadata):
        logits = logits * 0 - 50
        logits[:, next(steps)] = 50
        return plain(logits, metadata)

    sampler.forward = forward
    try:
        given = params(max_tokens=len(recorded["ids"]), logprobs=0)
        done = llm.generate({"prompt_token_ids": [1, 2, 3]}, given, use_tqdm=False)[0].outputs[0]
    finally:
        del sampler.forward
    said = [[t, entry.decoded_token] for step in done.logprobs for t, entry in step.items()]
    assert said == recorded["together"]
    assert "".join(text for _, text in said) == recorded["text"]

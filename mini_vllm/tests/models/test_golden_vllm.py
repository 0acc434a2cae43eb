"""Replays what real vLLM 0.22.1 answered: tokens, log-probabilities, and why each request ended.

Greedy tokens in float32 can only be compared where the likeliest token has no near rival: a comparison stops at a
step whose two best log-probabilities lie within 1e-4, and such stops are counted.
"""

import re

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN, MODELS
from mini_vllm.tests.models import tiny_checkpoints as tiny

COMMITTED = ("pocket", "pocket-moe")
TIE = 1e-4


def load(name):
    return read_packed(GOLDEN / f"vllm-{name}.json.xz")


def checkpoint(name, tmp_path):
    return MODELS / name if name in COMMITTED else tiny.save_tiny(name, tmp_path / name)


def is_tie(step, chosen):
    """The chosen token has a rival (it need not be the likeliest: `min_tokens` may have masked that one)."""
    return any(abs(value - step[chosen][0]) < TIE for token, (value, _) in step.items() if token != chosen)


def compare(expected, completion):
    """Compare one answer; returns (steps compared, whether a near tie ended the comparison)."""
    for t, token in enumerate(expected["token_ids"]):
        theirs = {int(k): v for k, v in expected["logprobs"][t].items()}
        assert t < len(completion.token_ids), (
            f"ours ended after {t} tokens ({completion.finish_reason}), theirs went on"
        )
        ours = completion.logprobs[t]
        if is_tie(theirs, token):
            return t, True
        assert completion.token_ids[t] == token, f"step {t}: ours {completion.token_ids[t]}, theirs {token}"
        for token_id, (value, rank) in theirs.items():
            if token_id in ours:
                assert abs(ours[token_id].logprob - value) < 1e-3
                assert token_id != token or ours[token_id].rank == rank
        missing = [theirs[i][0] for i in theirs if i not in ours]
        # only the fifth place may be disputed, between two near values
        assert len(missing) <= 1 and all(abs(m - min(v.logprob for v in ours.values())) < 1e-3 for m in missing)
    assert len(completion.token_ids) == len(expected["token_ids"])
    assert completion.finish_reason == expected["finish_reason"]
    return len(expected["token_ids"]), False


@pytest.mark.slow
@pytest.mark.parametrize("name", [*tiny.FAMILIES, *COMMITTED])
def test_answers_equal_real_vllm(name, tmp_path):
    replay(name, tmp_path)


@pytest.mark.parametrize("name", [*tiny.FAMILIES, *COMMITTED])
def test_some_answers_equal_real_vllm(name, tmp_path):
    """Every fifth of them, in a smaller batch."""
    replay(name, tmp_path, every=5)


def replay(name, tmp_path, every=1):
    if not (GOLDEN / f"vllm-{name}.json.xz").is_file():
        pytest.fail(f"golden/vllm-{name}.json.xz is missing: record it (see record_vllm.py)")
    golden = load(name)
    folder = checkpoint(name, tmp_path)
    assert tiny.digest(folder) == golden["provenance"]["checkpoint_sha256"], "not the weights that were recorded"
    llm = LLM(str(folder), **golden["engine_args"])
    answers = golden["answers"][::every]
    params = [SamplingParams(**answer["params"]) for answer in answers]
    outputs = llm.generate([{"prompt_token_ids": a["prompt_token_ids"]} for a in answers], params, use_tqdm=False)
    steps = ties = 0
    for answer, output in zip(answers, outputs, strict=True):
        compared, tied = compare(answer, output.outputs[0])
        steps, ties = steps + compared, ties + tied
        if not tied and answer["finish_reason"] == "stop" and "stop_token_ids" not in answer["params"]:
            # Without a tokenizer upstream has no primary EOS and reports the id; with one, both report None.
            assert output.outputs[0].stop_reason == answer["stop_reason"] or name not in COMMITTED
        if not tied and name in COMMITTED:
            assert output.outputs[0].text == answer["text"]
    assert len(golden["answers"]) == 50 and steps > 500 / every
    assert ties <= max(0.01 * steps, 1), f"{ties} near ties in {steps} steps"


def test_pocket_prompts_are_rendered_and_tokenized_as_upstream_does():
    golden, llm = load("pocket"), LLM(str(MODELS / "pocket"), num_blocks=64)
    for answer in golden["answers"]:
        assert llm.render_chat(answer["messages"])["prompt_token_ids"] == answer["prompt_token_ids"]


def test_the_replay_would_notice(tmp_path):
    """One wrong entry in a block table, on purpose: the answers are no longer vLLM's."""
    golden = load("llama")
    llm = LLM(str(checkpoint("llama", tmp_path)), **golden["engine_args"])
    runner = llm.llm_engine.engine_core.model_runner
    original = runner.prepare_inputs

    def corrupted(*args):
        table = runner.input_batch.block_table[0]
        if table.num_blocks[0] > 1:
            table.table[0, 0] = table.table[0, 1]
        return original(*args)

    runner.prepare_inputs = corrupted
    answers = golden["answers"][::3]
    params = [SamplingParams(**answer["params"]) for answer in answers]
    outputs = llm.generate([{"prompt_token_ids": a["prompt_token_ids"]} for a in answers], params, use_tqdm=False)
    wrong = 0
    for answer, output in zip(answers, outputs, strict=True):
        try:
            compare(answer, output.outputs[0])
        except AssertionError:
            wrong += 1
    assert wrong >= 5


def test_what_the_recorders_load_by_path_is_there():
    """They run where vLLM is, without the engine's package, and so load helpers by their paths."""
    for recorder in GOLDEN.glob("record_*.py"):
        text = recorder.read_text(encoding="utf-8")
        for parents, parts in re.findall(r"HERE((?:\.parent)*)((?: / \"[\w.-]+\.py\"| / \"[\w-]+\")+)", text):
            path = GOLDEN.joinpath(*[".."] * parents.count("parent"), *re.findall(r'"([\w.-]+)"', parts))
            assert path.suffix != ".py" or path.is_file(), f"{recorder.name} loads {path}"

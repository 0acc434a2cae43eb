"""Tokens and counts of drafts equal those of the real vLLM 0.22.1 on models/pocket, with the same method.

Without drafts the two engines part where two tokens are nearly as likely (float32, other sums). With drafts such a
place moves the counts too; the runs that pass one are counted, and have to be few.
"""

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.golden.spec_decode_cases import ENGINE, MAX_TOKENS, METHODS, PROMPTS
from mini_vllm.tests.helpers import GOLDEN, MODELS, POCKET

NEAR_TIE = 1e-4
pytestmark = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")


def runs_of(name):
    """Every run of a method: (prompts, the answers and counters recorded)."""
    recorded = read_packed(GOLDEN / "spec-decode.json.xz")["runs"][name]
    return list(zip([*([prompt] for prompt in PROMPTS), PROMPTS], recorded, strict=True))


def counters(llm):
    stats = llm.llm_engine.stats.spec_decoding
    return [stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens, *stats.num_accepted_tokens_per_pos]


def flat(recorded):
    return [*(recorded[n] for n in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")),
            *recorded["num_accepted_tokens_per_pos"]]  # fmt: skip


def check(name, chosen):
    method = dict(METHODS[name])
    if "model" in method:
        method["model"] = str(MODELS.parent / method["model"])
    llm = LLM(str(POCKET), **{**ENGINE, "num_blocks": 600}, speculative_config=method, enable_prefix_caching=False)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    near, before = 0, counters(llm)
    for prompts, recorded in (runs_of(name)[i] for i in chosen):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        after = counters(llm)
        counted, before = [a - b for a, b in zip(after, before, strict=True)], after
        if min(min(answer["gaps"]) for answer in recorded["answers"]) < NEAR_TIE:
            near += 1
            continue
        assert [o.outputs[0].token_ids for o in outputs] == [answer["token_ids"] for answer in recorded["answers"]]
        assert counted == flat(recorded["counters"]), (name, prompts)
    return near


@pytest.mark.parametrize("name", ["ngram", "draft_model", "eagle", "medusa"])
def test_tokens_and_counts_are_the_real_ones(name):
    assert check(name, (2, 4)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_run(name):
    assert check(name, range(len(PROMPTS) + 1)) <= 1


def test_the_recording_is_of_the_pinned_release_and_drafts_were_accepted():
    document = read_packed(GOLDEN / "spec-decode.json.xz")
    assert document["provenance"]["vllm"].startswith("0.22.1") and set(document["runs"]) == set(METHODS)
    for name in METHODS:
        accepted = sum(run["counters"]["num_accepted_tokens"] for _, run in runs_of(name))
        assert accepted > 50, name

"""Beam search: by hand over a model whose probabilities are written down, and beside the real vLLM's on pocket."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from mini_vllm import LLM, BeamSearchParams, SamplingParams
from mini_vllm.entrypoints.generate.beam_search.utils import get_beam_search_score
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN, POCKET

A, B, C, D, END, START = 1, 2, 3, 4, 5, 0
TRAP = {START: {A: 0.6, B: 0.4}, A: {C: 0.51, D: 0.49}, B: {C: 0.9, D: 0.1}, C: {END: 0.5, D: 0.5}, D: {END: 1.0},
        END: {A: 1.0}}  # fmt: skip


class Markov:
    """The next token depends on the last one alone: probabilities by hand."""

    vocab_size, num_layers, max_model_len, eos_token_ids = 8, 0, 32, ()
    dtype, num_kv_heads, head_dim = np.float64, 1, 1

    def forward(self, input_ids, positions, attn, inputs_embeds=None):
        return np.asarray(input_ids, dtype=np.float64)[:, None]

    def compute_logits(self, hidden):
        rows = np.full((len(hidden), self.vocab_size), 1e-30)
        for row, (last,) in zip(rows, hidden.tolist(), strict=True):
            for token, p in TRAP[int(last)].items():
                row[token] = p
        return np.log(rows)


class Letters:
    """A token is a letter."""

    eos_token_id, is_byte_level = END, False

    def encode(self, text, add_special_tokens=True):
        return ["sABCDe".index(letter) for letter in text]

    def decode(self, ids, skip_special_tokens=True):
        return "".join("sABCDe__"[i] for i in ids)


@functools.cache
def make_trap():
    return LLM(Markov(), tokenizer=Letters(), num_blocks=256, block_size=2, max_num_seqs=16)


class Trap:
    """The engine on first use, inside a test: where it is not written yet, tests fail and fixtures do not."""

    def __getattr__(self, name):
        return getattr(make_trap(), name)


@pytest.fixture
def trap():
    return Trap()


def search(llm, width, steps, **given):
    [output] = llm.beam_search("s", BeamSearchParams(beam_width=width, max_tokens=steps, **given))
    return [(beam.text, round(math.exp(beam.cum_logprob), 6)) for beam in output.sequences]


def test_two_beams_find_what_greedy_misses(trap):
    assert search(trap, 1, 2) == [("sAC", 0.306)]
    assert search(trap, 2, 2) == [("sBC", 0.36), ("sAC", 0.306)]
    greedy = trap.generate("s", SamplingParams(temperature=0.0, max_tokens=2), use_tqdm=False)[0].outputs[0].token_ids
    assert greedy == [A, C]


def test_a_finished_beam_takes_no_place_and_competes_at_its_own_length(trap):
    """After two steps sBC (.36) and sAC (.306) live. Both may end (.18, .153), and sBCD, sACD live all the same."""
    assert search(trap, 2, 3, length_penalty=0.0) == [("sBCe", 0.18), ("sBCD", 0.18)]
    assert search(trap, 4, 3, length_penalty=0.0)[0] == ("sADe", 0.294)  # two beams had dropped sAD
    # Log-probabilities over tokens: sBCe counts three, since its last one is the end, and so the longer ones win.
    assert search(trap, 2, 3) == [("sBCD", 0.18), ("sACD", 0.153)]


def test_ignore_eos_lets_a_beam_go_on(trap):
    assert all(text[-1] != "e" or len(text) == 5 for text, _ in search(trap, 3, 4, ignore_eos=True))
    assert any("e" in text[:-1] for text, _ in search(trap, 3, 4, ignore_eos=True))


def test_the_score_counts_prompt_and_tokens_less_a_last_end_of_sequence():
    assert get_beam_search_score([7, 8, 9], -6.0, 5) == -2.0
    assert get_beam_search_score([7, 8, 5], -6.0, 5) == -3.0
    assert get_beam_search_score([7, 8, 9], -6.0, 5, 0.0) == -6.0
    assert get_beam_search_score([7, 8, 9], -9.0, None, 2.0) == -1.0


def test_prompts_are_searched_apart_whatever_the_limit(trap):
    params = BeamSearchParams(beam_width=2, max_tokens=3)
    prompts = ["s", "sA", {"prompt_token_ids": [START, B]}, {"prompt": "sB", "cache_salt": "x"}]
    alone = [trap.beam_search(prompt, params)[0] for prompt in prompts]
    for limit in (None, 1, 3):
        together = trap.beam_search(prompts, params, concurrency_limit=limit)
        assert [[b.tokens for b in o.sequences] for o in together] == [[b.tokens for b in o.sequences] for o in alone]
    assert alone[3].sequences[0].orig_prompt == {"prompt": "sB", "prompt_token_ids": [START, B], "cache_salt": "x"}
    assert trap.beam_search([], params) == []


def test_steps_are_reported_and_a_bar_counts_them(trap):
    shown = []

    class Bar:
        def __init__(self, total, desc):
            shown.append(total)

        def update(self, count):
            shown.append(count)

        def close(self):
            shown.append("closed")

    [output] = trap.beam_search("s", BeamSearchParams(beam_width=2, max_tokens=2), use_tqdm=Bar)
    best = output.sequences[0]
    assert [step[t].logprob for step, t in zip(best.logprobs, best.tokens[1:], strict=True)] == pytest.approx(
        [math.log(0.4), math.log(0.9)]
    )
    assert (best.finish_reason, best.stop_reason, best.lora_request) == (None, None, None)
    assert shown == [2, 1, 1, "closed"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"beam_width": 0}, "beam_width must be an integer of at least 1, got 0"),
        ({"beam_width": 1.5}, "beam_width must be an integer"),
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1, got 0"),
        ({"temperature": -1.0}, "temperature must be a finite number of at least 0"),
        ({"length_penalty": math.nan}, "length_penalty must be a finite number, got nan"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False, got 1"),
    ],
)
def test_parameters_are_checked(given, words):
    with pytest.raises(ValueError, match=words):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 2, **given})


def test_what_is_wrong_is_said_before_anything_is_computed(trap):
    params = BeamSearchParams(beam_width=2, max_tokens=31)
    steps = trap.llm_engine.engine_core.num_steps
    with pytest.raises(
        ValueError, match=r"prompts\[1\]: max_tokens must be at most 30, what max_model_len = 32 leaves"
    ):
        trap.beam_search(["s", "sA"], params)
    with pytest.raises(ValueError, match=r"prompts\[0\]: logprobs must be at most the vocabulary, 8, got 10"):
        trap.beam_search("s", BeamSearchParams(beam_width=5, max_tokens=1))
    with pytest.raises(TypeError, match="params must be a BeamSearchParams, got SamplingParams"):
        trap.beam_search("s", SamplingParams())
    with pytest.raises(ValueError, match="concurrency_limit must be None, or at least 1, got 0"):
        trap.beam_search("s", BeamSearchParams(beam_width=1, max_tokens=1), concurrency_limit=0)
    assert trap.llm_engine.engine_core.num_steps == steps
    trap.beam_search("s", params)  # 31 of 32 places after a prompt of one


RECORDED = GOLDEN / "sampling.json.xz"  # a workspace of `course build` has no recordings
CASES = read_packed(RECORDED) if RECORDED.is_file() else {"prompts": [], "beams": []}


@pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id="-".join(map(str, case["given"].values())),
            marks=[pytest.mark.slow] * (case["given"]["max_tokens"] > 12),
        )
        for case in CASES["beams"]
    ],
)
def test_tokens_sums_and_texts_are_upstreams_on_pocket(case):
    llm = LLM(str(POCKET), num_blocks=512, max_num_seqs=32)
    outputs = llm.beam_search(CASES["prompts"], BeamSearchParams(**case["given"]))
    for ours, theirs in zip(outputs, case["outputs"], strict=True):
        assert [(s.tokens, s.text, s.finish_reason, len(s.logprobs)) for s in ours.sequences] == [
            (s["tokens"], s["text"], s["finish_reason"], s["steps"]) for s in theirs
        ]
        assert np.allclose([s.cum_logprob for s in ours.sequences], [s["cum_logprob"] for s in theirs], atol=1e-4)

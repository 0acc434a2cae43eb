"""Log-probabilities of the prompt: the same numbers whichever way the prompt is computed, and upstream's."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm import LLM, FlatLogprobs, LLMEngine, RequestOutputKind, SamplingParams
from mini_vllm.distributed import shared_memory
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import FEW_GRAPHS, GOLDEN, POCKET

pytestmark = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
PROMPTS = ["What is a KV block?", "The scheduler plans a step, and the runner", "é 漢字 👋🏽 ok " * 3]
TWO = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)


def engine(**args):
    return LLM(str(POCKET), dtype="float64", **{"num_blocks": 64, "max_num_seqs": 8, **args})


def entries(output):
    """Position by position: (id, log-probability, rank)."""
    return [[(t, e.logprob, e.rank) for t, e in (step or {}).items()] for step in output.prompt_logprobs]


def assert_same(ours, theirs):
    assert [[(t, rank) for t, _, rank in step] for step in ours] == [[(t, r) for t, _, r in step] for step in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert np.allclose([lp for _, lp, _ in mine], [lp for _, lp, _ in other], atol=1e-9)


@pytest.fixture(scope="module")
def plain():
    """Each prompt alone, in one piece."""
    return [engine().generate(prompt, TWO, use_tqdm=False)[0] for prompt in PROMPTS]


def test_the_tokens_of_an_answer_have_as_a_prompt_what_they_had_as_an_answer():
    llm = engine()
    params = SamplingParams(temperature=0.0, max_tokens=12, logprobs=3, ignore_eos=True)
    first = llm.generate(PROMPTS[0], params, use_tqdm=False)[0]
    ids = [*first.prompt_token_ids, *first.outputs[0].token_ids]
    again = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=3)
    second = llm.generate({"prompt_token_ids": ids}, again, use_tqdm=False)[0]
    assert len(second.prompt_logprobs) == len(ids) and second.prompt_logprobs[0] is None
    answer = [[(t, e.logprob, e.rank) for t, e in step.items()] for step in first.outputs[0].logprobs]
    assert_same(entries(second)[len(first.prompt_token_ids) :], answer)


@pytest.mark.parametrize("args", [{"max_num_batched_tokens": 8}, {"long_prefill_token_threshold": 3},
                                  {"async_scheduling": True, "max_num_batched_tokens": 8}, {"enforce_eager": True},
                                  {"cudagraph_mode": "FULL_AND_PIECEWISE",
                                   "cudagraph_capture_sizes": FEW_GRAPHS}])  # fmt: skip
def test_chunks_neighbours_and_forms_change_nothing(plain, args):
    together = engine(**args).generate(PROMPTS, TWO, use_tqdm=False)
    for mine, alone in zip(together, plain, strict=True):
        assert_same(entries(mine), entries(alone))


def test_a_chunk_may_end_just_before_the_last_token(plain):
    size = len(plain[0].prompt_token_ids)
    for budget in (size - 1, size, size + 1):
        output = engine(max_num_batched_tokens=budget, max_num_seqs=1).generate(PROMPTS[0], TWO, use_tqdm=False)[0]
        assert_same(entries(output), entries(plain[0]))


def test_the_prefix_cache_is_not_read_unless_one_insists(plain):
    llm = engine(block_size=4)
    once, again = (llm.generate(PROMPTS[1], TWO, use_tqdm=False)[0] for _ in range(2))
    assert once.num_cached_tokens == again.num_cached_tokens == 0
    assert_same(entries(again), entries(plain[1]))
    insists = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2, skip_reading_prefix_cache=False)
    cached = llm.generate(PROMPTS[1], insists, use_tqdm=False)[0]
    hits = cached.num_cached_tokens
    assert hits >= 8 and cached.prompt_logprobs[: hits + 1] == [None] * (hits + 1)
    assert_same(entries(cached)[hits + 1 :], entries(plain[1])[hits + 1 :])
    other = llm.generate(PROMPTS[1], SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)[0]
    assert other.num_cached_tokens == hits and other.prompt_logprobs is None


def test_preemption_in_the_middle_of_a_prompt_and_after_it(plain):
    llm = engine(num_blocks=22, block_size=4, max_num_batched_tokens=8, scheduler_reserve_full_isl=False)
    params = SamplingParams(temperature=0.0, max_tokens=12, prompt_logprobs=2, ignore_eos=True)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert llm.llm_engine.scheduler.num_preemptions > 0
    for mine, alone in zip(outputs, plain, strict=True):
        assert_same(entries(mine), entries(alone))
    assert not llm.llm_engine.engine_core.model_runner.states.num_prompt_logprobs


def test_an_aborted_request_is_forgotten():
    made = LLMEngine(str(POCKET), num_blocks=64, max_num_batched_tokens=4)
    made.add_request("a", PROMPTS[0], TWO)
    made.step()
    made.abort_request("a")
    made.add_request("b", PROMPTS[0], SamplingParams(max_tokens=1, temperature=0.0))
    while made.has_unfinished_requests():
        outputs = made.step()
    assert outputs[-1].prompt_logprobs is None
    assert not made.engine_core.model_runner.states.num_prompt_logprobs


def test_every_completion_of_a_prompt_has_them_and_minus_one_is_the_vocabulary(plain):
    params = SamplingParams(seed=3, n=2, max_tokens=2, prompt_logprobs=2)
    output = engine().generate(PROMPTS[0], params, use_tqdm=False)[0]
    assert_same(entries(output), entries(plain[0])) and len(output.outputs) == 2
    everything = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=-1)
    whole = engine(max_logprobs=-1).generate(PROMPTS[0], everything, use_tqdm=False)[0].prompt_logprobs
    vocab_size = engine().llm_engine.model.vocab_size
    assert all(len(step) == vocab_size and {e.rank for e in step.values()} == set(range(1, vocab_size + 1))
               for step in whole[1:])  # fmt: skip
    assert np.isclose(np.exp([e.logprob for e in whole[1].values()]).sum(), 1.0)


def test_a_prompt_of_one_token_has_one_entry():
    output = engine().generate({"prompt_token_ids": [5]}, TWO, use_tqdm=False)[0]
    assert output.prompt_logprobs == [None]


def test_a_stream_of_what_is_new_has_them_once():
    made = LLMEngine(str(POCKET), num_blocks=64, max_num_batched_tokens=4)
    kind = RequestOutputKind.DELTA
    made.add_request(
        "a", PROMPTS[0], SamplingParams(max_tokens=3, prompt_logprobs=1, output_kind=kind, ignore_eos=True)
    )
    seen = []
    while made.has_unfinished_requests():
        seen += [output.prompt_logprobs for output in made.step()]
    assert len(seen) == 3 and len(seen[0]) == len(made.get_tokenizer().encode(PROMPTS[0])) and seen[1:] == [[], []]


def test_more_than_the_engine_allows_is_refused():
    for wanted in (21, -1):
        with pytest.raises(ValueError, match=r"Requested prompt logprobs of .* greater than max allowed: 20"):
            engine().generate("a", SamplingParams(prompt_logprobs=wanted), use_tqdm=False)


def check_place(plain, **args):
    llm = engine(**args)
    for mine, alone in zip(llm.generate(PROMPTS, TWO, use_tqdm=False), plain, strict=True):
        assert_same(entries(mine), entries(alone))
    llm.llm_engine.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
def test_two_ranks_report_the_same(plain):
    check_place(plain, tensor_parallel_size=2, max_num_batched_tokens=8)


@pytest.mark.usefixtures("core_elsewhere")
def test_a_core_in_its_own_process_reports_the_same(plain):
    check_place(plain, enable_multiprocessing=True)


RECORD = read_packed(GOLDEN / "sampling.json.xz")


@pytest.mark.parametrize("budget", [512, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RECORD["prompt_logprobs"])
def test_they_are_upstreams_on_pocket(name, budget):
    case = RECORD["prompt_logprobs"][name]
    llm = LLM(str(POCKET), num_blocks=64, max_num_seqs=8, max_num_batched_tokens=budget)
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 1, **case["given"]})
    for output, theirs in zip(llm.generate(RECORD["prompts"], params, use_tqdm=False), case["outputs"], strict=True):
        assert isinstance(output.prompt_logprobs, FlatLogprobs) == theirs["flat"]
        assert output.num_cached_tokens == theirs["cached"] == 0
        ours = [[[t, e.logprob, e.rank, e.decoded_token] for t, e in (step or {}).items()]
                for step in output.prompt_logprobs]  # fmt: skip
        assert [[(t, text) for t, _, _, text in step] for step in ours] == [
            [(t, text) for t, _, _, text in step] for step in theirs["entries"]
        ]
        for mine, other in zip(ours[1:], theirs["entries"][1:], strict=True):
            assert np.allclose([e[1] for e in mine], [e[1] for e in other], atol=1e-4)
            assert all(abs(a[2] - b[2]) <= 1 for a, b in zip(mine, other, strict=True))  # ranks of near equals
        if params.is_greedy:
            assert output.outputs[0].token_ids == theirs["token_ids"]

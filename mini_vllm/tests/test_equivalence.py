"""No optimisation may change a token: chunking, caching, preemption, batching and block size, on random workloads.

In float64, so that a different order of summation cannot flip a near tie. The model is the committed checkpoint with
real keys and values: whatever reads a wrong slot gives another token, and the last tests make sure that it would.
"""

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.core.kv_cache_utils import hash_block_tokens
from mini_vllm.tests.helpers import POCKET

pytest.importorskip("hypothesis", reason="hypothesis is in the extra `test`")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SETTINGS = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(scope="module")
def model():
    from mini_vllm.model_loader.default_loader import load_model

    return load_model(POCKET, "float64")


@st.composite
def workloads(draw):
    """Up to six prompts made of few pieces, so that prefixes are shared and pieces recur at other places."""
    pieces = draw(st.lists(st.lists(st.integers(10, 4000), min_size=1, max_size=12), min_size=2, max_size=4))
    prompts, params = [], []
    for _ in range(draw(st.integers(2, 6))):
        chosen = draw(st.lists(st.integers(0, len(pieces) - 1), min_size=1, max_size=5))
        prompts.append([token for i in chosen for token in pieces[i]])
        seed = draw(st.none() | st.integers(0, 99))
        params.append(
            SamplingParams(
                temperature=0.0 if seed is None else 0.9,
                seed=seed,
                top_k=0 if seed is None else draw(st.sampled_from([0, 5])),
                max_tokens=draw(st.integers(1, 10)),
                ignore_eos=True,
            )
        )
    return prompts, params


@st.composite
def engines(draw, longest):
    """Engine arguments with a pool that is barely large enough for the longest request."""
    block_size = draw(st.sampled_from([1, 2, 3, 5, 8, 16, 64]))
    enough = -(-longest // block_size) + 1
    budget = draw(st.sampled_from([4, 7, 16, 64, 512]))
    return {
        "block_size": block_size,
        "num_blocks": enough + draw(st.sampled_from([0, 1, 4, 40])),
        "max_num_batched_tokens": budget,
        "max_num_seqs": draw(st.integers(1, min(budget, 8))),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 3])),
        "enable_prefix_caching": draw(st.booleans()),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()),
    }


def run(model, prompts, params, **engine_args):
    llm = LLM(model, **engine_args)
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs], llm.llm_engine.stats


def alone(model, prompts, params):
    """The reference: every prompt by itself, whole, uncached."""
    return [
        run(model, [p], [q], enable_prefix_caching=False, num_blocks=256, block_size=16)[0][0]
        for p, q in zip(prompts, params, strict=True)
    ]


@pytest.mark.slow
@settings(max_examples=20, **SETTINGS)
@given(data=st.data())
def test_tokens_do_not_depend_on_how_they_are_scheduled(model, data):
    prompts, params = data.draw(workloads())
    longest = max(len(p) + q.max_tokens for p, q in zip(prompts, params, strict=True)) - 1
    expected = alone(model, prompts, params)
    for _ in range(3):
        args = data.draw(engines(longest))
        assert run(model, prompts, params, **args)[0] == expected, args


def test_every_mechanism_was_really_at_work(model):
    """The comparison above is empty unless chunks, hits and preemptions occur; here they are forced and counted."""
    shared = list(range(100, 132))
    prompts = [shared + [200 + i] * 9 for i in range(4)]
    params = [SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)] * 4
    expected = alone(model, prompts, params)
    args = {"block_size": 4, "num_blocks": 25, "max_num_batched_tokens": 16, "max_num_seqs": 4}
    tokens, stats = run(model, prompts, params, **args)
    assert tokens == expected
    assert stats.num_preemptions > 0 and stats.prefix_cache.hits > 0 and stats.num_steps > 16 + 3
    tokens, stats = run(model, prompts, params, enable_prefix_caching=False, scheduler_reserve_full_isl=False, **args)
    assert tokens == expected and stats.num_preemptions > 0 and stats.prefix_cache.hits == 0


@pytest.fixture(scope="module")
def story(model):
    """A prompt and the same backwards, how they go on, and how that reads where nothing is wrong."""
    question = [{"role": "user", "content": "Tell me a story about a dragon and a lamp."}]
    tokens = LLM(str(POCKET), num_blocks=64, max_model_len=512).render_chat(question)["prompt_token_ids"]
    prompts = [{"prompt_token_ids": tokens}, {"prompt_token_ids": tokens[::-1]}]
    params = [SamplingParams(temperature=1.0, seed=1, max_tokens=40, ignore_eos=True, logprobs=0)] * 2
    clean = LLM(model, num_blocks=128, enable_prefix_caching=False)
    return prompts, params, clean.generate(prompts, params, use_tqdm=False)


@pytest.mark.parametrize("entry", [0, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_a_wrong_block_table_changes_the_tokens(model, story, entry):
    """One entry points at its neighbour's block, after the prompt: the story takes another course, the other does not.

    The first blocks hold the template and the opening words; there only the probabilities move, by millions of times
    the rounding error.
    """
    prompts, params, expected = story
    llm = LLM(model, num_blocks=128, block_size=4, enable_prefix_caching=False)
    runner = llm.llm_engine.engine_core.model_runner
    original = runner.prepare_inputs

    def corrupted(*args):
        batch = runner.input_batch
        if batch.num_tokens[0] > len(prompts[0]["prompt_token_ids"]):
            table = batch.block_table[0].table
            table[0, entry] = table[0, entry + 1]
        return original(*args)

    runner.prepare_inputs = corrupted
    outputs = llm.generate(prompts, params, use_tqdm=False)
    drift = [
        abs(ours.outputs[0].cumulative_logprob - it.outputs[0].cumulative_logprob)
        for ours, it in zip(outputs, expected, strict=True)
    ]
    assert drift[0] > 1e-4 and drift[1] < 1e-9
    assert outputs[1].outputs[0].token_ids == expected[1].outputs[0].token_ids
    if entry >= 2:
        assert outputs[0].outputs[0].token_ids != expected[0].outputs[0].token_ids


def test_an_unchained_hash_changes_the_tokens(model, monkeypatch):
    """Block 0 of the second prompt equals block 1 of the first: only the parent's hash tells them apart."""
    first, piece = list(range(100, 108)), list(range(500, 508))
    prompts = [[*first, *piece, 7], [*piece, 900, 901, 902]]
    params = [SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)] * 2
    expected = alone(model, prompts, params)
    args = {"num_blocks": 32, "block_size": 8}
    assert run(model, prompts, params, **args)[0] == expected
    monkeypatch.setattr(
        "mini_vllm.core.kv_cache_utils.hash_block_tokens", lambda parent, ids, extra=None: hash_block_tokens(None, ids)
    )
    assert run(model, prompts, params, **args)[0] != expected


def test_sampled_tokens_depend_on_the_seed_alone(model):
    """A request's random stream is its own: neighbours and order do not matter."""
    prompts = [[50 + i, 60, 70] for i in range(5)]
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=12, ignore_eos=True) for i in range(5)]
    together = run(model, prompts, params, num_blocks=64)[0]
    backwards = run(model, prompts[::-1], params[::-1], num_blocks=64)[0]
    assert together == backwards[::-1] == alone(model, prompts, params)

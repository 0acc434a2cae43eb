"""Lab 14-01: the engine is not changed; the models are."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm import LLMEngine, SamplingParams

PROMPTS = [[5, 9, 9, 31], [7], list(range(40, 61)), [9, 5, 31, 9]]
V = 64


def engine_of(model, **settings):
    return LLMEngine(model, **{"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, **settings})


def tokens_of(model, prompts=PROMPTS, max_tokens=12, engine=None, **settings):
    """Greedy answers of all prompts, in one engine."""
    engine = engine or engine_of(model, **settings)
    for number, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    found, steps = {}, 0
    while engine.has_unfinished_requests():
        steps += 1
        assert steps < 500, "500 steps and no end"
        for output in engine.step():
            if output.finished:
                found[output.request_id] = list(output.outputs[0].token_ids)
    return [found[str(number)] for number in range(len(prompts))]


def by_hand(model, prompt, max_tokens=12):
    """What the two tables say, token by token, without an engine."""
    ids = list(prompt)
    for _ in range(max_tokens):
        logits = model.table[ids[-1]].copy()
        if hasattr(model, "before"):
            logits += model.before[ids[-2] if len(ids) > 1 else ids[-1]]
        ids.append(int(np.argmax(logits)))
    return ids[len(prompt) :]


@pytest.fixture(params=["BigramModel", "TrigramModel"])
def make(request, impl):
    return getattr(impl, request.param)


def test_new_architecture_serves_through_the_unchanged_engine(make):
    """Batching, scheduling, sampling and stopping, and not a line of the engine was changed."""
    model = make(V, 3)
    assert tokens_of(model) == [by_hand(model, prompt) for prompt in PROMPTS]


def test_it_really_is_a_different_model(impl):
    answers = [tokens_of(model) for model in (impl.BigramModel(V, 3), impl.TrigramModel(V, 3), impl.BigramModel(V, 4))]
    assert answers[0] != answers[1] and answers[0] != answers[2]
    model = impl.TrigramModel(V, 3)
    assert model.table.shape == model.before.shape == (V, V) and not np.allclose(model.table, model.before)
    assert not np.allclose(model.before, impl.TrigramModel(V, 4).before), "the second table has no seed"


def test_determinism_across_engine_instances(make):
    assert tokens_of(make(V, 3)) == tokens_of(make(V, 3))
    assert tokens_of(make(V)) == tokens_of(make(V, 0)), "the seed is 0 where none is given"


def test_the_end_is_an_end(make):
    """The last id of the vocabulary ends an answer, and the engine looks for it."""
    model = make(V, 3)
    last = model.eos_token_ids
    assert last == [V - 1]
    model.table[:, V - 1] += 100.0
    engine = engine_of(model)
    engine.add_request("a", {"prompt_token_ids": [5]}, SamplingParams(temperature=0.0, max_tokens=9))
    outputs = [output for _ in range(3) for output in engine.step()]
    assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "stop"


# ---- rows ----------------------------------------------------------------------------------------------------------


def rows_of_one(model, ids, positions):
    """Logits of every row, with the cache of one request that begins at position 0."""

    def attn(layer, q, k, v):
        scores = np.einsum("thd,shd->ts", q, k) / np.sqrt(q.shape[-1])
        scores[np.asarray(positions)[None, :] > np.asarray(positions)[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return (weights / weights.sum(axis=1, keepdims=True)) @ v[:, 0]

    return model.compute_logits(model.forward(np.array(ids), np.array(positions), attn))


def test_row_i_answers_entry_i(make):
    model, ids = make(V, 3), [5, 9, 9, 31, 2]
    logits = rows_of_one(model, ids, range(5))
    wanted = [model.table[last] for last in ids]
    if hasattr(model, "before"):
        wanted = [row + model.before[before] for row, before in zip(wanted, [5, 5, 9, 9, 31], strict=True)]
    assert logits.shape == (5, V) and np.array_equal(logits, np.stack(wanted))


def test_only_the_rows_that_are_asked_for(make):
    """`compute_logits` gets some of the rows, in any order; and sometimes none."""
    model = make(V, 3)
    hidden = model.forward(np.array([5, 9, 2]), np.arange(3), lambda layer, q, k, v: v[:, 0])
    assert len(hidden) == 3 and hidden.ndim == 2
    all_rows = model.compute_logits(hidden)
    assert np.array_equal(model.compute_logits(hidden[[2, 0]]), all_rows[[2, 0]])
    assert model.compute_logits(hidden[:0]).shape == (0, V)


def test_positions_are_ignored(impl):
    """Of a bigram. The contract gives more than this model needs."""
    model = impl.BigramModel(V, 3)
    here, there = (model.forward(np.array([5, 9]), np.array(at), None) for at in ([0, 1], [7, 200]))
    assert np.array_equal(model.compute_logits(here), model.compute_logits(there))


def test_inputs_stay(make):
    ids, positions = np.array([5, 9, 2]), np.arange(3)
    make(V, 3).forward(ids, positions, lambda layer, q, k, v: v[:, 0])
    assert ids.tolist() == [5, 9, 2] and positions.tolist() == [0, 1, 2], "the step's own arrays were changed"


# ---- what the engine may do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 8},
        {"max_num_batched_tokens": 8, "long_prefill_token_threshold": 1},
        {"num_blocks": 13},
        {"max_num_seqs": 1},
        {"block_size": 16},
        {"enable_prefix_caching": False},
    ],
    ids=["chunks of 8", "token by token", "a pool that preempts", "one at a time", "large blocks", "no prefix cache"],
)
def test_engine_invariants_hold_for_the_new_model(make, settings):
    model = make(V, 3)
    found, wanted = tokens_of(model, **settings), tokens_of(model)
    first = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b), None)
    assert first is None, (
        f"request {first} answers {found[first]} under {settings}, and {wanted[first]} otherwise. "
        "This looks like *Looking at the row above*"
    )


def test_a_second_request_finds_the_first_ones_blocks(make):
    """Of a prompt that is in the prefix cache, the model sees the end alone; what comes before is in the KV cache."""
    model, prompt = make(V, 3), list(range(20, 37))
    engine = engine_of(model)
    first, second = (tokens_of(model, [prompt], engine=engine) for _ in range(2))
    assert first == second == [by_hand(model, prompt)]
    assert engine.scheduler.kv_cache_manager.prefix_cache_stats.hits > 0


def test_far_from_the_beginning(impl):
    """Position 400 is as good as position 1."""
    model, rng = impl.TrigramModel(V, 3), np.random.default_rng(0)
    prompt = rng.integers(0, V, 400).tolist()
    assert tokens_of(model, [prompt], 4, num_blocks=128) == [by_hand(model, prompt, 4)], (
        "far from the beginning another token than the one before is found. This looks like *Softly*"
    )


# ---- the contract --------------------------------------------------------------------------------------------------


def test_engine_touches_only_the_contract(impl, make):
    """While it serves, the engine asks for two functions. What it reads to be built is done by then."""
    watch = impl.ContractWatch(make(V, 3))
    engine = engine_of(watch)
    assert {"vocab_size", "max_model_len", "num_layers"} <= set(watch.read), (
        "the model was asked before the watch stood"
    )
    assert not watch.called
    watch.read.clear()
    tokens_of(watch, engine=engine)
    assert set(watch.called) == {"forward", "compute_logits"}, dict(watch.called)
    assert not {name for name in watch.read if name not in ("forward", "compute_logits", "vocab_size")}, (
        f"while it served, the engine read {sorted(watch.read)}"
    )
    assert watch.called["forward"] == watch.called["compute_logits"] >= 12


def test_the_watch_changes_nothing(impl, make):
    model = make(V, 3)
    watch = impl.ContractWatch(model)
    assert tokens_of(watch) == tokens_of(model)
    assert watch.vocab_size == V and watch.table is model.table
    logits = watch.compute_logits(
        hidden=watch.forward(np.array([5]), positions=np.array([0]), attn=lambda *a: a[3][:, 0])
    )
    assert logits.shape == (1, V)


def test_the_watch_counts(impl):
    watch = impl.ContractWatch(impl.BigramModel(V, 3))
    forward = watch.forward
    forward(np.array([1]), np.array([0]))
    forward(np.array([1]), np.array([0]))
    assert watch.read["forward"] == 1 and watch.called["forward"] == 2, "fetched once, called twice"
    assert watch.vocab_size and watch.read["vocab_size"] == 1 and not watch.called["vocab_size"]


def test_what_the_model_lacks_the_watch_lacks(impl):
    watch = impl.ContractWatch(impl.BigramModel(V, 3))
    with pytest.raises(AttributeError, match="lm_head"):
        watch.lm_head  # noqa: B018
    assert not hasattr(watch, "expert_load") and not watch.read, "what the model does not have counts as read"


# ---- doors ---------------------------------------------------------------------------------------------------------


def test_wrong_batch_size_is_loud(make):
    with pytest.raises(ValueError, match="input_ids and positions must have the same length, got 3 and 2"):
        make(V, 3).forward(np.array([1, 2, 3]), np.array([0, 1]), lambda *a: a[3][:, 0])


@pytest.mark.parametrize("size", [0, -2])
def test_no_vocabulary(make, size):
    with pytest.raises(ValueError, match=f"vocab_size must be at least 1, got {size}"):
        make(size)


def test_a_vocabulary_of_one(make):
    assert tokens_of(make(1), [[0, 0]], 3) == [[0, 0, 0]]

"""The rejection sampler: greedy against a loop, random by its law, parameters against steps without drafts."""

import numpy as np
import pytest

from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.ops.rejection_sample import sample_recovered_tokens
from mini_vllm.sample.rejection_sampler import RejectionSampler
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata


def softmax(logits):
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sample(drafts, logits, rows, draft_probs=None):
    """Lists of tokens, and the whole output."""
    metadata = SpecDecodeMetadata.make_dummy(drafts)
    sampling = SamplingMetadata.from_rows(rows, logits.shape[1])
    output = RejectionSampler(Sampler()).forward(metadata, draft_probs, logits, sampling, rows)
    return RejectionSampler.parse_output(output.sampled_token_ids, logits.shape[1]), output


def test_upstreams_worked_example_of_the_layout():
    """upstream/vllm/v1/worker/gpu_model_runner.py:2713 — `GPUModelRunner._calc_spec_decode_metadata`, its comment."""
    counts, last = np.array([3, 0, 2, 0, 1]), np.array([4, 104, 107, 207, 209]) - 1
    metadata = SpecDecodeMetadata.make(counts, last, np.arange(1000, 1209))
    assert metadata.cu_num_draft_tokens.tolist() == [3, 3, 5, 5, 6]
    assert metadata.cu_num_sampled_tokens.tolist() == [4, 5, 8, 9, 11]
    assert metadata.logits_indices.tolist() == [0, 1, 2, 3, 103, 104, 105, 106, 206, 207, 208]
    assert metadata.target_logits_indices.tolist() == [0, 1, 2, 5, 6, 9]
    assert metadata.bonus_logits_indices.tolist() == [3, 4, 7, 8, 10]
    assert metadata.draft_token_ids.tolist() == [1001, 1002, 1003, 1105, 1106, 1208]


def test_greedy_keeps_what_the_target_says_itself():
    rng = np.random.default_rng(0)
    for _ in range(200):
        counts = rng.integers(0, 5, rng.integers(1, 7))
        logits = rng.standard_normal((counts.sum() + len(counts), 6)).astype(np.float32)
        said, drafts, expected, at = logits.argmax(axis=-1).tolist(), [], [], 0
        for count in counts.tolist():
            own = [said[at + i] if rng.random() < 0.6 else int(rng.integers(6)) for i in range(count)]
            kept = next((i for i in range(count) if own[i] != said[at + i]), count)
            drafts.append(own)
            expected.append(said[at : at + kept + 1])
            at += count + 1
        rows = [SamplingRow(SamplingParams(temperature=0.0)) for _ in drafts]
        tokens, output = sample(drafts, logits, rows)
        assert tokens == expected
        assert output.sampled_token_ids.shape == (len(drafts), counts.max() + 1)
        for row, kept in zip(output.sampled_token_ids.tolist(), expected, strict=True):
            assert row == kept + [-1] * (len(row) - len(kept))


LAWS = {
    "one-hot drafts": {},
    "drawn drafts": {"draw": True},
    "the drafter knows everything": {"draw": True, "same": True},
    "the drafter is always wrong": {"draw": True, "disjoint": True},
    "temperature": {"params": {"temperature": 0.6}},
    "hot, drawn": {"params": {"temperature": 1.7}, "draw": True},
    "top-k": {"params": {"top_k": 3}, "draw": True},
    "top-p": {"params": {"top_p": 0.7}},
    "min-p": {"params": {"min_p": 0.2}, "draw": True},
    "top-k and top-p": {"params": {"top_k": 4, "top_p": 0.8}, "draw": True},
    "bias": {"params": {"logit_bias": {0: 1.5, 2: -2.0}}, "draw": True},
    "penalties": {"params": {"presence_penalty": 0.8, "frequency_penalty": 0.5}},
    "allowed ids": {"params": {"allowed_token_ids": [0, 1, 3]}, "draw": True},
    "one draft": {"k": 1, "draw": True},
    "four drafts": {"k": 4},
}
QUICK = ("one-hot drafts", "drawn drafts", "top-k and top-p")


def joint_law(setting, seed=3, vocab=5):
    """p(first), and p(second | first) for each first token: what a sampler without drafts gives, exactly."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((1 + vocab, vocab)) * 1.3
    params = SamplingParams(**{"temperature": 1.0, **setting.get("params", {})})
    sampler, laws = Sampler(), []
    for row, output in enumerate([[], *([token] for token in range(vocab))]):
        metadata = SamplingMetadata.from_rows([SamplingRow(params, [], output, rng)], vocab)
        changed = logits[row : row + 1].copy()
        if not metadata.leaves_logits_alone:
            changed = sampler.apply_logits_processors(changed, metadata)
        laws.append(softmax(sampler.apply_random_filters(changed, np.array([0]), metadata))[0])
    return logits, params, np.array(laws)


def drawn_pairs(setting, count, seed=11, vocab=5):
    """How often each pair of first and second token came out. The target's logits of the second token depend on the
    first *draft*; where the first is rejected, a step without drafts follows, as in the engine."""
    logits, params, laws = joint_law(setting, vocab=vocab)
    rng, k = np.random.default_rng(seed), setting.get("k", 2)
    q = softmax(rng.standard_normal((1 + vocab, vocab)))
    if setting.get("same"):
        q = laws
    if setting.get("disjoint"):
        q = (laws == laws.min(axis=-1, keepdims=True)).astype(float)
    shared = np.random.default_rng(seed + 1)
    table = np.zeros((vocab, vocab), np.int64)
    drafts, target, law_of_drafts, group = [], [], [], min(count, 4000)
    for _ in range(group):
        own = []
        for _ in range(k):
            state = 0 if not own else 1 + own[-1]
            draft = int(rng.choice(vocab, p=q[state])) if setting.get("draw") else int(q[state].argmax())
            target.append(logits[state])
            law_of_drafts.append(q[state])
            own.append(draft)
        target.append(logits[1 + own[-1]])
        drafts.append(own)
    rows = [SamplingRow(params, [], [], shared) for _ in range(group)]
    probs = np.array(law_of_drafts) if setting.get("draw") else None
    for _ in range(count // group):
        tokens, _ = sample(drafts, np.array(target), rows, probs)
        short = [i for i, own in enumerate(tokens) if len(own) == 1]
        if short:
            after = [SamplingRow(params, [], tokens[i], shared) for i in short]
            seconds = Sampler().forward(
                np.array([logits[1 + tokens[i][0]] for i in short]), SamplingMetadata.from_rows(after, vocab)
            )
            for i, second in zip(short, seconds.sampled_token_ids.tolist(), strict=True):
                tokens[i] = [tokens[i][0], second]
        np.add.at(table, ([own[0] for own in tokens], [own[1] for own in tokens]), 1)
        if setting.get("draw"):  # other drafts, from the same law
            return table + drawn_pairs(setting, count - group, seed + 17, vocab) if count > group else table
    return table


def chi_square(table, laws):
    """(statistic, degrees of freedom), cells of fewer than 5 expected put together."""
    expected = (laws[0][:, None] * laws[1:]) * table.sum()
    assert not table[expected == 0].any(), "a token came out that cannot come out"
    rare = expected < 5
    cells = [(seen, meant) for seen, meant in zip(table[~rare], expected[~rare], strict=True)]
    if expected[rare].sum() >= 5:
        cells.append((table[rare].sum(), expected[rare].sum()))
    return sum((seen - meant) ** 2 / meant for seen, meant in cells), max(len(cells) - 1, 1)


def bound(degrees):
    """What chi-square exceeds once in a million, by Wilson and Hilferty."""
    return degrees * (1 - 2 / (9 * degrees) + 4.75 * (2 / (9 * degrees)) ** 0.5) ** 3


def check_law(name, count):
    setting = LAWS[name]
    table = drawn_pairs(setting, count)
    statistic, degrees = chi_square(table, joint_law(setting)[2])
    assert statistic < bound(degrees), f"{name}: chi-square {statistic:.1f} with {degrees} degrees of freedom"


@pytest.mark.parametrize("name", QUICK)
def test_two_tokens_have_the_targets_joint_law(name):
    check_law(name, 8_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_two_tokens_have_the_targets_joint_law_in_every_setting(name):
    check_law(name, 60_000)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", ["the law of another draft", "recovered from p"])
def test_the_law_would_notice(mutation, monkeypatch):
    """Two slips that leave every token plausible. (To take drawn drafts for certain ones is none: fewer are kept.)"""
    from mini_vllm.sample.ops import rejection_sample as ops

    setting = LAWS["drawn drafts"]
    if mutation == "the law of another draft":
        original = ops.rejection_sample
        monkeypatch.setattr(
            "mini_vllm.sample.rejection_sampler.rejection_sample",
            lambda m, q, *rest: original(m, np.roll(q, 1, axis=1), *rest),
        )
    else:

        def from_target(drafts, of, ids, probs, target_probs, generators):
            noise = generators[0].standard_exponential((len(drafts), target_probs.shape[1]))
            return (target_probs[drafts] / noise).argmax(axis=-1)

        monkeypatch.setattr(ops, "sample_recovered_tokens", from_target)
    statistic, degrees = chi_square(drawn_pairs(setting, 20_000), joint_law(setting)[2])
    assert statistic > bound(degrees)


def test_acceptance_is_the_overlap():
    """A drawn draft is kept with probability sum(min(p, q)), a certain one with p of it."""
    _, _, laws = joint_law({})
    rng = np.random.default_rng(5)
    q, count = softmax(rng.standard_normal(5)), 10_000
    drafts = rng.choice(5, count, p=q)
    logits = np.repeat(np.log(laws[:1]), 2 * count, axis=0)
    rows = [SamplingRow(SamplingParams(temperature=1.0), generator=rng)] * count
    for probs, rate in ((np.repeat(q[None], count, axis=0), np.minimum(laws[0], q).sum()), (None, (laws[0] * q).sum())):
        tokens, _ = sample([[d] for d in drafts.tolist()], logits, rows, probs)
        kept = sum(len(own) == 2 for own in tokens) / count
        assert abs(kept - rate) < 5 * (rate * (1 - rate) / count) ** 0.5


def test_where_p_is_q_a_rejection_still_finds_a_token():
    p = np.array([[0.25, 0.75]])
    stream = np.random.default_rng(0)
    found = [
        int(sample_recovered_tokens(np.array([0]), np.array([0]), np.array([1]), p.copy(), p, [stream])[0])
        for _ in range(400)
    ]
    assert 40 < found.count(0) < 160


def test_a_request_without_drafts_draws_as_ever():
    """Its stream stands where it would stand without its neighbour's drafts."""
    logits = np.random.default_rng(1).standard_normal((4, 9))
    params = SamplingParams(temperature=0.8)
    rows = [SamplingRow(params, generator=np.random.default_rng(seed)) for seed in (5, 6)]
    tokens, _ = sample([[2, 3], []], logits, rows)
    alone = np.random.default_rng(6)
    metadata = SamplingMetadata.from_rows([SamplingRow(params, generator=alone)], 9)
    assert tokens[1] == Sampler().forward(logits[3:], metadata).sampled_token_ids.tolist()
    assert alone.random() == rows[1].generator.random()


def test_parameters_are_applied_as_if_drafts_were_output():
    """Penalties, bad words, min tokens: each row sees the output with the drafts before it."""
    rng = np.random.default_rng(2)
    params = SamplingParams(temperature=0.0, repetition_penalty=1.6, frequency_penalty=0.7, min_tokens=4, logprobs=2)
    params.all_stop_token_ids.update({3, 4})
    params.bad_words_token_ids = [[5, 6], [1]]
    for _ in range(100):
        output, k = rng.integers(0, 8, 2).tolist(), int(rng.integers(1, 5))
        logits = rng.standard_normal((k + 1, 8)).astype(np.float32) * 2
        wanted, so_far = [], list(output)
        for row in range(k + 1):
            metadata = SamplingMetadata.from_rows([SamplingRow(params, [0, 1], so_far)], 8)
            step = Sampler().forward(logits[row : row + 1], metadata)
            wanted.append((int(step.sampled_token_ids[0]), step.logprobs[0]))
            so_far = [*so_far, wanted[-1][0]]
        right = [token for token, _ in wanted]
        wrong = int(rng.integers(0, k + 1))  # where the draft differs; k: nowhere
        drafts = [token if i != wrong else (token + 1) % 8 for i, token in enumerate(right[:k])]
        tokens, result = sample([drafts], logits, [SamplingRow(params, [0, 1], output)])
        assert tokens == [right[: wrong + 1]]
        assert result.logprobs == [[entry for _, entry in wanted[: wrong + 1]]]


def test_a_row_in_which_every_token_is_masked_is_an_error_where_a_step_begins_with_it():
    """Tokens before it stay, since they came out without drafts too; the next step begins with that row."""
    params = SamplingParams(temperature=0.0, allowed_token_ids=[1], logprobs=0)
    params.bad_words_token_ids = [[1, 1]]  # after a 1 nothing is left
    for drafts in ([[1, 1], [2, 1]], [[1], []]):
        rows = [SamplingRow(params, [], []), SamplingRow(params, [], [])]
        tokens, output = sample(drafts, np.zeros((sum(map(len, drafts)) + 2, 4)), rows)
        assert tokens == [[1], [1]] and not output.errors and [len(each) for each in output.logprobs] == [1, 1]
    for drafts in ([[1]], [[]], [[2, 1]]):
        _, output = sample(drafts, np.zeros((len(drafts[0]) + 1, 4)), [SamplingRow(params, [], [1])])
        assert set(output.errors) == {0} and "every token is masked" in output.errors[0]

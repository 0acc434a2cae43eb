"""Lab 09-03: two traps, a maze and a fork; what may be asked of the model; brute force; the engine's own search."""

from __future__ import annotations

import itertools
from math import exp, inf, log, prod
from pathlib import Path

import numpy as np
import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
EOS = -1
A, B, C, D, X, Y = 10, 11, 12, 13, 14, 15
S, L, M, N, K, OFF = 20, 21, 22, 23, 24, 25
a, x, y, z, q, b, c, m, n, o, p = range(30, 41)
TRAP = {(): {A: 0.6, B: 0.4}, (A,): {C: 0.51, D: 0.49}, (B,): {C: 0.9, D: 0.1}}
MAZE = {
    (): {A: 0.55, B: 0.45}, (A,): {a: 0.4, x: 0.31, y: 0.29}, (A, a): {z: 0.95, q: 0.05}, (B,): {b: 0.51, c: 0.49},
}  # fmt: skip
FORK = {
    (): {L: 0.6, S: 0.4}, (L,): {M: 0.9, OFF: 0.1}, (L, M): {N: 0.8, OFF: 0.2}, (L, M, N): {K: 0.85, OFF: 0.15},
}  # fmt: skip
ENDS = {(): {X: 0.7, Y: 0.3}, (X,): {EOS: 0.8, Y: 0.2}, (Y,): {X: 0.5, Y: 0.5}, (X, Y): {X: 0.6, Y: 0.4}}


class Model:
    """A step function out of a table; remembers what it was asked."""

    def __init__(self, table, others=None):
        self.table, self.others, self.asked = table, others or {}, []

    def __call__(self, tokens):
        assert type(tokens) is tuple, f"a model is asked with a tuple of tokens, got {tokens!r}"
        self.asked.append(tokens)
        return self.table.get(tokens, self.others)


def maze():
    return Model(MAZE, {m: 0.26, n: 0.25, o: 0.25, p: 0.24})


def fork():
    return Model(FORK, {EOS: 1.0})


def random_table(rng, size, depth, ends=True):
    """A model over `size` tokens and, where asked, the end; every hypothesis of up to `depth` tokens has its row."""
    tokens, table = [*range(size)] + [EOS] * ends, {}
    for length in range(depth):
        for prefix in itertools.product(range(size), repeat=length):
            table[prefix] = dict(zip(tokens, rng.dirichlet(np.ones(len(tokens))).tolist(), strict=True))
    return table


def all_hypotheses(table, depth):
    """Every finished one, and every one of `depth` tokens, with its probability. Brute force."""
    found, live = [], [((), 1.0)]
    for _ in range(depth):
        grown = [((*t, k), w * chance) for t, w in live for k, chance in table[t].items()]
        found += [each for each in grown if each[0][-1] == EOS]
        live = [each for each in grown if each[0][-1] != EOS]
    return found + live


def approx(tokens, probability):
    return tokens, pytest.approx(log(probability), abs=1e-12)


# ---- the garden path -----------------------------------------------------------------------------------------------


def test_greedy_takes_the_garden_path(impl):
    model = Model(TRAP)
    assert impl.greedy_decode(model, 2) == approx((A, C), 0.306)
    assert model.asked == [(), (A,)], "one question a token, and none after the last"


def test_beam_escapes_the_trap(impl):
    assert impl.beam_search(Model(TRAP), 2, 2) == approx((B, C), 0.36)


def test_a_beam_of_one_is_greedy_where_nothing_ends(impl):
    rng = np.random.default_rng(0)
    for _ in range(10):
        table = random_table(rng, 4, 5, ends=False)
        tokens, logprob = impl.greedy_decode(Model(table), 5)
        assert impl.beam_search(Model(table), 1, 5) == (tokens, pytest.approx(logprob, abs=1e-12))


def test_a_beam_of_one_is_not_greedy_where_something_ends(impl):
    """An end that is second is kept all the same; the walk goes on beside it, and the two are compared."""
    table = {(): {X: 0.6, EOS: 0.4}, (X,): {Y: 0.5, X: 0.5 - 1e-9}}
    assert impl.greedy_decode(Model(table), 2) == approx((X, Y), 0.3)
    assert impl.beam_search(Model(table), 1, 2) == approx((EOS,), 0.4)


def test_both_stop_where_they_may(impl):
    model = Model(ENDS)
    assert impl.greedy_decode(model, 9) == approx((X, EOS), 0.56) and model.asked == [(), (X,)]
    assert impl.greedy_decode(Model(ENDS), 1) == approx((X,), 0.7)
    assert impl.greedy_decode(Model(ENDS), 0) == ((), 0.0) == impl.beam_search(Model(ENDS), 3, 0)
    soon, late = {(): {EOS: 0.6, X: 0.4}}, {(): {X: 1.0}, (X,): {X: 0.6, Y: 0.4}, (X, X): {EOS: 0.9, X: 0.1}}
    assert impl.greedy_decode(Model(soon), 9) == approx((EOS,), 0.6) == impl.beam_search(Model(soon), 1, 9)
    assert impl.greedy_decode(Model(late), 9) == approx((X, X, EOS), 0.54)
    other = {(): {3: 0.9, 4: 0.1}, (3,): {7: 1.0}}
    assert impl.greedy_decode(Model(other), 9, eos=7) == approx((3, 7), 0.9)
    assert impl.beam_search(Model(other), 2, 9, eos=7) == approx((3, 7), 0.9)


# ---- finished ones -------------------------------------------------------------------------------------------------


def test_a_finished_one_is_kept(impl):
    """This looks like *Dropping what is finished*: X, end has 0.56, and nothing that goes on can reach it."""
    for width in (1, 2, 3):
        assert impl.beam_search(Model(ENDS), width, 3) == approx((X, EOS), 0.56)


def test_the_end_takes_no_place(impl):
    """This looks like *An end in the beam* where a beam of one loses the walk beside the end."""
    table = {(): {EOS: 0.5, X: 0.3, Y: 0.2}, (X,): {X: 1.0}, (Y,): {Y: 1.0}, (X, X): {EOS: 1.0}, (Y, Y): {EOS: 1.0}}
    model = Model(table)
    assert impl.beam_search(model, 1, 3, length_penalty=2.0) == approx((X, X, EOS), 0.3)
    assert model.asked == [(), (X,), (X, X)]


def test_the_first_end_is_not_the_best(impl):
    """This looks like *Stopping at the first end*: a later one is better."""
    table = {(): {X: 0.9, EOS: 0.1}, (X,): {Y: 0.95, EOS: 0.05}, (X, Y): {EOS: 1.0}}
    assert impl.beam_search(Model(table), 2, 5) == approx((X, Y, EOS), 0.855)
    late = {(): {EOS: 0.5, X: 0.45, Y: 0.05}, (X,): {X: 1.0}, (X, X): {X: 1.0}, (X, X, X): {EOS: 1.0}}
    assert impl.beam_search(Model(late, {Y: 1.0}), 1, 4) == approx((EOS,), 0.5)
    assert impl.beam_search(Model(late, {Y: 1.0}), 1, 4, length_penalty=1.0) == approx((X, X, X, EOS), 0.45)


@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0, 2.0])
def test_a_beam_that_is_wide_enough_is_brute_force(impl, length_penalty):
    rng = np.random.default_rng(1)
    for prompt_len in (0, 3, 50):
        table = random_table(rng, 3, 4)
        tokens, logprob = impl.beam_search(Model(table), 27, 4, EOS, length_penalty, prompt_len)
        rank = lambda t, w: log(w) / max(1, prompt_len + len(t) - (t[-1] == EOS)) ** length_penalty  # noqa: B023, E731
        best = max(all_hypotheses(table, 4), key=lambda each: rank(*each))
        assert (tokens, logprob) == approx(*best), f"of all {len(all_hypotheses(table, 4))}, {best} is the best"


def test_a_narrow_beam_keeps_the_best_of_each_step(impl):
    """Against the definition, written down naively: the best `width` of all extensions, by score."""
    rng = np.random.default_rng(2)
    for width in (1, 2, 3, 5):
        table = random_table(rng, 5, 4)
        live, ended = [((), 1.0)], []
        for _ in range(4):
            grown = [((*t, k), w * chance) for t, w in live for k, chance in table[t].items()]
            ended += [each for each in grown if each[0][-1] == EOS]
            live = sorted((each for each in grown if each[0][-1] != EOS), key=lambda each: -each[1])[:width]
        best = max(ended + live, key=lambda each: each[1])
        assert impl.beam_search(Model(table), width, 4) == approx(*best), f"width {width}"


# ---- what the model is asked ---------------------------------------------------------------------------------------


def test_no_question_in_vain(impl):
    """This looks like *Extending past the end*, or like asking twice: each question is a forward pass."""
    rng = np.random.default_rng(3)
    for case in range(20):
        table = random_table(rng, 4, 4)
        for width in (1, 2, 4):
            model = Model(table)
            impl.beam_search(model, width, 4, length_penalty=(0.0, 1.0)[case % 2])
            assert len(set(model.asked)) == len(model.asked), "asked twice about the same hypothesis"
            assert all(EOS not in tokens and len(tokens) < 4 for tokens in model.asked)
            by_length = [sum(len(tokens) == n for tokens in model.asked) for n in range(4)]
            assert by_length[0] == 1 and max(by_length) <= width, f"{by_length} questions in steps of a beam of {width}"


def test_who_cannot_win_is_not_asked_about(impl):
    """This looks like *Going on for nothing*: a finished one with 0.56 beats whatever has 0.3, however it goes on."""
    model = Model(ENDS)
    assert impl.beam_search(model, 2, 3) == approx((X, EOS), 0.56)
    assert sorted(model.asked) == [(), (X,), (Y,)], "no score grows as a hypothesis gets longer"
    rng = np.random.default_rng(4)
    for _ in range(20):
        table, ended, width = random_table(rng, 3, 4), -inf, 3
        model = Model(table)
        impl.beam_search(model, width, 4)
        for length in range(4):
            for tokens in (each for each in model.asked if len(each) == length):
                score = sum(log(table[tokens[:i]][token]) for i, token in enumerate(tokens))
                assert score > ended, f"{tokens} has {exp(score):.4f}, and {exp(ended):.4f} is finished already"
            for tokens in (each for each in model.asked if len(each) == length):
                chain = [table[tokens[:i]][token] for i, token in enumerate((*tokens, EOS))]
                ended = max(ended, sum(map(log, chain)))


def test_the_table_of_the_model_is_its_own(impl):
    table = {key: dict(row) for key, row in ENDS.items()}
    impl.beam_search(Model(table), 2, 3), impl.greedy_decode(Model(table), 3)
    assert table == ENDS


# ---- nothing may follow --------------------------------------------------------------------------------------------


def test_probability_zero_is_no_extension(impl):
    table = {(): {X: 0.6, Y: 0.4, EOS: 0.0}, (X,): {X: 0.0}, (Y,): {X: 0.0, Y: 1.0}}
    assert impl.beam_search(Model(table), 3, 2) == approx((Y, Y), 0.4), "the beam survives the dead end of X"
    with pytest.raises(ValueError, match=r"^dead end after \(14,\)$"):
        impl.greedy_decode(Model(table), 2)


def test_a_dead_end_is_named(impl):
    table = {(): {X: 0.6, Y: 0.4}, (X,): {X: 0.0}}
    for width, model in ((1, Model(table)), (2, Model(table))):
        with pytest.raises(ValueError, match=r"^dead end after 1 tokens$"):
            impl.beam_search(model, width, 5)
    with pytest.raises(ValueError, match=r"^dead end after 0 tokens$"):
        impl.beam_search(Model({}), 2, 5)
    ended = {(): {X: 0.6, EOS: 0.4}}
    assert impl.beam_search(Model(ended), 2, 5, length_penalty=1.0) == approx((EOS,), 0.4), "but one is finished"


@pytest.mark.parametrize("width", [0, -1])
def test_a_beam_has_a_width(impl, width):
    with pytest.raises(ValueError, match=f"^beam_width must be at least 1, got {width}$"):
        impl.beam_search(Model(TRAP), width, 2)


def test_scores_of_long_searches(impl):
    """This looks like *Multiplying probabilities*: 0.3 to the power of 1,500 is 0 in every float."""
    step = lambda tokens: {1: 0.3, 2: 0.25} if len(tokens) < 1500 else {EOS: 1.0}  # noqa: E731
    wanted = 1500 * log(0.3)
    assert impl.greedy_decode(step, 1501) == ((1,) * 1500 + (EOS,), pytest.approx(wanted, rel=1e-9))
    assert impl.beam_search(step, 2, 1501) == ((1,) * 1500 + (EOS,), pytest.approx(wanted, rel=1e-9))


# ---- what the scores do not say ------------------------------------------------------------------------------------


def test_a_wider_beam_can_do_worse(impl):
    """Once there is room for a third, the way that looked worst after two steps is in the beam again."""
    found = {width: impl.beam_search(maze(), width, 3) for width in (1, 2, 3)}
    assert found[1] == approx((A, a, z), 0.209) == found[3]
    assert found[2] == approx((B, b, m), 0.0596700)


@pytest.mark.parametrize(
    ("tokens", "length_penalty", "prompt_len", "wanted"),
    [
        ((5, 6), 0.0, 7, -3.0), ((5, 6), 1.0, 0, -1.5), ((5, 6, EOS), 1.0, 0, -1.5), ((5, 6), 1.0, 8, -0.3),
        ((5, 6, EOS), 2.0, 1, -1 / 3), ((EOS,), 1.0, 0, -3.0), ((EOS,), 1.0, 3, -1.0), ((), 1.0, 0, -3.0),
        ((EOS, 6), 1.0, 0, -1.5),
    ],
)  # fmt: skip
def test_ranking(impl, tokens, length_penalty, prompt_len, wanted):
    assert impl.ranking(tokens, -3.0, EOS, length_penalty, prompt_len) == pytest.approx(wanted, abs=1e-12)
    renamed = tuple(99 if token == EOS else token for token in tokens)
    assert impl.ranking(renamed, -3.0, 99, length_penalty, prompt_len) == pytest.approx(wanted, abs=1e-12)


def test_the_long_answer_needs_a_length_penalty(impl):
    short, long = ((S, EOS), 0.4), ((L, M, N, K, EOS), prod((0.6, 0.9, 0.8, 0.85)))
    assert impl.beam_search(fork(), 3, 5) == approx(*short)
    assert impl.beam_search(fork(), 3, 5, length_penalty=1.0) == approx(*long), "the score is the plain sum"


def test_one_token_of_prompt_makes_a_difference(impl):
    """-0.69 for one token, -1.21 for two: means -0.69 and -0.61; behind one token of prompt -0.35 and -0.40."""
    table = {(): {S: 0.5, L: 0.4, OFF: 0.1}, (L,): {M: 0.743, OFF: 0.257}}
    for prompt_len, wanted in (((), (L, M, EOS)), ((1,), (S, EOS))):
        assert impl.beam_search(Model(table, {EOS: 1.0}), 3, 4, EOS, 1.0, *prompt_len)[0] == wanted


def test_the_prompt_length_as_predicted(impl):
    """The same model, the same penalty; only the number of prompt tokens differs."""
    first = next(length for length in range(500) if impl.beam_search(fork(), 3, 5, EOS, 1.0, length)[0] == (S, EOS))
    predicted = impl.predicted_prompt_len()
    assert abs(predicted - first) <= 8, (
        f"you predicted {predicted}; the short answer wins from a prompt of {first} tokens on. "
        "Look at what get_beam_search_score divides by"
    )


# ---- the engine ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def story():
    """Pocket, and the tokens of a question."""
    from mini_vllm import LLM, SamplingParams

    llm, known = LLM(str(POCKET)), {}
    chat = [{"role": "user", "content": "Tell me a story."}]
    (output,) = llm.chat(chat, SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
    return llm, output.prompt_token_ids, known


def pocket_steps(story, count):
    """The step function of pocket; what was asked once is remembered."""
    llm, prompt, known = story
    step = load(HERE / "pocket_steps.py").steps_of(llm, prompt, count)

    def remembered(tokens):
        if (count, tokens) not in known:
            known[count, tokens] = step(tokens)
        return dict(known[count, tokens])

    return remembered


def pocket_search(impl, story, width, max_steps, length_penalty=0.0, prompt_len=None):
    llm, prompt, _ = story
    prompt_len, eos = len(prompt) if prompt_len is None else prompt_len, llm.get_tokenizer().eos_token_id
    return impl.beam_search(pocket_steps(story, 2 * width), width, max_steps, eos, length_penalty, prompt_len)


@pytest.mark.parametrize(("width", "length_penalty"), [(1, 0.0), (3, 1.0)])
def test_pocket_answers_as_the_engines_search_does(impl, story, width, length_penalty):
    """Your search over a trained model, one question a beam a step, against `LLM.beam_search`."""
    from mini_vllm import BeamSearchParams

    llm, prompt, _ = story
    params = BeamSearchParams(beam_width=width, max_tokens=5, length_penalty=length_penalty)
    (output,) = llm.beam_search([{"prompt_token_ids": prompt}], params)
    best = output.sequences[0]
    tokens, logprob = pocket_search(impl, story, width, 5, length_penalty)
    assert list(tokens) == best.tokens[len(prompt) :], f"your search says {llm.get_tokenizer().decode(tokens)!r}"
    assert logprob == pytest.approx(best.cum_logprob, abs=1e-5)


def test_the_story_as_predicted(impl, story):
    tokens, logprob = pocket_search(impl, story, 2, 40)
    predicted, text = impl.predicted_story(), story[0].get_tokenizer().decode(tokens)
    assert abs(predicted - len(tokens)) <= 2, (
        f"you predicted {predicted} tokens. The best answer that your search finds has {len(tokens)}: {text!r}, with "
        f"{logprob:.1f}; every story that goes on has less by then"
    )


def test_the_story_and_its_scores(impl, story):
    """The numbers of the README: greedy, the beam, and the beam with a length penalty, for two lengths of a prompt."""
    eos = story[0].get_tokenizer().eos_token_id
    greedy, logprob = impl.greedy_decode(pocket_steps(story, 4), 40, eos)
    assert len(greedy) == 40 and logprob == pytest.approx(-26.87, abs=0.02)
    assert pocket_search(impl, story, 2, 40)[1] == pytest.approx(-19.57, abs=0.02)
    told = [len(pocket_search(impl, story, 2, 40, 1.0, prompt_len)[0]) for prompt_len in (len(story[1]), 500)]
    assert len(story[1]) == 12 and told == [40, 3]

"""Lab 12-01: the machine is the pattern, the mask is the machine lifted to tokens, the engine serves with both."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
VOCAB = ["0", "x", "0x", "1", "1x", "a", "ff", "f0", "xf", "zz", "q", "@", ""]
EOS = 12
HEX, DECIMAL = "0x[0-9a-f]+", "[0-9]+[.][0-9]+"


def ids(*texts):
    return [VOCAB.index(text) for text in texts]


def likes(*texts):
    """A model that likes these best, in this order; "" is the end."""
    first = ids(*texts)
    return first + [each for each in range(len(VOCAB)) if each not in first]


def texts(tokens):
    return sorted(VOCAB[each] for each in tokens)


# ---- the pattern ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "atoms"),
    [
        ("", []),
        ("ab", [("a", False), ("b", False)]),
        ("a+b", [("a", True), ("b", False)]),
        ("[ab]+", [("ab", True)]),
        ("[0-3x]", [("0123x", False)]),
        ("[a-c-]", [("abc-", False)]),
        ("[-a]", [("-a", False)]),
        ("[a-]", [("a-", False)]),
        ("[a-c-e]", [("abc-e", False)]),
        ("[a-a]+z", [("a", True), ("z", False)]),
        ("[.+*]", [(".+*", False)]),
        ("x-]", [("x", False), ("-", False), ("]", False)]),
        ("[a^]", [("a^", False)]),
        ("[!--]", [("!\"#$%&'()*+,-", False)]),
    ],
)
def test_parse_atoms(impl, pattern, atoms):
    assert impl.parse_atoms(pattern) == [(frozenset(characters), plus) for characters, plus in atoms]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("+a", "position 0: '+' has nothing to repeat"),
        ("ab++", "position 3: '+' has nothing to repeat"),
        ("a[bc", "position 1: '[' is not closed"),
        ("a[]", "position 1: an empty class"),
        ("ab[z-a]", "position 2: the range 'z-a' is upside down"),
        ("a.b", "position 1: '.' is not in this subset"),
        ("a(b", "position 1: '(' is not in this subset"),
        ("ab*", "position 2: '*' is not in this subset"),
        ("[^a]", "position 0: '^' is not in this subset"),
        ("x[a\\d]", r"position 1: '\\' is not in this subset"),
    ],
)
def test_patterns_that_are_refused(impl, pattern, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        impl.parse_atoms(pattern)
    with pytest.raises(ValueError, match=re.escape(message)):
        impl.compile_pattern(pattern)


# ---- the machine ---------------------------------------------------------------------------------------------------


def accepts(impl, fsm, text):
    state = impl.advance(fsm, fsm.start, text)
    return state is not None and state in fsm.accepting


@pytest.mark.parametrize(
    "pattern",
    ["", "a", "ab", "a+", "a+b", "[ab]+c", "ab+c+", "[ab]+a", "a+a+a", "[abc]+b[ab]", "a[ab]+b+", "[ab]+[bc]+[ca]"],
)
def test_the_machine_is_the_pattern(impl, pattern):
    """All texts of up to six letters, against Python's own `re`."""
    fsm = impl.compile_pattern(pattern)
    for length in range(7 if len(pattern) < 9 else 6):
        for letters in itertools.product("abc", repeat=length):
            text = "".join(letters)
            wanted = re.fullmatch(pattern, text) is not None
            assert accepts(impl, fsm, text) is wanted, f"{pattern!r} on {text!r}: re says {wanted}"


def test_neighbours_that_overlap(impl):
    """This looks like *A nought that is always the last*: in [0-9]+0 a 0 may also be one of many."""
    fsm = impl.compile_pattern("[0-9]+0")
    for text in ("10", "100", "1010", "00", "12340"):
        assert accepts(impl, fsm, text), f"{text!r} matches [0-9]+0 and dies or does not end"
    for text in ("1", "0", "01", "1001"):
        assert not accepts(impl, fsm, text), text


def test_it_is_as_the_dataclass_says(impl):
    for pattern in (HEX, DECIMAL, "[ab]+a[ab]", "", "[0-9]+0"):
        fsm = impl.compile_pattern(pattern)
        assert fsm.start == 0 and fsm.start in fsm.transitions
        targets = {target for row in fsm.transitions.values() for target in row.values()}
        assert all(isinstance(target, int) for target in targets), "one state a character, not a set of them"
        assert targets <= fsm.transitions.keys(), "a state without an entry: whoever gets there meets a KeyError"
        assert fsm.accepting <= fsm.transitions.keys() and fsm.accepting
        good = set(fsm.accepting)
        for _ in fsm.transitions:
            good |= {state for state, row in fsm.transitions.items() if good & set(row.values())}
        assert good == set(fsm.transitions), f"{pattern!r}: from {set(fsm.transitions) - good} no text can end"


def test_advance_and_death(impl):
    fsm = impl.compile_pattern(HEX)
    before = {state: dict(row) for state, row in fsm.transitions.items()}
    after = impl.advance(fsm, fsm.start, "0x")
    assert after is not None and impl.advance(fsm, after, "1x") is None, "1 may stand there, x behind it may not"
    assert impl.advance(fsm, after, "") == after and impl.advance(fsm, fsm.start, "q") is None
    assert impl.advance(fsm, impl.advance(fsm, after, "f"), "f0") in fsm.accepting
    assert fsm.transitions == before, "a walk changed the machine"
    circle = impl.FSM({0: {"a": 1}, 1: {"b": 0}}, frozenset({0}))
    assert impl.advance(circle, 0, "abab") == 0 and impl.advance(circle, 1, "a") is None, "state 0 is a state, not None"


def test_the_machine_grows_as_predicted(impl):
    sizes = [len(impl.compile_pattern("[ab]+a" + "[ab]" * n).transitions) for n in range(3, 9)]
    growth = sizes[-1] / sizes[-2]
    predicted = impl.predicted_growth()
    assert predicted == pytest.approx(growth, abs=0.1), (
        f"you predicted a factor of {predicted}; with three to eight classes your machine has {sizes} states"
    )


# ---- the mask ------------------------------------------------------------------------------------------------------


def test_mask_is_exactly_the_survivors(impl):
    fsm = impl.compile_pattern(HEX)
    assert texts(impl.allowed_tokens(fsm, fsm.start, VOCAB)) == ["0", "0x"], "0x crosses two atoms, and is one token"
    after_x = impl.advance(fsm, fsm.start, "0x")
    assert texts(impl.allowed_tokens(fsm, after_x, VOCAB)) == ["0", "1", "a", "f0", "ff"]
    assert impl.allowed_tokens(fsm, after_x, iter(VOCAB[:3])) == {0}, "a vocabulary may come from an iterator"


def test_what_is_no_text_is_never_allowed(impl):
    fsm = impl.compile_pattern("a+")
    for state in fsm.transitions:
        assert impl.allowed_tokens(fsm, state, ["", "a", "", "aa"]) == {1, 3}


def test_bits_and_words(impl):
    row = impl.pack_row([0, 31, 32, 39], 40)
    assert row.dtype == np.int32 and row.shape == (2,)
    assert [hex(word) for word in row.view(np.uint32)] == ["0x80000001", "0x81"]
    assert impl.pack_row(iter(range(64)), 64).tolist() == [-1, -1], "all ones is -1, which upstream fills rows with"
    assert impl.pack_row([], 33).tolist() == [0, 0]
    for size in (1, 31, 32, 33, 4096):
        chosen = set(np.random.default_rng(size).integers(0, size, 20).tolist())
        words = impl.pack_row(chosen, size)
        assert set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()) == chosen


@pytest.mark.parametrize("token", [40, 41, -1])
def test_a_token_outside_is_refused(impl, token):
    with pytest.raises(ValueError, match=f"token {token} is outside of a vocabulary of 40"):
        impl.pack_row([3, token], 40)


# ---- the loop ------------------------------------------------------------------------------------------------------


def test_constrained_output_always_matches(impl):
    fsm = impl.compile_pattern(HEX)
    taste, before = likes("q", "@", "zz", "", "0x", "0"), list(VOCAB)
    text, reason = impl.constrained_generate(fsm, VOCAB, taste, EOS, 9)
    assert (text, reason) == ("0x0", "stop")
    assert taste == likes("q", "@", "zz", "", "0x", "0") and before == VOCAB, "the caller's lists were changed"
    longer = impl.constrained_generate(fsm, VOCAB, likes("1", "0x", ""), EOS, 4)
    assert longer == ("0x111", "length"), "a match is no reason to stop; the model's end is"
    assert impl.constrained_generate(fsm, ["", "0", "x"], [0, 1, 2], 0, 9) == ("0x0", "stop"), "the end has another id"


def test_fuzzed_preferences_never_violate(impl):
    fsm = impl.compile_pattern("0x[0-9a-f][0-9a-f]")
    for seed in range(50):
        prefer = np.random.default_rng(seed).permutation(len(VOCAB)).tolist()
        text, reason = impl.constrained_generate(fsm, VOCAB, prefer, EOS, 20)
        assert reason == "stop" and re.fullmatch("0x[0-9a-f]{2}", text), (seed, text, reason)


def test_truncation_caveat_is_real(impl):
    fsm = impl.compile_pattern(DECIMAL)
    vocab = ["0", "1", ".", "42", ""]
    text, reason = impl.constrained_generate(fsm, vocab, [3, 0, 1, 2, 4], 4, 6)
    assert (text, reason) == ("42" * 6, "length") and not re.fullmatch(DECIMAL, text)
    assert impl.advance(fsm, fsm.start, text) is not None, "cut off, and still on a way that could have ended well"


def test_the_end_counts_as_a_token(impl):
    fsm = impl.compile_pattern("0")
    assert impl.constrained_generate(fsm, VOCAB, likes("", "0"), EOS, 1) == ("0", "length")
    assert impl.constrained_generate(fsm, VOCAB, likes("", "0"), EOS, 2) == ("0", "stop")
    assert impl.constrained_generate(fsm, VOCAB, likes("", "0"), EOS, 0) == ("", "length")


def test_eos_only_when_accepting(impl):
    fsm = impl.compile_pattern(HEX)
    text, reason = impl.constrained_generate(fsm, VOCAB, likes("", "0", "x", "ff"), EOS, 9)
    assert (text, reason) == ("0x0", "stop"), "who wants to end at once completes the pattern first"


def test_a_dead_end_is_named(impl):
    fsm = impl.compile_pattern("0[xz]q")
    with pytest.raises(ValueError, match="no token of the vocabulary fits after '0x'"):
        impl.constrained_generate(fsm, ["0", "x", "a", ""], [0, 1, 2, 3], 3, 9)


# ---- the engine ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pocket():
    from mini_vllm import LLM

    return LLM(str(POCKET))


def test_masks_equal_the_engines(impl, pocket):
    """Pocket's 4,096 tokens; the engine's own automaton walks beside yours."""
    from mini_vllm.structured_output.backend_mini import MiniBackend
    from mini_vllm.structured_output.backend_types import StructuredOutputOptions

    serve = load(HERE / "serve.py")
    manager = serve.manager_of(pocket)
    theirs = MiniBackend(manager.config, manager._make_vocabulary())
    vocab, rng = serve.texts_of(theirs.vocabulary), np.random.default_rng(0)
    for pattern in ("[A-Z][a-z]+ [a-z ]+", "[0-9]+[.][0-9]+", '[{]"[a-z]+": [0-9]+[}]'):
        fsm, grammar = impl.compile_pattern(pattern), theirs.compile_grammar(StructuredOutputOptions.REGEX, pattern)
        state, rows, text = fsm.start, theirs.allocate_token_bitmask(1), ""
        for _ in range(8):
            grammar.fill_bitmask(rows, 0)
            mine = impl.allowed_tokens(fsm, state, vocab)
            ending = set(theirs.vocabulary.stop_token_ids) if state in fsm.accepting else set()
            packed = impl.pack_row(mine | ending, len(vocab))
            assert (packed == rows[0]).all(), f"{pattern!r} after {text!r}: your mask and the engine's differ"
            if not mine:
                break
            token = int(rng.choice(sorted(mine)))
            text += vocab[token]
            state = impl.advance(fsm, state, vocab[token])
            assert grammar.accept_tokens("", [token])


def test_it_serves_pocket(impl, pocket):
    """Your machine in the engine: the masks of two requests in one batch, and the tokens of the engine's own."""
    from mini_vllm import SamplingParams
    from mini_vllm.structured_outputs_params import StructuredOutputsParams

    pattern, serve = "[A-Z][a-z]+ [a-z]+[.]", load(HERE / "serve.py")
    params = [
        SamplingParams(temperature=t, seed=5, max_tokens=30, structured_outputs=StructuredOutputsParams(regex=pattern))
        for t in (0.0, 1.0)
    ]
    prompts = ["What is a KV block?", "Tell me a story about a fox."]
    manager = serve.manager_of(pocket)
    manager.backend = None
    wanted = [each.outputs[0].text for each in pocket.generate(prompts, params, use_tqdm=False)]
    fsm = impl.compile_pattern(pattern)
    kept = {}

    def allowed(state):
        if state not in kept:
            kept[state] = impl.allowed_tokens(fsm, state, backend.texts)
        return kept[state]

    step = lambda state, text: impl.advance(fsm, state, text)  # noqa: E731
    backend = serve.serve(pocket, lambda: fsm.start, allowed, step, lambda state: state in fsm.accepting)
    try:
        found = [each.outputs[0].text for each in pocket.generate(prompts, params, use_tqdm=False)]
    finally:
        manager.backend = None
    assert found == wanted and all(re.fullmatch(pattern, text) for text in found)

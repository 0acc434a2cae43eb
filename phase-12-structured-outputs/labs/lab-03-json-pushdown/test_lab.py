"""Lab 12-03: the machine is this lab's JSON, depth is what it must remember, and wrong machines are found."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
machines = load(HERE / "machines.py")
END = "<end>"


def fed(impl, text):
    machine = impl.JsonMachine()
    for character in text:
        machine.feed(character)
    return machine


def verdict(impl, text):
    """ "wrong", "unfinished" or "finished"."""
    machine = impl.JsonMachine()
    for at, character in enumerate(text):
        try:
            machine.feed(character)
        except ValueError:
            return f"wrong at {at}"
    return "finished" if machine.accepting() else "unfinished"


# ---- the machine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "0", "7", "120", "{}", "[]", '{"a":1}', '{"ab":{},"c":[0,10]}', "[[],[[]],{}]", '[{"e":0}]',
        '{"a":{"b":{"c":{"d":5}}}}', "[1,2,3]", '{"a":1,"a":2}',
    ],
)  # fmt: skip
def test_recognizes_valid_json(impl, text):
    json.loads(text)
    assert verdict(impl, text) == "finished"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{}}", "wrong at 2"), ('{"a":}', "wrong at 5"), ('{"a":1,}', "wrong at 7"), ("[1,]", "wrong at 3"),
        ("0123", "wrong at 1"), ('{"a":01}', "wrong at 6"), ("[1}", "wrong at 2"), ('{"a":1]', "wrong at 6"),
        ('{""', "wrong at 2"), ("{1", "wrong at 1"), ('{"a"1', "wrong at 4"), ("[,", "wrong at 1"), ("}", "wrong at 0"),
        ("1,", "wrong at 1"), ("", "unfinished"), ("[", "unfinished"), ('{"a":1', "unfinished"), ("[[]", "unfinished"),
        ("[00", "wrong at 2"), ('{"f', "wrong at 2"), ("[]0", "wrong at 2"), ("0]", "wrong at 1"), ("-", "wrong at 0"),
    ],
)  # fmt: skip
def test_rejects_invalid_json(impl, text, wanted):
    assert verdict(impl, text) == wanted


def test_after_every_prefix_the_right_characters_may_come(impl):
    """Random texts, and at each of their places the whole set, against a parser that reads everything again."""
    rng = random.Random(1)
    for _ in range(40):
        machine, judge = impl.JsonMachine(), machines.Faulty("")
        for _ in range(30):
            wanted = judge.allowed()
            assert machine.allowed() == wanted, f"after {judge.text!r}"
            assert bool(machine.accepting()) is bool(judge.accepting()), f"after {judge.text!r}"
            if not wanted:
                break
            kinds = {"0" if each.isdigit() else "a" if each.isalpha() else each for each in wanted}
            kind = rng.choice(sorted(kinds))
            same = "0123456789" if kind == "0" else "abcde" if kind == "a" else kind
            character = rng.choice(sorted(wanted & {*same}))
            machine.feed(character)
            judge.feed(character)


def test_illegal_feed_raises_and_changes_nothing(impl):
    machine = fed(impl, '{"a":1')
    before = machine.allowed(), machine.depth
    with pytest.raises(ValueError, match=re.escape("']' cannot stand here, only one of , 0 1 2 3 4 5 6 7 8 9 }")):
        machine.feed("]")
    assert (machine.allowed(), machine.depth) == before
    with pytest.raises(ValueError, match="'0' cannot stand here: the text is complete"):
        fed(impl, "{}").feed("0")


def test_depth_is_the_stack(impl):
    """One mode, two sets: what may come after a number depends on what is open, however deep."""
    text = '{"a":[{"b":[{"c":[{"d":[1'
    machine = fed(impl, text)
    assert machine.depth == 8 and {*",]"} < machine.allowed() and "}" not in machine.allowed()
    for number, closer in enumerate("]}]}]}]}", 1):
        assert closer in machine.allowed() and ({"]", "}"} - {closer}).isdisjoint(machine.allowed())
        machine.feed(closer)
        assert machine.depth == 8 - number
    assert machine.accepting() and machine.allowed() == set()
    assert fed(impl, "12").allowed() == {*"0123456789"}, "with nothing open a number may only grow"


def test_fifty_deep_and_back(impl):
    openers = random.Random(3).choices(["[", '{"a":'], k=50)
    machine = fed(impl, "".join(openers) + "0")
    for opener in reversed(openers):
        machine.feed("]" if opener == "[" else "}")
    assert machine.accepting()


def test_snapshot_restore(impl):
    machine = fed(impl, '[{"a":[')
    kept, allowed = machine.snapshot(), machine.allowed()
    for character in "7,8]}":
        machine.feed(character)
    assert machine.depth == 1
    machine.restore(kept)
    assert machine.allowed() == allowed and machine.depth == 3
    for character in "]}]":
        machine.feed(character)
    assert machine.accepting()
    other = impl.JsonMachine()
    other.restore(kept)
    assert other.allowed() == allowed, "a snapshot is all that there is to know, for another machine too"
    machine.restore(kept)
    assert machine.depth == 3, "what was fed after it has changed the snapshot"


# ---- the loop ------------------------------------------------------------------------------------------------------


def lover(order):
    return lambda legal: min(legal, key=order.index)


def sampler(seed, **weights):
    rng = random.Random(seed)
    return lambda legal: rng.choices(legal, [weights.get(each, 1.0) for each in legal])[0]


def test_the_model_is_shown_what_is_legal(impl):
    seen = []

    def choose(legal):
        seen.append(list(legal))
        return END if END in legal else legal[-1]

    assert impl.constrained_generate(fed(impl, '{"a":[1'), choose, 9) == ("]}", "stop")
    assert seen == [[*",0123456789]"], [",", "}"], [END]]
    assert impl.constrained_generate(fed(impl, "12"), lambda legal: legal[-1], 9) == ("", "stop")


def test_a_hater_closes_where_nothing_else_is_legal(impl):
    """Without a comma in its vocabulary, a model that likes } least closes eight objects, because it must."""
    machine = fed(impl, '{"a":' * 8)
    choose = lambda legal: min((each for each in legal if each != ","), key="0{[].}".find)  # noqa: E731
    order = ["0", END, "}"]
    calls = iter(range(99))

    def hater(legal):
        wanted = [each for each in order if each in legal and not (each == "0" and next(calls))]
        return wanted[0] if wanted else choose(legal)

    text, reason = impl.constrained_generate(machine, hater, 40)
    assert (text, reason) == ("0" + "}" * 8, "stop") and json.loads('{"a":' * 8 + text)


def test_sampled_texts_parse_or_are_cut_alive(impl):
    stopped = nested = 0
    for seed in range(120):
        machine = impl.JsonMachine()
        for character in "{"[: seed % 2]:
            machine.feed(character)
        text, reason = impl.constrained_generate(machine, sampler(seed, **{'"': 3.0, "}": 2.0}), 120)
        whole = "{"[: seed % 2] + text
        if reason == "stop":
            stopped += 1
            nested += "{" in whole[1:] or "[" in whole
            json.loads(whole)
        else:
            assert len(text) == 120 and (machine.allowed() or machine.accepting()), f"{whole!r} is cut and dead"
    assert stopped >= 60 and nested >= 5, "too few texts came to their end for this test to say anything"


def test_truncation_caveat_brace_lover_never_closes(impl):
    machine = impl.JsonMachine()
    text, reason = impl.constrained_generate(machine, lover('{":a' + "[]},0123456789bcde" + END), 50)
    assert (text, reason) == (('{"a":' * 10)[:50], "length")
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(text)


def permutation_stops(impl):
    """Fifty models with a fixed taste each: how many of their texts come to an end within 60 characters."""
    stops = 0
    for seed in range(50):
        order = [*machines.ALPHABET, END]
        random.Random(seed).shuffle(order)
        stops += impl.constrained_generate(impl.JsonMachine(), lover(order), 60)[1] == "stop"
    return stops


def test_fixed_tastes_end_as_predicted(impl):
    predicted, stops = impl.predicted_stops(), permutation_stops(impl)
    assert abs(predicted - stops) <= 6, (
        f"you predicted that {predicted} of 50 end; {stops} do. Watch one that does not: what does it like, and why "
        "does nothing ever change its mind?"
    )


def test_fixed_tastes_find_nothing(impl):
    """The same fifty models on the machine with leading zeros: how many end, and how many of these show the fault."""
    ended = []
    for seed in range(50):
        order = [*machines.ALPHABET, END]
        random.Random(seed).shuffle(order)
        text, reason = impl.constrained_generate(machines.Faulty("leading zeros"), lover(order), 60)
        ended += [text] * (reason == "stop")
    assert len(ended) == 7 and not any(machines.judge("leading zeros", text) for text in ended)


# ---- the hunt ------------------------------------------------------------------------------------------------------


def counted(make, limit=500):
    made = []

    def count():
        made.append(1)
        assert len(made) <= limit, f"hunt asked for more than {limit} machines"
        return make()

    return count


@pytest.mark.parametrize("fault", machines.FAULTS)
def test_the_hunt_finds(impl, fault):
    text = impl.hunt(counted(lambda: machines.Faulty(fault)))
    assert text is not None, f"a machine with the fault {fault!r} was let go: does your hunt ever get there?"
    assert machines.judge(fault, text), f"{text!r} shows nothing wrong of the machine with the fault {fault!r}"


def test_the_hunt_lets_a_right_machine_go(impl):
    assert impl.hunt(counted(lambda: machines.Faulty(""))) is None
    assert impl.hunt(counted(impl.JsonMachine)) is None, "your own machine is wrong, or your hunt is"


# ---- tokens, and the engine ----------------------------------------------------------------------------------------

GRAMMAR = r"""root ::= value
value ::= object | array | number
object ::= "{}" | "{" pair ("," pair)* "}"
pair ::= "\"" [a-e]+ "\":" value
array ::= "[]" | "[" value ("," value)* "]"
number ::= "0" | [1-9] [0-9]*
"""


def test_tokens_may_close_what_others_opened(impl):
    vocab = ["]}", "}]", "1]", "0", "01", "", "]},", '{"a":', "[[", "]]", '"', "]}}", "}", "]}]"]
    machine = fed(impl, '[{"a":[')
    legal = {vocab[each] for each in impl.allowed_tokens(machine, vocab)}
    assert legal == {"]}", "1]", "0", "]},", '{"a":', "[[", "]}]"}
    assert vocab[5] == "" and len(vocab) == 14, "the caller's vocabulary was changed"
    assert machine.depth == 3 and "]" in machine.allowed(), "asking has moved the machine"
    assert impl.allowed_tokens(fed(impl, "{}"), vocab) == set()


@pytest.fixture(scope="module")
def pocket():
    from mini_vllm import LLM

    return LLM(str(POCKET))


def test_masks_equal_the_engines(impl, pocket):
    """Pocket's vocabulary, and the same grammar as EBNF in the engine's pushdown automaton: word for word."""
    from mini_vllm.structured_output.backend_mini import MiniBackend
    from mini_vllm.structured_output.backend_types import StructuredOutputOptions

    serve = load(HERE / "serve.py")
    manager = serve.manager_of(pocket)
    theirs = MiniBackend(manager.config, manager._make_vocabulary())
    vocab, rng = serve.texts_of(theirs.vocabulary), np.random.default_rng(2)
    for start in ("", '[{"a":[', "[[[{"):
        machine, rows = fed(impl, start), theirs.allocate_token_bitmask(1)
        grammar = theirs.compile_grammar(StructuredOutputOptions.GRAMMAR, GRAMMAR)
        assert grammar.accept_tokens("", [vocab.index(each) for each in start])
        text = start
        for _ in range(5):
            grammar.fill_bitmask(rows, 0)
            bits = np.unpackbits(rows[0].view(np.uint8), bitorder="little")[: len(vocab)]
            theirs_now = set(np.flatnonzero(bits).tolist()) - set(theirs.vocabulary.stop_token_ids)
            mine = impl.allowed_tokens(machine, vocab)
            differ = [vocab[each] for each in sorted(mine ^ theirs_now)[:5]]
            assert mine == theirs_now, f"after {text!r} you and the engine differ about {differ}"
            if not mine:
                break
            token = int(rng.choice(sorted(mine)))
            for character in vocab[token]:
                machine.feed(character)
            text += vocab[token]
            assert grammar.accept_tokens("", [token])


def test_it_serves_pocket(impl, pocket):
    """Three requests in one batch, at temperature 1, each with a machine of its own: every text that ends parses."""
    from mini_vllm import SamplingParams
    from mini_vllm.structured_outputs_params import StructuredOutputsParams

    serve = load(HERE / "serve.py")

    def step(kept, text):
        machine = at(kept)
        try:
            for character in text:
                machine.feed(character)
        except ValueError:
            return None
        return machine.snapshot()

    def at(kept):
        machine = impl.JsonMachine()
        machine.restore(kept)
        return machine

    start = impl.JsonMachine().snapshot
    manager = serve.manager_of(pocket)
    backend = serve.serve(
        pocket,
        start,
        lambda kept: impl.allowed_tokens(at(kept), backend.texts),
        step,
        lambda kept: at(kept).accepting(),
    )
    asked = StructuredOutputsParams(json_object=True)
    params = [SamplingParams(temperature=1.0, seed=n, max_tokens=24, structured_outputs=asked) for n in range(3)]
    try:
        outputs = pocket.generate(["JSON with a 1 and b 2", "[1,", "What is a KV block?"], params, use_tqdm=False)
    finally:
        manager.backend = None
    for output in outputs:
        text, reason = output.outputs[0].text, output.outputs[0].finish_reason
        if reason == "stop":
            json.loads(text)
        else:
            assert reason == "length" and not verdict(impl, text).startswith("wrong"), (text, reason)

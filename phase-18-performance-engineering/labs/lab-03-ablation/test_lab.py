"""Lab 18-03: all arms are run, equal work is compared, and the shares multiply to what happened."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
NAMES = ("prefix", "batch", "attention")


def captured():
    """The captured rows as a table of arms: processor seconds, medians."""
    rows = json.loads((HERE / "captured" / "arms.json").read_text(encoding="utf-8"))["rows"]
    found = {}
    for row in rows:
        found.setdefault(tuple(map(int, row["arm"])), []).append(row["seconds"])
    return {key: sorted(each)[len(each) // 2] for key, each in found.items()}


def made(names, cost):
    """Arms from a function of the set of names that are on."""
    keys = itertools.product((0, 1), repeat=len(names))
    return {key: cost({name for name, bit in zip(names, key, strict=True) if bit}) for key in keys}


def some_arms(rng, number):
    return made(range(number), lambda on: rng.uniform(0.2, 5.0))


def product(gains):
    return math.prod(gains.values())


# ---- one technique beside others -----------------------------------------------------------------------------------

SMALL = {(0, 0): 12.0, (1, 0): 6.0, (0, 1): 4.0, (1, 1): 3.0}
PAIR = ("a", "b")


def test_alone_and_last(impl):
    assert impl.one_at_a_time(SMALL, PAIR) == pytest.approx({"a": 2.0, "b": 3.0})
    assert impl.leave_one_out(SMALL, PAIR) == pytest.approx({"a": 4 / 3, "b": 2.0})


def test_along_an_order(impl):
    assert impl.along(SMALL, PAIR, ["a", "b"]) == pytest.approx({"a": 2.0, "b": 2.0})
    assert impl.along(SMALL, PAIR, ("b", "a")) == pytest.approx({"b": 3.0, "a": 4 / 3})
    arms = captured()
    for order in itertools.permutations(NAMES):
        gains = impl.along(arms, NAMES, order)
        assert set(gains) == set(NAMES)
        assert product(gains) == pytest.approx(arms[0, 0, 0] / arms[1, 1, 1]), "every order ends where all are on"


def test_interaction_of_a_pair(impl):
    assert impl.interaction(SMALL, PAIR, "a", "b") == pytest.approx(2 / 3), "b gains 3 without a, and 2 with it"
    assert impl.interaction(SMALL, PAIR, "b", "a") == pytest.approx(2 / 3), "the same from the other side"
    lone = made("abc", lambda on: 100.0 / (1 + ("a" in on)) / (1 + 4 * ("b" in on and "c" in on)))
    assert impl.interaction(lone, "abc", "c", "b") == pytest.approx(5.0)
    assert impl.interaction(lone, "abc", "a", "b") == pytest.approx(1.0)


def test_interaction_of_the_capture(impl):
    arms = captured()
    assert impl.interaction(arms, NAMES, "batch", "prefix") == pytest.approx(1.497, abs=0.01), "they help each other"
    assert impl.interaction(arms, NAMES, "batch", "attention") == pytest.approx(0.808, abs=0.01), "they do not"


def test_the_gain_beside_others_as_predicted(impl):
    gains, alone = impl.leave_one_out(captured(), NAMES), impl.one_at_a_time(captured(), NAMES)
    predicted = impl.predicted_gain()
    assert abs(predicted - gains["prefix"]) <= 0.25, (
        f"you predicted {predicted}; beside the others it is {gains['prefix']:.2f}, and alone {alone['prefix']:.2f}. "
        "What is left of a request when batching has taken its steps away?"
    )


# ---- shares of the whole -------------------------------------------------------------------------------------------


def test_gains_multiply_to_the_truth(impl):
    rng = random.Random(0)
    for number in (1, 2, 3, 4):
        for _ in range(5):
            arms = some_arms(rng, number)
            names = [f"t{i}" for i in range(number)]
            truth, found = arms[(0,) * number] / arms[(1,) * number], product(impl.attribute(arms, names))
            assert found == pytest.approx(truth, rel=1e-9), (
                f"the gains multiply to {found:.2f}, the engine got {truth:.2f} times as fast"
            )
    arms = captured()
    truth, last = arms[0, 0, 0] / arms[1, 1, 1], product(impl.leave_one_out(arms, NAMES))
    assert product(impl.attribute(arms, NAMES)) == pytest.approx(truth), (
        f"{truth:.2f} times as fast. Where your gains multiply to {last:.2f}, each was measured beside all the others, "
        "and shares its gain with them"
    )


def test_separable_techniques_get_their_factor(impl):
    factors = {"a": 2.0, "b": 1.5, "c": 4.0}
    arms = made("abc", lambda on: 48.0 / math.prod(factors[name] for name in on))
    assert impl.attribute(arms, "abc") == pytest.approx(factors)


def test_what_does_not_interact_keeps_its_gain(impl):
    rng = random.Random(2)
    for _ in range(5):
        base = {key: rng.uniform(1.0, 9.0) for key in itertools.product((False, True), repeat=2)}
        arms = made("abc", lambda on, base=base: base["a" in on, "b" in on] / (3.0 if "c" in on else 1.0))
        found = impl.attribute(arms, "abc")["c"]
        assert found == pytest.approx(3.0), f"c does not interact with anybody and is worth 3.00; it got {found:.2f}"


def test_equal_techniques_get_equal_gains(impl):
    """This looks like *One order* where one of the two gets all that both did."""
    by_count = [12.0, 4.0, 3.0]
    arms = made("abc", lambda on: by_count[len(on & {"a", "b"})] / (2.0 if "c" in on else 1.0))
    gains = impl.attribute(arms, "abc")
    assert gains["a"] == pytest.approx(gains["b"]) and gains["a"] == pytest.approx(2.0)


def test_names_in_any_order(impl):
    rng = random.Random(3)
    cost = {frozenset(on): rng.uniform(0.2, 5.0) for n in range(4) for on in itertools.combinations("abc", n)}
    wanted = impl.attribute(made("abc", lambda on: cost[frozenset(on)]), "abc")
    for names in itertools.permutations("abc"):
        found = impl.attribute(made(names, lambda on: cost[frozenset(on)]), names)
        assert found == pytest.approx(wanted), f"named in the order {names} the shares are others"


def test_an_idle_technique_gets_one_and_a_loss_stays_a_loss(impl):
    arms = made("abc", lambda on: 10.0 / (2.0 if "a" in on else 1.0) * (1.25 if "b" in on else 1.0))
    assert impl.attribute(arms, "abc") == pytest.approx({"a": 2.0, "b": 0.8, "c": 1.0})


def test_refusals(impl):
    short = {key: 1.0 for key in itertools.product((0, 1), repeat=3) if key != (0, 1, 1)}
    odd = {**short, (0, 1, 1): 1.0, (0, 0, 1): math.nan}
    calls = {
        "check_arms": lambda arms: impl.check_arms(arms, 3),
        "along": lambda arms: impl.along(arms, "abc", "abc"),
        "interaction": lambda arms: impl.interaction(arms, "abc", "a", "b"),
        **{
            name: lambda arms, name=name: getattr(impl, name)(arms, "abc")
            for name in ("attribute", "one_at_a_time", "leave_one_out")
        },
    }
    for call in calls.values():
        with pytest.raises(ValueError, match=re.escape("1 of 8 arms are missing, first: (0, 1, 1)")):
            call(short)
        with pytest.raises(ValueError, match=re.escape("cost of arm (0, 0, 1) must be positive and finite, got nan")):
            call(odd)
    with pytest.raises(ValueError, match=re.escape("3 of 4 arms are missing, first: (0, 0)")):
        impl.check_arms({(1, 0): 1.0}, 2)
    for value in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match=re.escape(f"cost of arm (1, 1) must be positive and finite, got {value}")):
            impl.check_arms({**SMALL, (1, 1): value}, 2)
    for order in (["a"], ["a", "a"], ["a", "b", "b"], ["a", "c"]):
        says = f"order must name each of ['a', 'b'] once, got {order}"
        with pytest.raises(ValueError, match=re.escape(says)):
            impl.along(SMALL, PAIR, order)
    for x, y in (("a", "a"), ("a", "z"), ("z", "b")):
        with pytest.raises(ValueError, match=re.escape(f"x and y must be two of ['a', 'b'], got {x} and {y}")):
            impl.interaction(SMALL, PAIR, x, y)


# ---- running the arms ----------------------------------------------------------------------------------------------


def switches(impl, *names):
    return [impl.Technique(name, {name: "on"}, {name: "off"}) for name in names]


def test_every_arm_runs_and_repeats_interleave(impl):
    ran = []

    def run(settings):
        ran.append(tuple(settings[name] for name in "abc"))
        return 1.0, "the same"

    techniques = switches(impl, *"abc")
    assert set(impl.run_arms(run, techniques)) == set(itertools.product((0, 1), repeat=3))
    assert techniques == switches(impl, *"abc"), "the list of techniques was changed"
    assert len(ran) == 24 and set(ran) == set(itertools.product(("on", "off"), repeat=3))
    assert all(ran.count(each) == 3 for each in set(ran))
    rounds = [set(ran[at : at + 8]) for at in (0, 8, 16)]
    assert all(len(each) == 8 for each in rounds), "this looks like *AAA, BBB*: each repeat must see every arm once"
    assert not any(one == other for one, other in itertools.pairwise(ran)), "an arm ran twice in a row"


def test_two_arms_take_turns(impl):
    """Where there are only two, rounds in an order by chance, or there and back, soon let one run twice in a row."""
    ran = []
    impl.run_arms(lambda settings: (ran.append(settings["a"]) or 1.0, 0), switches(impl, "a"), repeats=10)
    assert len(ran) == 20 and all(one != other for one, other in itertools.pairwise(ran)), f"they ran as {ran}"


def test_the_median_of_the_repeats(impl):
    costs = {"off": iter([9.0, 8.0, 70.0]), "on": iter([2.0, 50.0, 3.0])}
    arms = impl.run_arms(lambda settings: (next(costs[settings["a"]]), 0), switches(impl, "a"), repeats=3)
    assert arms == {(0,): 9.0, (1,): 3.0}, "one interrupted run must not decide an arm"
    costs = {"off": iter([9.0, 8.0]), "on": iter([2.0, 3.0])}
    arms = impl.run_arms(lambda settings: (next(costs[settings["a"]]), 0), switches(impl, "a"), repeats=2)
    assert arms == {(0,): 8.5, (1,): 2.5}, "the median of two lies between them"


def test_settings_do_not_leak_from_arm_to_arm(impl):
    on = {"a": "on", "more": 5}
    techniques = [impl.Technique("a", on, {"a": "off"}), impl.Technique("b", {}, {"b": "off"})]
    seen = []
    impl.run_arms(lambda settings: (seen.append(settings) or 1.0, 0), techniques, repeats=1)
    wanted = [{"a": "off", "b": "off"}, {"a": "off"}, {"a": "on", "more": 5, "b": "off"}, {"a": "on", "more": 5}]
    assert sorted(map(repr, map(sorted, map(dict.items, seen)))) == sorted(
        map(repr, map(sorted, map(dict.items, wanted)))
    )
    assert on == {"a": "on", "more": 5}, "a technique was changed"
    impl.run_arms(lambda settings: (float(len(settings)), settings.clear()), techniques[:1], repeats=2)
    assert on == {"a": "on", "more": 5}, "what a run does to its settings was done to the technique"


def test_other_tokens_stop_the_ablation(impl):
    def run(settings):
        return 1.0, [1, 2, 3 + (settings == {"a": "on", "b": "off"})]

    with pytest.raises(
        ValueError, match=r"arm \(\d, \d\) gave another answer than arm \(\d, \d\): an ablation compares"
    ):
        impl.run_arms(run, switches(impl, "a", "b"))


@pytest.mark.parametrize("odd", [1, 3, 6])
def test_the_first_other_answer_is_named(impl, odd):
    """Also where an arm answers otherwise only when it runs again."""
    ran = []

    def run(settings):
        ran.append(tuple(int(settings[name] == "on") for name in "ab"))
        return 1.0, len(ran) - 1 >= odd

    with pytest.raises(ValueError, match="gave another answer than arm") as caught:
        impl.run_arms(run, switches(impl, "a", "b"), repeats=3)
    assert f"arm {ran[odd]} gave another answer than arm {ran[0]}: an ablation compares equal work" in str(caught.value)
    assert len(ran) == odd + 1, f"it went on for {len(ran) - odd - 1} runs more, and none of them could count"


def test_counters_of_the_engine(impl):
    """Prefix caching and batching on the toy model; the cost is counted, not timed: 3.8 a step and 0.22 a token."""
    from mini_vllm import LLMEngine, SamplingParams

    counted = {}

    def run(settings):
        engine = LLMEngine(block_size=4, num_blocks=512, **settings)
        for i in range(4):
            prompt = {"prompt_token_ids": [7] * 32 + [i] * (4 + 3 * i)}
            engine.add_request(str(i), prompt, SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
        answers = {}
        while engine.has_unfinished_requests():
            answers |= {each.request_id: list(each.outputs[0].token_ids) for each in engine.step()}
        counts = engine.stats.num_steps, engine.stats.num_scheduled_tokens
        counted[settings["enable_prefix_caching"], settings["max_num_seqs"]] = counts
        return 3.8 * counts[0] + 0.22 * counts[1], answers

    techniques = [
        impl.Technique("prefix", {"enable_prefix_caching": True}, {"enable_prefix_caching": False}),
        impl.Technique("batch", {"max_num_seqs": 4}, {"max_num_seqs": 1}),
    ]
    arms = impl.run_arms(run, techniques, repeats=1)
    assert counted == {(False, 1): (16, 174), (False, 4): (4, 174), (True, 1): (16, 78), (True, 4): (4, 78)}
    gains = impl.attribute(arms, ("prefix", "batch"))
    assert product(gains) == pytest.approx(arms[0, 0] / arms[1, 1])
    assert impl.interaction(arms, ("prefix", "batch"), "batch", "prefix") > 1.1, "with fewer steps prefill weighs more"

"""Lab 12-02: three captured runs of real vLLM, and what they allow to be said."""

from __future__ import annotations

import json
import lzma
from math import comb
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
RUNS = {
    arm: json.loads(lzma.decompress((HERE / "captured" / f"cpu-{arm}.json.xz").read_bytes()))
    for arm in ("free", "schema", "compact")
}
GOOD = '{"name": "Ann", "age": 5, "city": "Bonn"}'


def of(arm, kind=None):
    return [answer for answer in RUNS[arm]["answers"] if kind in (None, answer["kind"])]


def outcomes(impl, arm):
    table = impl.tabulate(of(arm))
    return {outcome: sum(row[outcome] for row in table.values()) for outcome in impl.OUTCOMES}


# ---- one answer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason", "wanted"),
    [
        (GOOD, "stop", "valid"),
        (f"  {GOOD}\n", "stop", "valid"),
        (GOOD, "length", "valid"),
        (GOOD[:-3], "length", "cut"),
        (GOOD[:-3], "stop", "no json"),
        ('{"name": "Ann"}', "length", "cut"),
        ("I remember that.", "length", "cut"),
        (f"```json\n{GOOD}\n```", "stop", "wrapped"),
        (f"Here you are: {GOOD} Anything else?", "stop", "wrapped"),
        (f"I have {{thought}}: {GOOD}", "stop", "wrapped"),
        ("{" + GOOD, "stop", "wrapped"),
        (f'{{"name": 1}} or {GOOD}', "stop", "wrapped"),
        (f"Here you are: {GOOD}", "length", "cut"),
        ('Here: {"name": "Ann"}', "stop", "no json"),
        (f"[{GOOD}]", "stop", "wrong shape"),
        ('{"name": "Ann", "age": "5", "city": "Bonn"}', "stop", "wrong shape"),
        ('{"name": "Ann", "age": -5, "city": "Bonn"}', "stop", "wrong shape"),
        ('{"name": "Ann", "age": true, "city": "Bonn"}', "stop", "wrong shape"),
        ("null", "stop", "wrong shape"),
        ("", "stop", "no json"),
        ("27 - 27 = 0", "stop", "no json"),
    ],
)
def test_classify(impl, text, reason, wanted):
    assert impl.classify(text, reason) == wanted


def answer(kind, text, reason="stop", wanted=None):
    return {"kind": kind, "text": text, "finish_reason": reason, "wanted": wanted}


def test_tabulate(impl):
    rows = [answer("a", GOOD), answer("b", "x"), answer("a", "x", "length"), answer("a", GOOD)]
    none = dict.fromkeys(impl.OUTCOMES, 0)
    assert impl.tabulate(iter(rows)) == {"a": {**none, "valid": 2, "cut": 1}, "b": {**none, "no json": 1}}


def test_the_promise_is_about_those_that_stopped(impl):
    rows = [answer("a", GOOD), answer("a", "x"), answer("a", "{", "length"), answer("a", GOOD, "length")]
    assert impl.guarantee(iter(rows)) == (1, 2)
    assert impl.guarantee([]) == (0, 0)


def test_valid_is_not_right(impl):
    wanted = {"name": "Ann", "age": 5, "city": "Bonn"}
    rows = [
        answer("a", GOOD, wanted=wanted),
        answer("a", GOOD.replace("5", "6"), wanted=wanted),
        answer("a", GOOD),
        answer("a", "null"),
        answer("a", "no", wanted=wanted),
        answer("a", '{"city": "Bonn", "age": 5, "name": "Ann"}', wanted=wanted),
        answer("a", '{"name": "Ann", "age": 5, "city": "Bonn", "shoe": 38}', wanted=wanted),
        answer("a", '{"name": "Ann", "age": 5}', wanted=wanted),
    ]
    assert impl.right_values(iter(rows)) == (2, 6)


# ---- the captures --------------------------------------------------------------------------------------------------


def test_what_the_schema_bought(impl):
    assert [outcomes(impl, arm)["valid"] for arm in RUNS] == [29, 52, 56]
    assert impl.tabulate(of("free"))["sentence"] == {
        "valid": 0, "cut": 1, "wrapped": 0, "wrong shape": 2, "no json": 17,
    }  # fmt: skip
    assert [impl.tabulate(of(arm))["fields"]["valid"] for arm in RUNS] == [20, 20, 20], "where nothing was to gain"
    assert outcomes(impl, "schema") == {"valid": 52, "cut": 8, "wrapped": 0, "wrong shape": 0, "no json": 0}


def test_the_guarantee_and_its_hole(impl):
    """This looks like *Counting all answers* where 60 stand for 52: the mask promises nothing to who is cut off."""
    assert [impl.guarantee(of(arm)) for arm in RUNS] == [(29, 59), (52, 52), (56, 56)]
    assert impl.classify(RUNS["schema"]["short"]["text"], RUNS["schema"]["short"]["finish_reason"]) == "cut"


def test_right_as_predicted(impl):
    right, asked = impl.right_values(of("schema", "sentence"))
    predicted = impl.predicted_right()
    assert asked == 20 and abs(predicted - right) <= 3, (
        f"you predicted that {predicted} of 20 hold the values; {right} do, and 13 are valid. Read some: "
        f"{of('schema', 'sentence')[4]['text']}"
    )
    assert impl.right_values(of("schema", "fields")) == (20, 20)


def test_compiling_is_paid_once(impl):
    paid = impl.compile_ms(RUNS["schema"]["latency"])
    assert paid == pytest.approx({"small": 1.5195, "large": 7.8405}, abs=1e-3)


def test_one_slow_request_decides_nothing(impl):
    rows = [{"constraint": c, "first": first, "ms": ms} for c, first, ms in (
        ("small", True, 10.0), ("small", True, 12.0), ("small", True, 900.0), ("small", False, 5.0),
        ("small", False, 6.0), ("small", False, 7.0), ("large", True, 30.0),
        ("large", False, 6.0), ("none", False, 1.0),
    )]  # fmt: skip
    before = [dict(row) for row in rows]
    assert impl.compile_ms(rows) == {"small": 6.0, "large": 24.0} and rows == before


# ---- how sure -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [20, 40, 60])
def test_the_interval_holds_the_truth(impl, total):
    """Exactly, by the binomial distribution: in how many of all experiments the interval holds the true share."""
    found = [impl.interval(seen, total) for seen in range(total + 1)]
    held = []
    for share in (number / 100 for number in range(1, 100)):
        chance = (comb(total, seen) * share**seen * (1 - share) ** (total - seen) for seen in range(total + 1))
        held.append(sum(c for c, (low, high) in zip(chance, found, strict=True) if low <= share <= high))
    worst = min(held)
    assert worst >= 0.92, (
        f"with a true share of {(held.index(worst) + 1) / 100} the interval holds it in {worst:.0%} of experiments. "
        "This looks like *Certain after twenty*"
    )
    assert sum(held) / len(held) >= 0.94


def test_the_interval_is_no_wider_than_it_must(impl):
    low, high = impl.interval(30, 60)
    assert high - low <= 0.27 and low < 0.5 < high
    for seen, total in ((0, 20), (20, 20), (52, 52), (1, 60), (1, 1), (0, 1)):
        low, high = impl.interval(seen, total)
        assert 0.0 <= low <= seen / total <= high + 1e-9 and high <= 1.0
    assert 0.90 < impl.interval(52, 52)[0] < 0.96, "52 of 52 is no proof of always"


@pytest.mark.parametrize(("seen", "total"), [(0, 0), (3, 2), (-1, 5), (0, -1)])
def test_no_share(impl, seen, total):
    with pytest.raises(ValueError, match=f"{seen} of {total} is no share"):
        impl.interval(seen, total)


# ---- our engine, and a run of your own ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours():
    """The engine of this course on the first questions of the arm `compact`, greedy, with the schema and without."""
    from mini_vllm import LLM, SamplingParams
    from mini_vllm.structured_outputs_params import StructuredOutputsParams

    llm = LLM(str(POCKET), structured_outputs_config={"disable_any_whitespace": True})
    asked = [row for kind in ("fields", "profile", "sentence") for row in of("compact", kind)[:3]]
    chats = [[{"role": "user", "content": row["question"]}] for row in asked]
    found = {}
    for arm, form in (("free", None), ("compact", StructuredOutputsParams(json=RUNS["compact"]["schema"]))):
        params = SamplingParams(temperature=0.0, max_tokens=48, structured_outputs=form)
        outputs = [each.outputs[0] for each in llm.chat(chats, params, use_tqdm=False)]
        found[arm] = [
            {**row, "text": out.text, "finish_reason": out.finish_reason}
            for row, out in zip(asked, outputs, strict=True)
        ]
    return found


def test_the_small_engine_says_the_same(impl, ours):
    valid, stopped = impl.guarantee(ours["compact"])
    assert valid == stopped >= 6
    assert impl.tabulate(ours["free"])["sentence"]["valid"] == 0
    assert impl.right_values([row for row in ours["compact"] if row["kind"] == "fields"]) == (3, 3)


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """About half a minute: starts vLLM on models/pocket."""
    _, result = real_run(str(POCKET), "--arm", "schema")
    valid, stopped = impl.guarantee(result["answers"])
    assert valid == stopped >= 40
    assert impl.classify(result["short"]["text"], result["short"]["finish_reason"]) == "cut"

"""Lab 11-02: captured runs of real vLLM with three adapters, and what they allow to be said."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
RUNS = {
    arm: json.loads((HERE / "captured" / f"cpu-{arm}.json").read_text(encoding="utf-8"))
    for arm in ("alone", "together", "roomy", "cap")
}
ALONE = RUNS["alone"]


def answer(ids, margins, **more):
    return {"request": "0", "question": "q", "adapter": None, "token_ids": ids, "margins": margins, **more}


@pytest.mark.parametrize(
    ("got", "margins", "alone", "theirs", "wanted"),
    [
        ([1, 2, 3], [1, 1, 1], [1, 2, 3], [1, 1, 1], "same"),
        ([1, 2, 3], [1, 1e-6, 1], [1, 2, 3], [1, 2e-6, 1], "same"),
        ([1, 2, 3], [1, 1, 3e-6], [1, 2, 4], [1, 1, 2e-6], "tie"),
        ([1, 2, 3], [1, 3e-6, 5], [1, 7, 8], [1, 0.0, 9], "tie"),
        ([1, 2, 3], [0.0, 4.0, 1], [1, 7, 8], [0.0, 2.0, 9], "different"),
        ([1, 2, 3], [1, 1, 0.0277], [1, 2, 4], [1, 1, 0.01], "different"),
        ([1, 2, 3], [1, 1, 0.0], [1, 2, 4], [1, 1, 0.3], "different"),
        ([1, 2, 3], [1, 1, 0.3], [1, 2, 4], [1, 1, 0.0], "different"),
        ([9], [2.0], [1], [2.0], "different"),
        ([9], [1e-6], [1], [1e-6], "tie"),
    ],
)
def test_verdict(impl, got, margins, alone, theirs, wanted):
    assert impl.verdict(answer(got, margins), answer(alone, theirs)) == wanted


def test_alone_is_alone(impl):
    before = copy.deepcopy(ALONE)
    assert impl.blame(ALONE, ALONE) == {}
    assert before == ALONE, "an argument was changed"
    own = {}
    for each in ALONE["answers"]:
        own.setdefault(each["question"], []).append(tuple(each["token_ids"]))
    assert all(len(set(each)) == 4 for each in own.values()), "each adapter says something of its own"


def test_who_is_wrong_when_all_slots_are_full(impl):
    """Twelve answers with an adapter are right. The four of the base are not, and they are all one adapter's."""
    found, answers = impl.blame(RUNS["together"], ALONE), RUNS["together"]["answers"]
    asked = [each["adapter"] for each in answers if each["request"] in found]
    assert len(answers) == 16 and asked == [None] * 4, f"requests {sorted(found)} of adapters {asked}"
    last = RUNS["together"]["slots"][-1]
    names = {None: 0, "amber": 1, "basil": 2, "coral": 3}
    assert all([names[each] for each in others] == [last] for others in found.values()), (
        f"{found}; the slots were {RUNS['together']['slots']}"
    )


def test_nobody_is_wrong_with_a_slot_to_spare(impl):
    assert RUNS["roomy"]["slots"][-1] == 0 and impl.blame(RUNS["roomy"], ALONE) == {}


def test_an_answer_may_be_nobodys(impl):
    run = copy.deepcopy(RUNS["roomy"])
    run["answers"][1]["token_ids"] = [4000] * len(run["answers"][1]["token_ids"])
    assert impl.blame(run, ALONE) == {run["answers"][1]["request"]: []}


def test_the_cap_held(impl):
    found = impl.report(RUNS["cap"])
    assert found.most == 2 == RUNS["cap"]["options"]["max_loras"]


def test_who_waited_for_whom(impl):
    found = impl.report(RUNS["cap"])
    assert found.waited == {"4": 14, "7": 14}, "both requests of coral, and nobody else"
    assert found.made_room == {"coral": "amber"}, "amber's last request ended; basil's was still there"


def test_what_was_loaded(impl):
    assert impl.report(RUNS["cap"]).loads == [(14, 0, 3)], (
        "coral took the first slot, in the step in which it first ran"
    )


def test_a_made_up_run(impl):
    names = {"1": "a", "2": "b", "3": "c", "4": None, "5": "a"}
    steps = [
        {"running": ["1-x", "4-x"], "waiting": ["2-x", "3-x"], "slots_before": [0]},
        {"running": ["4-x", "2-x"], "waiting": ["3-x"], "slots_before": [1]},
        {"running": ["3-x"], "waiting": [], "slots_before": [2]},
        {"running": ["5-x"], "waiting": [], "slots_before": [3]},
        {"running": ["5-x"], "waiting": [], "slots_before": [1]},
    ]
    run = {"answers": [{"request": key, "adapter": name} for key, name in names.items()], "steps": steps}
    found = impl.report(run)
    assert (found.most, found.waited, found.made_room) == (1, {"2": 1, "3": 2}, {"b": "a", "c": "b"})
    assert found.loads == [(0, 0, 1), (1, 0, 2), (2, 0, 3), (3, 0, 1)]
    assert impl.report({"answers": [], "steps": []}).waited == {}


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """About a minute: starts vLLM on models/pocket twice."""
    alone, together = (real_run(str(POCKET), "--arm", arm)[1] for arm in ("alone", "together"))
    found = impl.blame(together, alone)
    asked = [each["adapter"] for each in together["answers"] if each["request"] in found]
    assert asked == [None] * 4 and all(others == ["coral"] for others in found.values())

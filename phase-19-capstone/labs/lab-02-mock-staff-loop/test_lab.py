"""Lab 19-02: chance that is tied to the bank, scores that are capped, rows that are weak or unknown."""

from __future__ import annotations

import builtins
import itertools
import random
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent

PAGE = """# Phase 03 — interview questions

Cover the answer.

## 1. "Recompute or swap?"

<details><summary>Answer</summary>

Recompute. 2 reasons.

```python
## 9. This is a comment in code
```
</details>

---

## 2. Draw `schedule()`

<details>
<summary>Answer</summary>

Running first.
</details>

## Rapid fire

<details><summary>Rows</summary>| a | b |</details>

## 10. The last one

<details><summary>Short answer</summary>None.</details>
"""


def bank_of(impl, **sizes):
    """`bank_of(impl, p3=10)`: ten questions of phase 3."""
    return {
        int(name[1:]): [impl.Question(int(name[1:]), n, f"title {n}", f"answer {n}") for n in range(1, size + 1)]
        for name, size in sizes.items()
    }


def full(impl):
    return bank_of(impl, p0=6, p1=8, p2=9, p3=10, p4=10, p5=10, p6=9, p7=10, p8=9)


# ---- the bank ------------------------------------------------------------------------------------------------------


def test_a_page_is_read(impl):
    found = impl.read_page(PAGE, 3, "x/INTERVIEW.md")
    assert [(each.phase, each.number) for each in found] == [(3, 1), (3, 2), (3, 10)]
    assert [each.title for each in found] == ['"Recompute or swap?"', "Draw `schedule()`", "The last one"]
    assert found[1].answer == "Running first." and found[2].answer == "None."
    assert found[0].answer.startswith("Recompute. 2 reasons.") and found[0].answer.endswith("```"), (
        f"a line of code was taken for a heading, or the fold for a part of the answer: {found[0].answer!r}"
    )
    assert {each.phase for each in impl.read_page(PAGE, 12, "y")} == {12}


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (
            "## 4. Why?\n\nBecause.\n\n## 5. How?\n<details><summary>A</summary>So.</details>",
            "question 4 has no answer",
        ),
        ("## 4. Why?\n<details><summary>Answer</summary>\n\n</details>\n", "question 4 has no answer"),
        ("## 4. Why?\n## Rapid fire\n<details><summary>A</summary>So.</details>", "question 4 has no answer"),
        ("## 7. W?\n" + 2 * "<details><summary>A</summary>B</details>\n", "question 7 has 2 answers"),
        ("## 7. W?\n" + 3 * "<details><summary>A</summary>B</details>\n", "question 7 has 3 answers"),
        (2 * "## 1. W?\n<details><summary>A</summary>B</details>\n", "question 1 stands there twice"),
        (2 * "## 1. W?\n<details><summary>A</summary>B</details>\n" + "## 2. V?", "question 1 stands there twice"),
        ("## 1. W?\n## 2. V?\n<details><summary>A</summary>B</details>\n## 1. U?", "question 1 has no answer"),
    ],
)
def test_a_bad_page_is_named(impl, page, says):
    with pytest.raises(ValueError, match=f"^{re.escape(f'phase-03-x/INTERVIEW.md: {says}')}$"):
        impl.read_page(page, 3, "phase-03-x/INTERVIEW.md")


def test_the_courses_own_pages(impl):
    """Every INTERVIEW.md of the course can be read, and so can the two pages of this lab."""
    bank = impl.read_bank(ROOT)
    assert set(range(9)) <= set(bank), f"phases 00 to 08 have questions, read were {sorted(bank)}"
    assert all(len(each) >= 6 for each in bank.values())
    assert len(impl.draw(bank, 7)) == 13
    for name, least in (("scenarios", 3), ("symptoms", 6)):
        found = impl.read_page((HERE / f"{name}.md").read_text(encoding="utf-8"), 19, name)
        assert len(found) >= least and all(re.search(r"\d", each.answer) for each in found)


def test_answers_without_a_number(impl):
    texts = {10: ["16 blocks", "none", "two"], 9: ["half", "99 %"]}
    bank = {p: [impl.Question(p, n, "7?", text) for n, text in enumerate(each, 3)] for p, each in texts.items()}
    assert impl.without_a_number(bank) == [(9, 3), (10, 4), (10, 5)]


# ---- the draw ------------------------------------------------------------------------------------------------------


def test_counts(impl):
    found = impl.draw(full(impl), 0)
    assert [phase for phase, _ in found] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8]
    for seed in range(40):
        found = impl.draw(full(impl), seed)
        assert len(set(found)) == 13, f"seed {seed} asks something twice: {found}"
    one = impl.draw(bank_of(impl, p5=4, p2=9), 3, [([5, 2], 1), ([5], 3)])
    assert [phase for phase, _ in one] == [5, 2, 5, 5, 5]
    assert len(set(one)) == 5, f"phase 05 is in two sessions, and a question came in both: {one}"


def test_every_question_has_its_chance(impl):
    bank, drawn = bank_of(impl, p2=10), dict.fromkeys(range(1, 11), 0)
    for seed in range(1000):
        for _, number in impl.draw(bank, seed, (((2,), 2),)):
            drawn[number] += 1
    assert all(140 <= count <= 260 for count in drawn.values()), f"each should come about 200 times, they came {drawn}"
    pairs = {frozenset(impl.draw(bank, seed, (((2,), 2),))) for seed in range(1000)}
    assert len(pairs) == 45, f"of 45 pairs only {len(pairs)} ever come together"


def test_the_same_seed_is_the_same_sitting(impl):
    bank = full(impl)
    sittings = [tuple(impl.draw(bank, seed)) for seed in range(20)]
    assert sittings == [tuple(impl.draw(bank, seed)) for seed in range(20)], "drawn again, it is another sitting"
    assert len(set(sittings)) >= 19, f"20 seeds gave {len(set(sittings))} sittings"


def test_the_same_in_every_process(impl, monkeypatch):
    """The hash of a text is another one in each process. Here it is salted, as it is there."""
    real = builtins.hash

    def salted(salt):
        return lambda value: real((salt, repr(value))) if re.search("['\"]", repr(value)) else real(value)

    found = []
    for salt in (1, 2):
        monkeypatch.setattr(builtins, "hash", salted(salt))
        found.append(impl.draw(full(impl), 3))
    assert found[0] == found[1], "the draw hangs on hash() of a text, which differs from process to process"


def test_a_new_question_changes_only_its_phase(impl):
    bank, more = full(impl), full(impl)
    more[3].append(impl.Question(3, 11, "new", "new"))
    for seed in range(30):
        before, after = ([each for each in impl.draw(b, seed) if each[0] != 3] for b in (bank, more))
        assert before == after, (
            "adding a question to phase 03 changed what another phase was asked: tie the draw to the phase, not to how "
            f"much was drawn before ({before} became {after})"
        )
    asked = {number for seed in range(200) for phase, number in impl.draw(more, seed) if phase == 3}
    assert 11 in asked, "the new question never comes"


def test_the_order_of_the_bank_does_not_matter(impl):
    for seed in range(10):
        bank = full(impl)
        wanted = impl.draw(bank, seed)
        for each in bank.values():
            random.Random(seed).shuffle(each)
        assert impl.draw(dict(reversed(bank.items())), seed) == wanted, "the same questions in another order"


def test_the_bank_stays_as_it_is(impl):
    bank, seen = full(impl), [(2, 1), (3, 4)]
    before = {phase: list(each) for phase, each in bank.items()}
    impl.draw(bank, 5, seen=seen)
    assert bank == before, "the bank was changed"
    assert seen == [(2, 1), (3, 4)], "the list of what was seen was changed"


def test_fresh_ones_first(impl):
    bank, one = bank_of(impl, p2=9, p3=5), (((2, 3), 2),)
    for seed in range(30):
        found = impl.draw(bank, seed, one, seen={(2, n) for n in range(1, 8)} | {(3, 8)})
        assert {n for p, n in found if p == 2} == {8, 9}, f"two were fresh, 8 and 9; asked was {found}"
        found = impl.draw(bank, seed, one, seen=[(2, n) for n in range(1, 9)])
        assert (2, 9) in found and len(set(found)) == 4, f"9 was fresh, and one of the others fills up: {found}"
    everything = [(2, n) for n in range(1, 10)]
    assert impl.draw(bank, 4, one, seen=everything) == impl.draw(bank, 4, one), "all were seen: all are equal again"
    filled = {impl.draw(bank, seed, (((2,), 2),), seen=everything[:8])[1] for seed in range(100)}
    assert len(filled) == 8, f"of eight that were seen, only {sorted(filled)} ever fill up"


def test_five_sittings_see_everything(impl):
    bank, seen = bank_of(impl, p2=10), []
    for seed in range(5):
        seen += impl.draw(bank, seed, (((2,), 2),), seen=seen)
    assert len(set(seen)) == 10


def test_sittings_without_memory_as_predicted(impl):
    bank, total = bank_of(impl, p2=10), 0
    for learner in range(200):
        seen: set = set()
        for sitting in itertools.count(1):
            seen |= set(impl.draw(bank, 1000 * learner + sitting, (((2,), 2),)))
            if len(seen) == 10:
                break
            assert sitting < 500, f"after 500 sittings only {sorted(seen)} have come up"
        total += sitting
    predicted = impl.predicted_sittings()
    assert abs(predicted - total / 200) <= 3, (
        f"you predicted {predicted}; it took {total / 200:.1f}. How long do you wait for the last of ten?"
    )


@pytest.mark.parametrize(
    ("sizes", "sessions", "says"),
    [
        ({"p2": 1}, [([2], 2)], "phase 02 has 1 questions, the session needs 2"),
        ({"p2": 1}, [([11, 2], 2)], "phase 11 has 0 questions, the session needs 2"),
        ({"p2": 3, "p1": 0}, [([2], 2), ([1, 2], 2)], "phase 02 has 3 questions, the session needs 4"),
        ({"p2": 3, "p1": 0}, [([2], 2), ([1], 1)], "phase 01 has 0 questions, the session needs 1"),
    ],
)
def test_too_few_questions(impl, sizes, sessions, says):
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        impl.draw(bank_of(impl, **sizes), 0, sessions)


# ---- scores --------------------------------------------------------------------------------------------------------


def test_caps(impl):
    for raw in range(4):
        assert impl.cap_score(raw) == raw
        for peeked, skipped in ((True, False), (False, True), (True, True)):
            found = impl.cap_score(raw, peeked=peeked, arithmetic_skipped=skipped)
            assert found == min(raw, 2), (
                f"{raw} with peeked={peeked}, arithmetic_skipped={skipped} counts {found}, not {min(raw, 2)}: a cap is "
                "a ceiling, and two ceilings are the lower one"
            )
            assert impl.cap_score(raw, peeked=peeked, arithmetic_skipped=skipped, spoken=False) == 0
        found = impl.cap_score(raw, spoken=False)
        assert found == 0, f"a silent answer scored {found}: only what was said or written counts"


@pytest.mark.parametrize("raw", [-1, 4, 2.5, 2.0, True, "3", None])
def test_bad_scores(impl, raw):
    says = f"^{re.escape(f'score must be 0, 1, 2 or 3, got {raw}')}$"
    for more in ({}, {"spoken": False}, {"peeked": True}):
        with pytest.raises(ValueError, match=says):
            impl.cap_score(raw, **more)
    with pytest.raises(ValueError, match=says):
        impl.matrix([(2, 3), (2, raw), (77, 2)], {"Memory": (2,)})


MAP = """Prose.

| Lever | What | Phases |
|---|---|---|
| Cost | much | 02–07, 10 |

| Competency of old | Phases |
|---|---|
| Hardware | 17 |

| Phases | Competency |
|---|---|
| 18 | Hardware |

| Competency | Phases | You have it when |
|---|---|---|
| Serving | 00, 01 | you can derive 2 things |
| Kernels and precision | 04–07 | 16 |
| Scale | 10-11, 15 | |
| Memory | 02 | you count |

| Competency of others | Phases |
|---|---|
| Hardware | 17 |
"""


def test_the_map_is_read(impl):
    rows = impl.read_rows(MAP)
    assert {name: tuple(phases) for name, phases in rows.items()} == {
        "Serving": (0, 1),
        "Kernels and precision": (4, 5, 6, 7),
        "Scale": (10, 11, 15),
        "Memory": (2,),
    }
    assert list(rows) == ["Serving", "Kernels and precision", "Scale", "Memory"], "in the order of the table"
    found = impl.read_rows((ROOT / "CAREER.md").read_text(encoding="utf-8"))
    assert sorted(phase for phases in found.values() for phase in phases) == list(range(20)), "each phase in one row"
    with pytest.raises(ValueError, match=r"^there is no table with a column Competency$"):
        impl.read_rows("| Lever | Phases |\n|---|---|\n| Cost | 02 |\n")


ROWS = {"Serving": (0, 1), "Kernels": (4, 5, 6, 7), "Memory": (2,), "Latency": (8, 9), "Hardware": (17,)}


def test_the_matrix(impl):
    scores = [(0, 3), (5, 1), (1, 2), (4, 0), (2, 0), (7, 2), (8, 2)]
    found = impl.matrix(iter(scores), ROWS)
    assert list(found) == list(ROWS), "rows in the order of the map"
    assert impl.matrix([(0, 3), (0, 3), (1, 0)], ROWS)["Serving"] == 2.0, "a mean of its answers, not of its phases"
    assert found == {"Serving": 2.5, "Kernels": 1.0, "Memory": 0.0, "Latency": 2.0, "Hardware": None}, (
        f"means of all answers of a row, None where nothing was asked; got {found}"
    )
    with pytest.raises(ValueError, match=r"^phase 03 stands in no row$"):
        impl.matrix([(0, 1), (3, 1), (1, 9)], ROWS)


def test_revision(impl):
    scores = [(0, 3), (5, 1), (1, 2), (4, 0), (2, 0), (7, 2), (8, 2)]
    phases, unknown = impl.revision(iter(scores), ROWS)
    assert unknown == ["Hardware"], f"nothing was asked of Hardware alone; unknown is what nobody asked, got {unknown}"
    assert 17 not in phases, "a row that was never asked is not a weak one"
    assert phases == [2, 4, 5, 6, 7], f"the weakest row first, a mean of exactly 1 is weak; got {phases}"
    assert impl.revision([(0, 1), (9, 1), (8, 1)], ROWS) == ([0, 1, 8, 9], ["Kernels", "Memory", "Hardware"])
    assert impl.revision([(9, 0), (8, 2), (0, 1), (1, 1)], ROWS)[0] == [0, 1, 8, 9], "equal means keep the map's order"
    assert impl.revision([(4, 2), (4, 1)], ROWS)[0] == [], "1.5 is not weak"
    assert impl.revision([(4, 1), (5, 1), (4, 2)], ROWS)[0] == [], "neither is 1.33"
    assert impl.revision([], ROWS) == ([], list(ROWS))
    eleven = {f"row {at}": (at,) for at in range(11)}
    assert impl.revision([(10, 1), (9, 1), (2, 1)], eleven)[0] == [2, 9, 10], "the map's order, also of eleven rows"
    with pytest.raises(ValueError, match=r"^phase 99 stands in no row$"):
        impl.revision([(99, 0)], ROWS)

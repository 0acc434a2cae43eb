"""The words of the language that come from the labs are those that the labs say now; each other one has its reason."""

from __future__ import annotations

import pytest

from course.grade import derive
from course.grade.language import SAID, TABLE, WORDS, Language, names_of
from course.labs import tomllib

pytestmark = pytest.mark.maintainer

NOW = tomllib.loads(SAID.read_text(encoding="utf-8"))


def test_the_words_are_those_of_the_labs() -> None:
    rows = derive.derived()
    now = {row: " ".join(words.split()) for row, words in NOW.items()}
    assert rows == now, "run `python -m course.grade.derive`, and look at what changed"
    assert SAID.read_text(encoding="utf-8") == derive.written(rows)


def test_a_lab_that_says_something_new_needs_no_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = "import math\nfrom statistics import geometric_mean\nfrom operator import length_hint\nx = [1].__len__()\n"
    lab += "class Own:\n    def zap(self):\n        return self.zap\nx = 'a'.isupper(), (1).real, open('f').read()\n"
    monkeypatch.setattr(derive, "texts", lambda: [lab, "not Python ("])
    rows = derive.derived()
    assert rows == {"attributes": "isupper real", "operator": "length_hint"}


def test_every_word_by_hand_has_a_reason_and_is_not_said_by_a_lab() -> None:
    for row, reasons in {**TABLE["more"], "never": TABLE["never"]}.items():
        assert all(len(reason.split()) >= 2 for reason in reasons), row
    for row, reasons in TABLE["more"].items():
        words = [word for text in reasons.values() for word in text.split()]
        assert {*words} & {*NOW.get(row, "").split()} == set(), f"{row}: words.toml has them already"
        assert len(words) == len({*words}), f"{row}: a word stands twice"
        assert row == "attributes" or row in {**WORDS["modules"], **WORDS["further"]}, row


def test_what_is_never_taken_over_is_nowhere() -> None:
    never = {word for text in TABLE["never"].values() for word in text.split()}
    assert never & {*NOW["attributes"].split()} == set()
    for name in [name for name in never if "." in name]:
        module, _, word = name.rpartition(".")
        assert word not in names_of(module, {**WORDS["modules"], **WORDS["further"]}[module])
    assert not Language(["numpy"]).has("numpy", "load")

"""The three cards of the landing page are excerpts of what really stands, is printed and is answered."""

import re
import subprocess
import sys

import pytest

from course.labs import ROOT
from mini_vllm import LLM, SamplingParams

pytestmark = pytest.mark.maintainer

CARDS = re.findall(r"<pre>(.*?)</pre>", (ROOT / "docs/overrides/hero.html").read_text(encoding="utf-8"), re.S)


def is_excerpt(card: str, text: str) -> bool:
    """Whether the card's words stand in the text in this order, without gaps but where it has an ellipsis."""
    pieces = [re.escape(" ".join(piece.split())) for piece in card.split("…")]
    return re.search(".*?".join(pieces), " ".join(text.split())) is not None


def test_card_1_is_a_comment_of_the_pinned_scheduler() -> None:
    path = ROOT / "upstream/vllm/v1/core/sched/scheduler.py"
    if not path.exists():
        pytest.skip("no pinned tree: `course upstream` brings it")
    place, *comment = CARDS[0].split("\n")
    first = int(place.rpartition(":")[2]) - 1
    said = " ".join(line.strip().lstrip("# ") for line in path.read_text(encoding="utf-8").split("\n")[first:][:3])
    assert is_excerpt(" ".join(line.lstrip("# ") for line in comment), said), said


@pytest.mark.slow
def test_card_2_is_what_a_lab_prints_that_nobody_has_begun() -> None:
    command, _, card = CARDS[1].partition("\n")
    assert command == "$ course test 02-01"
    run = [sys.executable, "-m", "course", "test", "02-01"]
    printed = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=500).stdout
    assert is_excerpt(card, printed), printed


def test_card_3_is_an_answer_of_pocket() -> None:
    answer = CARDS[2].partition("--with-labs\n")[2]
    llm = LLM(str(ROOT / "models/pocket"), num_blocks=64)
    question = [{"role": "user", "content": "What is a KV block?"}]
    text = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False)[0].outputs[0].text
    assert is_excerpt(answer, text), text


def test_an_excerpt_has_no_gap_of_its_own() -> None:
    assert is_excerpt("a b…d", "x a\nb c d")
    assert not is_excerpt("a c", "a b c") and not is_excerpt("b…a", "a b")

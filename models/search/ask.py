"""The verb `course ask`: a question in, the three best places out, each with its most telling sentence."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # models/ stands in the clone, and is not installed

from course.labs import LabError  # noqa: E402
from models.search.bm25 import words_of  # noqa: E402
from models.search.index import CACHE, Index, best_of, best_order, make_embedder, weights_of, with_terms  # noqa: E402
from models.search.sections import Section  # noqa: E402

LONGEST = 1000
EXAMPLE = "for example: course ask why is a block freed in reverse order"
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z])")
_CITED = re.compile(r"\s*\(\s*[—:,][^()]*\)|\s+(?=[.,;])")
_PLACES = re.compile(r"^See |^[—:]|— calls|[:;,] —")
app = typer.Typer(add_completion=False)


def find(root: Path, question: str, count: int = 3) -> list[tuple[Section, str]]:
    """The best places, each with the sentence that says most of the question. What was read is kept in `.course/`.

    Raises:
        ValueError: the question is empty, too long, or has no word that stands in the course.
    """
    if not words_of(question):
        raise ValueError(f"question {question!r} has no English word to look for; {EXAMPLE}")
    if len(question) > LONGEST:
        raise ValueError(f"question has {len(question):,} characters, at most {LONGEST:,} are read; ask in a sentence")
    index = Index.of(root)
    if not index.candidates(index.words(question)):
        raise ValueError(f"no word of {question!r} stands in the course, which is in English; {EXAMPLE}")
    before = index.read.sum()
    scores = index.scores(make_embedder(root), question, weights_of(root))
    found = with_terms(index.sections, best_of(index.sections, scores, count), question, best_order(scores))
    if index.read.sum() > before or not (root / CACHE).is_file():
        index.keep(root)
    return [(index.sections[i], telling(index, index.sections[i].text, question)) for i in found]


def telling(index: Index, text: str, question: str) -> str:
    """The sentence of a text that has most of the question's rare words, and not many others."""
    asked = set(words_of(question))

    def worth(sentence: str) -> float:
        words = words_of(sentence)
        return index.whole.worth(asked.intersection(words)) / (12 + len(words)) ** 0.5

    parts = [part.removeprefix("Answer ") for part in _SENTENCE.split(_CITED.sub("", text))]
    whole = [part for part in parts if 25 < len(part) < 300 and not _PLACES.search(part)]
    return max(whole, key=worth, default=textwrap.shorten(text, 200, placeholder=" …"))


@app.command(context_settings={"ignore_unknown_options": True})
def ask(question: Annotated[list[str], typer.Argument(help="in plain words; quotes are not needed")]) -> None:
    """The three best places of the course for a question. The first call reads all pages, which takes some seconds."""
    try:
        found = find(ROOT, " ".join(question))
    except (ImportError, FileNotFoundError, ValueError) as error:
        raise LabError(f"ask: {error}") from None
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    for place, sentence in found:
        print(textwrap.fill(place.title, width, subsequent_indent="  "))
        if place.page != place.title:
            print(textwrap.fill(place.page, width, initial_indent="  ", subsequent_indent="  "))
        print(f"  {place.file}:{place.line}")
        print(textwrap.fill(sentence, width, initial_indent="  | ", subsequent_indent="  | "), end="\n\n")

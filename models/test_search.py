"""The search behind `course ask`: sections, words, index, and the questions that it is measured on."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from course.labs import LabError, tomllib
from models.search import ask as verb
from models.search.bm25 import Postings, words_of
from models.search.evaluate import found_among, questions_of, recall
from models.search.index import FEATURES, MODEL, Index, make_embedder, weights_of, with_terms
from models.search.sections import Section, pages_to_search, read_sections, sections_of, spaced

ROOT = Path(__file__).resolve().parents[1]
PAGE = """# Phase 02 · Guide
Some words that stand before any other heading, long enough to be a section of their own, and a little more.
## 2.8 The free queue
`KVCacheManager` frees [blocks](x.md) in reverse, so that the tail of a prompt is the first to be taken again.
<b>Yes</b>
```python
secret = 1
```
## Contents
Nothing but a list of names, which nobody looks for, however long this line may become before it ends at last.
"""


def test_sections_are_plain_and_have_their_places():
    first, second = sections_of("a/b.md", PAGE)
    assert (second.title, second.line, second.key) == ("The free queue", 3, "a/b.md#the-free-queue")
    assert second.page == first.title and "KVCacheManager frees blocks in reverse" in second.text
    assert spaced("KVCacheManager of block_pool") == "KV Cache Manager of block pool"
    assert spaced("GPUs, vLLM, LoRA and RoPE") == "GPUs, vLLM, LoRA and RoPE"
    assert "secret" not in second.text and "<b>" not in second.text


def test_words_are_weighed_by_how_rare_they_are():
    texts = ["blocks are freed", "blocks are counted and blocks are kept", "prompts wait"]
    bm25 = Postings.bm25([words_of(text) for text in texts])
    assert words_of("Freed blocks, and the blocking") == ["fre", "block", "block"]
    for spoken, noun in (("preempted", "preemption"), ("evicts", "evictions"), ("quantizing", "quantization")):
        assert words_of(spoken) == words_of(noun), noun
    assert words_of("max_num_batched_tokens") == words_of("max num batched tokens")
    assert words_of("GPU utilisation, behaviour, noise") == words_of("gpu utilization behavior noise")
    assert np.argmax(bm25.scores(words_of("freeing blocks"))) == 0 and not bm25.scores(["unknown"]).any()
    assert bm25.worth(["block"]) < bm25.worth(["fre"]) < bm25.worth(["unknown"]) < bm25.worth(["unknown", "fre"])
    titles = bm25.shared([["block", "unknown"], ["fre", "fre"], ["block", "wait"]])
    np.testing.assert_allclose(
        titles.scores(["block", "fre"]), [bm25.worth(["block"]), bm25.worth(["fre"]), bm25.worth(["block"])]
    )


class Reader:
    """A model of one direction a text: it counts what it reads."""

    def __init__(self):
        self.read = 0

    def embed(self, _, texts):
        self.read += len(texts)
        return np.array([np.eye(128)[len(text) % 128] for text in texts])


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one page, and a reader in the place of pocket-embed."""
    reader = Reader()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(PAGE, encoding="utf-8")
    (tmp_path / MODEL).mkdir(parents=True)
    (tmp_path / MODEL / "model.safetensors").write_bytes(b"")
    (tmp_path / MODEL / "weights.json").write_text(json.dumps({"weights": dict.fromkeys(FEATURES, 1.0)}))
    monkeypatch.setattr("models.search.index.embed", reader.embed)
    monkeypatch.setattr(verb, "make_embedder", lambda root: None)
    return tmp_path, reader


def test_an_index_comes_back_as_it_was(course):
    root, _ = course
    index = Index.build(root)
    assert index.read_passages(None, [1]) == 1 and index.read_passages(None, [1]) == 0
    index.save(root / "x" / "i.npz", "now")
    assert Index.load(root / "x" / "i.npz", "later") is None and Index.load(root / "none", "now") is None
    (root / "damaged.npz").write_bytes((root / "x" / "i.npz").read_bytes()[:-99])
    assert Index.load(root / "damaged.npz", "now") is None
    again = Index.load(root / "x" / "i.npz", "now")
    asked = "who frees in reverse?", weights_of(root)
    np.testing.assert_allclose(again.scores(None, *asked), index.scores(None, *asked))
    assert again.sections == index.sections and again.read.tolist() == [False, True]


def test_a_passage_is_read_once_and_only_where_words_are_shared(course):
    root, reader = course
    (place, sentence), *others = verb.find(root, "why are blocks freed in reverse order")
    assert place.title == "The free queue" and sentence.startswith("KVCacheManager frees blocks in reverse")
    assert not others and reader.read == 2  # its passage and the question; the first section shares no word
    verb.find(root, "the free queue")
    assert reader.read == 3  # the question alone
    (root / "docs" / "page.md").write_text(PAGE + "and more\n", encoding="utf-8")
    verb.find(root, "the free queue")
    assert reader.read == 5


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("", "has no English word to look for"),
        ("  ", "has no English word to look for"),
        ("?!…", "has no English word to look for"),
        ("how does it", "has no English word to look for"),
        ("qwxz vkkj", "no word of 'qwxz vkkj' stands in the course"),
        ("какой блок", "has no English word to look for"),
        ("freed " * 2000, "12,000 characters, at most 1,000"),
    ],
)
def test_what_cannot_be_asked_is_said(course, asked, said):
    with pytest.raises(ValueError, match=said):
        verb.find(course[0], asked)
    assert not course[1].read


def test_words_need_no_quotes_and_lines_keep_to_the_width(course, monkeypatch):
    monkeypatch.setattr(verb, "ROOT", course[0])
    monkeypatch.setenv("COLUMNS", "80")
    asked = ["why", "are", "GPUs'", "blocks", "--freed", "in", "reverse"]
    first, later = (CliRunner().invoke(verb.app, asked) for _ in range(2))
    shown = first.stdout
    assert "ask: reads all pages" in first.stderr and not later.stderr and later.stdout == shown
    assert shown.splitlines()[:3] == ["The free queue", "  Phase 02 · Guide", "  docs/page.md" + ":3"]
    assert max(map(len, shown.splitlines())) <= 80 and "\x1b" not in shown
    assert isinstance(CliRunner().invoke(verb.app, ["?"]).exception, LabError)


def test_every_question_has_places_that_are_there():
    asked = tomllib.loads((ROOT / MODEL / "questions.toml").read_text(encoding="utf-8"))["question"]
    sections = read_sections(ROOT, pages_to_search(ROOT))
    places = {s.key for s in sections} | {s.file for s in sections}
    assert len(asked) >= 150 and len({q["ask"] for q in asked}) == len(asked)
    assert sum(q["split"] == "test" for q in asked) >= 150 and {q["split"] for q in asked} == {"development", "test"}
    lost = [(q["ask"], gold) for q in asked for gold in q["gold"] if gold not in places]
    assert not lost, f"a heading was changed: {lost[:3]}"
    titles = {s.title.lower().strip(' ?"') for s in sections}
    assert not [q["ask"] for q in asked if q["ask"].lower().strip(" ?") in titles], "a heading is a training question"


def test_the_card_says_what_was_measured():
    table = json.loads((ROOT / MODEL / "metrics.json").read_text(encoding="utf-8"))
    fitted = json.loads((ROOT / MODEL / "weights.json").read_text(encoding="utf-8"))
    card = (ROOT / MODEL / "README.md").read_text(encoding="utf-8")
    for name in ("BM25", "pocket-embed", "course ask"):
        row = " | ".join(f"{100 * table['test'][name][f'recall@{k}']:.1f} %" for k in (1, 3, 5, 10))
        assert row in card, f"{name}: {row}"
    assert set(fitted["weights"]) == set(FEATURES) and f"{100 * fitted['recall@3, cross-validated']:.1f} %" in card
    assert sum(f.stat().st_size for f in (ROOT / MODEL).rglob("*") if f.suffix != ".toml") < 3_000_000


def test_words_alone_find_most_test_questions_of_three_phases():
    few = ("phase-15", "phase-17", "phase-19")
    files = [name for name in pages_to_search(ROOT) if name.startswith(few)]
    index, weights = Index.build(ROOT, files), weights_of(ROOT)
    questions = [q for q in questions_of(ROOT, "test") if q["gold"][0].startswith(few)]
    unread = np.zeros(128, np.float32)
    found = [
        found_among(index.sections, index.features(index.words(q["ask"]), unread) @ weights, q, 3) for q in questions
    ]
    assert len(found) >= 18 and sum(found) >= 12


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / MODEL / "model.safetensors").is_file(), reason="models/pocket-embed is not here")
def test_the_test_questions_find_their_places_as_often_as_the_table_says():
    table = json.loads((ROOT / MODEL / "metrics.json").read_text(encoding="utf-8"))["test"]
    index, llm, weights, questions = (
        Index.build(ROOT),
        make_embedder(ROOT),
        weights_of(ROOT),
        questions_of(ROOT, "test"),
    )
    scores = [index.scores(llm, question["ask"], weights) for question in questions]
    # Pages change between two measurements; a question is 0.7 %.
    assert recall(index, questions, scores)["recall@3"] >= table["course ask"]["recall@3"] - 0.03


@pytest.mark.skipif(not (ROOT / MODEL / "model.safetensors").is_file(), reason="models/pocket-embed is not here")
def test_the_model_finds_the_nearer_of_two_texts():
    from models.search.index import embed

    question, near, far = embed(
        make_embedder(ROOT),
        ["how many blocks are free?", "The block pool counts its free blocks.", "Beam search keeps the best texts."],
    )
    assert question @ near > question @ far
    np.testing.assert_allclose(np.linalg.norm(near), 1, atol=1e-5)


VERBS = {
    "why is a request preempted": "Preemption",
    "when are blocks evicted": "Eviction",
    "how is a prompt batched": "Batching",
    "how do drafts get verified": "Verification",
    "which weights are quantized": "Quantization",
    "who admits a request": "Admission",
    "how is memory fragmented": "Fragmentation",
    "what happens when I abort": "Abort",
    "how are tokens streamed": "Streaming",
    "how does it schedule": "Scheduler",
    "what is recomputed": "Recomputation",
    "how are scales calibrated": "Calibration",
    "what does it prefill": "Prefill",
    "what is preemption": "Preemption",
}
"""A question with a verb -> the entry of its noun in the glossary."""


@pytest.mark.slow
def test_a_verb_finds_the_entry_of_its_noun():
    sections = read_sections(ROOT, ["GLOSSARY.md"])
    titles = {section.title for section in sections}
    assert set(VERBS.values()) <= titles
    missed = {}
    for asked, noun in VERBS.items():
        found = [place.title for place, _ in verb.find(ROOT, asked) if place.file == "GLOSSARY.md"]
        if noun not in found:
            missed[asked] = found
    assert missed == {}


def test_terms_take_the_last_places():
    texts = {"GLOSSARY.md": ("Eviction", "Block", "Free queue"), "docs/a.md": ("A", "B", "C")}
    sections = [
        Section(file, at, title, file, "x") for file, titles in texts.items() for at, title in enumerate(titles)
    ]
    asked = "when is a block evicted"
    assert with_terms(sections, [3, 4, 5], asked, [3, 4, 5, 0, 1, 2]) == [3, 1, 0]
    assert with_terms(sections, [0, 3, 4], asked, [0, 3, 4, 1, 2]) == [0, 3, 1]
    assert with_terms(sections, [0, 1, 4], asked, [0, 1, 4]) == [0, 1, 4]
    more = [Section("GLOSSARY.md", 0, title, "G", "x") for title in ("Calibration", "Verification")]
    for spoken in ("calibrated", "calibrates", "calibration"):
        assert with_terms([*sections, *more], [3, 4, 5], f"how is it {spoken}", range(8)) == [3, 4, 6], spoken
    for spoken in ("verified", "verifies", "verify"):
        assert with_terms([*sections, *more], [3, 4, 5], f"how is it {spoken}", range(8)) == [3, 4, 7], spoken
    assert with_terms(sections, [3, 4, 5], "nothing", [3, 4, 5, 0]) == [3, 4, 5]

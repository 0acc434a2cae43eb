"""The search behind `course ask`: sections, words, index, and the questions that it is measured on."""

import json
from pathlib import Path

import numpy as np
import pytest

from course.labs import tomllib
from models.search.bm25 import BM25, words_of
from models.search.index import MODEL, Index, passages_of
from models.search.sections import pages_to_search, read_sections, sections_of, spaced

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
    bm25 = BM25.of(["blocks are freed", "blocks are counted and blocks are kept", "prompts wait"])
    assert words_of("Freed blocks, and the blocking") == ["fre", "block", "block"]
    assert np.argmax(bm25.scores("freeing blocks")) == 0 and not bm25.scores("nothing known").any()


def test_an_index_comes_back_as_it_was(tmp_path):
    sections = list(sections_of("a/b.md", PAGE))
    owners = np.repeat([0, 1], [len(passages_of(s)) for s in sections])
    vectors = np.eye(8, dtype=np.float32)[: len(owners)]
    index = Index(sections, BM25.of([s.text for s in sections]), BM25.of([s.title for s in sections]), vectors, owners)
    index.save(tmp_path / "x" / "i.npz", "now")
    assert Index.load(tmp_path / "x" / "i.npz", "later") is None and Index.load(tmp_path / "none", "now") is None
    again = Index.load(tmp_path / "x" / "i.npz", "now")
    asked = "who frees in reverse?", vectors[-1]
    np.testing.assert_allclose(again.scores(*asked), index.scores(*asked))
    assert again.best(again.scores(*asked), 1) == [1] and again.sections[1].key == sections[1].key


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
    card = (ROOT / MODEL / "README.md").read_text(encoding="utf-8")
    for name in ("BM25", "pocket-embed", "course ask", "course ask, reranked"):
        row = " | ".join(f"{100 * table[name][f'recall@{k}']:.1f} %" for k in (1, 3, 10))
        assert row in card, f"{name}: {row}"
    assert sum(f.stat().st_size for f in (ROOT / MODEL).rglob("*") if f.suffix != ".toml") < 3_000_000


@pytest.mark.skipif(not (ROOT / MODEL / "model.safetensors").is_file(), reason="models/pocket-embed is not here")
def test_the_model_finds_the_nearer_of_two_texts():
    from models.search.index import embed, make_embedder

    question, near, far = embed(
        make_embedder(ROOT),
        ["how many blocks are free?", "The block pool counts its free blocks.", "Beam search keeps the best texts."],
    )
    assert question @ near > question @ far
    np.testing.assert_allclose(np.linalg.norm(near), 1, atol=1e-5)

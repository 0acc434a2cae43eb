"""tokenizer_config.json: what it wants around a text counts, and what nobody knows is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.tokenizers.registry import load_tokenizer

POCKET = Path("models/pocket")


def folder_with(tmp_path: Path, **changes: Any) -> Path:
    """Pocket's tokenizer with other keys in tokenizer_config.json; ... takes one out."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(POCKET / name, tmp_path)
    config = {**json.loads((tmp_path / "tokenizer_config.json").read_text()), **changes}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    return tmp_path


CASES: list[dict[str, Any]] = [
    {}, {"add_bos_token": True}, {"add_eos_token": True}, {"add_bos_token": True, "add_eos_token": True},
    {"add_bos_token": False}, {"add_eos_token": False}, {"add_bos_token": None},
]  # fmt: skip


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_beside_a_tokenizer_json_its_own_template_counts(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert load_tokenizer(folder_with(tmp_path, **changes)).encode("Hi") == load_tokenizer(POCKET).encode("Hi")


def split_into_old_files(folder: Path) -> Path:
    """tokenizer.json as vocab.json and merges.txt."""
    spec = json.loads((folder / "tokenizer.json").read_text())
    added = {each["content"]: each["id"] for each in spec["added_tokens"]}
    (folder / "vocab.json").write_text(json.dumps({**spec["model"]["vocab"], **added}))
    merges = [each if isinstance(each, str) else " ".join(each) for each in spec["model"]["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (folder / "tokenizer.json").unlink()
    return folder


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_beside_vocab_and_merges_both_marks_are_put_around_a_text(tmp_path: Path, changes: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(split_into_old_files(folder_with(tmp_path, **changes)))
    bos = [tokenizer.bos_token_id] if changes.get("add_bos_token") else []
    eos = [tokenizer.eos_token_id] if changes.get("add_eos_token") else []
    assert tokenizer.encode("Hi") == [*bos, *tokenizer.encode("Hi", add_special_tokens=False), *eos]


def test_a_token_of_added_tokens_json_is_found_whole_in_a_text(tmp_path: Path) -> None:
    """As transformers finds it; its letters are no pieces of the vocabulary."""
    folder = split_into_old_files(folder_with(tmp_path))
    free = max(json.loads((folder / "vocab.json").read_text()).values()) + 1
    (folder / "added_tokens.json").write_text(json.dumps({"<extra>": free}))
    tokenizer = load_tokenizer(folder)
    around = [tokenizer.encode(text, add_special_tokens=False) for text in ("Hi", " you")]
    ids = tokenizer.encode("Hi<extra> you", add_special_tokens=False)
    assert ids == [*around[0], free, *around[1]]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Hi<extra> you", "it is none of the special ones"
    (folder / "added_tokens.json").write_text(json.dumps({"<extra>": "x"}))
    with pytest.raises(ValueError, match=r"the id of token '<extra>' must be 0 to .*, got 'x'"):
        load_tokenizer(folder)


@pytest.mark.needs_torch
@pytest.mark.parametrize("changes", CASES[:-1], ids=str)
def test_it_is_what_transformers_puts_there(tmp_path: Path, changes: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0")
    folder = folder_with(tmp_path, **changes)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert load_tokenizer(folder).encode("Hi there") == theirs("Hi there")["input_ids"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"add_bos_token": "yes"}, r"tokenizer_config.json: add_bos_token must be true or false, got 'yes'"),
        ({"eos_token": 5}, "eos_token must be a text or an object with a content, got 5"),
        ({"eos_token": {"token": "x"}}, "eos_token must be a text or an object with a content"),
        ({"split_special_tokens": True}, "split_special_tokens must be False or null, got True"),
        ({"model_max_length": 0}, "model_max_length must be a number of at least 1, got 0"),
        ({"ad_bos_token": True}, "unknown key 'ad_bos_token' = True.*did you mean 'add_bos_token'"),
    ],
)
def test_what_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_tokenizer(folder_with(tmp_path, **changes))


@pytest.mark.parametrize("part", ["vocab", "one pair", "added tokens"])
def test_two_tokens_of_one_id_are_refused(tmp_path: Path, part: str) -> None:
    folder = folder_with(tmp_path)
    spec = json.loads((folder / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    if part == "added tokens":
        spec["added_tokens"].append({**spec["added_tokens"][0], "content": "another"})
    else:
        first, *others = vocab
        vocab.update(dict.fromkeys(others if part == "vocab" else others[:1], vocab[first]))
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(ValueError, match="must not have one id, got"):
        load_tokenizer(folder)

"""tokenizer_config.json: what it wants around a text counts, and what nobody knows is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.tokenizers.registry import load_tokenizer
from mini_vllm.tokenizers.tokenizer_files import check_special_tokens, read_special_tokens, read_tokenizer_spec

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


def written(folder: Path, name: str, change: Any) -> Path:
    """A JSON file of the folder after `change` of what it holds."""
    file = folder / name
    value = json.loads(file.read_text()) if file.is_file() else {}
    change(value)
    file.write_text(json.dumps(value))
    return folder


BESIDE: list[tuple[str, str, Any]] = [
    *(("tokenizer_config.json", key, "KV") for key in ("unk_token", "cls_token", "sep_token", "mask_token")),
    ("tokenizer_config.json", "image_token", "KV"),
    ("tokenizer_config.json", "additional_special_tokens", ["<|end|>", {"content": "KV"}]),
    ("tokenizer_config.json", "extra_special_tokens", ["KV"]),
    ("tokenizer_config.json", "extra_special_tokens", {"image_token": "KV"}),
    ("tokenizer_config.json", "added_tokens_decoder", {"5000": {"content": "KV", "special": True}}),
    ("tokenizer_config.json", "added_tokens_decoder", {"5": {"content": "<|end|>"}}),
    ("special_tokens_map.json", "additional_special_tokens", ["KV"]),
    ("special_tokens_map.json", "unk_token", "KV"),
    ("added_tokens.json", "KV", 4096),
]


@pytest.mark.parametrize(("name", "key", "value"), BESIDE, ids=str)
def test_a_token_that_stands_only_beside_tokenizer_json_is_refused_by_name(
    tmp_path: Path, name: str, key: str, value: Any
) -> None:
    folder = written(folder_with(tmp_path), name, lambda keys: keys.update({key: value}))
    text = "<.end.>" if "<|end|>" in str(value) and "KV" not in str(value) else "KV"
    said = rf"{name}: '{key}': the token '{text}'.* is not in tokenizer.json's added_tokens: save"
    with pytest.raises(ValueError, match=said):
        check_special_tokens(folder, read_tokenizer_spec(folder))


def test_a_token_beside_that_tokenizer_json_has_too_is_served(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, extra_special_tokens=["<|tool|>"], image_token="<|user|>", unk_token="<|pad|>")
    assert load_tokenizer(written(folder, "added_tokens.json", lambda keys: keys.update({"<|end|>": 2}))).encode("Hi")
    with pytest.raises(ValueError, match="'additional_special_tokens': the token 'KV' is not in"):
        load_tokenizer(folder_with(tmp_path, additional_special_tokens=["KV"]))


def test_special_tokens_map_counts_before_tokenizer_config_without_added_tokens_decoder(tmp_path: Path) -> None:
    """As in transformers."""
    folder = written(folder_with(tmp_path), "special_tokens_map.json", lambda keys: keys.update(eos_token="<|bos|>"))
    assert read_special_tokens(folder)["eos_token"] == "<|bos|>"
    decoder = {"2": {"content": "<|end|>", "special": True}}
    written(folder, "tokenizer_config.json", lambda keys: keys.update(added_tokens_decoder=decoder))
    assert read_special_tokens(folder)["eos_token"] == "<|end|>"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: spec["added_tokens"][2].update(id=4096), "'<.end.>' must have one id, got 4096 .* and 2 in"),
        (lambda spec: spec["added_tokens"][2].update(content="KV"), "'KV' must have one id, got 2 .* and 2526 in"),
        (lambda spec: spec["added_tokens"][2].update(content="<new>"), "'<.*>' and '<.*>' must not have one id"),
        (lambda spec: spec.update(added_tokens=None), "added_tokens must be a list of objects, got None"),
    ],
)
def test_one_token_has_one_id(tmp_path: Path, change: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_tokenizer(written(folder_with(tmp_path), "tokenizer.json", change))


def test_another_version_of_the_format_is_refused(tmp_path: Path) -> None:
    folder = written(folder_with(tmp_path), "tokenizer.json", lambda spec: spec.update(version="2.0"))
    with pytest.raises((ValueError, ImportError), match=r"version"):
        load_tokenizer(folder)

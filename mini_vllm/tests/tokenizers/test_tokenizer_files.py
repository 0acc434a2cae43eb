"""Finding a checkpoint's tokenizer among its files, and falling to the `tokenizers` library."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.tokenizers.test_tokenizer import random_text, simple_spec
from mini_vllm.tokenizers.bpe import BPETokenizer
from mini_vllm.tokenizers.hf import HFTokenizer
from mini_vllm.tokenizers.registry import load_tokenizer


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def test_load_tokenizer_from_tokenizer_json(tmp_path):
    spec = simple_spec(["a b"])
    spec["added_tokens"] = [{"id": 300, "content": "<e>", "special": True}]
    write(tmp_path, "tokenizer.json", spec)
    write(tmp_path, "tokenizer_config.json", {"eos_token": {"content": "<e>"}, "bos_token": None})
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, BPETokenizer) and (tokenizer.eos_token_id, tokenizer.bos_token_id) == (300, None)
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path).eos_token_id is None
    write(tmp_path, "config.json", {"eos_token_id": 7})
    assert load_tokenizer(tmp_path).eos_token_id == 7
    write(tmp_path, "generation_config.json", {"eos_token_id": [9, 8]})
    assert load_tokenizer(tmp_path).eos_token_id == 9


def test_load_tokenizer_from_vocab_and_merges_as_opt_has_them(tmp_path):
    vocab = {**simple_spec(["a b"])["model"]["vocab"], "</s>": 400}
    write(tmp_path, "vocab.json", vocab)
    write(tmp_path, "merges.txt", "#version: 0.2\na b\n")
    write(tmp_path, "tokenizer_config.json", {"add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>"})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("ab</s>") == [400, 256, 400] and tokenizer.eos_token_id == 400
    assert tokenizer.decode([400, 256]) == "ab"


def test_load_tokenizer_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"neither tokenizer\.json nor vocab\.json"):
        load_tokenizer(tmp_path)
    write(tmp_path, "tokenizer.json", "{broken")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not valid JSON"):
        load_tokenizer(tmp_path)


@pytest.mark.needs_torch
def test_other_kinds_go_to_the_library(tmp_path):
    tk = pytest.importorskip("tokenizers")
    inner = tk.Tokenizer(tk.models.WordLevel({"hello": 0, "world": 1, "[UNK]": 2}, unk_token="[UNK]"))
    inner.pre_tokenizer = tk.pre_tokenizers.Whitespace()
    inner.add_special_tokens(["</s>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", {"eos_token": "</s>"})
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, HFTokenizer)
    assert (tokenizer.vocab_size, tokenizer.eos_token_id, tokenizer.all_special_ids) == (4, 3, [3])
    assert tokenizer.encode("hello world") == [0, 1]
    assert tokenizer.decode([0, 1, 3]) == "hello world" and tokenizer.id_to_bytes(1) == b"world"


@pytest.mark.needs_torch
@pytest.mark.skipif(not (POCKET / "tokenizer.json").is_file(), reason="the committed checkpoint is not there")
def test_the_committed_checkpoints_tokenizer_is_ours_and_agrees_with_the_library():
    tk = pytest.importorskip("tokenizers")
    theirs = tk.Tokenizer.from_file(str(POCKET / "tokenizer.json"))
    ours = load_tokenizer(POCKET)
    assert isinstance(ours, BPETokenizer) and ours.eos_token_id is not None
    rng = random.Random(6)
    for _ in range(200):
        text = random_text(rng) + rng.choice(["<|user|>", "<|end|>\n", ""])
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids, ascii(text)
        assert ours.decode(ids, False) == theirs.decode(ids, skip_special_tokens=False)

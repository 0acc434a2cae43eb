"""What scripts ask of a tokenizer by name: as transformers' own of the same folder answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.tokenizers.byte import ByteTokenizer
from mini_vllm.tokenizers.registry import load_tokenizer

POCKET = Path("models/pocket")
TEXTS = (
    "What is a KV block?",
    " a\n\nb\tc ",
    "",
    "h\u00e9llo \u4e2d\u6587 \U0001f389",
    "<|bos|>hi<|end|>",
    "hi<|user|> x",
    "don't  1234",
)
ASKED: dict[str, Callable[[Any, str], Any]] = {
    "tokenize": lambda t, text: t.tokenize(text),
    "tokenize with all": lambda t, text: t.tokenize(text, add_special_tokens=True),
    "tokens of ids": lambda t, text: t.convert_ids_to_tokens(t.encode(text)),
    "tokens without the named": lambda t, text: t.convert_ids_to_tokens(t.encode(text), skip_special_tokens=True),
    "ids of tokens": lambda t, text: t.convert_tokens_to_ids(t.convert_ids_to_tokens(t.encode(text))),
    "text of tokens": lambda t, text: t.convert_tokens_to_string(t.convert_ids_to_tokens(t.encode(text))),
    "decode": lambda t, text: t.decode(t.encode(text), skip_special_tokens=False),
    "decode without": lambda t, text: t.decode(t.encode(text), skip_special_tokens=True),
    "decode, clean": lambda t, text: t.decode(
        t.encode(text), skip_special_tokens=True, clean_up_tokenization_spaces=True
    ),
    "decode an array": lambda t, text: t.decode(np.array([5, 6, *t.encode(text)]), skip_special_tokens=False),
    "many": lambda t, text: t.batch_decode([t.encode(text), [5]], skip_special_tokens=False),
    "many without": lambda t, text: t.batch_decode([t.encode(text), [5]], skip_special_tokens=True),
    "cut without a word": lambda t, text: t(text, max_length=3)["input_ids"],
    "length": lambda t, text: t(text, return_length=True)["length"],
}
OF_ITSELF: dict[str, Callable[[Any], Any]] = {
    **{name: (lambda t, name=name: getattr(t, name)) for name in (
        "bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token", "bos_token_id",
        "eos_token_id", "pad_token_id", "unk_token_id", "special_tokens_map", "vocab", "vocab_size", "model_max_length",
        "padding_side", "truncation_side", "is_fast", "name_or_path", "chat_template", "added_tokens_encoder",
    )},
    "get_added_vocab": lambda t: t.get_added_vocab(),
    "get_chat_template": lambda t: t.get_chat_template(),
    "around a text": lambda t: t.num_special_tokens_to_add(),
    "a token": lambda t: t.convert_ids_to_tokens(5),
    "an id": lambda t: t.convert_tokens_to_ids("hi"),
    "an unknown token": lambda t: t.convert_tokens_to_ids("\u2603zzz"),
    "text of one id": lambda t: t.decode(700, skip_special_tokens=True),
}  # fmt: skip


def theirs() -> Any:
    return pytest.importorskip("transformers", minversion="5.0").AutoTokenizer.from_pretrained(POCKET)


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", ASKED)
def test_what_is_made_of_a_text_is_what_transformers_makes(name: str) -> None:
    ours, expected = load_tokenizer(POCKET), theirs()
    assert [ASKED[name](ours, text) for text in TEXTS] == [ASKED[name](expected, text) for text in TEXTS]


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", OF_ITSELF)
def test_what_a_tokenizer_says_of_itself_is_what_transformers_says(name: str) -> None:
    assert OF_ITSELF[name](load_tokenizer(POCKET)) == OF_ITSELF[name](theirs())


@pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
def test_the_names_of_pocket() -> None:
    ours = load_tokenizer(POCKET)
    assert ours.special_tokens_map == {"bos_token": "<|bos|>", "eos_token": "<|end|>", "pad_token": "<|pad|>"}
    assert (ours.bos_token, ours.pad_token_id, ours.unk_token, ours.mask_token_id) == ("<|bos|>", 0, None, None)
    assert ours.tokenize("hi<|user|> x") == ["hi", "<|user|>", "\u0120x"]
    assert ours.convert_tokens_to_ids(["hi", "nobody's"]) == [2343, None] and ours.convert_ids_to_tokens(2343) == "hi"
    assert ours.convert_tokens_to_string(["<|bos|>", "hi", "\u0120x"]) == "<|bos|>hi x"
    assert ours.convert_ids_to_tokens([1, 2343, 4], skip_special_tokens=True) == ["hi", "<|user|>"]
    assert ours.batch_decode([[1, 2343], [2343]]) == ["hi", "hi"] and ours.decode(2343) == "hi"
    assert ours("hi there", max_length=2)["input_ids"] == [1, 2343] and ours("hi", return_length=True)["length"] == [2]
    assert ours("hi there", max_length=2, truncation=False)["input_ids"] == ours.encode("hi there")
    assert ours.model_max_length == 2048 and ours.padding_side == "right" and len(ours.vocab) == 4096
    assert list(ours.get_added_vocab()) == ours.all_special_tokens and ours.num_special_tokens_to_add() == 1
    assert ours.get_chat_template("x") == "x" and "<|bos|>" in ours.get_chat_template()


def test_what_is_not_there_is_said() -> None:
    tokenizer = ByteTokenizer()
    assert (tokenizer.pad_token, tokenizer.unk_token_id, tokenizer.chat_template, tokenizer.name_or_path) == (
        None,
    ) * 3 + ("",)
    assert tokenizer.tokenize("hi") == ["68", "69"] and tokenizer.convert_tokens_to_ids("68") == 104
    with pytest.raises(AttributeError, match=r"'ByteTokenizer' object has no attribute 'save_pretrained'$"):
        tokenizer.save_pretrained  # noqa: B018
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.get_chat_template()
    for wrong in ("hi", None, 5.0):
        with pytest.raises(TypeError, match="ids must be token ids, got "):
            tokenizer.decode(wrong)
    for name in ("return_assistant_tokens_mask", "tokenizer_kwargs"):
        with pytest.raises(ValueError, match=f"{name} must be unset"):
            tokenizer.apply_chat_template([{"role": "user", "content": "x"}], chat_template="{{ 1 }}", **{name: True})

"""A tokenizer as scripts use it: called, measured, asked for a conversation; all as transformers' own of the folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM
from mini_vllm.tokenizers.byte import ByteTokenizer
from mini_vllm.tokenizers.registry import load_tokenizer

POCKET = Path("models/pocket")
ONE = [{"role": "user", "content": "What is a KV block?"}]
TWO = [{"role": "system", "content": "Be short."}, *ONE, {"role": "assistant", "content": "A page"}]
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("Hi there",), {}), ((["Hi there", "a"],), {}), (("Hi there",), {"add_special_tokens": False}),
    (("Hi there", "and you?"), {}), ((["a", "b c"], ["d", "e"]), {}), (("",), {}),
    ((["Hi there, all of you", "a"],), {"padding": True}), ((["Hi there", "a"],), {"padding": "longest"}),
    ((["Hi there", "a"],), {"padding": "max_length", "max_length": 9}),
    ((["Hi there", "a"],), {"padding": True, "padding_side": "left"}),
    ((["Hi there", "a"],), {"padding": True, "pad_to_multiple_of": 8}),
    (("Hi there, all of you",), {"truncation": True, "max_length": 3}),
    ((["Hi there, all of you", "a"],), {"truncation": True, "max_length": 3, "padding": True, "return_tensors": "np"}),
    (("Hi there",), {"return_tensors": "np"}), (("Hi there",), {"return_attention_mask": False}),
    (("Hi there",), {"return_token_type_ids": True}), ((["Hi", "a b c"],), {"return_length": True}),
]  # fmt: skip
CHATS: list[tuple[Any, dict[str, Any]]] = [
    (ONE, {}), (ONE, {"tokenize": False}), (TWO, {"tokenize": False, "continue_final_message": True}),
    (ONE, {"tokenize": False, "add_generation_prompt": True}), (ONE, {"return_dict": False}),
    ([ONE, TWO], {"tokenize": False}), ([ONE, TWO], {"padding": True, "return_tensors": "np"}),
    (ONE, {"tokenize": False, "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}),
]  # fmt: skip


def as_lists(found: Any) -> Any:
    if hasattr(found, "keys"):
        return {
            key: np.asarray(value).tolist() if not isinstance(value, list) else value for key, value in found.items()
        }
    return found


@pytest.mark.needs_torch
@pytest.mark.parametrize(("args", "settings"), CALLS, ids=str)
def test_a_call_gives_what_transformers_gives(args: tuple[Any, ...], settings: dict[str, Any]) -> None:
    theirs = pytest.importorskip("transformers", minversion="5.0").AutoTokenizer.from_pretrained(POCKET)
    assert as_lists(load_tokenizer(POCKET)(*args, **settings)) == as_lists(theirs(*args, **settings))


@pytest.mark.needs_torch
@pytest.mark.parametrize(("conversation", "settings"), CHATS, ids=str)
def test_a_conversation_is_what_transformers_makes_of_it(conversation: Any, settings: dict[str, Any]) -> None:
    theirs = pytest.importorskip("transformers", minversion="5.0").AutoTokenizer.from_pretrained(POCKET)
    ours = load_tokenizer(POCKET)
    found, expected = (t.apply_chat_template(conversation, **settings) for t in (ours, theirs))
    assert as_lists(found) == as_lists(expected)
    assert len(ours) == len(theirs)


def test_an_engines_tokenizer_is_called_as_scripts_call_it() -> None:
    llm = LLM(str(POCKET), num_blocks=32)
    tokenizer = llm.get_tokenizer()
    assert len(tokenizer) == len(tokenizer.get_vocab()) == 4096
    assert tokenizer("Hi there").input_ids == tokenizer("Hi there")["input_ids"] == tokenizer.encode("Hi there")
    text = tokenizer.apply_chat_template(ONE, tokenize=False, add_generation_prompt=True)
    assert "What is a KV block?" in text and text.endswith("<|assistant|>\n")
    assert tokenizer.apply_chat_template(ONE)["input_ids"] == tokenizer.encode(
        tokenizer.apply_chat_template(ONE, tokenize=False), add_special_tokens=False
    )
    padded = tokenizer(["a", "b c d"], padding=True, return_tensors="np")
    assert padded["input_ids"].shape == padded["attention_mask"].shape and not padded["attention_mask"].all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"paddding": True}, "argument must be one of padding, .*got 'paddding'"),
        ({"padding": "wide"}, "padding must be one of"),
        ({"truncation": "only_second"}, "truncation must be one of"),
        ({"max_length": 0}, "max_length must be a whole number above 0, or None, got 0"),
        ({"return_tensors": "tf"}, "return_tensors must be 'np', 'pt' or None, got 'tf'"),
        ({"stride": 3}, "stride must be 0, got 3"),
        ({"return_offsets_mapping": True}, "return_offsets_mapping must be False, got True"),
        ({"padding_side": "up"}, "padding_side must be 'left' or 'right', got 'up'"),
    ],
)
def test_what_it_does_not_do_is_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_tokenizer(POCKET)(["a", "b c"], **{"padding": True, **settings})
    with pytest.raises(ValueError, match="text must be a text or a list of texts"):
        load_tokenizer(POCKET)(["a", 5])  # type: ignore[list-item]


def test_bytes_can_be_asked_too() -> None:
    tokenizer = ByteTokenizer()
    assert len(tokenizer) == 257 and tokenizer("hi") == {"input_ids": [104, 105], "attention_mask": [1, 1]}
    with pytest.raises(ValueError, match="no folder with a chat template: pass chat_template"):
        tokenizer.apply_chat_template(ONE)
    assert tokenizer("a", "b", return_token_type_ids=True)["token_type_ids"] == [0, 1]


def test_the_sides_are_the_checkpoints(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(POCKET / name, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    for side in ("left", "right"):
        sides = {"padding_side": side, "truncation_side": side}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, **sides}))
        tokenizer = load_tokenizer(tmp_path)
        mask = tokenizer(["a", "b c d"], padding=True)["attention_mask"][0]
        assert mask[0] == (side == "right") and mask[-1] == (side == "left")
        kept = tokenizer("one two three", truncation=True, max_length=3, add_special_tokens=False)["input_ids"]
        whole = tokenizer.encode("one two three", add_special_tokens=False)
        assert kept == (whole[-3:] if side == "left" else whole[:3])

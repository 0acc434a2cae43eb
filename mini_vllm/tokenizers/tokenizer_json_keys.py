"""The keys of `tokenizer.json`, part by part: used, without influence here, or refused by name.

The format is that of the `tokenizers` library, to which vLLM leaves the file. What is refused here that library may
know: `registry.py` goes on to it where it is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mini_vllm.tokenizers.pretokenize import UnsupportedTokenizer
from mini_vllm.transformers_utils.file_keys import EMPTY, FLAG, OBJECT, TEXT, WHOLE, FileKeys, Kind, one_of

_LIST = Kind("a list", lambda value: isinstance(value, list))
_PARTS = Kind("a list of objects", lambda value: _LIST.allows(value) and all(map(OBJECT.allows, value)))
_NOTHING = one_of("") | EMPTY
_TYPE = {"type": TEXT}

FILE = FileKeys(
    "tokenizer.json",
    used={"added_tokens": _PARTS, "normalizer": OBJECT, "pre_tokenizer": OBJECT, "post_processor": OBJECT,
          "decoder": OBJECT, "model": OBJECT},
    fixed={"version": one_of("1.0")},
    harmless=frozenset({"truncation", "padding"}),  # the engine neither cuts nor fills
    needed=frozenset({"model"}),
)  # fmt: skip
MODEL = FileKeys(
    "tokenizer.json: model",
    used={"vocab": OBJECT, "merges": _LIST, "ignore_merges": FLAG},
    fixed={"type": one_of("BPE"), "byte_fallback": one_of(False), "dropout": one_of(0, 0.0),
           "continuing_subword_prefix": _NOTHING, "end_of_word_suffix": _NOTHING},
    harmless=frozenset({"unk_token", "fuse_unk", "cache_capacity"}),  # with all 256 bytes nothing is unknown
    needed=frozenset({"vocab", "merges"}),
)  # fmt: skip
ADDED_TOKEN = FileKeys(
    "tokenizer.json: a token of added_tokens",
    used={"id": WHOLE, "content": TEXT,
          **dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), FLAG)},
    needed=frozenset({"id", "content"}),
)  # fmt: skip


def _part(name: str, harmless: str = "", **used: Kind) -> FileKeys:
    return FileKeys(f"tokenizer.json: {name}", {**_TYPE, **used}, harmless=frozenset(harmless.split()))


PARTS: Mapping[str, Mapping[str, FileKeys]] = {
    "normalizer": {
        **{name: _part(f"normalizer {name}") for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")},
        "Sequence": _part("normalizer Sequence", normalizers=_PARTS),
    },
    "pre_tokenizer": {
        "ByteLevel": _part("pre-tokenizer ByteLevel", "trim_offsets", add_prefix_space=FLAG, use_regex=FLAG),
        "Split": _part("pre-tokenizer Split", pattern=OBJECT, behavior=TEXT, invert=FLAG),
        "Digits": _part("pre-tokenizer Digits", individual_digits=FLAG),
        "Sequence": _part("pre-tokenizer Sequence", pretokenizers=_PARTS),
    },
    "post_processor": {
        "ByteLevel": _part("post-processor ByteLevel", "trim_offsets add_prefix_space use_regex"),  # offsets alone
        "TemplateProcessing": _part(
            "post-processor TemplateProcessing", single=_PARTS, pair=_PARTS, special_tokens=OBJECT
        ),
        "Sequence": _part("post-processor Sequence", processors=_PARTS),
    },
    "decoder": {
        "ByteLevel": _part("decoder ByteLevel", "trim_offsets add_prefix_space use_regex"),
        "Sequence": _part("decoder Sequence", decoders=_PARTS),
    },
}
"""Section -> kind of part -> its keys. Other kinds are refused by name where they are built."""
PATTERN = FileKeys("tokenizer.json: pattern", used={"Regex": TEXT, "String": TEXT})
_CHILDREN = ("normalizers", "pretokenizers", "processors", "decoders")


def check_keys(spec: Mapping[str, Any]) -> None:
    """Raise UnsupportedTokenizer, which names the key and its value, unless the whole file is known here."""
    read = FILE.read(spec, error=UnsupportedTokenizer)
    kind = read["model"].get("type", "BPE")
    if kind != "BPE":
        raise UnsupportedTokenizer(f"model type {kind!r}")
    MODEL.read(read["model"], error=UnsupportedTokenizer)
    for token in read.get("added_tokens", ()):
        ADDED_TOKEN.read(token, error=UnsupportedTokenizer)
    for section, kinds in PARTS.items():
        _check_part(read.get(section), kinds)


def _check_part(part: Mapping[str, Any] | None, kinds: Mapping[str, FileKeys]) -> None:
    keys = kinds.get(str((part or {}).get("type")))
    if part is None or keys is None:
        return
    found = keys.read(part, error=UnsupportedTokenizer)
    if "pattern" in found:
        PATTERN.read(found["pattern"], error=UnsupportedTokenizer)
    for child in (each for name in _CHILDREN for each in found.get(name, ())):
        _check_part(child, kinds)

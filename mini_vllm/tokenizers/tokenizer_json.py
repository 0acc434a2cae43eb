"""What the parts of a `tokenizer.json` become: functions for its normalizer and pre-tokenizer, ids for its template.

Entered once a tokenizer, when it is made. A part that is not known is refused by name. vLLM leaves all this to the
`tokenizers` library (upstream/vllm/tokenizers/hf.py); the meaning of every field here is that library's.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from mini_vllm.tokenizers.pretokenize import (
    GPT2_PATTERN,
    AddedToken,
    Normalizer,
    Splitter,
    UnsupportedTokenizer,
    compiled,
    split_by,
)


def read_added_tokens(entries: Iterable[dict[str, Any]] | None) -> list[AddedToken]:
    """The `added_tokens`."""
    known = AddedToken.__dataclass_fields__
    return [AddedToken(**{name: entry[name] for name in known if name in entry}) for entry in entries or ()]


def read_merges(merges: Sequence[str | Sequence[str]]) -> Iterable[tuple[str, str]]:
    """Both spellings: "left right" and ["left", "right"]."""
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right


def build_normalizer(spec: dict[str, Any] | None) -> Normalizer | None:
    """The `normalizer` of tokenizer.json as a function; None when texts stay as they are."""
    if spec is None:
        return None
    kind = spec["type"]
    if kind in ("NFC", "NFD", "NFKC", "NFKD"):
        return lambda text: unicodedata.normalize(kind, text)
    if kind == "Lowercase":
        return str.lower
    if kind == "Sequence":
        steps = [step for step in map(build_normalizer, spec["normalizers"]) if step is not None]
        return _chain(steps) if steps else None
    raise UnsupportedTokenizer(f"normalizer {kind!r}")


def _chain(steps: list[Normalizer]) -> Normalizer:
    def normalize(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return normalize


def build_pre_tokenizer(spec: dict[str, Any] | None) -> list[Splitter]:
    """The `pre_tokenizer` of tokenizer.json as splitters to apply one after the other."""
    if spec is None:
        raise UnsupportedTokenizer("a tokenizer without pre-tokenizer is not byte level")
    parts = spec["pretokenizers"] if spec["type"] == "Sequence" else [spec]
    if not any(part["type"] == "ByteLevel" for part in parts):
        raise UnsupportedTokenizer(f"pre-tokenizer {spec['type']!r} without ByteLevel")
    splitters: list[Splitter] = []
    for part in parts:
        splitters += _splitters_of(part)
    return splitters


def _splitters_of(part: dict[str, Any]) -> list[Splitter]:
    kind = part["type"]
    if kind == "ByteLevel":
        prefix = [_prefix_space] if part.get("add_prefix_space", True) else []
        return prefix + ([split_by(GPT2_PATTERN)] if part.get("use_regex", True) else [])
    if kind == "Split":
        if part["behavior"] not in ("Isolated", "Removed"):
            raise UnsupportedTokenizer(f"Split with behavior {part['behavior']!r}")
        pattern = part["pattern"].get("Regex") or re.escape(part["pattern"]["String"])
        if part.get("invert") and part["behavior"] == "Removed":
            return [compiled(pattern).findall]  # keep the matches, drop what lies between
        return [split_by(pattern, drop_matches=part["behavior"] == "Removed")]
    if kind == "Digits":
        return [split_by(r"\p{N}" if part.get("individual_digits") else r"\p{N}+")]
    raise UnsupportedTokenizer(f"pre-tokenizer {kind!r}")


def _prefix_space(piece: str) -> list[str]:
    return [piece if piece.startswith(" ") else " " + piece]


def read_template(spec: dict[str, Any] | None, vocab: dict[str, int]) -> tuple[list[int], list[int]]:
    """The ids before and after a single text, from the post-processor."""
    if spec is None or spec["type"] == "ByteLevel":
        return [], []
    if spec["type"] == "Sequence":
        parts = [read_template(part, vocab) for part in spec["processors"]]
        # Each later processor wraps what the earlier ones made.
        return [i for before, _ in reversed(parts) for i in before], [i for _, after in parts for i in after]
    if spec["type"] != "TemplateProcessing":
        raise UnsupportedTokenizer(f"post-processor {spec['type']!r}")
    before: list[int] = []
    after: list[int] = []
    side = before
    for step in spec["single"]:
        if "Sequence" in step:
            side = after
        else:
            side += spec["special_tokens"][step["SpecialToken"]["id"]]["ids"]
    return before, after


def place_pair(spec: dict[str, Any] | None, pieces: dict[str, list[int]]) -> list[tuple[int, int]]:
    """Ids of two texts, "A" and "B", by the post-processor's template, each with the number of its text."""
    if spec is not None and spec["type"] == "Sequence":
        spec = next((part for part in spec["processors"] if part["type"] == "TemplateProcessing"), None)
    if spec is None or spec["type"] != "TemplateProcessing":
        return [(i, 0) for i in pieces["A"]] + [(i, 1 if spec is None else 0) for i in pieces["B"]]
    found: list[tuple[int, int]] = []
    for step in spec["pair"]:
        ((name, what),) = step.items()
        ids = pieces[what["id"]] if name == "Sequence" else spec["special_tokens"][what["id"]]["ids"]
        found += [(i, what.get("type_id", 0)) for i in ids]
    return found


def check_decoder(spec: dict[str, Any] | None) -> None:
    """Raise UnsupportedTokenizer unless ids become bytes and nothing else."""
    parts = (spec or {}).get("decoders", [spec] if spec else [])
    kinds = [part["type"] for part in parts]
    if kinds != ["ByteLevel"]:
        raise UnsupportedTokenizer(f"decoder {kinds or None}")

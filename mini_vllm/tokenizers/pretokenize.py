"""The first half of a byte-level BPE tokenizer: from a text to the pieces that are merged separately.

In the order in which `tokenizer.json` applies them: added tokens are cut out, what lies between is normalised, then
split by the pre-tokenizer's pattern. Merges never cross a piece's border. vLLM leaves all this to the `tokenizers`
library (upstream/vllm/tokenizers/hf.py); the meaning of every field here is that library's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Splitter = Callable[[str], list[str]]
Normalizer = Callable[[str], str]

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What `ByteLevel` with `use_regex` splits by."""

_WORD = r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]"
_SPACE = r"\p{White_Space}"


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Any:
    """A compiled pattern. `regex`, for `\\p{L}`, is imported here: the engine's import needs numpy alone."""
    import regex

    return regex.compile(pattern)


class UnsupportedTokenizer(ValueError):
    """A part of tokenizer.json that this reader does not know; the `tokenizers` library may."""


@dataclass(frozen=True)
class AddedToken:
    """A token matched as a whole before any splitting, e.g. `<|im_end|>`."""

    id: int
    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class AddedTokenSplitter:
    """Finds added tokens in a text: the leftmost match, the longest where several start there."""

    def __init__(self, tokens: Iterable[AddedToken], normalize: Normalizer | None = None) -> None:
        self._by_content = {(normalize(t.content) if normalize else t.content): t for t in tokens if t.content}
        alternatives = sorted(self._by_content, key=len, reverse=True)
        self._pattern = compiled("|".join(map(re.escape, alternatives))) if alternatives else None

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The text's pieces in order: (piece, None), or (matched text, id) where an added token stands."""
        done = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            token = self._by_content[match.group()]
            start, end = match.span()
            if token.single_word and (self._is(_WORD, text, start - 1) or self._is(_WORD, text, end)):
                continue
            while token.lstrip and start > done and self._is(_SPACE, text, start - 1):
                start -= 1
            while token.rstrip and self._is(_SPACE, text, end):
                end += 1
            if done < start:
                yield text[done:start], None
            yield text[start:end], token.id
            done = end
        if done < len(text):
            yield text[done:], None

    @staticmethod
    def _is(pattern: str, text: str, at: int) -> bool:
        return 0 <= at < len(text) and compiled(pattern).match(text[at]) is not None


def split_by(pattern: str, drop_matches: bool = False) -> Splitter:
    """Cut a text at every match: the matches (unless dropped) and what lies between, in order."""
    matcher = compiled(pattern)

    def split(text: str) -> list[str]:
        if not drop_matches and matcher.groups == 0:
            pieces = matcher.findall(text)
            if sum(map(len, pieces)) == len(text):  # the usual patterns leave nothing between matches
                return [piece for piece in pieces if piece]
        pieces, done = [], 0
        for match in matcher.finditer(text):
            pieces.append(text[done : match.start()])
            if not drop_matches:
                pieces.append(match.group())
            done = match.end()
        pieces.append(text[done:])
        return [piece for piece in pieces if piece]

    return split

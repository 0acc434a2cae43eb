"""Byte-level BPE, read from a checkpoint's `tokenizer.json`.

A byte-level tokenizer knows all 256 bytes, so that any text has ids and comes back byte for byte. Its vocabulary is
written in printable characters, one for each byte (`BYTE_TO_CHAR`). vLLM uses the `tokenizers` library for this
(upstream/vllm/tokenizers/hf.py); the ids here are the same, and a test compares them on random text.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mini_vllm.tokenizers.callable import CallableTokenizer
from mini_vllm.tokenizers.named import as_ids
from mini_vllm.tokenizers.pretokenize import AddedTokenSplitter, UnsupportedTokenizer
from mini_vllm.tokenizers.tokenizer_json import (
    build_normalizer,
    build_pre_tokenizer,
    check_decoder,
    place_pair,
    read_added_tokens,
    read_merges,
    read_template,
)
from mini_vllm.tokenizers.tokenizer_json_keys import check_keys

MAX_CACHED_WORDS = 100_000
MAX_CACHED_CHARS = 64
_SHORT = 24
"""Up to this many symbols a scan for the best pair is faster than a heap."""


def _byte_to_char() -> dict[int, str]:
    """Printable bytes stand for themselves; the other 68 get the characters from U+0100 on (the space: 'Ġ')."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(printable))
    return table


BYTE_TO_CHAR = _byte_to_char()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


class BPEMerger:
    """Merges a word's bytes into tokens: always the adjacent pair of lowest rank, the leftmost of equals.

    vocab: token (in byte characters) -> id. merges: pairs in order of their rank.
    """

    def __init__(self, vocab: dict[str, int], merges: Iterable[tuple[str, str]], ignore_merges: bool = False) -> None:
        missing = [char for char in CHAR_TO_BYTE if char not in vocab]
        if missing:
            raise UnsupportedTokenizer(f"the vocabulary lacks {len(missing)} of the 256 bytes")
        self.byte_ids = [vocab[BYTE_TO_CHAR[byte]] for byte in range(256)]
        self.ranks: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, (left, right) in enumerate(merges):
            if not {left, right, left + right} <= vocab.keys():
                raise ValueError(f"merge {rank} ({left!r}, {right!r}) names a token that is not in the vocabulary.")
            self.ranks[vocab[left], vocab[right]] = (rank, vocab[left + right])
        self._whole_words = vocab if ignore_merges else {}
        self._cache: dict[str, list[int]] = {}

    def encode_words(self, words: Iterable[str]) -> list[int]:
        """The ids of all words, one after the other."""
        ids: list[int] = []
        cache = self._cache
        for word in words:
            known = cache.get(word)
            ids += known if known is not None else self._encode_new(word)
        return ids

    def _encode_new(self, word: str) -> list[int]:
        data = word.encode("utf-8", errors="replace")
        whole = self._whole_words.get("".join(map(BYTE_TO_CHAR.__getitem__, data))) if self._whole_words else None
        if whole is not None:
            ids = [whole]
        else:
            symbols = [self.byte_ids[byte] for byte in data]
            ids = self._merge_short(symbols) if len(symbols) <= _SHORT else self._merge_long(symbols)
        if len(word) <= MAX_CACHED_CHARS:
            if len(self._cache) >= MAX_CACHED_WORDS:
                self._cache.clear()
            self._cache[word] = ids
        return ids

    def _merge_short(self, symbols: list[int]) -> list[int]:
        """O(n^2) scans; n is small."""
        ranks = self.ranks
        while len(symbols) > 1:
            best, best_at = None, -1
            for at in range(len(symbols) - 1):
                found = ranks.get((symbols[at], symbols[at + 1]))
                if found is not None and (best is None or found[0] < best[0]):
                    best, best_at = found, at
            if best is None:
                break
            symbols[best_at : best_at + 2] = [best[1]]
        return symbols

    def _merge_long(self, symbols: list[int]) -> list[int]:
        """O(n log n): a heap of candidate pairs over a linked list, as `tokenizers` does it.

        A heap entry is rank * n + position, so that equal ranks come leftmost first. An entry is stale when the pair
        at its position has changed; its rank tells.
        """
        ranks, n = self.ranks, len(symbols)
        nexts, prevs = list(range(1, n + 1)), list(range(-1, n - 1))
        pairs = itertools.pairwise(symbols)
        heap = [found[0] * n + at for at, pair in enumerate(pairs) if (found := ranks.get(pair))]
        heapq.heapify(heap)
        while heap:
            rank, at = divmod(heapq.heappop(heap), n)
            right = nexts[at]
            if symbols[at] < 0 or right >= n:
                continue
            found = ranks.get((symbols[at], symbols[right]))
            if found is None or found[0] != rank:
                continue
            symbols[at], symbols[right] = found[1], -1
            after, before = nexts[right], prevs[at]
            nexts[at] = after
            if after < n:
                prevs[after] = at
                if new := ranks.get((symbols[at], symbols[after])):
                    heapq.heappush(heap, new[0] * n + at)
            if before >= 0 and (new := ranks.get((symbols[before], symbols[at]))):
                heapq.heappush(heap, new[0] * n + before)
        return [symbol for symbol in symbols if symbol >= 0]


class BPETokenizer(CallableTokenizer):
    """A byte-level BPE tokenizer with added tokens and a template around the text.

    vocab_size: highest id + 1. eos_token_id, bos_token_id: None where the checkpoint names none.
    """

    is_byte_level = True

    def __init__(self, spec: dict[str, Any], special: dict[str, str] | None = None, folder: Path | None = None) -> None:
        """spec: a parsed tokenizer.json. special: e.g. {"eos_token": "</s>"}. folder: where its files lie.

        Raises UnsupportedTokenizer.
        """
        self.folder, self._template = folder, spec.get("post_processor")
        check_keys(spec)
        model = spec["model"]
        added = read_added_tokens(spec.get("added_tokens"))
        vocab: dict[str, int] = model["vocab"]
        self.merger = BPEMerger(vocab, read_merges(model["merges"]), bool(model.get("ignore_merges")))
        self.normalize = build_normalizer(spec.get("normalizer"))
        self.splitters = build_pre_tokenizer(spec.get("pre_tokenizer"))
        self._added_raw = AddedTokenSplitter(t for t in added if not t.normalized)
        self._added_normalized = AddedTokenSplitter((t for t in added if t.normalized), self.normalize)
        self._prefix, self._suffix = read_template(spec.get("post_processor"), vocab)
        check_decoder(spec.get("decoder"))
        self._token_to_id = {**vocab, **{t.content: t.id for t in added}}
        self.vocab_size = max(self._token_to_id.values()) + 1
        self._bytes: list[bytes] = [b""] * self.vocab_size
        for token, token_id in self._token_to_id.items():
            self._bytes[token_id] = _token_bytes(token)
        special = special or {}
        self.eos_token_id = self._token_to_id.get(special.get("eos_token", ""))
        self.bos_token_id = self._token_to_id.get(special.get("bos_token", ""))
        named = {self._token_to_id[token] for token in special.values() if token in self._token_to_id}
        self.all_special_ids = sorted({t.id for t in added if t.special} | named)
        self._special = frozenset(self.all_special_ids)

    @classmethod
    def from_folder(cls, path: str | Path) -> BPETokenizer:
        """Read `tokenizer.json` (or `vocab.json` with `merges.txt`) and the special tokens of a checkpoint folder."""
        from mini_vllm.tokenizers.tokenizer_files import read_special_tokens, read_tokenizer_spec

        return cls(read_tokenizer_spec(Path(path)), read_special_tokens(Path(path)), Path(path))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text. add_special_tokens: put the template's ids (e.g. BOS) around it. Added tokens that stand in
        the text itself are recognised in any case, as upstream does."""
        ids = list(self._prefix) if add_special_tokens else []
        for raw, raw_id in self._added_raw.split(text):
            if raw_id is not None:
                ids.append(raw_id)
                continue
            for piece, token_id in self._added_normalized.split(self.normalize(raw) if self.normalize else raw):
                ids += [token_id] if token_id is not None else self.merger.encode_words(self._split(piece))
        return ids + self._suffix if add_special_tokens else ids

    def encode_pair(self, text: str, pair: str, add_special_tokens: bool = True) -> tuple[list[int], list[int]]:
        """See `CallableTokenizer`."""
        pieces = {"A": self.encode(text, False), "B": self.encode(pair, False)}
        found = place_pair(self._template if add_special_tokens else None, pieces)
        return [token_id for token_id, _ in found], [kind for _, kind in found]

    def _split(self, piece: str) -> Sequence[str]:
        words: Sequence[str] = [piece]
        for splitter in self.splitters:
            words = splitter(words[0]) if len(words) == 1 else [part for word in words for part in splitter(word)]
        return words

    def decode(
        self, ids: int | Iterable[int], skip_special_tokens: bool = True, clean_up_tokenization_spaces: Any = None
    ) -> str:
        """Text of ids; bytes that are no valid UTF-8 become U+FFFD. An id that has no token adds nothing."""
        skipped = self._special if skip_special_tokens else frozenset()
        data = b"".join(self.id_to_bytes(i) for i in as_ids(ids) if i not in skipped)
        return data.decode("utf-8", errors="replace")

    def id_to_bytes(self, token_id: int) -> bytes:
        """The bytes that an id stands for; b"" for an id without token (models pad their vocabulary)."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def convert_ids_to_bytes(self, ids: Iterable[int]) -> list[bytes]:
        """`id_to_bytes` for each id."""
        return [self.id_to_bytes(i) for i in ids]

    def get_vocab(self) -> dict[str, int]:
        """Tokens, as tokenizer.json writes them, to their ids."""
        return dict(self._token_to_id)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token written as in tokenizer.json, or None."""
        return self._token_to_id.get(token)


def _token_bytes(token: str) -> bytes:
    """A token's bytes; an added token with a character that stands for no byte is taken as plain text."""
    try:
        return bytes(CHAR_TO_BYTE[char] for char in token)
    except KeyError:
        return token.encode("utf-8")

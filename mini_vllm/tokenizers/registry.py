"""Text to token ids and back.

`ByteTokenizer` is the course's smallest tokenizer, `BPETokenizer` (in `bpe.py`) reads a real checkpoint's, and
`load_tokenizer` picks. Upstream twin: `vllm/tokenizers/` (registry and protocol), which wraps the `tokenizers` library.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from mini_vllm.tokenizers.bpe import BPETokenizer
from mini_vllm.tokenizers.pretokenize import UnsupportedTokenizer
from mini_vllm.tokenizers.tokenizer_files import read_eos_token_ids, read_special_tokens, read_tokenizer_spec

__all__ = [
    "BPETokenizer",
    "ByteTokenizer",
    "HFTokenizer",
    "Tokenizer",
    "UnsupportedTokenizer",
    "load_tokenizer",
]


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    is_byte_level: bool
    """Each id stands for fixed bytes, so that text can be streamed byte by byte."""
    vocab_size: int
    eos_token_id: int | None
    bos_token_id: int | None
    all_special_ids: list[int]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text."""

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of ids."""

    def id_to_bytes(self, token_id: int) -> bytes:
        """The bytes that one id stands for."""


class ByteTokenizer:
    """One byte, one token: ids 0-255 are the bytes of the UTF-8 text, 256 is EOS."""

    is_byte_level = True
    vocab_size = 257
    eos_token_id: int | None = 256
    bos_token_id: int | None = None

    def __init__(self) -> None:
        self.all_special_ids = [256]

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The bytes of the text. There is no template, so add_special_tokens changes nothing."""
        return list(text.encode("utf-8"))

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of the bytes; EOS has none in either case, and bytes that are no valid UTF-8 become U+FFFD."""
        return b"".join(map(self.id_to_bytes, ids)).decode("utf-8", errors="replace")

    def id_to_bytes(self, token_id: int) -> bytes:
        """One byte, or b"" for EOS."""
        return bytes([token_id]) if 0 <= token_id < 256 else b""

    def convert_ids_to_bytes(self, ids: Iterable[int]) -> list[bytes]:
        """`id_to_bytes` for each id."""
        return [self.id_to_bytes(i) for i in ids]


class HFTokenizer:
    """Any other kind (sentencepiece-like BPE, Unigram, WordPiece), by the `tokenizers` library (`hub` extra)."""

    is_byte_level = False

    def __init__(self, folder: str | Path) -> None:
        """Raises FileNotFoundError, or ImportError saying what to install."""
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{str(folder)!r} has no tokenizer.json.")
        try:
            import tokenizers
        except ImportError:
            raise ImportError(
                "this tokenizer needs the tokenizers library: pip install 'mini-vllm-course[hub]'"
            ) from None
        self._inner = tokenizers.Tokenizer.from_file(str(path))
        special = read_special_tokens(Path(folder))
        ids = {name: self._inner.token_to_id(token) for name, token in special.items()}
        self.eos_token_id: int | None = ids.get("eos_token")
        self.bos_token_id: int | None = ids.get("bos_token")
        decoder = self._inner.get_added_tokens_decoder()
        self.all_special_ids = sorted({i for i, token in decoder.items() if token.special})
        self.vocab_size = max(self._inner.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text."""
        return list(self._inner.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of ids."""
        known = [i for i in ids if 0 <= i < self.vocab_size]
        return self._inner.decode(known, skip_special_tokens=skip_special_tokens)

    def id_to_bytes(self, token_id: int) -> bytes:
        """The id's text alone; not exact here, as the text of an id can depend on its neighbours."""
        return self.decode([token_id], skip_special_tokens=False).encode("utf-8")

    def convert_ids_to_bytes(self, ids: Iterable[int]) -> list[bytes]:
        """`id_to_bytes` for each id."""
        return [self.id_to_bytes(i) for i in ids]


def load_tokenizer(folder: str | Path) -> BPETokenizer | HFTokenizer:
    """The tokenizer of a checkpoint folder: our own where it is byte-level BPE, else the `tokenizers` library's.

    Where tokenizer_config.json names no EOS, the model's (generation_config.json, config.json) is taken. Raises
    FileNotFoundError for a missing folder or file, ImportError where the library is needed and missing.
    """
    path = Path(folder)
    tokenizer: BPETokenizer | HFTokenizer
    try:
        tokenizer = BPETokenizer(read_tokenizer_spec(path), read_special_tokens(path))
    except UnsupportedTokenizer as unsupported:
        try:
            tokenizer = HFTokenizer(path)
        except ImportError as error:
            raise ImportError(f"{path}: {unsupported}; {error}") from None
    if tokenizer.eos_token_id is None:
        tokenizer.eos_token_id = next(iter(read_eos_token_ids(path)), None)
    return tokenizer

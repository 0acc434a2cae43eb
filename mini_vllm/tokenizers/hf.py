"""Any tokenizer, by the `tokenizers` library. Upstream twin: `vllm/tokenizers/hf.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mini_vllm.tokenizers.callable import CallableTokenizer
from mini_vllm.tokenizers.named import as_ids
from mini_vllm.tokenizers.tokenizer_files import read_special_tokens


class HFTokenizer(CallableTokenizer):
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
        self.folder = Path(folder)
        self._inner = tokenizers.Tokenizer.from_file(str(path))
        self._inner.no_truncation()  # a file may ask for both; an engine gets every token, and no others
        self._inner.no_padding()
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

    def encode_pair(self, text: str, pair: str, add_special_tokens: bool = True) -> tuple[list[int], list[int]]:
        """See `CallableTokenizer`."""
        found = self._inner.encode(text, pair, add_special_tokens=add_special_tokens)
        return list(found.ids), list(found.type_ids)

    def decode(
        self, ids: int | Iterable[int], skip_special_tokens: bool = True, clean_up_tokenization_spaces: Any = None
    ) -> str:
        """Text of ids."""
        known = [i for i in as_ids(ids) if 0 <= i < self.vocab_size]
        return self._inner.decode(known, skip_special_tokens=skip_special_tokens)

    def id_to_bytes(self, token_id: int) -> bytes:
        """The id's text alone; not exact here, as the text of an id can depend on its neighbours."""
        return self.decode([token_id], skip_special_tokens=False).encode("utf-8")

    def get_vocab(self) -> dict[str, int]:
        """Tokens to their ids."""
        return dict(self._inner.get_vocab(with_added_tokens=True))

    def convert_ids_to_bytes(self, ids: Iterable[int]) -> list[bytes]:
        """`id_to_bytes` for each id."""
        return [self.id_to_bytes(i) for i in ids]

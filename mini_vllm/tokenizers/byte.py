"""The course's smallest tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mini_vllm.tokenizers.callable import CallableTokenizer
from mini_vllm.tokenizers.named import as_ids


class ByteTokenizer(CallableTokenizer):
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

    def encode_pair(self, text: str, pair: str, add_special_tokens: bool = True) -> tuple[list[int], list[int]]:
        """See `CallableTokenizer`: one after the other."""
        a, b = self.encode(text), self.encode(pair)
        return a + b, [0] * len(a) + [1] * len(b)

    def get_vocab(self) -> dict[str, int]:
        """Bytes as two hexadecimal digits, and the name of EOS."""
        return {**{f"{i:02x}": i for i in range(256)}, "<eos>": 256}

    def decode(
        self, ids: int | Iterable[int], skip_special_tokens: bool = True, clean_up_tokenization_spaces: Any = None
    ) -> str:
        """Text of the bytes; EOS has none in either case, and bytes that are no valid UTF-8 become U+FFFD."""
        return b"".join(map(self.id_to_bytes, as_ids(ids))).decode("utf-8", errors="replace")

    def id_to_bytes(self, token_id: int) -> bytes:
        """One byte, or b"" for EOS."""
        return bytes([token_id]) if 0 <= token_id < 256 else b""

    def convert_ids_to_bytes(self, ids: Iterable[int]) -> list[bytes]:
        """`id_to_bytes` for each id."""
        return [self.id_to_bytes(i) for i in ids]

"""The bytes of every token, read from a tokenizer once.

Upstream leaves this to the libraries: `xgr.TokenizerInfo.from_huggingface` in `backend_xgrammar.py`.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mini_vllm.structured_output.backend_types import TokenVocabulary


def token_vocabulary(tokenizer: Any, vocab_size: int, eos_token_ids: Sequence[int] = ()) -> TokenVocabulary:
    """What a grammar has to know of a tokenizer.

    Special tokens have no bytes: they are not text, though a tokenizer can write them out. The end of a text is the
    tokenizer's EOS, as for xgrammar; the model's where the tokenizer names none.

    Args:
        vocab_size: columns of the logits. eos_token_ids: the model's.

    Raises:
        ValueError: no tokenizer, one whose tokens have no bytes of their own, or no end of sequence.
    """
    if tokenizer is None:
        raise ValueError("Structured outputs requires a tokenizer so it can't be used with 'skip_tokenizer_init'")
    if not getattr(tokenizer, "is_byte_level", False):
        raise ValueError(
            f"structured outputs need a byte-level tokenizer, in which each token stands for fixed bytes; "
            f"{type(tokenizer).__name__} is none"
        )
    special = set(tokenizer.all_special_ids)
    known = min(vocab_size, tokenizer.vocab_size)
    tokens = [b"" if each in special else tokenizer.id_to_bytes(each) for each in range(known)]
    own = getattr(tokenizer, "eos_token_id", None)
    stop_token_ids = [own] if own is not None else list(eos_token_ids)
    if not stop_token_ids:
        raise ValueError("structured outputs need an end-of-sequence token, and neither tokenizer nor model names one")
    return TokenVocabulary(tokens, stop_token_ids, vocab_size)


class UnsentTokenizer:
    """In the place of a tokenizer that cannot be sent to another process: whoever asks for a grammar is told so."""

    is_byte_level = False


def tokenizer_for_core(tokenizer: Any) -> Any:
    """What a core in a process of its own gets: a name as it is, an object that can be sent, or `UnsentTokenizer`."""
    if tokenizer is None or isinstance(tokenizer, str | Path):
        return tokenizer
    try:
        pickle.dumps(tokenizer)
    except Exception:
        return UnsentTokenizer()
    return tokenizer

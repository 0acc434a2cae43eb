"""Which tokenizer a checkpoint gets: our own where it is byte-level BPE, else one of the `tokenizers` library.

Upstream twin: `vllm/tokenizers/registry.py`; its tokenizers all wrap that library.
"""

from __future__ import annotations

from pathlib import Path

from mini_vllm.tokenizers.bpe import BPETokenizer
from mini_vllm.tokenizers.hf import HFTokenizer
from mini_vllm.tokenizers.pretokenize import UnsupportedTokenizer
from mini_vllm.tokenizers.tokenizer_files import (
    check_special_tokens,
    check_vocabulary,
    read_eos_token_ids,
    read_special_tokens,
    read_tokenizer_spec,
)


def load_tokenizer(folder: str | Path) -> BPETokenizer | HFTokenizer:
    """The tokenizer of a checkpoint folder: our own where it is byte-level BPE, else the `tokenizers` library's.

    Where tokenizer_config.json names no EOS, the model's (generation_config.json, config.json) is taken. Raises
    FileNotFoundError for a missing folder or file, ImportError where the library is needed and missing.
    """
    path = Path(folder)
    tokenizer: BPETokenizer | HFTokenizer
    try:
        spec, special = read_tokenizer_spec(path), read_special_tokens(path)
    except UnsupportedTokenizer as unsupported:
        raise ValueError(f"{path}: {unsupported}") from None
    try:
        tokenizer = BPETokenizer(check_vocabulary(spec), special, path)
    except UnsupportedTokenizer as unsupported:
        tokenizer = _by_the_library(path, unsupported)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(f"{path / 'tokenizer.json'}: the tokenizer's files are damaged: {_damage(error)}.") from None
    check_special_tokens(path, spec)
    if tokenizer.eos_token_id is None:
        tokenizer.eos_token_id = next(iter(read_eos_token_ids(path)), None)
    return tokenizer


def _damage(error: Exception) -> str:
    """In words, without the names of Python's errors."""
    if isinstance(error, KeyError):
        return f"the key {error.args[0]!r} is missing" if error.args else "a key is missing"
    if isinstance(error, TypeError | AttributeError | IndexError):
        return f"a part is of the wrong kind ({error})"
    return str(error)


def _by_the_library(path: Path, unsupported: UnsupportedTokenizer) -> HFTokenizer:
    """One of the `tokenizers` library, whose errors are bare `Exception`s."""
    try:
        return HFTokenizer(path)
    except ImportError as error:
        raise ImportError(f"{path}: {unsupported}; {error}") from None
    except (FileNotFoundError, ValueError):
        raise
    except Exception as error:
        raise ValueError(f"{path}: tokenizer.json is damaged ({error}).") from None

"""The keys of `tokenizer_config.json` and `special_tokens_map.json`: used, harmless, or refused by name.

Upstream has no twin: transformers reads them there, and passes over what it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mini_vllm.transformers_utils.file_keys import ANYTHING, FLAG, FileKeys, Kind, one_of
from mini_vllm.utils.checks import is_real

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_TOKEN = Kind(
    "a text or an object with a content",
    lambda value: isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str)),
)
_MORE_TOKENS = Kind(
    "a list of tokens, or an object with a token under each name",
    lambda value: (
        isinstance(value, list | dict) and all(map(_TOKEN.allows, value.values() if isinstance(value, dict) else value))
    ),
)
_TOKENS_OF_IDS = Kind(
    "an object with a token, an object with a content, under each id",
    lambda value: (
        isinstance(value, dict)
        and all(
            key.isdecimal() and len(key) < 20 and isinstance(each, dict) and _TOKEN.allows(each)
            for key, each in value.items()
        )
    ),
)
_LENGTH = Kind("a number of at least 1", lambda value: is_real(value) and value >= 1)

_SIDE = one_of("left", "right")
_HARMLESS = """
    tokenizer_class auto_map processor_class name_or_path backend is_local local_files_only tokenizer_file
    vocab_file merges_file tokenizer_type use_fast trust_remote_code revision legacy from_slow _commit_hash
    padding truncation max_length max_len stride truncation_strategy pad_to_multiple_of
    pad_token_type_id model_input_names return_token_type_ids device_map clean_up_tokenization_spaces
    spaces_between_special_tokens errors verbose do_lower_case do_basic_tokenize tokenize_chinese_chars
    strip_accents never_split wordpieces_prefix sp_model_kwargs keep_accents remove_space trim_offsets unk_id
    vocab_size fix_mistral_regex use_default_system_prompt special_tokens_map_file response_schema response_template
    tool_use_template"""
_OF_MODELS = ("image_token", "boi_token", "eoi_token", "audio_token", "video_token")
_MORE = ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens")
_SPECIAL = {**dict.fromkeys((*SPECIAL_NAMES, *_OF_MODELS), _TOKEN), **dict.fromkeys(_MORE, _MORE_TOKENS)}
SPECIAL_TOKENS_MAP = FileKeys(
    "special_tokens_map.json",
    used=_SPECIAL,
)
TOKENIZER_CONFIG = FileKeys(
    "tokenizer_config.json",
    used={
        **_SPECIAL, "added_tokens_decoder": _TOKENS_OF_IDS,
        "add_bos_token": FLAG, "add_eos_token": FLAG, "add_prefix_space": FLAG, "model_max_length": _LENGTH,
        "padding_side": _SIDE, "truncation_side": _SIDE,
        "chat_template": ANYTHING,  # looked at by entrypoints/chat_utils.py
    },
    fixed={"split_special_tokens": one_of(False, None)},
    harmless=frozenset(_HARMLESS.split()),
    because={"split_special_tokens": "names of special tokens in a text are read as those tokens"},
)  # fmt: skip
"""What is harmless says how the library makes, pads or cuts; or what tokenizer.json, which it was made into, holds."""


def text_of(token: Any) -> str:
    """The text of a token that stands there as one, or as an object with a content."""
    return str(token["content"] if isinstance(token, dict) else token)


def tokens_beside(read: Mapping[str, Any]) -> Iterator[tuple[str, str, int | None]]:
    """(key, text, id where there is one) of each token that one of the two files names, as `FileKeys.read` gave it."""
    for key, value in ((key, read[key]) for key in _SPECIAL if key in read):
        several = value.values() if isinstance(value, dict) and key in _MORE else value if key in _MORE else [value]
        yield from ((key, text_of(each), None) for each in several)
    for token_id, token in read.get("added_tokens_decoder", {}).items():
        yield "added_tokens_decoder", text_of(token), int(token_id)

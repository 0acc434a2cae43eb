"""Finding a checkpoint's tokenizer among its files: `tokenizer.json`, or `vocab.json` + `merges.txt` as GPT-2 and OPT
have them, and the names of the special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_vllm.tokenizers.pretokenize import UnsupportedTokenizer
from mini_vllm.tokenizers.tokenizer_keys import (
    SPECIAL_NAMES,
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
    text_of,
    tokens_beside,
)
from mini_vllm.utils.checks import is_int, shown
from mini_vllm.utils.json_files import load_json_object

_MAX_ID = 1 << 24


def load_json_if_there(path: Path) -> dict[str, Any]:
    """The parsed object of a file, or {} where there is no file."""
    return load_json_object(path) if path.is_file() else {}


def _files_of_names(folder: Path) -> dict[str, dict[str, Any]]:
    """File -> its keys, the one that counts last. As in transformers, `added_tokens_decoder` of tokenizer_config.json
    puts special_tokens_map.json out of use, which else counts first."""
    config = read_tokenizer_config(folder)
    found = {TOKENIZER_CONFIG.name: config}
    if "added_tokens_decoder" not in config and (path := folder / SPECIAL_TOKENS_MAP.name).is_file():
        found[SPECIAL_TOKENS_MAP.name] = SPECIAL_TOKENS_MAP.read_file(path)
    return found


def read_special_tokens(folder: Path) -> dict[str, str]:
    """{"eos_token": "</s>", ...} from tokenizer_config.json and special_tokens_map.json."""
    names = {key: value for keys in _files_of_names(folder).values() for key, value in keys.items()}
    return {key: text_of(names[key]) for key in SPECIAL_NAMES if key in names}


def check_special_tokens(folder: Path, spec: dict[str, Any]) -> None:
    """Raise ValueError, naming file, key and text, where a token is named that is none of the `added_tokens`, of
    tokenizer.json or made of the vocabulary: transformers finds it whole in a text, with an id that it makes up."""
    known = {entry["content"]: entry["id"] for entry in spec.get("added_tokens") or ()}
    named = [
        (name, *each) for name, keys in _files_of_names(folder).items() for each in tokens_beside(keys)
    ] + [
        ("added_tokens.json", text, text, token_id)
        for text, token_id in load_json_if_there(folder / "added_tokens.json").items()
    ]  # fmt: skip
    for file, key, text, token_id in named:
        if text not in known or token_id not in (None, known[text]):
            which = "" if token_id is None else f" with id {shown(token_id)}"
            raise ValueError(
                f"{folder / file}: {shown(key)}: the token {shown(text)}{which} is not in tokenizer.json's "
                f"added_tokens: save the tokenizer again with transformers"
            )


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """The keys of tokenizer_config.json that are used; {} where there is no such file. Raises ValueError."""
    path = folder / TOKENIZER_CONFIG.name
    return TOKENIZER_CONFIG.read_file(path) if path.is_file() else {}


def read_eos_token_ids(folder: Path) -> list[int]:
    """The model's own end tokens: generation_config.json before config.json; several are possible."""
    for name in ("generation_config.json", "config.json"):
        ids = load_json_if_there(folder / name).get("eos_token_id")
        if ids is not None:
            return [ids] if isinstance(ids, int) else list(ids)
    return []


def model_max_length(tokenizer_config: Mapping[str, Any]) -> int | None:
    """The longest text that tokenizer_config.json names; None: none. 10**30 is how transformers says so."""
    value = tokenizer_config.get("model_max_length")
    return None if value is None or value > _MAX_ID else int(value)


def read_tokenizer_spec(folder: Path) -> dict[str, Any]:
    """A parsed tokenizer.json, or the same structure made of vocab.json and merges.txt.

    Raises FileNotFoundError naming what is missing, UnsupportedTokenizer for a bare sentencepiece model.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"tokenizer folder {str(folder)!r} does not exist.")
    if (folder / "tokenizer.json").is_file():
        return load_json_object(folder / "tokenizer.json")
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _spec_of_gpt2_files(folder)
    if (folder / "tokenizer.model").is_file():
        raise UnsupportedTokenizer(
            f"{folder} has only tokenizer.model (sentencepiece); save it once with transformers to get tokenizer.json."
        )
    raise FileNotFoundError(f"{str(folder)!r} has neither tokenizer.json nor vocab.json with merges.txt.")


def check_vocabulary(spec: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json whose ids are whole numbers from 0 to 2**24: arrays of that length are made of them.

    Raises ValueError. A part that is missing is left to whoever reads it.
    """
    model = spec["model"]
    vocab = model.get("vocab") if model.get("type", "BPE") == "BPE" else None
    if vocab is not None and not isinstance(vocab, dict):
        raise TypeError(f"vocab must be an object of token -> id, got {type(vocab).__name__}")
    if spec.get("added_tokens", ()) is None:
        raise ValueError("added_tokens must be a list of objects, got None")
    added = {str(entry["content"]): entry["id"] for entry in spec.get("added_tokens", ())}
    for token, token_id in {**(vocab or {}), **added}.items():
        if not is_int(token_id) or not 0 <= token_id < _MAX_ID:
            raise ValueError(f"the id of token {token[:40]!r} must be 0 to {_MAX_ID - 1}, got {shown(token_id)}")
    for tokens in (vocab or {}, added):
        _check_one_id_each(tokens)
    for token, token_id in added.items():
        if vocab and vocab.get(token, token_id) != token_id:
            raise ValueError(
                f"token {token[:40]!r} must have one id, got {token_id} in added_tokens and {vocab[token]} in vocab"
            )
    _check_one_id_each({**(vocab or {}), **added})
    return spec


def _check_one_id_each(tokens: Mapping[str, int]) -> None:
    if len(of_id := {token_id: token for token, token_id in tokens.items()}) < len(tokens):
        first = next(token for token, token_id in tokens.items() if of_id[token_id] != token)
        other = of_id[tokens[first]]
        raise ValueError(f"tokens {first[:40]!r} and {other[:40]!r} must not have one id, got {tokens[first]} for both")


def _spec_of_gpt2_files(folder: Path) -> dict[str, Any]:
    names = load_json_if_there(folder / "added_tokens.json")
    vocab = {**load_json_object(folder / "vocab.json"), **names}
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    config = read_tokenizer_config(folder)
    special = read_special_tokens(folder)
    beside = [each for keys in _files_of_names(folder).values() for each in tokens_beside(keys)]
    whole = {text for key, text, _ in beside if key != "added_tokens_decoder"}
    added = [
        {"id": vocab[content], "content": content, "special": content in whole}
        for content in sorted({*names, *(text for _, text, _ in beside)}) if content in vocab
    ]  # fmt: skip
    return {
        "model": {"type": "BPE", "vocab": vocab, "merges": [x for x in lines if x and not x.startswith("#version")]},
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": bool(config.get("add_prefix_space"))},
        "post_processor": _template(config, special, vocab),
        "decoder": {"type": "ByteLevel"},
    }


def _template(config: dict[str, Any], special: dict[str, str], vocab: dict[str, int]) -> dict[str, Any] | None:
    """BOS and EOS around a text, where tokenizer_config.json says `add_bos_token` and `add_eos_token`. Beside a
    tokenizer.json, whose own template counts, the two change nothing: as in transformers 5."""
    bos, eos = (
        special[name] if config.get(f"add_{name}") and special.get(name) in vocab else None
        for name in ("bos_token", "eos_token")
    )
    if bos is None and eos is None:
        return None
    around = [[{"SpecialToken": {"id": token}}] if token else [] for token in (bos, eos)]
    return {
        "type": "TemplateProcessing",
        "single": [*around[0], {"Sequence": {"id": "A"}}, *around[1]],
        "special_tokens": {token: {"ids": [vocab[token]]} for token in (bos, eos) if token},
    }

"""Flags from a file. Upstream twin: `vllm/utils/argparse_utils.py`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def pull_args_from_config(words: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """The words of a command line, with the flags of its `--config FILE` in front, so that its own win.

    The file is a YAML mapping from flags to values: `port: 8000`, `enable-prefix-caching: false`, `api-key: [a, b]`.
    `model` may stand there.

    Raises:
        ValueError: no such file, no YAML, not a mapping, or a flag that does not exist.

    Upstream: upstream/vllm/utils/argparse_utils.py:443 — `FlexibleArgumentParser._pull_args_from_config`.
    """
    path, rest = _config_of(words)
    if path is None:
        return words
    known = {option.lstrip("-"): action for action in parser._actions for option in action.option_strings}
    added: list[str] = []
    tag: list[str] = []
    for name, value in _read(path).items():
        flag = str(name).replace("_", "-")
        if flag in ("model", "model-tag"):
            tag = [str(value)]
            continue
        if flag not in known:
            raise ValueError(f"--config {path}: there is no flag --{flag}")
        added += _words_of(flag, value, known[flag])
    model_given = parser.parse_known_args(rest)[0].model_tag is not None
    return [*(tag if not model_given else []), *added, *rest]


def _config_of(words: list[str]) -> tuple[str | None, list[str]]:
    """The file that `--config` names, and the other words."""
    for at, word in enumerate(words):
        if word.startswith("--config="):
            return word.partition("=")[2], [*words[:at], *words[at + 1 :]]
        if word == "--config":
            if at + 1 == len(words):
                raise ValueError("--config needs the path of a YAML file")
            return words[at + 1], [*words[:at], *words[at + 2 :]]
    return None, words


def _read(path: str) -> dict[Any, Any]:
    try:
        import yaml
    except ImportError:
        raise ImportError("--config needs PyYAML: pip install 'mini-vllm-course[serve]'") from None
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"--config {path}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"--config {path} must be a mapping from flags to values, got {type(found).__name__}")
    return found


def _words_of(flag: str, value: Any, action: argparse.Action) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return (
            [f"--{flag}"] if value else [f"--no-{flag}"] if isinstance(action, argparse.BooleanOptionalAction) else []
        )
    if isinstance(value, list) and action.nargs == "+":
        return [f"--{flag}", *map(str, value)]
    return [f"--{flag}={value if isinstance(value, str) else json.dumps(value)}"]

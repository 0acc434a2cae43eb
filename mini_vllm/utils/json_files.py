"""JSON files of a checkpoint, which may be damaged or meant ill. Upstream has no twin: transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MAX_BYTES = 1 << 28
"""Larger than any tokenizer.json; a file of the size of weights is none."""


def load_json(file: Path, error: type[ValueError] = ValueError) -> Any:
    """Parse a file. Raises `error`, which names it: not JSON, not text, nested too deep, too large, not readable."""
    try:
        if not file.is_file():
            raise error(f"{file}: not a file.")
        if file.stat().st_size > _MAX_BYTES:
            raise error(f"{file}: {file.stat().st_size} bytes are too many for a JSON file; allowed: {_MAX_BYTES}.")
        return json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as damage:
        raise error(f"{file}: not valid JSON ({damage}).") from None
    except RecursionError:
        raise error(f"{file}: not valid JSON (nested too deep).") from None
    except ValueError as damage:
        if isinstance(damage, error) and str(damage).startswith(str(file)):
            raise
        raise error(f"{file}: not valid JSON ({damage}).") from None  # a number of too many digits
    except OSError as damage:
        raise error(f"{file}: {damage.strerror}.") from None


def load_json_object(file: Path, error: type[ValueError] = ValueError) -> dict[str, Any]:
    """As `load_json`, and it must hold a JSON object."""
    value = load_json(file, error)
    if not isinstance(value, dict):
        raise error(f"{file} must hold a JSON object, got {type(value).__name__}")
    return value

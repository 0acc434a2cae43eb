"""The wordings of the generators: lists of words and sentence templates, as data, one file per module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load(module: str) -> dict[str, Any]:
    """The lists of one module, by the name under which it uses them."""
    return json.loads((Path(__file__).parent / f"{module}.json").read_text(encoding="utf-8"))

"""How recordings are kept: JSON, packed with xz, the same bytes for the same document."""

import json
import lzma
from pathlib import Path
from typing import Any


def read_packed(file: Path) -> Any:
    """The document in `file`."""
    return json.loads(lzma.decompress(file.read_bytes()))


def write_packed(file: Path, document: Any, **options: Any) -> int:
    """Write `document` to `file` and return its size in bytes; `options` are those of `json.dumps`."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, **options)
    return file.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))

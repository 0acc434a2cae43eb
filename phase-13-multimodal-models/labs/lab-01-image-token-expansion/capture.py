"""Writes `captured/smart_resize.json`: what transformers' `smart_resize` says of 120 pictures, which vLLM asks too.

The function's file wants torchvision, the function does not, so it is taken out of the file as it stands there.
"""

from __future__ import annotations

import ast
import datetime
import importlib.metadata
import importlib.util
import json
import math
import platform
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent


def smart_resize():
    """transformers' function."""
    package = Path(importlib.util.find_spec("transformers").origin).parent
    text = (package / "models" / "qwen2_vl" / "image_processing_qwen2_vl.py").read_text(encoding="utf-8")
    (node,) = (each for each in ast.parse(text).body if getattr(each, "name", "") == "smart_resize")
    names = {"math": math}
    exec(ast.unparse(node), names)
    return names["smart_resize"]


def main() -> None:
    """Write both files: rows of width, height, least and most pixels, and the size that comes out."""
    rng, resize, rows = random.Random(0), smart_resize(), []
    for number in range(120):
        low, high = (1, 60) if number % 4 == 0 else (30, 4000)
        width, height = rng.randint(low, high), rng.randint(low, high)
        least, most = rng.choice([(3136, 1003520), (3136, 12845056), (50176, 200704)])
        tall, wide = resize(height, width, factor=28, min_pixels=least, max_pixels=most)
        rows.append([width, height, least, most, wide, tall])
    folder = HERE / "captured"
    (folder / "smart_resize.json").write_text(json.dumps(rows) + "\n", encoding="utf-8")
    entry = {
        "machine": "x86-64 virtual machine, 2 cores", "device": "cpu", "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), "transformers": importlib.metadata.version("transformers")},
        "model": "none: a function of sizes",
        "commands": {"smart_resize.json": f"python {HERE.relative_to(HERE.parents[2]).as_posix()}/capture.py"},
        "edited": "no",
    }  # fmt: skip
    (folder / "provenance.json").write_text(json.dumps({"cpu": entry}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Records what the playgrounds show: ``python docs/play/record.py`` writes ``docs/play/data/*.json``.

With ``--check`` it writes nothing and exits with 1 where a committed file is not what the engine gives today. Each file
has ``answers``: the truth of each question that a playground asks, computed here by `mini_vllm` (or read from a phase's
captures). The JavaScript computes its answers by itself, and `course/tests/test_play.py` compares the two.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("data")
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import recordings  # noqa: E402

RECORDINGS: dict[str, Callable[[], dict[str, Any]]] = recordings.ALL
"""Name of a playground, and of its file -> what makes its content."""


def text_of(name: str) -> str:
    """A file's content as it is written."""
    return json.dumps(RECORDINGS[name](), ensure_ascii=False, separators=(",", ":")) + "\n"


def main() -> int:
    """Write the files, or with ``--check`` compare them."""
    wrong = []
    for name in RECORDINGS:
        path, text = DATA / f"{name}.json", text_of(name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            wrong.append(path.name)
    print("; ".join(f"{name} differs: run python docs/play/record.py" for name in wrong) or "recorded")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

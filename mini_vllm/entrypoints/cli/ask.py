"""`course ask`: which places of the course answer a question. Upstream has no twin; the search is in `models/search/`.

It stands here, and is imported where it is used, because the command line of the course has to start fast.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def ask(question: str) -> None:
    """The three best places of the course for a question; the first time it reads all pages, which takes a minute."""
    sys.path.append(str(ROOT))  # models/ stands in the clone, and is not installed
    try:
        from models.search.ask import ask as places_of

        found = places_of(ROOT, question)
    except (ImportError, FileNotFoundError, ValueError) as error:
        print(f"course ask: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(*found, sep="\n")

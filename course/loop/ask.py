"""`course ask`: which places of the course answer a question. The search is in `models/search/`."""

from __future__ import annotations

import sys

from course.labs import ROOT


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

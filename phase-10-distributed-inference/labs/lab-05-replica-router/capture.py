"""Makes `captured/` anew: asks the real router and writes the provenance.

    python capture.py --python .venv-vllm/bin/python

Maintainers run this when the pinned release moves.
"""

from pathlib import Path

from course.captures import capture_answers

if __name__ == "__main__":
    capture_answers(Path(__file__), __doc__, "routes.json.xz", "statistics made for the purpose, no model")

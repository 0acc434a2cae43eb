"""Makes `captured/` anew: asks the real classes for their decisions and writes the provenance.

    python capture.py --python .venv-vllm/bin/python

Maintainers run this when the pinned release moves.
"""

from pathlib import Path

from course.captures import capture_answers

if __name__ == "__main__":
    capture_answers(Path(__file__), __doc__, "cpu-decisions.json.xz", "configuration objects and the dispatcher only")

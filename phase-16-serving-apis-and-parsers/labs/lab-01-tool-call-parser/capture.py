"""Makes `captured/` anew: what vLLM's parser makes of eight texts, whole and streamed, and the provenance.

    python capture.py --python .venv-vllm/bin/python

Maintainers run this when the pinned release moves.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from course.captures import capture_answers

if __name__ == "__main__":
    capture_answers(Path(__file__), __doc__, "texts.json", "the parser alone is run")

"""Makes `captured/resolve.json` anew, for maintainers, when the pinned release moves.

python capture.py --python .venv-vllm/bin/python
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.captures import capture_answers  # noqa: E402

if __name__ == "__main__":
    capture_answers(HERE / "real_run.py", __doc__, "resolve.json", "entry points and device probes are replaced")

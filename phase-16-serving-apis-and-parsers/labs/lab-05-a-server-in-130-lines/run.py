"""Your server on a real port, with pocket behind it: `python run.py [PORT] [blocking]` (LAB_IMPL=solution).

curl -N localhost:8016/v1/completions -d '{"prompt": "Once", "max_tokens": 200, "stream": true}'
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402


def main() -> None:
    from mini_vllm import LLMEngine

    lab, wire = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py"), load(HERE / "wire.py")
    numbers = [each for each in sys.argv[1:] if each.isdigit()]
    listener = wire.TcpListener(int(numbers[0]) if numbers else 8016)
    start = lab.serve_blocking if "blocking" in sys.argv else lab.serve
    server = start(LLMEngine(str(HERE.parents[2] / "models" / "pocket")), listener)
    print(f"{start.__name__} on http://127.0.0.1:{listener.port}, until Ctrl-C")
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        server.close()


if __name__ == "__main__":
    main()

"""A client behind a bad wire: `python demo.py` (LAB_IMPL=solution for the reference).

The wire cuts bytes at random and hangs up twice; the client comes back with her key and her last id. The text should
grow without a seam, and no token should be computed twice.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402


def main() -> None:
    from mini_vllm import LLMEngine, SamplingParams

    lab, rng = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py"), random.Random(5)
    engine = LLMEngine(str(HERE.parents[2] / "models" / "pocket"))
    hub, tokenizer = lab.StreamHub(engine), engine.get_tokenizer()
    prompt = tokenizer.encode("<|user|>\nTell me a story about a fox and a violin.<|end|>\n<|assistant|>\n")
    params, received, last, done = SamplingParams(temperature=0, max_tokens=60), [], None, False
    while not done:
        stream, decoder = hub.open(prompt, params, key="demo", last_event_id=last), lab.EventDecoder()
        hangs_up = rng.randrange(6, 11)
        while not done and hangs_up > 0:
            for _ in range(rng.randrange(1, 5)):
                hub.pump()
            event = stream.read()
            wire = lab.encode_event(event) if event else b""
            while wire:
                cut = rng.randrange(1, 9)
                for event_id, data in decoder.feed(wire[:cut]):
                    last = event_id
                    received += json.loads(data)["token_ids"]
                    done = json.loads(data)["finish_reason"] is not None
                wire = wire[cut:]
            hangs_up -= 1
        stream.close()
        made = engine.stats.num_generation_tokens
        print(f"received {len(received):3} · computed {made:3} · {tokenizer.decode(received)!r}")
        if not done:
            print("    the wire is gone; three steps later she is back")
            for _ in range(3):
                hub.pump()


if __name__ == "__main__":
    main()

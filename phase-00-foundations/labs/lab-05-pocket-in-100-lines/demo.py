"""Your model at work: `python demo.py` from this folder or anywhere (LAB_IMPL=solution for the reference).

It says an answer twice, with and without your cache, and draws what each cost. `load_pocket` is for the tests too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
POCKET = ROOT / "models" / "pocket"


def load_pocket(folder: Path = POCKET, dtype: Any = np.float32) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A checkpoint: its config.json, and name -> array, the float16 of the file made wider.

    A safetensors file is a length (8 bytes), a table of names in JSON (type, shape, first and last byte), and the
    bytes.
    """
    data = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:start])
    table.pop("__metadata__", None)
    weights = {}
    for name, row in table.items():
        first, last = row["data_offsets"]
        weights[name] = np.frombuffer(data[start + first : start + last], "<f2").reshape(row["shape"]).astype(dtype)
    return json.loads((folder / "config.json").read_text(encoding="utf-8")), weights


def bars(rows: dict[str, tuple[int, float]]) -> str:
    """Two bars for each row of (rows through the model, seconds), each to the larger of its kind."""
    most = [max(values[i] for values in rows.values()) for i in (0, 1)]
    lines = []
    for name, (count, seconds) in rows.items():
        for value, top, text in ((count, most[0], f"{count:,} rows"), (seconds, most[1], f"{seconds:.2f} s")):
            lines.append(f"{name:>14}  {'█' * max(1, round(40 * value / top)):40} {text}")
            name = ""
    return "\n".join(lines)


def main() -> None:
    """Answer, count, draw."""
    sys.path.insert(0, str(ROOT))
    from course.labs import load
    from mini_vllm import LLM, SamplingParams

    impl = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")
    config, weights = load_pocket()
    engine = LLM(POCKET)
    question = [{"role": "user", "content": "What is a KV block?"}]
    output = engine.chat(question, SamplingParams(temperature=0.0, max_tokens=60), use_tqdm=False)[0]
    prompt = output.prompt_token_ids
    print(f"the engine: {output.outputs[0].text}")
    made, real = {}, impl.forward
    for name, use_cache in (("with a cache", True), ("without", False)):
        count = 0

        def counting(config: Any, weights: Any, ids: Any, *rest: Any) -> Any:
            nonlocal count
            count += len(ids)
            return real(config, weights, ids, *rest)

        impl.forward = counting
        start = time.process_time()
        answer = impl.generate(config, weights, prompt, 60, use_cache)
        made[name] = (count, time.process_time() - start)
        print(f"{name}: {engine.get_tokenizer().decode(answer)}")
    impl.forward = real
    print(f"\n{bars(made)}\n")
    fewer, faster = (made["without"][i] / made["with a cache"][i] for i in (0, 1))
    print(f"{fewer:.1f} times fewer rows, {faster:.1f} times less processor time.")


if __name__ == "__main__":
    main()

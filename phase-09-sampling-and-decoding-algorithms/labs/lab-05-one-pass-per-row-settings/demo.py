"""Your code at work: `python demo.py [SEED]` (LAB_IMPL=solution for the reference).

Six copies of one request in one batch, with six temperatures, drawn by one call of your function at each step. Then the
same six at temperature 2, with a filter each.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402
from mini_vllm import LLM, EngineParts, SamplingParams  # noqa: E402

QUESTION = "Tell me a story about a fox and a violin."
HEAT: list[dict[str, Any]] = [{"temperature": t} for t in (0.0, 0.4, 0.8, 1.2, 1.6, 2.0)]
FILTERS: list[dict[str, Any]] = [
    {}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 50, "top_p": 0.9}, {"min_p": 0.2},
]  # fmt: skip


def main() -> None:
    lab, plug = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py"), load(HERE / "plug.py")
    calls: list[int] = []

    def counted(logits: Any, *settings: Any) -> Any:
        calls.append(len(logits))
        return lab.sample_batch(logits, *settings)

    watch = SimpleNamespace(call=lambda function, *args: function(*args), require=lambda holds, text: None)
    sampler = plug.fit(SimpleNamespace(sample_batch=counted), watch)
    llm = LLM(str(HERE.parents[2] / "models" / "pocket"), with_labs=EngineParts(sampler=sampler))
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    print(QUESTION)
    for settings in (HEAT, [{"temperature": 2.0, **each} for each in FILTERS]):
        params = [SamplingParams(**each, seed=seed, max_tokens=18, ignore_eos=True) for each in settings]
        chats = [[{"role": "user", "content": QUESTION}]] * 6
        print()
        for each, output in zip(settings, llm.chat(chats, params, use_tqdm=False), strict=True):
            name = ", ".join(f"{key} {value}" for key, value in each.items())
            print(f"{name:38} {output.outputs[0].text.strip()!r}")
    print(f"\n{len(calls)} calls of your code for {sum(calls)} tokens")


if __name__ == "__main__":
    main()

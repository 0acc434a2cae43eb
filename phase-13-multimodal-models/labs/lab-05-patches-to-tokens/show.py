"""Your tower in the engine: `models/pocket-vl` reads words and digits with it, then with its positions all zero."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from course.labs import load
from course.plugs.guards import Watch
from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.parts import EngineParts

HERE = Path(__file__).resolve().parent
given, plug = load(HERE / "given.py"), load(HERE / "plug.py")


def parts(lab: Any, positions: bool = True) -> EngineParts:
    """The engine's parts with `VisionTower` of the lab in the place of the model's own tower and projector."""

    def change(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return weights if positions else {**weights, given.POSITIONS: np.zeros_like(weights[given.POSITIONS])}

    return EngineParts(vision_tower=plug.fit(lab, Watch("vision tower", "13-05"), print, change))


def right(lab: Any, kind: str, positions: bool, count: int = 24) -> int:
    """Of `count` pictures of a seed of this lab's own, how many are read without a fault."""
    pictures = plug.pictures(kind, count)
    llm = LLM(plug.POCKET_VL, with_labs=parts(lab, positions), num_blocks=400)
    prompts = [plug.prompt(plug.QUESTIONS[kind][0], picture) for picture in pictures]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False)
    answers = [output.outputs[0].text.replace(".", " ").split() for output in outputs]
    return sum(picture.text in answer for picture, answer in zip(pictures, answers, strict=True))


def show(lab: Any, count: int = 24) -> str:
    """The table."""
    lines = [f"read right, of {count}   positions   none"]
    for kind in plug.QUESTIONS:
        with_them, without = (right(lab, kind, positions, count) for positions in (True, False))
        lines.append(f"{kind:20} {with_them:9}   {without:4}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(show(load(HERE / (sys.argv[1] if len(sys.argv) > 1 else "starter.py"))))

"""Your tower in the engine: `models/pocket-vl` reads words and digits with it, then with its positions all zero."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from course.labs import ROOT, load
from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.parts import EngineParts
from mini_vllm.model_loader.safetensors_reader import Checkpoint
from models.training.pocket_vl.conversations import draw_number, draw_word

HERE = Path(__file__).resolve().parent
given = load(HERE / "given.py")
QUESTIONS: dict[str, tuple[str, Callable[[np.random.Generator], Any]]] = {
    "words": ("What word is written?", draw_word),
    "digits": ("What digit do you see?", lambda rng: draw_number(rng, 1)),
}


def parts(lab: Any, positions: bool = True) -> EngineParts:
    """The engine's parts with `VisionTower` of the lab in the place of the model's own tower and projector."""

    def vision_tower(model: Any, folder: str | None, config: Any) -> Callable[..., Sequence[np.ndarray]]:
        with Checkpoint(Path(folder or "")) as checkpoint:
            names = [name for name in checkpoint.names() if name.startswith((given.TOWER, given.PROJECTOR))]
            weights = {name: np.asarray(checkpoint.read(name), np.float32) for name in names}
        if not positions:
            weights[given.POSITIONS] = np.zeros_like(weights[given.POSITIONS])
        vision = model.media.vision
        tower = lab.VisionTower(
            weights, patch_size=vision.patch_size, image_size=vision.image_size, eps=vision.layer_norm_eps,
            num_heads=vision.num_attention_heads, num_layers=vision.num_hidden_layers,
        )  # fmt: skip
        return lambda *, pixel_values: list(tower.embed_multimodal(np.stack(pixel_values)))

    return EngineParts(vision_tower=vision_tower)


def right(lab: Any, kind: str, positions: bool, count: int = 24) -> int:
    """Of `count` pictures of a seed of this lab's own, how many are read without a fault."""
    question, draw = QUESTIONS[kind]
    pictures = [draw(np.random.default_rng([1305, number])) for number in range(count)]
    llm = LLM(ROOT / "models" / "pocket-vl", with_labs=parts(lab, positions), num_blocks=400)
    text = f"<|user|>\n<image>\n{question}<|end|>\n<|assistant|>\n"
    prompts = [{"prompt": text, "multi_modal_data": {"image": picture.pixels}} for picture in pictures]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False)
    answers = [output.outputs[0].text.replace(".", " ").split() for output in outputs]
    return sum(picture.text in answer for picture, answer in zip(pictures, answers, strict=True))


def show(lab: Any, count: int = 24) -> str:
    """The table."""
    lines = [f"read right, of {count}   positions   none"]
    for kind in QUESTIONS:
        with_them, without = (right(lab, kind, positions, count) for positions in (True, False))
        lines.append(f"{kind:20} {with_them:9}   {without:4}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(show(load(HERE / (sys.argv[1] if len(sys.argv) > 1 else "starter.py"))))

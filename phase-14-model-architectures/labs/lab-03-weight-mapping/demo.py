"""Pocket, loaded by you: `python demo.py [QUESTION]` (LAB_IMPL=solution for the reference).

The engine's model starts with NaN in every weight; your `load_checkpoint` fills it, and it answers. Then k and v of
layer 3 change places on the way, which no shape can show.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402
from mini_vllm import LLM, SamplingParams  # noqa: E402


def answer(given: Any, lab: Any, weights: Any, question: str) -> str:
    """Load, serve, ask."""
    model, tokenizer, params = given.empty_pocket()
    lab.load_checkpoint(params, weights, **given.SIZES)
    llm = LLM(model, tokenizer=tokenizer, num_blocks=64)
    chat = f"<|user|>\n{question}<|end|>\n<|assistant|>\n"
    [output] = llm.generate([chat], SamplingParams(temperature=0.0, max_tokens=40), use_tqdm=False)
    return output.outputs[0].text


def swapped(given: Any) -> Iterator[tuple[str, Any]]:
    """k and v of layer 3 have changed names."""
    for name, tensor in given.tensors():
        if ".3.self_attn." in name:
            name = {"k": name.replace("k_proj", "v_proj"), "v": name.replace("v_proj", "k_proj")}.get(
                name.split(".")[-2][0], name
            )
        yield name, tensor


def main() -> None:
    given, lab = load(HERE / "given.py"), load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")
    question = sys.argv[1] if len(sys.argv) > 1 else "What is a KV block?"
    print("loaded by you:          ", answer(given, lab, given.tensors(), question))
    print("k and v of layer 3 swapped:", answer(given, lab, swapped(given), question))


if __name__ == "__main__":
    main()

"""Makes `captured/texts.json.xz`: the texts with which `given.py` computes what two `qkv` projections are given.

    python phase-06-quantization/labs/lab-07-gptq-and-awq/capture.py

The texts are conversations of the kind that pocket was trained on: seeds from 1 on for calibration, from 9,000,000 on
for what is held out, each cut at 256 tokens. `inputs()` runs them through the engine in its plain form and draws rows
as `given.py` does; a slow test compares the two.
"""

from __future__ import annotations

import datetime
import json
import lzma
import platform
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
LAYERS, HEAD_ROWS = (4, 7), 64
SETS = {"calibration": (1, 1024), "held_out": (9_000_000, 512)}


def texts(llm: Any, seed: int, count: int) -> Iterator[list[int]]:
    """Conversations of seed, seed + 1, … as token ids, 256 at most of each, until they have `count` tokens."""
    from models.training.chat_format import SPECIAL_TOKENS, to_ids
    from models.training.conversations import make_conversation

    def encode(text: str) -> list[int]:
        return llm.get_tokenizer().encode(text, add_special_tokens=False)

    special = {token: encode(token)[0] for token in SPECIAL_TOKENS}
    while count > 0:
        ids = to_ids(make_conversation(random.Random(seed)), encode, special)[0][:256]
        yield ids
        seed, count = seed + 1, count - len(ids)


def rows_of(llm: Any, projections: dict[Any, Any], seed: int, count: int) -> dict[Any, np.ndarray]:
    """name -> `count` of the rows that this projection is given, drawn from four times as many tokens."""
    from mini_vllm import SamplingParams

    seen: dict[Any, list[np.ndarray]] = {name: [] for name in projections}

    def spied(name: Any, forward: Any) -> Any:
        def watch(x: np.ndarray) -> np.ndarray:
            seen[name].append(x.copy())
            return forward(x)

        return watch

    for name, projection in projections.items():
        projection.forward = spied(name, projection.forward)
    try:
        for ids in texts(llm, seed, 4 * count):
            prompt = {"prompt_token_ids": ids}
            llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0.0), use_tqdm=False)
    finally:
        for projection in projections.values():
            del projection.forward
    chosen = np.random.default_rng(0).permutation(4 * count)[:count]
    return {name: np.concatenate(rows)[chosen] for name, rows in seen.items()}


def inputs() -> tuple[dict[str, np.ndarray], dict[str, list[list[int]]]]:
    """The arrays of `given.inputs()`, by the engine, and the texts of both sets."""
    from course.labs import load
    from mini_vllm import LLM

    as_bfloat16 = load(HERE / "given.py").as_bfloat16
    llm = LLM(str(POCKET), enforce_eager=True, enable_prefix_caching=False)
    layers = llm.llm_engine.model.model.layers
    projections = {layer: layers[layer].self_attn.qkv_proj for layer in LAYERS}
    found = {}
    for name, (seed, count) in SETS.items():
        for layer, rows in rows_of(llm, projections, seed, count).items():
            found[f"{name}_{layer}"] = as_bfloat16(rows)
    for layer in LAYERS:
        found[f"weight_{layer}"] = projections[layer].weight[:HEAD_ROWS].astype(np.float16)
    return found, {name: list(texts(llm, seed, 4 * count)) for name, (seed, count) in SETS.items()}


def main() -> None:
    """Writes the texts and where they come from."""
    folder = HERE / "captured"
    folder.mkdir(exist_ok=True)
    packed = json.dumps(inputs()[1], separators=(",", ":")).encode()
    (folder / "texts.json.xz").write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))
    provenance = {
        "machine": f"{platform.machine()} virtual machine, one thread",
        "model": "models/pocket",
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "commands": {"texts.json.xz": "python phase-06-quantization/labs/lab-07-gptq-and-awq/capture.py"},
        "edited": "nothing",
    }
    (folder / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

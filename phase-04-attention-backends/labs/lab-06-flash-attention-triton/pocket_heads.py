"""How often a real head is corrected: your kernel over every layer and head of the committed model. Given material.

    python pocket_heads.py                    the reference
    LAB_IMPL=starter python pocket_heads.py   yours

The model reads the beginning of the repository's LICENSE; queries, keys and values of each layer are taken on their
way into attention. The kernel then attends with the last 64 queries of each head, in tiles of 16 keys, and its counts
are printed beside H(tiles).
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from course.labs import load
from mini_vllm.kernels.interpreter import triton_or_skip

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
CHARACTERS = 1500
QUERIES, TILE = 64, 16


class Recorder:
    """An attention backend of the engine that hands on to `inner` and keeps what each layer was given."""

    name = "recorder"

    def __init__(self, inner: Any, kept: list[tuple[np.ndarray, ...]], *args: Any) -> None:
        self.inner, self.kept = inner(*args), kept

    def begin_step(self, metadata: Any) -> Any:
        step = self.inner.begin_step(metadata)

        def attn(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
            self.kept.append(tuple(np.array(x, np.float32) for x in (q, k, v)))
            return step(layer, q, k, v)

        return attn


def layers_of(text: str) -> list[tuple[np.ndarray, ...]]:
    """(q [T, H, d], k [T, H_kv, d], v alike) of each layer, for one prompt read in one step."""
    from mini_vllm import LLM, PagedGatherBackend, SamplingParams

    kept: list[tuple[np.ndarray, ...]] = []
    llm = LLM(ROOT / "models" / "pocket", attention_backend=partial(Recorder, PagedGatherBackend, kept))
    llm.generate(text, SamplingParams(max_tokens=1), use_tqdm=False)
    return kept


def corrections_map(flash_attention: Any, layers: list[tuple[np.ndarray, ...]]) -> np.ndarray:
    """[layers, heads]: mean corrections a row of the last QUERIES queries."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for q, k, v in layers:
        group = q.shape[1] // k.shape[1]
        q, k, v = (torch.from_numpy(x).to(device) for x in (q[-QUERIES:], k, v))
        heads = [(q[:, h], k[:, h // group], v[:, h // group]) for h in range(q.shape[1])]
        rows.append([flash_attention(*head, block_n=TILE)[1].double().mean().item() for head in heads])
    return np.array(rows)


def main() -> None:
    """Prints the map."""
    triton_or_skip()
    lab = load(HERE / f"{os.environ.get('LAB_IMPL', 'solution')}.py")
    layers = layers_of((ROOT / "LICENSE").read_text(encoding="utf-8")[:CHARACTERS])
    tokens = len(layers[0][0])
    tiles = (tokens - QUERIES / 2) / TILE
    table = corrections_map(lab.flash_attention, layers)
    print(f"{tokens} tokens, about {tiles:.1f} tiles a row; random keys would raise a maximum", end=" ")
    print(f"H({tiles:.1f}) = {sum(1 / n for n in range(1, round(tiles) + 1)):.2f} times")
    for layer, row in enumerate(table):
        bars = "  ".join(f"{x:5.2f} {'#' * round(x):<14}" for x in row)
        print(f"layer {layer}  {bars}")
    print(f"mean {table.mean():.2f}, from {table.min():.2f} to {table.max():.2f}")


if __name__ == "__main__":
    main()

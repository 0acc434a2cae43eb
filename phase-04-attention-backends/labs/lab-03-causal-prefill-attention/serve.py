"""Serves the committed model with the attention of this lab: yours, or the reference. Given material.

    cd phase-04-attention-backends/labs/lab-03-causal-prefill-attention
    LAB_IMPL=starter python serve.py -p "What is a KV block?"

Every request, layer and head of every step goes through `tiled_causal_prefill_attention`: prompts, chunks and decodes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import LLM, AttentionMetadata, KVCache, SamplingParams

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"


class LabBackend:
    """An attention backend of the engine around a function for one request and one head."""

    name = "lab 04-03"

    def __init__(
        self, attend: Callable[..., np.ndarray], kv_cache: KVCache, num_heads: int, windows: Sequence[int | None]
    ) -> None:
        self.attend, self.kv_cache, self.num_heads, self.windows = attend, kv_cache, num_heads, tuple(windows)

    def begin_step(self, metadata: AttentionMetadata) -> Callable[..., np.ndarray]:
        """Write first, then attend, request by request and head by head."""
        group = self.num_heads // self.kv_cache.num_kv_heads

        def attn(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
            self.kv_cache.write(layer, metadata.slot_mapping, k, v)
            keys, values, out = self.kv_cache.key(layer), self.kv_cache.value(layer), np.empty(q.shape, q.dtype)
            for row, table in enumerate(metadata.block_tables.tolist()):
                first, last = (int(i) for i in metadata.query_start_loc[row : row + 2])
                start_pos = int(metadata.seq_lens[row]) - (last - first)
                for head in range(self.num_heads):
                    caches = keys[:, :, head // group], values[:, :, head // group]
                    queries = q[first:last, head]
                    out[first:last, head] = self.attend(
                        queries, *caches, table, start_pos, query_tile=64, window=self.windows[layer]
                    )
            return out.reshape(len(q), -1)

        return attn


def make_llm(attend: Callable[..., np.ndarray], **engine_args: Any) -> LLM:
    """The committed model on a learner's `tiled_causal_prefill_attention`."""
    return LLM(model=POCKET, attention_backend=partial(LabBackend, attend), **engine_args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-p", "--prompt", default="What is a KV block?")
    args = parser.parse_args()
    path = HERE / f"{os.environ.get('LAB_IMPL', 'solution')}.py"
    spec = importlib.util.spec_from_file_location("lab", path)
    assert spec and spec.loader
    lab = sys.modules["lab"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lab)
    llm = make_llm(lab.tiled_causal_prefill_attention)
    message = [{"role": "user", "content": args.prompt}]
    print(llm.chat([message], SamplingParams(max_tokens=60, temperature=0.0))[0].outputs[0].text)


if __name__ == "__main__":
    main()

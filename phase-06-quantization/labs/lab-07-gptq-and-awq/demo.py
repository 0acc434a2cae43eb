"""Your fits in a whole model: `python demo.py` from this folder or anywhere (LAB_IMPL=solution for the reference).

Rounds all 32 projections of pocket to four bits, in five ways, and scores text that no way has seen. Given material.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
GROUP, HELD_OUT, TOKENS = 64, 9_000_000, 3_000


def log_probs(llm: Any, prompts: list[list[int]]) -> np.ndarray:
    """Of every token that could follow, after each token of the texts: [tokens, vocabulary]."""
    from mini_vllm import SamplingParams

    model, hidden = llm.llm_engine.model, []
    norm, forward = model.model.norm, model.model.norm.forward

    def watch(x: np.ndarray) -> np.ndarray:
        hidden.append(forward(x))
        return hidden[-1]

    norm.forward = watch
    for ids in prompts:
        params = SamplingParams(max_tokens=1, temperature=0.0)
        llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
    del norm.forward
    logits = model.compute_logits(np.concatenate(hidden))
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def main() -> None:
    """Round, score, draw."""
    sys.path.insert(0, str(ROOT))
    from course.labs import load
    from mini_vllm import LLM

    impl, capture = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py"), load(HERE / "capture.py")
    llm = LLM(str(ROOT / "models" / "pocket"), enforce_eager=True, enable_prefix_caching=False)
    projections = {}
    for i, layer in enumerate(llm.llm_engine.model.model.layers):
        parts = (layer.self_attn.qkv_proj, layer.self_attn.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj)
        projections |= {(i, kind): part for kind, part in zip(("qkv", "o", "gate_up", "down"), parts, strict=True)}
    rows = capture.rows_of(llm, projections, 1, 4096)
    weights = {name: part.weight.copy() for name, part in projections.items()}
    prompts = list(capture.texts(llm, HELD_OUT, TOKENS))
    before = log_probs(llm, prompts)
    print(
        f"How far four bits (groups of {GROUP}) take pocket from itself: KL divergence in nats, {len(before):,} tokens"
    )
    ways = {"rounding": lambda W, X: (*impl.round_to_nearest(W, GROUP), 1.0)}
    ways |= {f"GPTQ, {n:,} rows": lambda W, X, n=n: (*impl.gptq(W, X[:n], GROUP), 1.0) for n in (64, 1024, 4096)}
    ways |= {f"AWQ, {n:,} rows": lambda W, X, n=n: impl.awq(W, X[:n], GROUP) for n in (64, 1024)}
    ways |= {f"ship, {n:,} rows": lambda W, X, n=n: impl.ship(W, X[:n], GROUP) for n in (64, 1024, 4096)}
    for name, way in ways.items():
        for key, part in projections.items():
            q, scales, c = way(weights[key].astype(float), rows[key].astype(float))
            part.weight[...] = impl.dequantize(q, scales, GROUP) / c
        lost = (np.exp(before) * (before - log_probs(llm, prompts))).sum(axis=1)
        error = lost.std() / len(lost) ** 0.5
        print(f"{name:>17}  {'█' * max(1, round(2500 * lost.mean())):40} {lost.mean():.5f} ± {error:.5f}", flush=True)


if __name__ == "__main__":
    main()

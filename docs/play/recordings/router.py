"""What the router of pocket-moe scores on three texts, and the truths about experts, blocks and tiles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from mini_vllm import LLM, SamplingParams, fused_topk, moe_align_block_size
from mini_vllm.layers.fused_moe.expert_load import expert_loads
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.utils.arrays import Array

ROOT = Path(__file__).resolve().parents[3]
TURN = "<|user|>\n{}<|end|>\n<|assistant|>\n{}"
TEXTS = {
    "a sum": TURN.format("What is 47 + 85?", "47 + 85 = 132"),
    "a story": TURN.format("Tell me a story about a dragon.", "Once upon a time"),
    "a question": TURN.format("What is a KV block?", "A KV block is the unit"),
}
LAYER, TOP_K, EXPERTS = 4, 2, 8
CHOOSE = [0.0, 2.0, 1.0, 0.0]


def routed() -> dict[str, dict[str, Any]]:
    """Text -> its tokens, and the router's logits in one layer, [tokens, experts], to three digits."""
    kept: list[Array] = []
    forward = FusedMoE.forward

    def keep(self: FusedMoE, hidden_states: Array, router_logits: Array) -> Array:
        kept.append(np.array(router_logits))
        return forward(self, hidden_states, router_logits)

    found = {}
    with mock.patch.object(FusedMoE, "forward", keep):
        llm = LLM(str(ROOT / "models" / "pocket-moe"), enforce_eager=True, dtype="float64")
        tokenizer = llm.llm_engine.tokenizer
        for name, text in TEXTS.items():
            kept.clear()
            output = llm.generate([text], SamplingParams(max_tokens=1, temperature=0.0))[0]
            tokens = [b"".join(tokenizer.convert_ids_to_bytes([i])).decode() for i in output.prompt_token_ids]
            found[name] = {"tokens": tokens, "logits": np.round(kept[LAYER], 3).tolist()}
    return found


def tiles() -> ModuleType:
    """The reference solution of lab 07-03, which counts what a tiled product fetches."""
    path = next(ROOT.glob("phase-07-*/labs/lab-03-*/solution.py"))
    spec = importlib.util.spec_from_file_location("play_lab_07_03", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def align(logits: list[list[float]], top_k: int, block_size: int) -> dict[str, Any]:
    """Routing and blocks, as `route` of router.js."""
    scores = np.array(logits)
    weights, ids = fused_topk(scores, top_k, renormalize=True)
    sorted_ids, expert_ids, total = moe_align_block_size(ids, block_size, scores.shape[1])
    return {
        "weights": weights.tolist(),
        "ids": ids.tolist(),
        "loads": expert_loads(ids, scores.shape[1]).tolist(),
        "sorted": sorted_ids[:total].tolist(),
        "experts": expert_ids[: total // block_size].tolist(),
    }


def record() -> dict[str, Any]:
    """Answers, and the scores of three texts."""
    texts = routed()
    four, sixteen = (align(texts["a sum"]["logits"], TOP_K, size) for size in (4, 16))
    best = {name: int(np.argmax(align(text["logits"], TOP_K, 4)["loads"])) for name, text in texts.items()}
    weights = align([CHOOSE], TOP_K, 4)["weights"][0]
    fetched = tiles().tiled_traffic(1024, 1024, 1024, 128, 128)
    answers = {
        "choose": f"{weights[0]:.2f} and {weights[1]:.2f}",
        "busiest": str(max(four["loads"])),
        "again": "yes, the same" if best["a sum"] == best["a story"] else "no, another",
        "blocks": len(four["experts"]),
        "rows": str(len(sixteen["sorted"])),
        "fetched": f"{fetched / 1e6:.0f} million",
    }
    return {"answers": answers, "layer": LAYER, "top_k": TOP_K, "choose": CHOOSE, "texts": texts}

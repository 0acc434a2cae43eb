"""Attention by hand, and what two heads of pocket look at, computed in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from mini_vllm import LLM, SamplingParams, finalize
from mini_vllm.attention.ops.online_softmax import attend_partial
from mini_vllm.models.llama import LlamaAttention
from mini_vllm.utils.arrays import Array

POCKET = str(Path(__file__).resolve().parents[3] / "models" / "pocket")
TEXT = "<|user|>\nWhat is a KV block?<|end|>\n<|assistant|>\nA KV"
HEADS = {"layer 5, head 2": (5, 2), "layer 1, head 1": (1, 1), "layer 0, head 3": (0, 3)}
KEYS, VALUES = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [[10.0, 0.0], [0.0, 10.0], [5.0, 5.0]]


def attend(q: list[float], keys: list[list[float]], values: list[list[float]]) -> dict[str, Any]:
    """Weights and output of one query, as `attend` of attention.js."""
    k, v = np.array(keys), np.array(values)
    weights = finalize(attend_partial(np.array(q), k, np.eye(len(k))))
    return {"weights": weights.tolist(), "output": finalize(attend_partial(np.array(q), k, v)).tolist()}


def heads(text: str) -> tuple[list[int], list[str], dict[str, Array], str]:
    """Ids and tokens of the prompt, the weights of each head [tokens, tokens], and the token that pocket adds.

    Each head's weights times its values are compared with what the engine's attention returned.
    """
    kept: list[tuple[Array, Array]] = []

    def forward(self: LlamaAttention, positions: Array, hidden: Array, attn: Any) -> Array:
        q, k, v = self.qkv_proj.split(self.qkv_proj(hidden))
        q, k = self.rotary_emb(positions, q, k)
        out = attn(self.layer_idx, q, k, v)
        kept.append(weights_of(q, k, v, out))
        return self.o_proj(out)

    with mock.patch.object(LlamaAttention, "forward", forward):
        llm = LLM(POCKET, enforce_eager=True, dtype="float64")
        output = llm.generate([text], SamplingParams(max_tokens=1, temperature=0.0))[0]
    ids, tokenizer = list(output.prompt_token_ids), llm.llm_engine.tokenizer
    tokens = [b"".join(tokenizer.convert_ids_to_bytes([i])).decode() for i in ids]
    return ids, tokens, {name: kept[layer][head] for name, (layer, head) in HEADS.items()}, output.outputs[0].text


def weights_of(q: Array, k: Array, v: Array, out: Array) -> Array:
    """[heads, tokens, tokens], from queries [T, heads, d], keys and values [T, kv heads, d]."""
    num_tokens, num_heads, dim = q.shape
    shared = num_heads // k.shape[1]
    hidden = np.triu(np.full((num_tokens, num_tokens), -np.inf), 1)
    scores = np.einsum("ihd,jhd->hij", q, np.repeat(k, shared, axis=1)) / np.sqrt(dim) + hidden
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    again = np.einsum("hij,jhd->ihd", weights, np.repeat(v, shared, axis=1))
    assert np.allclose(again.reshape(num_tokens, -1), out.reshape(num_tokens, -1), atol=1e-5)
    return weights


def record() -> dict[str, Any]:
    """Answers, the keys and values of the example, tokens and weights of the heads."""
    _, tokens, found, after = heads(TEXT)

    def share(q: list[float]) -> str:
        return f"{100 * attend(q, KEYS, VALUES)['weights'][1]:.0f} %"

    def looks_at(name: str) -> str:
        return tokens[int(found[name][-1].argmax())].strip()

    answers = {
        "hand": share([1, 0]),
        "longer": share([2, 0]),
        "turn": share([0, 1]),
        "mask": int((found["layer 5, head 2"][5] > 0).sum()),
        "before": looks_at("layer 1, head 1"),
        "induction": looks_at("layer 5, head 2"),
    }
    rounded = {name: np.round(weights, 3).tolist() for name, weights in found.items()}
    visible = (found["layer 5, head 2"] > 0).sum(axis=1).tolist()
    return {
        "answers": answers,
        "keys": KEYS,
        "values": VALUES,
        "tokens": tokens,
        "next": after,
        "visible": visible,
        "heads": rounded,
    }

"""What a forward pass of a Llama-like model needs besides its weights: tokens cut into tiles, and scratch for each.

Upstream has no twin: torch allocates, and a GPU kernel cuts up its rows itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mini_vllm.layers.rotary_embedding import RotaryPairs
from mini_vllm.platforms.cpu.threads import num_shares
from mini_vllm.platforms.cpu.workspace import Workspace
from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.models.llama import LlamaForCausalLM

TILE = 512
"""Tokens that go through a layer together: their activations stay in the processor's cache between two products."""
TILES_BETWEEN_MEETINGS = 4
"""Ranks of tensor parallelism meet after so many tiles: each meeting waits for the slower one, and longer ways between
two meetings even out."""


class LlamaTile:
    """Scratch for some tokens [T], feature-major; all but `hidden` and `rows` is shared by the tiles of a thread."""

    cos: Array
    sin: Array

    def __init__(
        self, model: LlamaForCausalLM, workspace: Workspace, tokens: slice, rows: Array, hidden: Array, number: int
    ) -> None:
        c, num_tokens = model.config, tokens.stop - tokens.start
        get, rotated = workspace.get, model.num_heads + model.num_kv_heads
        self.tokens, self.rows = tokens, rows
        self.hidden = hidden.reshape(c.hidden_size, num_tokens)
        self.normed = get("normed", c.hidden_size, num_tokens)
        self.o_parts, self.down_parts = model.partial_sums(workspace, num_tokens, number)
        self.qkv = get("qkv", model.q_size + 2 * model.kv_size, num_tokens)
        self.heads = self.qkv[: model.q_size + model.kv_size].reshape(rotated, model.head_dim, num_tokens)
        pairs = self.heads.reshape(rotated, 2, model.head_dim // 2, num_tokens)
        self.pairs = RotaryPairs(pairs, get("rope", *pairs.shape))
        self.gate_up = get("gate_up", 2 * model.inter_size, num_tokens)
        self.gate, self.up = self.gate_up[: model.inter_size], self.gate_up[model.inter_size :]
        self.silu_tmp = get("silu", model.inter_size, num_tokens)


class LlamaScratch:
    """Scratch for a step of `num_tokens`, kept while the number stays: in steady decode nothing is made anew.

    `rows` [T, Hq + 2 Hkv, D] is token-major, as attention wants it; q, k, v are views of it.
    """

    def __init__(self, model: LlamaForCausalLM, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        h, dim, heads, kv_heads = model.config.hidden_size, model.head_dim, model.num_heads, model.num_kv_heads
        get = model._workspace.get
        rows = get("rows", num_tokens, model.q_size + 2 * model.kv_size)
        by_head = rows.reshape(num_tokens, heads + 2 * kv_heads, dim)
        self.q, self.k, self.v = np.split(by_head, [heads, heads + kv_heads], axis=1)
        hidden = get("hidden", num_tokens * h)
        self.out = get("out", num_tokens, h)
        spaces = model._workspaces[: num_shares(num_tokens)]
        size = min(TILE, max(1, -(-num_tokens // len(spaces))))
        spans = [slice(a, min(a + size, num_tokens)) for a in range(0, num_tokens, size)]
        self.tiles = [
            LlamaTile(model, spaces[i % len(spaces)], s, rows[s], hidden[s.start * h : s.stop * h], i)
            for i, s in enumerate(spans)
        ]
        self.shares = [
            [share[k : k + model.meeting] for k in range(0, len(share), model.meeting)]
            for share in (self.tiles[i :: len(spaces)] for i in range(len(spaces)))
        ]

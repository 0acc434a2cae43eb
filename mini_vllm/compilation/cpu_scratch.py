"""What a compiled forward pass needs besides the weights: tokens cut into tiles, and scratch for each.

Upstream has no twin: Inductor plans its buffers, and a GPU kernel cuts up its rows itself.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.platforms.cpu.kernels import RotaryPairs
from mini_vllm.platforms.cpu.threads import num_shares
from mini_vllm.platforms.cpu.workspace import Workspace
from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.compilation.cpu_fused import FusedDecoder

TILE = 512
"""Tokens that go through a layer together: their activations stay in the processor's cache between two products."""
TILES_BETWEEN_MEETINGS = 4
"""Ranks of tensor parallelism meet after so many tiles: each meeting waits for the slower one, and longer ways between
two meetings even out."""


def exchange_elements(hidden_size: int, tokens_in_one_tile: int = 0) -> int:
    """Elements that the ranks' shared memory should hold for each of its two sides: `TensorParallelGroup`'s
    `num_elements`. Less is used too, in smaller pieces; not where a step of so many tokens is one tile."""
    return hidden_size * max(TILE * TILES_BETWEEN_MEETINGS, tokens_in_one_tile)


class Tile:
    """Scratch for some tokens [T], features first; all but `hidden` and `rows` is shared by the tiles of a thread.

    Attributes:
        hidden: the residual stream [H, T]. rows: q, k and v token-major [T, q + 2 kv], for attention.
        o_parts, down_parts: where the two output products go, [H, T] of each rank.
        qkv: [q + 2 kv, T]. get: more scratch by name, for `FusedDecoder.lay_out`, which sets what follows.
    """

    heads: Array
    pairs: RotaryPairs
    gate_up: Array
    gate: Array
    up: Array
    silu_tmp: Array
    cos: Array
    sin: Array
    angles: dict[Any, tuple[Array, Array]]
    added: Array

    def __init__(
        self, program: FusedDecoder, workspace: Workspace, tokens: slice, rows: Array, hidden: Array, number: int
    ) -> None:
        h, num_tokens = program.config.hidden_size, tokens.stop - tokens.start
        self.get = get = workspace.get
        self.tokens, self.num_tokens, self.rows = tokens, num_tokens, rows
        self.hidden = hidden.reshape(h, num_tokens)
        self.normed = get("normed", h, num_tokens)
        self.o_parts, self.down_parts = _partial_sums(program, workspace, num_tokens, number)
        self.qkv = get("qkv", program.q_size + 2 * program.kv_size, num_tokens)
        program.lay_out(self)


class Scratch:
    """Scratch for a step of `num_tokens`, kept while the number stays: in steady decode nothing is made anew.

    `rows` [T, Hq + 2 Hkv, D] is token-major, as attention wants it; q, k, v are views of it. `shares` holds, per
    thread, the tiles that go to a meeting of the ranks together.
    """

    def __init__(self, program: FusedDecoder, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        model, h = program.model, program.config.hidden_size
        heads, kv_heads = model.num_heads, model.num_kv_heads
        get = program.workspace.get
        rows = get("rows", num_tokens, program.q_size + 2 * program.kv_size)
        by_head = rows.reshape(num_tokens, heads + 2 * kv_heads, model.head_dim)
        self.q, self.k, self.v = np.split(by_head, [heads, heads + kv_heads], axis=1)
        hidden = get("hidden", num_tokens * h)
        self.out = get("out", num_tokens, h)
        spaces = program.workspaces[: 1 if is_one_tile(program) else num_shares(num_tokens)]
        largest, together = tile_sizes(program)
        size = min(largest, max(1, -(-num_tokens // len(spaces))))
        spans = [slice(a, min(a + size, num_tokens)) for a in range(0, num_tokens, size)]
        self.tiles = [
            Tile(program, spaces[i % len(spaces)], s, rows[s], hidden[s.start * h : s.stop * h], i)
            for i, s in enumerate(spans)
        ]
        self.shares = [
            [share[k : k + together] for k in range(0, len(share), together)]
            for share in (self.tiles[i :: len(spaces)] for i in range(len(spaces)))
        ]


def is_one_tile(program: FusedDecoder) -> bool:
    """Whether a step is never cut up: replicas that share experts come to each exchange once, with all their rows."""
    return program.model.context.ep.all2all is not None


def tile_sizes(program: FusedDecoder) -> tuple[int, int]:
    """Tokens of a tile at most, and tiles that go through half a layer before the ranks meet; one rank alone takes tile
    by tile. What the ranks' shared memory holds bounds both."""
    if program.group is None:
        return (sys.maxsize if is_one_tile(program) else TILE), 1
    tokens = program.group.num_elements // program.config.hidden_size
    if tokens < 1:
        raise ValueError(
            f"num_elements of the group must be at least hidden_size, {program.config.hidden_size}, "
            f"got {program.group.num_elements}"
        )
    if is_one_tile(program):
        return tokens, 1
    return min(TILE, tokens), max(1, min(TILES_BETWEEN_MEETINGS, tokens // TILE))


def _partial_sums(
    program: FusedDecoder, workspace: Workspace, num_tokens: int, number: int
) -> tuple[list[Array], list[Array]]:
    """Where the output products of tile `number` go, [H, tokens] of each rank; one rank alone needs but one place."""
    h = program.config.hidden_size
    if program.group is None:
        alone = [workspace.get("proj", h, num_tokens)]
        return alone, alone
    largest, together = tile_sizes(program)
    start = number % together * largest * h
    return program.group.parts(0, start, h, num_tokens), program.group.parts(1, start, h, num_tokens)

"""The fast form of a model on a CPU: the same layer objects, computed in another order and layout.

    features first    activations are [features, tokens]: `weight @ x` is BLAS's fastest product for few tokens
    cut products      few tokens are multiplied in blocks of rows that OpenBLAS does not pack: platforms/cpu/products.py
    tiles             512 tokens go through half a layer together, so that what is between two products stays in cache
    kept scratch      a step of as many tokens as the last one allocates nothing
    shares            of many tokens, each thread takes some tiles: platforms/cpu/threads.py
    meetings          ranks leave partial sums where all see them, wait twice a layer, and each adds up all

The model files (`mini_vllm/models/`) say what is computed, and `enforce_eager=True` runs them as they stand. Upstream
does this with torch.compile: upstream/vllm/compilation/decorators.py:331 — `_support_torch_compile`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import Any

import numpy as np

from mini_vllm.compilation.cpu_scratch import Scratch, Tile
from mini_vllm.layers.linear import LinearBase
from mini_vllm.platforms.cpu.memory import aligned_empty
from mini_vllm.platforms.cpu.products import project
from mini_vllm.platforms.cpu.threads import num_shares, num_threads, one_blas_thread, run_shares
from mini_vllm.platforms.cpu.workspace import Workspace
from mini_vllm.utils.arrays import Array


class Product:
    """A projection as it is multiplied: `weight` an array, or the layer where it is quantized; the bias as a column."""

    __slots__ = ("bias", "lora", "weight")

    def __init__(self, layer: LinearBase) -> None:
        self.weight: Any = layer.weight if layer.is_unquantized else layer
        self.bias = None if layer.bias is None else layer.bias[:, None]
        self.lora = layer.lora

    def into(self, x: Array, out: Array, tile: Tile) -> None:
        """`out = weight @ x + bias`. x [in, tokens], out [out, tokens]."""
        self.part_into(x, out, tile)
        if self.bias is not None:
            out += self.bias

    def part_into(self, x: Array, out: Array, tile: Tile) -> None:
        """The same without the bias, which one rank alone adds. What adapters add is there."""
        project(self.weight, x, out)
        if self.lora is not None:
            self.lora.add_to(out.T, x.T, tile.tokens.start)


class FusedDecoder(ABC):
    """What all decoders have in common: tokens into tiles, tiles through layers, ranks that meet.

    Args:
        model: its weights are used where they lie; nothing is copied.
        layers: of the model, as the subclass computes them.

    `forward` and `compute_logits` are those of `CausalLM`; hidden states are valid until the next call.
    """

    def __init__(self, model: Any, layers: list[Any]) -> None:
        self.model, self.config, self.layers = model, model.config, layers
        self.group, self.rank = model.context.group, model.context.tp_rank
        self.q_size, self.kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        self.workspace = Workspace(model.dtype)
        self.workspaces = [Workspace(model.dtype) for _ in range(num_threads())]
        self._scratch = Scratch(self, 0)

    @classmethod
    def supports(cls, model: Any) -> bool:
        """Whether this form computes that model: not where positions turn a part of each head alone."""
        return not any(rope.is_partial for rope in model.context.ropes.values())

    @abstractmethod
    def lay_out(self, tile: Tile) -> None:
        """Scratch for a tile, beyond what all decoders need."""

    @abstractmethod
    def begin_tile(self, tile: Tile, positions: Array) -> None:
        """After the embedding: what depends on the positions."""

    @abstractmethod
    def project_qkv(self, layer: Any, tile: Tile) -> None:
        """From `tile.hidden` to `tile.rows`."""

    def finish_layer(self, layer: Any, tiles: list[Tile], mixed: Array) -> None:
        """Output projection of attention (mixed: [tokens, Hq * D]), then the MLP, each added to the residual.

        Ranks meet after each of the two. layer: has `o`, a `Product`, and `down_bias`, a column or None.
        """
        for tile in tiles:
            layer.o.part_into(mixed[tile.tokens].T, tile.o_parts[self.rank], tile)
        self.meet([tile.o_parts for tile in tiles])
        for tile in tiles:
            self.add_attention(layer, tile)
            self.mlp(layer, tile)
        self.meet([tile.down_parts for tile in tiles])
        for tile in tiles:
            self.add_mlp(layer, tile)
            self.end_layer(layer, tile)

    @abstractmethod
    def mlp(self, layer: Any, tile: Tile) -> None:
        """From `tile.hidden`, to which attention has been added, to `tile.down_parts` of this rank."""

    def add_attention(self, layer: Any, tile: Tile) -> None:
        """The sum of `tile.o_parts` to the residual."""
        add_up(tile.hidden, tile.o_parts, layer.o.bias)

    def add_mlp(self, layer: Any, tile: Tile) -> None:
        """The sum of `tile.down_parts` to the residual."""
        add_up(tile.hidden, tile.down_parts, layer.down_bias)

    def end_layer(self, layer: Any, tile: Tile) -> None:
        """After the MLP has been added: nothing more, as a rule."""
        return

    @abstractmethod
    def finish_tile(self, tile: Tile) -> Array:
        """The last norm: [H, tokens]."""

    @abstractmethod
    def prepare(self, positions: Array) -> None:
        """Before tiles are shared out: what threads only read."""

    def forward(
        self, input_ids: Array | None, positions: Array, attn: Any, inputs_embeds: Array | None = None
    ) -> Array:
        """Hidden states after the last norm, [T, H]; see `CausalLM.forward`."""
        if len(positions) != self._scratch.num_tokens:
            self._scratch = Scratch(self, len(positions))
        scratch = self._scratch
        if inputs_embeds is None and self.group is not None:  # the ranks share the vocabulary: one exchange for all
            inputs_embeds = self.model.embed_input_ids(input_ids)

        def begin(share: list[list[Tile]]) -> None:
            for tile in chain.from_iterable(share):
                embedded = inputs_embeds[tile.tokens] if inputs_embeds is not None else self._look_up(input_ids, tile)
                np.copyto(tile.hidden, embedded.T)
                self.begin_tile(tile, positions[tile.tokens])
                self.project_qkv(self.layers[0], tile)

        def go_on(share: list[list[Tile]]) -> None:
            for tiles in share:
                self.finish_layer(layer, tiles, mixed)
                for tile in tiles:
                    if following is not None:
                        self.project_qkv(following, tile)
                    else:
                        np.copyto(scratch.out[tile.tokens], self.finish_tile(tile).T)

        self.prepare(positions)
        with np.errstate(over="ignore"), one_blas_thread(len(scratch.shares) > 1):
            run_shares(begin, scratch.shares)
            for i, layer in enumerate(self.layers):  # noqa: B007  # `go_on` reads it
                mixed = attn(i, scratch.q, scratch.k, scratch.v)
                following = self.layers[i + 1] if i + 1 < len(self.layers) else None
                run_shares(go_on, scratch.shares)
        return scratch.out

    def _look_up(self, input_ids: Any, tile: Tile) -> Array:
        return self.model.embed_input_ids(input_ids[tile.tokens])

    def meet(self, parts: list[list[Array]]) -> None:
        """Wait until the partial sums of all ranks are there."""
        if self.group is not None:
            self.group.exchange(parts)

    def compute_logits(self, hidden: Array) -> Array:
        """Hidden rows [R, H] -> logits [R, V]."""
        lm_head = self.model.lm_head
        logits = logits_of(hidden, lm_head.weight)
        if self.group is not None:
            logits = self.group.all_gather(logits)[:, : lm_head.num_embeddings]
        return self.model.logits_processor.adjust(logits)


def add_up(hidden: Array, parts: list[Array], bias: Array | None) -> None:
    """Add the partial sums of all ranks, and the bias."""
    for part in parts:
        hidden += part
    if bias is not None:
        hidden += bias


def logits_of(hidden: Array, lm_head: Array) -> Array:
    """Hidden rows [rows, features] times the output embedding [vocab, features] -> [rows, vocab].

    With few rows `lm_head @ hidden.T` and a transposing copy is faster; with many, the copy costs more than it saves.
    Many rows are shared out among threads.
    """
    shares = num_shares(len(hidden))
    out = np.empty((len(hidden), len(lm_head)), hidden.dtype)
    if shares == 1 and len(hidden) <= 64:
        logits = aligned_empty((len(lm_head), len(hidden)), hidden.dtype)
        project(lm_head, hidden.T, logits)
        np.copyto(out, logits.T)
        return out
    size = -(-len(hidden) // shares)
    parts = [slice(first, first + size) for first in range(0, len(hidden), size)]
    with one_blas_thread(shares > 1):
        run_shares(lambda part: np.matmul(hidden[part], lm_head.T, out=out[part]), parts)
    return out

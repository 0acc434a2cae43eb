"""Medusa's heads: small blocks side by side, each of which guesses one token from the same hidden state.

    hidden state i -> the target's output matrix -> token i + 1
                   -> block 0 -> logits             a guess at token i + 2
                   -> block 1 -> logits             a guess at token i + 3, made without knowing token i + 2

Upstream twin: `vllm/model_executor/models/medusa.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.layers.activation import silu
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.linear import ReplicatedLinear
from mini_vllm.layers.logits import LogitsProcessor
from mini_vllm.layers.module import Module
from mini_vllm.layers.vocab_parallel_embedding import ParallelLMHead
from mini_vllm.model_loader.safetensors_reader import CheckpointError
from mini_vllm.parameter import INDICES, TensorSource
from mini_vllm.transformers_utils.configs.medusa import MedusaConfig
from mini_vllm.utils.arrays import Array


class ResidualBlock(Module):
    """`x + silu(layer(x))`, layer after layer.

    Upstream: upstream/vllm/model_executor/models/medusa.py:19 — `ResidualBlock`.
    """

    def __init__(self, config: MedusaConfig, context: ModelContext, prefix: str) -> None:
        size, bias = config.hidden_size, config.medusa_fc_bias
        self.layers = [
            ReplicatedLinear(size, size, prefix=f"{prefix}.layers.{i}", bias=bias, context=context)
            for i in range(config.num_hidden_layers)
        ]

    def forward(self, x: Array) -> Array:
        """[R, H] -> [R, H]."""
        for layer in self.layers:
            x = x + silu(layer(x))
        return x


class TokenMap:
    """Which token each row of a truncated output matrix stands for: `ids` [truncated_vocab_size], once loaded."""

    def __init__(self, config: MedusaConfig) -> None:
        self.config, self.shape = config, (config.truncated_vocab_size,)
        self.ids: Array = np.arange(config.truncated_vocab_size or 0)

    def load(self, source: TensorSource) -> None:
        """Read and check the ids."""
        ids = source.read_stored("", INDICES)
        fits = ids.shape == self.shape and ids.dtype.kind in "iu"
        if not fits or ids.min() < 0 or ids.max() >= self.config.vocab_size:
            raise CheckpointError(
                f"token_map must hold {self.shape[0]} token ids below {self.config.vocab_size}, got {ids.dtype} of "
                f"shape {ids.shape}"
            )
        self.ids = ids.astype(np.int64)


class Medusa(Module):
    """Args:
        config: of the heads. num_heads: how many of them are used, from the first on.
        dtype, group: of the engine.

    Upstream: upstream/vllm/model_executor/models/medusa.py:41 — `Medusa`.
    """

    num_layers = 0
    max_model_len = 1 << 20

    def __init__(
        self, config: MedusaConfig, dtype: str, num_heads: int, group: TensorParallelGroup | None = None
    ) -> None:
        self.config = config
        self.context = ModelContext(np.dtype(dtype), None, group)
        self.blocks = [ResidualBlock(config, self.context, f"blocks.{i}") for i in range(num_heads)]
        assert config.truncated_vocab_size is not None
        names = ["lm_head"] if config.original_lm_head else [f"lm_heads.{i}" for i in range(num_heads)]
        heads = [ParallelLMHead(config.truncated_vocab_size, config.hidden_size, self.context, name) for name in names]
        self.lm_heads = heads * num_heads if config.original_lm_head else heads
        self.token_map = TokenMap(config) if config.truncated_vocab_size < config.vocab_size else None
        self.logits_processor = LogitsProcessor()
        self._prefix = ""

    def adapt_to(self, names: set[str]) -> None:
        """Some checkpoints say `medusa_heads.` before each name, and `lm_heads.0` for the one output matrix.

        Upstream: upstream/vllm/model_executor/models/medusa.py:146 — "medusa_heads.".
        """
        if any(name.startswith("medusa_heads.") for name in names):
            self._prefix = "medusa_heads."
        if self.config.original_lm_head and f"{self._prefix}lm_heads.0.weight" in names:
            self.lm_heads[0].prefix = "lm_heads.0"

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Every tensor that is used; see `CausalLM.weights`."""
        for layer in self.context.layers:
            for name, target in layer.weights():
                yield self._prefix + name, target
        if self.token_map is not None:
            yield "token_map", self.token_map

    def is_ignorable(self, name: str) -> bool:
        """True for what belongs to heads that are not used."""
        kind, _, rest = name.removeprefix(self._prefix).partition(".")
        number = rest.partition(".")[0]
        return kind in ("blocks", "lm_heads") and number.isdecimal() and int(number) >= len(self.blocks)

    def forward(self, hidden_states: Array) -> list[Array]:
        """[R, H] -> what each head makes of it, [R, H]."""
        return [block(hidden_states) for block in self.blocks]

    def compute_logits(self, blocks: list[Array]) -> list[Array]:
        """Logits of each head, [R, vocab_size]; minus infinity for tokens that it cannot say."""
        found = [
            self.config.logit_scale * self.logits_processor(lm_head, hidden)
            for lm_head, hidden in zip(self.lm_heads, blocks, strict=True)
        ]
        if self.token_map is None:
            return found
        whole = [np.full((len(logits), self.config.vocab_size), -np.inf, logits.dtype) for logits in found]
        for logits, mapped in zip(whole, found, strict=True):
            logits[:, self.token_map.ids] = mapped
        return whole

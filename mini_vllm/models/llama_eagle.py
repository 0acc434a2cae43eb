"""EAGLE's head for Llama: one layer that reads what the target computed, and goes on in its place.

    input at position i    token i + 1, embedded, beside the target's hidden state i: 2 * H numbers, which `fc` halves
    output at position i   stands for hidden state i + 1: its logits are a guess at token i + 2, and it is itself the
                           second half of the next input

Upstream twin: `vllm/model_executor/models/llama_eagle.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.linear import ReplicatedLinear
from mini_vllm.layers.module import Module
from mini_vllm.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from mini_vllm.models.interfaces_base import Attention, CausalLM
from mini_vllm.models.llama import LlamaDecoderLayer
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class Identity(Module):
    """In the place of a norm that is left out."""

    def forward(self, x: Array) -> Array:
        """x itself."""
        return x


class EagleDecoderLayer(LlamaDecoderLayer):
    """Llama's; the first one has no norm before its attention, as the output of `fc` needs none.

    Upstream: upstream/vllm/model_executor/models/llama_eagle.py:33 — `LlamaDecoderLayer`.
    """

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        super().__init__(config, layer_idx, context, prefix)
        if layer_idx == 0:
            context.layers.remove(self.input_layernorm)
            self.input_layernorm: Any = Identity()


class LlamaModel(Module):
    """`fc` and the layers; no norm comes after them. `embed_tokens`: the target's, or the head's own.

    Upstream: upstream/vllm/model_executor/models/llama_eagle.py:55 — `LlamaModel`.
    """

    embed_tokens: Any = None
    norm = None

    def __init__(self, config: HFConfig, context: ModelContext) -> None:
        self.fc = ReplicatedLinear(2 * config.hidden_size, config.hidden_size, prefix="fc", context=context)
        self.layers = [EagleDecoderLayer(config, i, context, f"layers.{i}") for i in range(config.num_hidden_layers)]

    def combine(self, input_ids: Array, hidden_states: Array) -> Array:
        """Token ids [T] and hidden states [T, H] -> what the first layer reads, [T, H]."""
        return self.fc(np.concatenate([self.embed_tokens(input_ids), hidden_states], axis=-1))

    def forward(self, hidden: Array, positions: Array, attn: Attention) -> Array:
        """[T, H] -> [T, H]."""
        for layer in self.layers:
            hidden = layer(positions, hidden, attn)
        return hidden


class EagleLlamaForCausalLM(CausalLM):
    """The head. A checkpoint names its tensors without `model.` before them.

    Attributes:
        has_own_embed_tokens, has_own_lm_head: whether the checkpoint brings them; the target's are taken otherwise.

    Upstream: upstream/vllm/model_executor/models/llama_eagle.py:164 — `EagleLlamaForCausalLM`.
    """

    has_own_embed_tokens = False
    has_own_lm_head = False

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.model = LlamaModel(config, self.context)
        self.lm_head = None

    def adapt_to(self, names: set[str]) -> None:
        """Make room for an embedding and an output matrix where the checkpoint has them.

        Upstream: upstream/vllm/model_executor/models/utils.py:846 — `process_eagle_weight`.
        """
        sizes = self.config.vocab_size, self.config.hidden_size, self.context
        if "embed_tokens.weight" in names:
            self.has_own_embed_tokens = True
            self.model.embed_tokens = VocabParallelEmbedding(*sizes, "embed_tokens")
        if "lm_head.weight" in names:
            self.has_own_lm_head, self.lm_head = True, ParallelLMHead(*sizes, "lm_head")

    def is_ignorable(self, name: str) -> bool:
        """See `CausalLM`."""
        return "rotary_emb." in name

    def share_with(self, target: Any) -> None:
        """Take the target's embedding and output matrix, where the head has none or holds the same numbers.

        Raises ValueError: the target keeps them in other places than a Llama does.
        Upstream: upstream/vllm/v1/spec_decode/llm_base_proposer.py:1273 —
        `SpecDecodeBaseProposer._maybe_share_embeddings`, and below it `_maybe_share_lm_head`.
        """
        embed_tokens = getattr(getattr(target, "model", None), "embed_tokens", None)
        if embed_tokens is None:
            raise ValueError(
                "speculative_config: method 'eagle' needs a target with `model.embed_tokens`, as Llama and its kin "
                f"have it; {type(target).__name__} has none"
            )
        for holder, name, theirs in ((self.model, "embed_tokens", embed_tokens), (self, "lm_head", target.lm_head)):
            own = getattr(holder, name)
            if own is None or np.array_equal(own.weight, theirs.weight):
                setattr(holder, name, theirs)

    def forward(  # type: ignore[override]
        self, input_ids: Array, positions: Array, attn: Attention, hidden_states: Array
    ) -> Array:
        """Token ids [T], one ahead of their positions [T], and hidden states [T, H] -> [T, H]."""
        return self.model(self.model.combine(input_ids, hidden_states), positions, attn)

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Those of the checkpoint: what is shared is none of them."""
        yield from super().weights()

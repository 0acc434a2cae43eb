"""BERT: learned positions and types, layer norms after each sum, attention to both sides.

Upstream twin: `vllm/model_executor/models/bert.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.gelu import get_act_fn as get_hidden_act
from mini_vllm.layers.layernorm import LayerNorm
from mini_vllm.layers.linear import ColumnParallelLinear, QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from mini_vllm.layers.module import Module
from mini_vllm.layers.pooler.activations import get_act_fn
from mini_vllm.layers.pooler.seqwise.methods import SequencePoolingMethod, get_seq_pooling_method
from mini_vllm.layers.pooler.special import DispatchPooler
from mini_vllm.layers.vocab_parallel_embedding import VocabParallelEmbedding
from mini_vllm.models.adapters import EmbeddingMixin, PoolingModel
from mini_vllm.models.interfaces_base import Attention
from mini_vllm.models.utils import make_layers
from mini_vllm.pool.metadata import PoolingMetadata
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array

TOKEN_TYPE_SHIFT = 30
"""The bit of an id that holds the type of its token, as the runner writes it: two texts in one prompt.
Upstream: upstream/vllm/model_executor/models/bert.py:551 — "TOKEN_TYPE_SHIFT = 30"."""


class BertEmbedding(Module):
    """Words, positions and types, added and normed.

    Upstream: upstream/vllm/model_executor/models/bert.py:49 — `BertEmbedding`.
    """

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str) -> None:
        hidden, types = config.hidden_size, int(config.raw.get("type_vocab_size") or 2)
        self.word_embeddings = VocabParallelEmbedding(config.vocab_size, hidden, context, f"{prefix}.word_embeddings")
        self.position_embeddings = VocabParallelEmbedding(
            config.max_position_embeddings, hidden, context, f"{prefix}.position_embeddings"
        )
        self.token_type_embeddings = VocabParallelEmbedding(types, hidden, context, f"{prefix}.token_type_embeddings")
        self.LayerNorm = LayerNorm(hidden, config.norm_eps, context, f"{prefix}.LayerNorm")

    def forward(self, input_ids: Array, positions: Array) -> Array:
        """[T] twice -> [T, H]."""
        types = input_ids >> TOKEN_TYPE_SHIFT
        words = self.word_embeddings(input_ids & ((1 << TOKEN_TYPE_SHIFT) - 1))
        return self.LayerNorm(words + self.token_type_embeddings(types) + self.position_embeddings(positions))


class BertQKV(QKVParallelLinear):
    """Checkpoints say query, key, value."""

    def weights(self) -> Iterator[tuple[str, Any]]:
        names = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
        for name, target in super().weights():
            head, part, kind = name.rsplit(".", 2)
            yield f"{head}.{names[part]}.{kind}", target


class BertLayer(Module):
    """Upstream: upstream/vllm/model_executor/models/bert.py:152 — `BertLayer`."""

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        hidden, inter, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
        attention = f"{prefix}.attention"
        self.layer_idx = layer_idx
        self.qkv_proj = BertQKV(hidden, config.head_dim, heads, heads, True, context, f"{attention}.self.qkv_proj")
        self.attention_output = RowParallelLinear(hidden, hidden, True, context, f"{attention}.output.dense")
        self.attention_norm = LayerNorm(hidden, config.norm_eps, context, f"{attention}.output.LayerNorm")
        self.intermediate = ColumnParallelLinear(hidden, [inter], True, context, f"{prefix}.intermediate.dense")
        self.act = get_hidden_act(config.raw.get("hidden_act", "gelu"))
        self.output = RowParallelLinear(inter, hidden, True, context, f"{prefix}.output.dense")
        self.output_norm = LayerNorm(hidden, config.norm_eps, context, f"{prefix}.output.LayerNorm")

    def forward(self, hidden: Array, attn: Attention) -> Array:
        """[T, H] -> [T, H]."""
        q, k, v = self.qkv_proj.split(self.qkv_proj(hidden))
        hidden = self.attention_norm(hidden + self.attention_output(attn(self.layer_idx, q, k, v)))
        return self.output_norm(hidden + self.output(self.act(self.intermediate(hidden))))


class BertModel(Module):
    """Upstream: upstream/vllm/model_executor/models/bert.py:367 — `BertModel`."""

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str) -> None:
        self.embeddings = BertEmbedding(config, context, f"{prefix}embeddings")
        self.embed_tokens = self.embeddings.word_embeddings
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers, lambda i, name: BertLayer(config, i, context, name), context,
            f"{prefix}encoder.layer",
        )  # fmt: skip


class BertBase(PoolingModel):
    """A BERT without a pooler. prefix: before the names of its tensors."""

    prefix = "bert."
    attn_type = "encoder_only"
    seq_pooling_type = "CLS"
    unused: tuple[str, ...] = ("pooler.", "cls.", "embeddings.position_ids", "lm_head.")

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.model = BertModel(config, self.context, self.prefix)
        self.lm_head = self.model.embed_tokens
        self.num_layers = 0  # none that keeps keys and values

    def forward(self, input_ids: Any, positions: Array, attn: Attention, inputs_embeds: Array | None = None) -> Array:
        """[T] twice -> [T, H]. Embedded words alone, without their ids, are not enough here: types stand in the ids."""
        if inputs_embeds is not None:
            raise ValueError("inputs_embeds must be None for BERT: the types of tokens are read from their ids")
        hidden = self.model.embeddings(input_ids, positions)
        for layer in islice(self.model.layers, self.model.start_layer, self.model.end_layer):
            hidden = layer(hidden, attn)
        return hidden


class BertEmbeddingModel(EmbeddingMixin, BertBase):
    """Upstream: upstream/vllm/model_executor/models/bert.py:470 — `BertEmbeddingModel`."""

    prefix = ""


class BertPool(SequencePoolingMethod):
    """A row of the prompt, through a dense layer and tanh, as BERT was trained with.

    Upstream: upstream/vllm/model_executor/models/bert.py:96 — `BertPooler`.
    """

    def __init__(self, method: str, dense: ReplicatedLinear) -> None:
        self.method, self.dense = get_seq_pooling_method(method), dense

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> Array:
        return np.tanh(self.dense(self.method.forward(hidden_states, pooling_metadata)))


class BertForSequenceClassification(BertBase):
    """A cross-encoder: two texts in one prompt, one score.

    Upstream: upstream/vllm/model_executor/models/bert.py:789 — `BertForSequenceClassification`.
    """

    unused = ("cls.", "embeddings.position_ids", "lm_head.")
    tasks = ("classify", "token_classify")

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        hidden, context = config.hidden_size, self.context.in_floats()
        self.dense = ReplicatedLinear(hidden, hidden, prefix="bert.pooler.dense", bias=True, context=context)
        self.classifier = ReplicatedLinear(hidden, self.num_labels, prefix="classifier", bias=True, context=context)

    def init_pooler(self, config: PoolerConfig) -> None:
        self.pooler = DispatchPooler.for_seq_cls(
            config, pooling=BertPool(config.seq_pooling_type or "CLS", self.dense), classifier=self.classifier,
            act_fn=get_act_fn(self.config.raw),
        )  # fmt: skip

"""ModernBERT: rotary positions, a gated MLP, norms before, and most layers see a window alone.

Upstream twin: `vllm/model_executor/models/modernbert.py`.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.gelu import gelu, get_act_fn
from mini_vllm.layers.layernorm import LayerNorm
from mini_vllm.layers.linear import ReplicatedLinear, RowParallelLinear
from mini_vllm.layers.module import Module
from mini_vllm.layers.pooler import activations
from mini_vllm.layers.pooler.seqwise.methods import SequencePoolingMethod, get_seq_pooling_method
from mini_vllm.layers.pooler.special import DispatchPooler
from mini_vllm.layers.rotary_embedding import get_rope
from mini_vllm.layers.vocab_parallel_embedding import VocabParallelEmbedding
from mini_vllm.models.adapters import EmbeddingMixin, PoolingModel
from mini_vllm.models.interfaces_base import Attention
from mini_vllm.models.utils import make_layers
from mini_vllm.pool.metadata import PoolingMetadata
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.transformers_utils.config_rope import RopeConfig
from mini_vllm.utils.arrays import Array


def layer_types(config: HFConfig) -> list[str]:
    """ "full_attention" or "sliding_attention" for each layer, in either spelling of the file."""
    every = int(config.raw.get("global_attn_every_n_layers", 3))
    kinds = config.raw.get("layer_types")
    return kinds or ["sliding_attention" if i % every else "full_attention" for i in range(config.num_hidden_layers)]


def rope_of(config: HFConfig, kind: str) -> RopeConfig:
    """The rotary positions of a kind of layer."""
    return config.rope if kind == "full_attention" or config.rope_local is None else config.rope_local


class ModernBertLayer(Module):
    """Attention and MLP, each added to what came in.

    Upstream: upstream/vllm/model_executor/models/modernbert.py:162 — `ModernBertLayer`.
    """

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        hidden, inter, raw = config.hidden_size, config.intermediate_size, config.raw
        norm_bias, bias, mlp_bias = (bool(raw.get(k)) for k in ("norm_bias", "attention_bias", "mlp_bias"))
        self.layer_idx, self.heads = layer_idx, config.num_attention_heads
        self.attn_norm = None
        if layer_idx:
            self.attn_norm = LayerNorm(hidden, config.norm_eps, context, f"{prefix}.attn_norm", norm_bias)
        self.Wqkv = ReplicatedLinear(hidden, 3 * hidden, prefix=f"{prefix}.attn.Wqkv", bias=bias, context=context)
        self.rotary_emb = get_rope(config.head_dim, rope_of(config, layer_types(config)[layer_idx]), context)
        self.attn_out = RowParallelLinear(hidden, hidden, bias, context, f"{prefix}.attn.Wo")
        self.mlp_norm = LayerNorm(hidden, config.norm_eps, context, f"{prefix}.mlp_norm", norm_bias)
        self.Wi = ReplicatedLinear(hidden, 2 * inter, prefix=f"{prefix}.mlp.Wi", bias=mlp_bias, context=context)
        self.mlp_out = RowParallelLinear(inter, hidden, mlp_bias, context, f"{prefix}.mlp.Wo")

    def forward(self, positions: Array, hidden: Array, attn: Attention) -> Array:
        """[T], [T, H] -> [T, H]."""
        x = hidden if self.attn_norm is None else self.attn_norm(hidden)
        qkv = self.Wqkv(x).reshape(len(x), 3, self.heads, -1)
        q, k = self.rotary_emb(positions, qkv[:, 0], qkv[:, 1])
        hidden = hidden + self.attn_out(attn(self.layer_idx, q, k, qkv[:, 2]))
        wide = self.Wi(self.mlp_norm(hidden))
        half = wide.shape[-1] // 2
        return hidden + self.mlp_out(gelu(wide[:, :half]) * wide[:, half:])


class ModernBertBackbone(Module):
    """Embedding, layers, norm; `ModernBertModel` upstream, whose name the pooled model has here."""

    def __init__(self, config: HFConfig, context: ModelContext, prefix: str) -> None:
        hidden, bias = config.hidden_size, bool(config.raw.get("norm_bias"))
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, hidden, context, f"{prefix}embeddings.tok_embeddings"
        )
        self.norm = LayerNorm(hidden, config.norm_eps, context, f"{prefix}embeddings.norm", bias)
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers, lambda i, name: ModernBertLayer(config, i, context, name), context,
            f"{prefix}layers",
        )  # fmt: skip
        self.final_norm = LayerNorm(hidden, config.norm_eps, context, f"{prefix}final_norm", bias)

    def forward(self, hidden: Array, positions: Array, attn: Attention) -> Array:
        """Embedded tokens [T, H] -> [T, H]."""
        hidden = self.norm(hidden)
        for layer in islice(self.layers, self.start_layer, self.end_layer):
            hidden = layer(positions, hidden, attn)
        return self.final_norm(hidden)


class ModernBertBase(PoolingModel):
    """A ModernBERT without a pooler. prefix: before the names of its tensors."""

    prefix = "model."
    attn_type = "encoder_only"
    seq_pooling_type = "CLS"
    unused: tuple[str, ...] = ("head.", "decoder.", "classifier.", "lm_head.")

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.model = ModernBertBackbone(config, self.context, self.prefix)
        self.lm_head = self.model.embed_tokens
        self.num_layers = 0  # none that keeps keys and values
        reach = int(config.raw.get("local_attention", 128)) // 2
        self.sliding_windows = tuple(None if kind == "full_attention" else reach for kind in layer_types(config))


class ModernBertModel(EmbeddingMixin, ModernBertBase):
    """Upstream: upstream/vllm/model_executor/models/modernbert.py:223 — `ModernBertModel`."""

    prefix = ""


class ModernBertPool(SequencePoolingMethod):
    """A row of the prompt through dense, GELU and norm. `classifier_pooling` of the config says which row, always.

    Upstream: upstream/vllm/model_executor/models/modernbert.py:282 — `ModernBertPooler`.
    """

    def __init__(self, config: HFConfig, context: ModelContext) -> None:
        raw, hidden = config.raw, config.hidden_size
        self.method = get_seq_pooling_method(str(raw.get("classifier_pooling", "cls")).upper())
        bias, norm_bias = bool(raw.get("classifier_bias")), bool(raw.get("norm_bias"))
        self.dense = ReplicatedLinear(hidden, hidden, prefix="head.dense", bias=bias, context=context)
        self.act = get_act_fn(raw.get("classifier_activation", "gelu"))
        self.norm = LayerNorm(hidden, config.norm_eps, context, "head.norm", norm_bias)

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> Array:
        return self.norm(self.act(self.dense(self.method.forward(hidden_states, pooling_metadata))))


class ModernBertForSequenceClassification(ModernBertBase):
    """Upstream: upstream/vllm/model_executor/models/modernbert.py:323 — `ModernBertForSequenceClassification`."""

    unused = ("decoder.", "lm_head.")
    tasks = ("classify", "token_classify")

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        context = self.context.in_floats()
        self.pooling = ModernBertPool(config, context)
        self.classifier = ReplicatedLinear(
            config.hidden_size, self.num_labels, prefix="classifier", bias=True, context=context
        )

    def init_pooler(self, config: PoolerConfig) -> None:
        self.pooler = DispatchPooler.for_seq_cls(
            config, pooling=self.pooling, classifier=self.classifier, act_fn=activations.get_act_fn(self.config.raw)
        )

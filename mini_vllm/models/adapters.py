"""Models whose hidden states are pooled: what they have in common, and how a language model becomes one.

Upstream twin: `vllm/model_executor/models/adapters.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.layers.linear import ReplicatedLinear
from mini_vllm.layers.pooler.abstract import Pooler
from mini_vllm.layers.pooler.activations import get_act_fn
from mini_vllm.layers.pooler.projector import load_projector
from mini_vllm.layers.pooler.special import DispatchPooler
from mini_vllm.models.interfaces_base import CausalLM
from mini_vllm.models.utils import is_pp_missing_parameter
from mini_vllm.utils.arrays import Array

CONVERT_TYPES = ("none", "embed", "classify")
_PREFIXES = ("model.", "bert.", "modernbert.")


class PoolingModel(CausalLM):
    """A model that ends in a pooler. `init_pooler` is called once, after the weights are there.

    Attributes:
        pooler: see `layers/pooler/`. attn_type: "decoder", or "encoder_only": no KV cache.
        seq_pooling_type, tok_pooling_type: what counts where neither user nor checkpoint says so.
        tasks: of `POOLING_TASKS`, those that the pooler has, the chief one first.
        use_activation, step_tag_id: as in `PoolerConfig`, where the architecture has its own.
        unused: beginnings of the names of tensors that have no say in the hidden states.

    Upstream: upstream/vllm/model_executor/models/interfaces_base.py:148 — `VllmModelForPooling`.
    """

    is_pooling_model = True
    attn_type = "decoder"
    seq_pooling_type = "LAST"
    tok_pooling_type = "ALL"
    unused: tuple[str, ...] = ("lm_head.",)
    tasks: tuple[str, ...] = ()
    use_activation: bool | None = None
    step_tag_id: int | None = None
    pooler: Pooler
    _names: frozenset[str] = frozenset()

    def init_pooler(self, config: PoolerConfig) -> None:
        """Make `pooler`; `config` has no open question left."""
        raise NotImplementedError

    def adapt_to(self, names: set[str]) -> None:
        """A checkpoint of the bare model leaves out the first part of each name, or has one more."""
        super().adapt_to(names)
        self._names = frozenset(names)

    def weights(self) -> Iterator[tuple[str, Any]]:
        """As the checkpoint names them.

        Upstream: upstream/vllm/model_executor/models/adapters.py:180 — "candidate_prefixes".
        """
        for name, target in super().weights():
            bare = next((name.removeprefix(p) for p in _PREFIXES if name.startswith(p)), name)
            found = (each for each in (name, bare, *(p + bare for p in _PREFIXES)) if each in self._names)
            yield next(found, name), target

    def is_ignorable(self, name: str) -> bool:
        """The output embedding, tables that we compute, and heads of other tasks."""
        bare = next((name.removeprefix(p) for p in _PREFIXES if name.startswith(p)), name)
        if any(
            is_pp_missing_parameter(each, self.context) for each in (bare, *(prefix + bare for prefix in _PREFIXES))
        ):
            return True
        return name.startswith(self.unused) or bare.startswith(self.unused) or "rotary_emb." in name

    def repeated(self, name: str) -> str | None:
        """None: the output matrix of the checkpoint has no say, whether or not it is the embedding."""
        return None

    def lora_module_name(self, name: str) -> str:
        """The name of a module in an adapter's file -> here: PEFT leaves "model." out where it wrapped the bare model.

        Upstream passes over such tensors: upstream/vllm/lora/lora_model.py:125 — "weights_mapper".
        """
        return f"model.{name}" if name.startswith("layers.") else name

    def compute_logits(self, hidden: Array) -> Array:
        """Raises: nothing is sampled here."""
        raise RuntimeError(f"{type(self).__name__} pools; it has no logits")

    @property
    def num_labels(self) -> int:
        """Of a classifier, as transformers counts: `num_labels`, else the entries of `id2label`, else 2."""
        raw = self.config.raw
        return int(raw.get("num_labels") or len(raw.get("id2label") or ()) or 2)


class EmbeddingMixin(PoolingModel):
    """Embeddings of prompts and of tokens, from the hidden states as they are."""

    tasks = ("embed", "token_embed")

    def init_pooler(self, config: PoolerConfig) -> None:
        self.pooler = DispatchPooler.for_embedding(config, load_projector(config.projector, self.dtype))


class SequenceClassificationMixin(PoolingModel):
    """One linear layer `score` without bias on the pooled row. `SupportsCrossEncoding` upstream."""

    score: ReplicatedLinear
    tasks = ("classify", "token_classify")

    def init_pooler(self, config: PoolerConfig) -> None:
        self.pooler = DispatchPooler.for_seq_cls(config, classifier=self.score, act_fn=get_act_fn(self.config.raw))


@cache
def as_embedding_model(model_class: type[CausalLM]) -> type[CausalLM]:
    """A language model whose last hidden state is an embedding. A class that pools already is handed back.

    Upstream: upstream/vllm/model_executor/models/adapters.py:230 — `as_embedding_model`.
    """
    if getattr(model_class, "is_pooling_model", False):
        return model_class
    name = model_class.__name__.removesuffix("ForCausalLM") + "ForEmbedding"
    return type(name, (EmbeddingMixin, model_class), {"__init__": _no_head})


@cache
def as_seq_cls_model(model_class: type[CausalLM]) -> type[CausalLM]:
    """A language model with one linear layer on its last hidden state.

    Upstream: upstream/vllm/model_executor/models/adapters.py:264 — `as_seq_cls_model`.
    """
    if getattr(model_class, "is_pooling_model", False):
        return model_class

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        _no_head(self, config, *args, **kwargs)
        self.score = ReplicatedLinear(
            config.hidden_size, self.num_labels, prefix="score", context=self.context.in_floats()
        )

    name = model_class.__name__.removesuffix("ForCausalLM") + "ForSequenceClassification"
    return type(name, (SequenceClassificationMixin, model_class), {"__init__": __init__})


def _no_head(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
    """The model without its output embedding, whose tensor is neither read nor kept."""
    super(type(self), self).__init__(config, *args, **kwargs)
    if self.lm_head in self.context.layers and self.lm_head is not self.model.embed_tokens:
        self.context.layers.remove(self.lm_head)
        self.lm_head = self.model.embed_tokens

"""ColBERT: a short vector for every token; a document's score is the sum of each query token's best match.

Upstream twin: `vllm/model_executor/models/colbert.py`; the score is made by `mini_vllm/pool/late_interaction.py`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.layers.linear import ReplicatedLinear
from mini_vllm.layers.pooler.activations import normalize
from mini_vllm.layers.pooler.seqwise.heads import EmbeddingPoolerHead
from mini_vllm.layers.pooler.special import DispatchPooler
from mini_vllm.layers.pooler.tokwise.methods import get_tok_pooling_method
from mini_vllm.layers.pooler.tokwise.poolers import TokenPooler
from mini_vllm.models.bert import BertBase
from mini_vllm.transformers_utils.config import HFConfig


class ColBERTModel(BertBase):
    """A BERT and one linear layer without bias, named `linear` in the checkpoint.

    Upstream: upstream/vllm/model_executor/models/colbert.py:193 — `ColBERTModel`.
    """

    tasks = ("token_embed",)

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        given = {key: config.raw.get(key) for key in ("colbert_dim", "dim", "projection_dim")}
        sizes = {size for size in given.values() if size is not None} or {128}
        if len(sizes) > 1:
            raise ValueError(f"config.json: colbert_dim, dim and projection_dim must be one number, got {given}")
        size = sizes.pop()
        self.linear = ReplicatedLinear(config.hidden_size, size, prefix="linear", context=self.context.in_floats())

    def init_pooler(self, config: PoolerConfig) -> None:
        method = get_tok_pooling_method(config.tok_pooling_type or "ALL")
        self.pooler = DispatchPooler({"token_embed": TokenPooler(method, EmbeddingPoolerHead(self.linear, normalize))})

"""Reward models on Qwen2: a score for every token. Upstream twin: `vllm/model_executor/models/qwen2_rm.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.layers.linear import ReplicatedLinear
from mini_vllm.layers.pooler.activations import get_act_fn
from mini_vllm.layers.pooler.seqwise.heads import ClassifierPoolerHead
from mini_vllm.layers.pooler.special import DispatchPooler
from mini_vllm.layers.pooler.tokwise.methods import get_tok_pooling_method
from mini_vllm.layers.pooler.tokwise.poolers import TokenPooler
from mini_vllm.models.adapters import PoolingModel
from mini_vllm.models.interfaces_base import Attention
from mini_vllm.models.qwen2 import Qwen2ForCausalLM
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class Qwen2RewardBaseModel(PoolingModel, Qwen2ForCausalLM):
    """Two linear layers with a ReLU between them, on every hidden state.

    Upstream: upstream/vllm/model_executor/models/qwen2_rm.py:27 — `Qwen2RewardBaseModel`.
    """

    labels = 1
    tasks = ("token_classify",)

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        if self.lm_head in self.context.layers and self.lm_head is not self.model.embed_tokens:
            self.context.layers.remove(self.lm_head)
            self.lm_head = self.model.embed_tokens
        hidden, context = config.hidden_size, self.context.in_floats()
        self.inner = ReplicatedLinear(hidden, hidden, prefix="score.0", bias=True, context=context)
        self.outer = ReplicatedLinear(hidden, self.labels, prefix="score.2", bias=True, context=context)

    def forward(self, input_ids: Any, positions: Array, attn: Attention, inputs_embeds: Array | None = None) -> Array:
        """[T] twice -> scores [T, labels]."""
        hidden = super().forward(input_ids, positions, attn, inputs_embeds)
        return self.outer(np.maximum(self.inner(hidden), 0))

    def init_pooler(self, config: PoolerConfig) -> None:
        head = ClassifierPoolerHead(None, config.logit_mean, config.logit_sigma, get_act_fn(self.config.raw))
        method = get_tok_pooling_method(config.tok_pooling_type or self.tok_pooling_type)
        self.pooler = DispatchPooler({"token_classify": TokenPooler(method, head)})


class Qwen2ForRewardModel(Qwen2RewardBaseModel):
    """One score a token. Upstream: upstream/vllm/model_executor/models/qwen2_rm.py:100 — `Qwen2ForRewardModel`."""

    use_activation = False


class Qwen2ForProcessRewardModel(Qwen2RewardBaseModel):
    """Two numbers at each step's end: how likely it is wrong, and right.

    Upstream: upstream/vllm/model_executor/models/qwen2_rm.py:112 — `Qwen2ForProcessRewardModel`.
    """

    labels = 2
    tok_pooling_type = "STEP"
    step_tag_id = 151651
    """Upstream: upstream/vllm/model_executor/models/config.py:492 — `Qwen2ForProcessRewardModelConfig`."""

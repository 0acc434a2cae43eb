"""Phi-3: Llama with q, k and v in one tensor of the checkpoint, gate and up in another. Longrope is the rotary layer's.

Upstream twin: `vllm/model_executor/models/phi3.py`.
"""

from __future__ import annotations

from mini_vllm.layers.context import ModelContext
from mini_vllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM
from mini_vllm.transformers_utils.config import HFConfig


class Phi3DecoderLayer(LlamaDecoderLayer):
    """Upstream says it in a table: upstream/vllm/model_executor/models/phi3.py:11 — "packed_modules_mapping"."""

    def __init__(self, config: HFConfig, layer_idx: int, context: ModelContext, prefix: str) -> None:
        super().__init__(config, layer_idx, context, prefix)
        self.self_attn.qkv_proj.is_one_tensor = True
        self.mlp.gate_up_proj.is_one_tensor = True


class Phi3ForCausalLM(LlamaForCausalLM):
    """Upstream: upstream/vllm/model_executor/models/phi3.py:10 — `Phi3ForCausalLM`."""

    layer_type = Phi3DecoderLayer

"""Qwen2: Llama with biases on q, k and v, and windows on some layers.

Upstream twin: `vllm/model_executor/models/qwen2.py`.
"""

from __future__ import annotations

from mini_vllm.models.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """What differs stands in the config: `qkv_bias` is always true, `sliding_windows` follows `layer_types`.

    Upstream: upstream/vllm/model_executor/models/qwen2.py:494 — `Qwen2ForCausalLM`.
    """

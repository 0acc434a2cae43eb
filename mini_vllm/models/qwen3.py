"""Qwen3: an RMS norm on each query and key head before the rotation.

Upstream twin: `vllm/model_executor/models/qwen3.py`.
"""

from __future__ import annotations

from mini_vllm.models.qwen2 import Qwen2ForCausalLM


class Qwen3ForCausalLM(Qwen2ForCausalLM):
    """What differs stands in the config: `qk_norm` is true, q, k and v have biases only with `attention_bias`.

    Upstream: upstream/vllm/model_executor/models/qwen3.py:261 — `Qwen3ForCausalLM`.
    """

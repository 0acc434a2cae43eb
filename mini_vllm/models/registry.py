"""Architecture name (as in `config.json`) -> class, imported when asked for.

A package outside this one adds an architecture with `register_model`: docs/add-a-model.md.
Upstream twin: `vllm/model_executor/models/registry.py`.
"""

from __future__ import annotations

import importlib
from typing import Any

from mini_vllm.transformers_utils.config_keys import ARCHITECTURES, KeyTable

_MODELS: dict[str, tuple[str, str] | type] = {
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "MistralForCausalLM": ("llama", "MistralForCausalLM"),
    "Qwen2ForCausalLM": ("qwen2", "Qwen2ForCausalLM"),
    "Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM"),
    "MixtralForCausalLM": ("mixtral", "MixtralForCausalLM"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    "OPTForCausalLM": ("opt", "OPTForCausalLM"),
    "Gemma2ForCausalLM": ("gemma2", "Gemma2ForCausalLM"),
    "Gemma3ForCausalLM": ("gemma3", "Gemma3ForCausalLM"),
    "Phi3ForCausalLM": ("phi3", "Phi3ForCausalLM"),
    "GraniteForCausalLM": ("granite", "GraniteForCausalLM"),
    "Olmo2ForCausalLM": ("olmo2", "Olmo2ForCausalLM"),
    "GptOssForCausalLM": ("gpt_oss", "GptOssForCausalLM"),
    "DeepseekV2ForCausalLM": ("deepseek_v2", "DeepseekV2ForCausalLM"),
}


def get_supported_archs() -> list[str]:
    """Names of all registered architectures, sorted."""
    return sorted(_MODELS)


def register_model(architecture: str, model_class: type, keys: KeyTable | None = None) -> None:
    """Add an architecture, or replace one. keys: which keys its `config.json` may have; None: they are known.

    Upstream: upstream/vllm/model_executor/models/registry.py:963 — `_ModelRegistry.register_model`.
    """
    _MODELS[architecture] = model_class
    if keys is not None:
        ARCHITECTURES[architecture] = keys


def get_model_class(architecture: str) -> Any:
    """The class for this name.

    Raises:
        ValueError: names the architecture and what is allowed.
    """
    entry = _MODELS.get(architecture)
    if entry is None:
        raise ValueError(f"architecture {architecture!r} is not supported; allowed: {', '.join(get_supported_archs())}")
    if isinstance(entry, tuple):
        module, name = entry
        return getattr(importlib.import_module(f"mini_vllm.models.{module}"), name)
    return entry

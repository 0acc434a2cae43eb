"""Architecture name (as in `config.json`) -> class, imported when asked for.

A package outside this one adds an architecture with `register_model` (docs/add-a-model.md), in every process as a
plug-in (docs/plugins.md).
Upstream twin: `vllm/model_executor/models/registry.py`.
"""

from __future__ import annotations

import importlib
from typing import Any

from mini_vllm.logger import init_logger
from mini_vllm.transformers_utils.config_keys import ARCHITECTURES, MEDIA, KeyTable
from mini_vllm.utils.checks import shown
from mini_vllm.utils.import_utils import resolve_obj_by_qualname

logger = init_logger(__name__)

_MODELS: dict[str, tuple[str, str] | type | str] = {
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "MistralForCausalLM": ("llama", "MistralForCausalLM"),
    "Qwen2ForCausalLM": ("qwen2", "Qwen2ForCausalLM"),
    "Qwen3ForCausalLM": ("qwen3", "Qwen3ForCausalLM"),
    "MixtralForCausalLM": ("mixtral", "MixtralForCausalLM"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    "OPTForCausalLM": ("opt", "OPTForCausalLM"),
    "BertModel": ("bert", "BertEmbeddingModel"),
    "BertForSequenceClassification": ("bert", "BertForSequenceClassification"),
    "ModernBertModel": ("modernbert", "ModernBertModel"),
    "ModernBertForSequenceClassification": ("modernbert", "ModernBertForSequenceClassification"),
    "HF_ColBERT": ("colbert", "ColBERTModel"),
    "Qwen2ForRewardModel": ("qwen2_rm", "Qwen2ForRewardModel"),
    "Qwen2ForProcessRewardModel": ("qwen2_rm", "Qwen2ForProcessRewardModel"),
    "Gemma2ForCausalLM": ("gemma2", "Gemma2ForCausalLM"),
    "Gemma3ForCausalLM": ("gemma3", "Gemma3ForCausalLM"),
    "Phi3ForCausalLM": ("phi3", "Phi3ForCausalLM"),
    "GraniteForCausalLM": ("granite", "GraniteForCausalLM"),
    "Olmo2ForCausalLM": ("olmo2", "Olmo2ForCausalLM"),
    "GptOssForCausalLM": ("gpt_oss", "GptOssForCausalLM"),
    "LlavaForConditionalGeneration": ("llava", "LlavaForConditionalGeneration"),
    "Qwen2VLForConditionalGeneration": ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
    "DeepseekV2ForCausalLM": ("deepseek_v2", "DeepseekV2ForCausalLM"),
}

_SUFFIXES = (
    ("ForCausalLM", "generate", "none"),
    ("ForSequenceClassification", "pooling", "classify"),
    ("Model", "pooling", "embed"),
)
"""End of a name -> runner and conversion: upstream/vllm/config/model.py:1919 — `_SUFFIX_TO_DEFAULTS`."""


def get_supported_archs() -> list[str]:
    """Names of all registered architectures, sorted."""
    return sorted(_MODELS)


def register_model(
    architecture: str, model_class: type | str, keys: KeyTable | None = None, media: type | str | None = None
) -> None:
    """Add an architecture, or replace one, which is a warning.

    Args:
        model_class: a class, or "package.module:Class", which is imported when a checkpoint asks for it.
        keys: which keys its `config.json` may have; None: they are known.
        media: of a model that takes some, what cuts its `config.json` in two (`transformers_utils/config_keys.py`,
            `MEDIA`), a class or "package.module.Class". Its processor: `MULTIMODAL_REGISTRY.register_processor`.

    Raises:
        TypeError, ValueError: the argument, its value and what is allowed.

    Upstream: upstream/vllm/model_executor/models/registry.py:963 — `_ModelRegistry.register_model`.
    """
    if not isinstance(architecture, str):
        raise TypeError(f"architecture must be a string, got {shown(architecture)}")
    if not isinstance(model_class, type | str):
        raise TypeError(f"model_class must be a class or 'package.module:Class', got {shown(model_class)}")
    if isinstance(model_class, str) and not all(model_class.partition(":")[::2]):
        raise ValueError(f"model_class must be a class or 'package.module:Class', got {shown(model_class)}")
    if not isinstance(keys, KeyTable | None):
        raise TypeError(f"keys must be a KeyTable or None, got {shown(keys)}")
    if not isinstance(media, type | str | None):
        raise TypeError(f"media must be a class, 'package.module.Class' or None, got {shown(media)}")
    if _MODELS.get(architecture, model_class) != model_class:
        logger.warning("Model architecture %s is already registered, and is replaced by %s", architecture, model_class)
    _MODELS[architecture] = model_class
    if keys is not None:
        ARCHITECTURES[architecture] = keys
    if media is not None:
        MEDIA[architecture] = media


def get_model_class(architecture: str) -> Any:
    """The class for this name.

    Raises:
        ValueError: names the architecture and what is allowed.
    """
    entry = _MODELS.get(architecture) or _MODELS.get(base_architecture(architecture))
    if entry is None:
        raise ValueError(f"architecture {architecture!r} is not supported; allowed: {', '.join(get_supported_archs())}")
    if isinstance(entry, tuple):
        module, name = entry
        return getattr(importlib.import_module(f"mini_vllm.models.{module}"), name)
    return resolve_obj_by_qualname(entry) if isinstance(entry, str) else entry


def defaults_of(architecture: str) -> tuple[str, str]:
    """The runner and the conversion that a name stands for: ("generate", "none") where nothing is known.

    Upstream: upstream/vllm/config/model.py:1943 — `try_match_architecture_defaults`.
    """
    found = (rest for suffix, *rest in _SUFFIXES if architecture.endswith(suffix))
    runner, convert = next(found, ("generate", "none"))
    return runner, convert


def base_architecture(architecture: str) -> str:
    """The language model that `Qwen3ForSequenceClassification` or `Qwen3Model` is made from."""
    for suffix, *_ in _SUFFIXES[1:]:
        if architecture.endswith(suffix):
            return architecture.removesuffix(suffix) + "ForCausalLM"
    return architecture


def convert_model_class(model_class: Any, convert: str) -> Any:
    """The class as it is ("none"), or as a model that pools ("embed", "classify").

    Upstream: upstream/vllm/model_executor/model_loader/utils.py:179 — `_get_model_architecture`.
    """
    if convert == "none":
        return model_class
    from mini_vllm.models import adapters

    return adapters.as_embedding_model(model_class) if convert == "embed" else adapters.as_seq_cls_model(model_class)


class ModelRegistry:
    """The functions above under the names of upstream's object.

    Upstream: upstream/vllm/model_executor/models/registry.py:1354 — `ModelRegistry`.
    """

    get_supported_archs = staticmethod(get_supported_archs)
    register_model = staticmethod(register_model)

"""The config of LLaVA: a vision tower, a projector, and any language model that the registry has.

In vLLM there is no twin: it takes transformers' own `LlavaConfig`, `CLIPVisionConfig` and `SiglipVisionConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from mini_vllm.models.vision import get_num_selected_vision_tokens
from mini_vllm.transformers_utils.config_keys import IGNORABLE, READ_BY_POOLERS
from mini_vllm.transformers_utils.config_kinds import MAX_SIZE, SIZE
from mini_vllm.transformers_utils.config_parser import ConfigError
from mini_vllm.transformers_utils.file_keys import (
    FLAG,
    NULL,
    OBJECT,
    POSITIVE,
    WHOLE,
    FileKeys,
    Kind,
    one_of,
)
from mini_vllm.utils.checks import is_int, shown

_MAX_SIDE = 1 << 12
_SIDE = Kind(f"a whole number of at least 1 and at most {_MAX_SIDE:,}", lambda v: is_int(v) and 1 <= v <= _MAX_SIDE)
_HARMLESS = frozenset((IGNORABLE | READ_BY_POOLERS | {"dtype", "torch_dtype"}) - {"model_type"})
_ACTS = one_of("quick_gelu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
TOWERS: dict[str, dict[str, Any]] = {
    "clip_vision_model": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 224, "patch_size": 32, "num_channels": 3, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu",
    },
    "siglip_vision_model": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 224, "patch_size": 16, "num_channels": 3, "layer_norm_eps": 1e-6,
        "hidden_act": "gelu_pytorch_tanh",
    },
}  # fmt: skip
"""Towers, and what their families take where a key is absent."""
VISION_KEYS = FileKeys(
    "config.json: vision_config",
    used={
        **dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"), SIZE),
        **dict.fromkeys(("image_size", "patch_size"), _SIDE), "num_channels": one_of(3),
        "layer_norm_eps": POSITIVE, "hidden_act": _ACTS, "model_type": one_of(*TOWERS),
    },
    fixed={"vision_use_head": FLAG},
    harmless=_HARMLESS | {"initializer_factor", "projection_dim", "vocab_size", "output_dim"},
    needed=frozenset({"model_type"}),
)  # fmt: skip
KEYS = FileKeys(
    "config.json",
    used={
        "text_config": OBJECT, "vision_config": OBJECT, "image_token_index": WHOLE, "image_token_id": WHOLE,
        "vision_feature_layer": WHOLE, "vision_feature_select_strategy": one_of("default", "full", "class"),
        "projector_hidden_act": _ACTS, "multimodal_projector_bias": FLAG, "tie_word_embeddings": FLAG,
    },
    fixed={"quantization_config": NULL, "compression_config": NULL, "model_type": one_of("llava")},
    harmless=_HARMLESS | {
        "image_seq_length", "ignore_index", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id",
    },
    needed=frozenset({"text_config", "vision_config"}),
    because={
        "quantization_config": "a tower is never quantized here, and which layers a stored one leaves out is not read",
    },
)  # fmt: skip
_TEXT_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048}),
    "mistral": ("MistralForCausalLM", {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072}),
    "qwen2": ("Qwen2ForCausalLM", {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 32768}),
    "qwen3": ("Qwen3ForCausalLM", {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 32768}),
    "gemma2": ("Gemma2ForCausalLM", {}), "phi3": ("Phi3ForCausalLM", {}), "granite": ("GraniteForCausalLM", {}),
    "olmo2": ("Olmo2ForCausalLM", {}), "mixtral": ("MixtralForCausalLM", {}),
}  # fmt: skip
"""`model_type` of `text_config` -> its architecture, and what transformers takes where a key is absent: most keys are,
in LLaVA 1.5."""


@dataclass(frozen=True)
class VisionConfig:
    """A vision tower. Sizes are counts, `image_size` and `patch_size` pixels a side; `model_type`: one of `TOWERS`."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    image_size: int
    patch_size: int
    num_channels: int
    layer_norm_eps: float
    hidden_act: str

    @property
    def num_patches(self) -> int:
        """Of a picture, which is a square. Upstream: upstream/vllm/model_executor/models/clip.py:98 —
        `get_patch_grid_length`."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_image_tokens(self) -> int:
        """Rows of the tower; CLIP's have a class token. Upstream: upstream/vllm/model_executor/models/clip.py:84 —
        `get_num_image_tokens`."""
        return self.num_patches + (self.model_type == "clip_vision_model")

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> VisionConfig:
        """Raises ConfigError: names the key, its value and what is allowed."""
        given = VISION_KEYS.read(raw, error=ConfigError)
        values = {**TOWERS[given["model_type"]], **given}
        config = cls(**{each.name: values[each.name] for each in fields(cls)})
        for name, size, by, divisor in (
            ("image_size", config.image_size, "patch_size", config.patch_size),
            ("hidden_size", config.hidden_size, "num_attention_heads", config.num_attention_heads),
        ):
            if size % divisor:
                raise ConfigError(f"{VISION_KEYS.name}: {name} ({size}) must be a multiple of {by} ({divisor})")
        return config


@dataclass(frozen=True)
class LlavaConfig:
    """What `config.json` says beside the language model.

    Attributes:
        text_architecture: the language model's class.
        image_token_index: the id of a placeholder.
        vision_feature_layer: the layer whose features are taken, from the end where it is negative; 0: what goes in.
        vision_feature_select_strategy: see `models/vision.py`.
    """

    text_architecture: str
    vision: VisionConfig
    image_token_index: int
    vision_feature_layer: int = -2
    vision_feature_select_strategy: str = "default"
    projector_hidden_act: str = "gelu"
    multimodal_projector_bias: bool = True

    @property
    def summary(self) -> str:
        """What it sees, in words."""
        vision = self.vision
        rows = get_num_selected_vision_tokens(vision.num_image_tokens, self.vision_feature_select_strategy)
        name = vision.model_type.partition("_")[0].upper()
        return (
            f"pictures of {vision.image_size} × {vision.image_size} pixels, {rows} tokens each; {name} tower, "
            f"{self.num_vision_layers} of its {vision.num_hidden_layers} layers, width {vision.hidden_size}"
        )

    @property
    def num_vision_layers(self) -> int:
        """Layers of the tower that are needed.

        Upstream: upstream/vllm/model_executor/models/utils.py:868 — `get_layer_index`.
        """
        layer, layers = self.vision_feature_layer, self.vision.num_hidden_layers
        return layer if layer >= 0 else layers + layer + 1

    @property
    def least_parameters(self) -> int:
        """Weights that the tower and the projector have at least."""
        vision = self.vision
        layer = 4 * vision.hidden_size**2 + 2 * vision.hidden_size * vision.intermediate_size
        return layer * self.num_vision_layers

    @classmethod
    def split(cls, raw: dict[str, Any]) -> tuple[dict[str, Any], LlavaConfig]:
        """The language model's own `config.json`, and the rest.

        Raises:
            ConfigError: names the key, its value and what is allowed.
        """
        given = KEYS.read(raw, error=ConfigError)
        vision, text = VisionConfig.from_dict(given.pop("vision_config")), dict(given.pop("text_config"))
        architecture, defaults = _text_model(text)
        text = {**defaults, **{key: value for key, value in text.items() if value is not None}}
        text["architectures"] = [architecture]
        if given.pop("tie_word_embeddings", False) and not text.get("tie_word_embeddings"):
            raise ConfigError(
                "config.json: tie_word_embeddings is true, and text_config says that it is not: one of the two is wrong"
            )
        indexes = {given.pop(key) for key in ("image_token_index", "image_token_id") if key in given}
        vocab = text.get("vocab_size", 0)
        if len(indexes) != 1 or not (is_int(vocab) and 0 <= min(indexes) < min(vocab, MAX_SIZE)):
            raise ConfigError(
                f"config.json: image_token_index must be a token id below text_config's vocab_size ({shown(vocab)}), "
                f"got {shown(sorted(indexes))}"
            )
        config = cls(architecture, vision, indexes.pop(), **given)
        if not 0 <= config.num_vision_layers <= vision.num_hidden_layers:
            raise ConfigError(
                f"config.json: vision_feature_layer must be one of the tower's {vision.num_hidden_layers} layers, "
                f"got {config.vision_feature_layer}"
            )
        return text, config


def _text_model(text: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The architecture that `text_config` names, by itself or by its `model_type`, and its family's defaults."""
    kind, named = text.get("model_type"), text.get("architectures")
    found = _TEXT_MODELS.get(kind) if isinstance(kind, str) else None
    if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str):
        return named[0], {} if found is None or found[0] != named[0] else found[1]
    if named is not None or found is None:
        raise ConfigError(
            f"config.json: text_config must have one architecture, or a model_type among {', '.join(_TEXT_MODELS)}, "
            f"got {shown(named)} and {shown(kind)}"
        )
    return found

"""The config of Qwen2-VL: a vision tower for pictures and films, and Qwen2 with positions of three parts.

In vLLM there is no twin: it takes transformers' own `Qwen2VLConfig` and `Qwen2VLVisionConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mini_vllm.transformers_utils.config_keys import IGNORABLE, READ_BY_POOLERS
from mini_vllm.transformers_utils.config_kinds import MAX_SIZE, SIZE
from mini_vllm.transformers_utils.config_parser import ConfigError
from mini_vllm.transformers_utils.file_keys import FLAG, NULL, OBJECT, WHOLE, FileKeys, Kind, one_of
from mini_vllm.utils.checks import is_int, shown

_MAX_PATCH = 1 << 8
_PATCH = Kind(f"a whole number of at least 1 and at most {_MAX_PATCH}", lambda v: is_int(v) and 1 <= v <= _MAX_PATCH)
_HARMLESS = frozenset((IGNORABLE | READ_BY_POOLERS | {"dtype", "torch_dtype"}) - {"model_type"})
_VISION = {
    "depth": 32, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4, "num_heads": 16, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
"""What transformers takes where a key is absent."""
VISION_KEYS = FileKeys(
    "config.json: vision_config",
    used={
        **dict.fromkeys(("depth", "embed_dim", "hidden_size", "mlp_ratio", "num_heads"), SIZE),
        **dict.fromkeys(("patch_size", "spatial_merge_size", "temporal_patch_size"), _PATCH),
    },
    fixed={
        "hidden_act": one_of("quick_gelu"), "in_channels": one_of(3), "in_chans": one_of(3), 
        "rope_parameters": one_of({"rope_type": "axial", "rope_theta": 10000.0}),
        "model_type": one_of("qwen2_vl", "qwen2_vl_vision"),
    },
    harmless=_HARMLESS | {"spatial_patch_size"},
)  # fmt: skip
KEYS = FileKeys(
    "config.json",
    used={
        "text_config": OBJECT, "vision_config": OBJECT, "tie_word_embeddings": FLAG,
        **dict.fromkeys(("image_token_id", "video_token_id"), WHOLE),
    },
    fixed={"quantization_config": NULL, "compression_config": NULL, "model_type": one_of("qwen2_vl")},
    harmless=_HARMLESS | {
        "vision_start_token_id", "vision_end_token_id", "vision_token_id", "vocab_size", "bos_token_id",
        "eos_token_id", "pad_token_id",
    },
    needed=frozenset({"text_config", "vision_config"}),
    because={
        "quantization_config": "a tower is never quantized here, and which layers a stored one leaves out is not read",
    },
)  # fmt: skip
_OF_THE_WHOLE = ("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
                 "vision_token_id", "quantization_config", "compression_config", "tie_word_embeddings")  # fmt: skip
"""Keys of a file without `text_config`, as the hub has it, that are not the language model's."""
_TEXT = {
    "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
    "max_window_layers": 80, "rope_theta": 1e6,
}  # fmt: skip


@dataclass(frozen=True)
class Qwen2VLVisionConfig:
    """The tower. depth: layers; embed_dim: their width; hidden_size: that of the language model.

    patch_size: pixels a side; spatial_merge_size: patches a side that become one row; temporal_patch_size: frames that
    one patch has.
    """

    depth: int
    embed_dim: int
    hidden_size: int
    mlp_ratio: int
    num_heads: int
    patch_size: int
    spatial_merge_size: int
    temporal_patch_size: int

    @property
    def head_dim(self) -> int:
        """Features of a head."""
        return self.embed_dim // self.num_heads

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Qwen2VLVisionConfig:
        """Raises ConfigError: names the key, its value and what is allowed."""
        config = cls(**{**_VISION, **VISION_KEYS.read(raw, error=ConfigError)})
        if config.embed_dim % (4 * config.num_heads):
            raise ConfigError(
                f"{VISION_KEYS.name}: embed_dim ({config.embed_dim}) must be a multiple of four times num_heads "
                f"({config.num_heads}): rows and columns turn pairs of features each"
            )
        return config


@dataclass(frozen=True)
class Qwen2VLConfig:
    """What `config.json` says beside the language model.

    Attributes:
        image_token_id, video_token_id: of placeholders.
        mrope_section: pairs of a head's features that are turned by time, by height and by width.
    """

    vision: Qwen2VLVisionConfig
    mrope_section: tuple[int, int, int]
    image_token_id: int = 151655
    video_token_id: int = 151656
    text_architecture: str = "Qwen2ForCausalLM"

    @property
    def summary(self) -> str:
        """What it sees, in words."""
        side = self.vision.patch_size * self.vision.spatial_merge_size
        return (
            f"pictures and films of any size, a token for each {side} × {side} pixels, of a film for each "
            f"{self.vision.temporal_patch_size} frames; tower of {self.vision.depth} layers, "
            f"width {self.vision.embed_dim}"
        )

    @property
    def least_parameters(self) -> int:
        """Weights that the tower has at least."""
        vision = self.vision
        return (4 + 2 * vision.mlp_ratio) * vision.embed_dim**2 * vision.depth

    @classmethod
    def split(cls, raw: dict[str, Any]) -> tuple[dict[str, Any], Qwen2VLConfig]:
        """The language model's own `config.json`, and the rest.

        Raises:
            ConfigError: names the key, its value and what is allowed.
        """
        if raw.get("text_config") is None:  # as on the hub: one object for both
            text = {key: value for key, value in raw.items() if key not in (*_OF_THE_WHOLE, "text_config")}
            whole = {key: raw[key] for key in _OF_THE_WHOLE if key in raw}
            raw = {**whole, "model_type": raw.get("model_type"), "text_config": text}
        given = KEYS.read(raw, error=ConfigError)
        text = {**_TEXT, **{key: value for key, value in given.pop("text_config").items() if value is not None}}
        text["architectures"] = [cls.text_architecture]
        text["tie_word_embeddings"] = given.pop("tie_word_embeddings", False) or text.get("tie_word_embeddings", False)
        vision = Qwen2VLVisionConfig.from_dict(given.pop("vision_config"))
        config = cls(vision, _take_mrope_section(text), **given)
        _check(text, config)
        return text, config


def _take_mrope_section(text: dict[str, Any]) -> tuple[int, int, int]:
    """Take it out of what `text` says of rotary positions, which then are plain ones."""
    key = "rope_scaling" if text.get("rope_scaling") else "rope_parameters"
    rope: Any = text.get(key)
    section = rope.get("mrope_section") if isinstance(rope, dict) else None
    if not isinstance(section, list) or len(section) != 3 or not all(is_int(size) and size > 0 for size in section):
        raise ConfigError(
            f"config.json: {key} must have an mrope_section, a list of three whole numbers of at least 1, got "
            f"{shown(rope)}"
        )
    plain = {name: value for name, value in rope.items() if name != "mrope_section"}
    text[key] = {
        name: "default" if name in ("type", "rope_type") and value == "mrope" else value
        for name, value in plain.items()
    }
    return section[0], section[1], section[2]


def _check(text: dict[str, Any], config: Qwen2VLConfig) -> None:
    """What has to fit together."""
    vocab: Any
    hidden: Any
    heads: Any
    vocab, hidden, heads = (text.get(key) for key in ("vocab_size", "hidden_size", "num_attention_heads"))
    for name in ("image_token_id", "video_token_id"):
        token = getattr(config, name)
        if not (is_int(vocab) and 0 <= token < min(vocab, MAX_SIZE)):
            raise ConfigError(
                f"config.json: {name} must be a token id below the vocab_size ({shown(vocab)}), got {token}"
            )
    if config.vision.hidden_size != hidden:
        raise ConfigError(
            f"{VISION_KEYS.name}: hidden_size must be the language model's ({shown(hidden)}), got "
            f"{config.vision.hidden_size}"
        )
    if not is_int(heads) or heads < 1 or 2 * sum(config.mrope_section) != hidden // heads:
        raise ConfigError(
            f"config.json: mrope_section must have as many numbers in all as a head has pairs of features, got "
            f"{list(config.mrope_section)} with hidden_size {shown(hidden)} and num_attention_heads {shown(heads)}"
        )

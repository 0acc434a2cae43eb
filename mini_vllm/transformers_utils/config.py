"""Reads a checkpoint's `config.json` and checks that this engine computes what the file describes.

Every key has to be known: used, without influence on the result, or supported with certain values only. Any other key
could change the mathematics, so it is an error that names it (upstream accepts what it does not know).
Upstream twin: `vllm/transformers_utils/config.py` and `vllm/config/model.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_vllm.transformers_utils.config_encoder import POOLING_ARCHITECTURES
from mini_vllm.transformers_utils.config_keys import ARCHITECTURES, GENERATION_DEFAULTS, IGNORABLE, KeyTable
from mini_vllm.transformers_utils.config_moe import MoEConfig, parse_moe
from mini_vllm.transformers_utils.config_rope import RopeConfig, parse_rope
from mini_vllm.utils.checks import shown
from mini_vllm.utils.json_files import load_json_object

ALL_ARCHITECTURES: dict[str, KeyTable] = {**ARCHITECTURES, **POOLING_ARCHITECTURES}
_REQUIRED = object()
_LIMITS = {"num_hidden_layers": 10_000, "vocab_size": 1 << 31, "max_position_embeddings": 1 << 40}
_MAX_SIZE = 1 << 24
"""Larger numbers are damage: they are refused before a list of that length, or an array, is made."""


class ConfigError(ValueError):
    """`config.json` or `generation_config.json` is damaged, or asks for something this engine does not compute."""


@dataclass(frozen=True)
class HFConfig:
    """A checked `config.json`. Sizes are counts; `sliding_windows` has one entry per layer (tokens, or None).

    `eos_token_ids` starts with the config's own id; those of `generation_config.json` follow.
    `generation_defaults` holds what that file says about sampling (temperature, top_p, ...); `quantization_config` is
    what `config.json` says about stored weights, unread; `dtype` what it says that they are, e.g. "bfloat16"; `raw` is
    the file, for what one architecture alone wants to know.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    norm_eps: float
    rope: RopeConfig
    sliding_windows: tuple[int | None, ...]
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool = False
    norm_before: bool = True
    bos_token_id: int | None = None
    eos_token_ids: list[int] = field(default_factory=list)
    generation_defaults: dict[str, Any] = field(default_factory=dict)
    quantization_config: dict[str, Any] | None = None
    moe: MoEConfig | None = None
    dtype: str | None = field(default=None, compare=False)
    raw: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def max_model_len(self) -> int:
        """Context in tokens; linear scaling stretches it.

        Upstream: upstream/vllm/config/model.py:2204 — "derived_max_model_len *= scaling_factor".
        """
        stretch = self.rope.factor if self.rope.rope_type == "linear" else 1.0
        return int(self.max_position_embeddings * stretch)

    @property
    def least_parameters(self) -> int:
        """Weights that a model of these sizes has at least: embeddings, attention and one MLP a layer."""
        heads = 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim
        inner = (
            2 * self.intermediate_size if self.moe is None else 3 * self.moe.intermediate_size * self.moe.num_experts
        )
        return self.hidden_size * (self.vocab_size + self.num_hidden_layers * (heads + inner))

    @property
    def sliding_window(self) -> int | None:
        """The window of the layers that have one, None when no layer has."""
        return next((w for w in self.sliding_windows if w is not None), None)

    @classmethod
    def from_folder(cls, path: str | Path) -> HFConfig:
        """Read `config.json` (and `generation_config.json`, where there is one) of a checkpoint folder.

        Raises:
            FileNotFoundError: no such folder, or no config.json in it.
            ConfigError: names the file, the key, its value and what is allowed.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise FileNotFoundError(f"model folder {str(folder)!r} does not exist")
        file = folder / "config.json"
        if not file.is_file():
            raise FileNotFoundError(f"no config.json in {str(folder)!r}: not a checkpoint in Hugging Face layout")
        generation = read_generation_config(folder, missing_is_fine=True)
        return cls.from_dict(load_json_object(file, ConfigError), generation)

    @classmethod
    def from_dict(cls, raw: dict[str, Any], generation: dict[str, Any] | None = None) -> HFConfig:
        """As `from_folder`, from parsed JSON."""
        table, architecture = _architecture(raw)
        _check_keys(raw, table, architecture)
        return _Parser(raw, table, architecture, generation or {}).parse()


def read_generation_config(folder: str | Path, missing_is_fine: bool = False) -> dict[str, Any]:
    """`generation_config.json` of a folder; {} where there is none and `missing_is_fine`.

    Raises FileNotFoundError, or ConfigError where it is damaged.
    Upstream: upstream/vllm/transformers_utils/config.py:1107 — `try_get_generation_config`.
    """
    file = Path(folder) / "generation_config.json"
    if not file.is_file():
        if missing_is_fine:
            return {}
        raise FileNotFoundError(
            f"generation_config={str(folder)!r} must be 'auto', 'vllm', or a folder with {file.name}"
        )
    return load_json_object(file, ConfigError)


def _architecture(raw: dict[str, Any]) -> tuple[KeyTable, str]:
    names = raw.get("architectures")
    known = ", ".join(sorted(ALL_ARCHITECTURES))
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ConfigError(f"config.json: architectures must name one of {known}, got {names!r}")
    if names[0] not in ALL_ARCHITECTURES:
        raise ConfigError(f"config.json: architecture {names[0]!r} is not supported; allowed: {known}")
    return ALL_ARCHITECTURES[names[0]], names[0]


def _check_keys(raw: dict[str, Any], table: KeyTable, architecture: str) -> None:
    for key, value in raw.items():
        if key in table.used or key in IGNORABLE or key in table.ignorable or value is None:
            continue
        if key not in table.fixed:
            raise ConfigError(
                f"config.json: unknown key {key!r} = {value!r}: it could change what {architecture} computes"
            )
        if value not in table.fixed[key]:
            allowed = " or ".join(repr(v) for v in table.fixed[key])
            raise ConfigError(f"config.json: {key} = {value!r} is not supported for {architecture}; allowed: {allowed}")


class _Parser:
    """Turns the raw keys of one architecture into an `HFConfig`."""

    def __init__(self, raw: dict[str, Any], table: KeyTable, architecture: str, generation: dict[str, Any]) -> None:
        self.raw, self.table, self.named, self.generation = raw, table, architecture, generation
        self.architecture = table.like or architecture

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The key's value; the family's default, then `default`, where it is absent or null."""
        value = self.raw.get(key)
        if value is None:
            value = self.table.defaults.get(key, default)
        if value is _REQUIRED:
            raise ConfigError(f"config.json: {self.architecture} needs {key}, which is missing")
        return value

    def positive(self, key: str, default: Any = _REQUIRED) -> int:
        """A whole number of at least 1."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"config.json: {key} must be a whole number of at least 1, got {shown(value)}")
        if value > _LIMITS.get(key, _MAX_SIZE):
            most = _LIMITS.get(key, _MAX_SIZE)
            raise ConfigError(f"config.json: {key} must be at most {most:,}, got {shown(value)}")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number above 0."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ConfigError(f"config.json: {key} must be a number above 0, got {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"config.json: {key} must be true or false, got {value!r}")
        return value

    def parse(self) -> HFConfig:
        """Everything, checked against each other."""
        is_opt, encoder = self.architecture == "OPTForCausalLM", self.table.is_encoder
        hidden, heads = self.positive("hidden_size"), self.positive("num_attention_heads")
        kv_heads = heads if is_opt or encoder else self.positive("num_key_value_heads", heads)
        layers = self.positive("num_hidden_layers")
        head_dim = self._head_dim(hidden, heads, kv_heads)
        if is_opt and self.get("word_embed_proj_dim", hidden) != hidden:
            raise ConfigError(
                f"config.json: word_embed_proj_dim = {self.raw['word_embed_proj_dim']} is not supported; "
                f"allowed: hidden_size ({hidden})"
            )
        bias = self.flag("enable_bias", True) if is_opt else self.flag("attention_bias")
        return HFConfig(
            architecture=self.named,
            vocab_size=self.positive("vocab_size"),
            hidden_size=hidden,
            intermediate_size=self.positive("ffn_dim" if is_opt else "intermediate_size"),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=self.positive("max_position_embeddings"),
            norm_eps=1e-5 if is_opt else self.number(self.table.norm_key, 1e-6),
            rope=RopeConfig() if is_opt or encoder else parse_rope(self, ConfigError),
            sliding_windows=self._windows(layers),
            tie_word_embeddings=self.flag("tie_word_embeddings"),
            qkv_bias=self.architecture == "Qwen2ForCausalLM" or bias,
            o_bias=bias,
            mlp_bias=bias if is_opt else self.flag("mlp_bias"),
            qk_norm=self.architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
            norm_before=self.flag("do_layer_norm_before", True),
            bos_token_id=next(iter(self._token_ids("bos_token_id", self.raw)), None),
            eos_token_ids=self._eos(),
            generation_defaults={
                k: v for k, v in self.generation.items() if k in GENERATION_DEFAULTS and v is not None
            },
            quantization_config=self._quantization(),
            moe=parse_moe(self, layers),
            dtype=str(self.get("dtype", self.get("torch_dtype", None)) or "") or None,
            raw=self.raw,
        )

    def _quantization(self) -> dict[str, Any] | None:
        """As it stands; `layers/quantization/` reads it. Old compressed-tensors files say `compression_config`."""
        value = self.get("quantization_config", self.get("compression_config", None))
        if value is not None and not (isinstance(value, dict) and isinstance(value.get("quant_method"), str)):
            raise ConfigError(f"config.json: quantization_config must be an object with a quant_method, got {value!r}")
        return value

    def _head_dim(self, hidden: int, heads: int, kv_heads: int) -> int:
        if heads % kv_heads:
            raise ConfigError(
                f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
            )
        if self.raw.get("head_dim") is None and "head_dim" not in self.table.defaults and hidden % heads:
            raise ConfigError(f"config.json: hidden_size {hidden} must be a multiple of num_attention_heads {heads}")
        head_dim = self.positive("head_dim", hidden // heads)
        if head_dim % 2 and self.architecture != "OPTForCausalLM":
            raise ConfigError(f"config.json: head_dim must be even for rotary positions, got {head_dim}")
        if "head_dim" not in self.table.used and head_dim != hidden // heads:
            raise ConfigError(f"config.json: head_dim = {head_dim} is not supported; allowed: {hidden // heads}")
        return head_dim

    def _token_ids(self, key: str, source: dict[str, Any]) -> list[int]:
        value = source.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
            raise ConfigError(f"{key} must be a token id or a list of them, got {value!r}")
        return ids

    def _eos(self) -> list[int]:
        ids = self._token_ids("eos_token_id", self.raw) + self._token_ids("eos_token_id", self.generation)
        return list(dict.fromkeys(ids))

    def _windows(self, layers: int) -> tuple[int | None, ...]:
        """Mistral: one window for all layers. Qwen: only those of `layer_types`, or from `max_window_layers` on."""
        if "sliding_window" not in self.table.used:
            return (None,) * layers
        window = self.raw.get("sliding_window", self.table.defaults.get("sliding_window"))
        if "use_sliding_window" in self.table.used and not self.flag("use_sliding_window"):
            window = None
        if window is None:
            return (None,) * layers
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ConfigError(f"config.json: sliding_window must be a number of tokens of at least 1, got {window!r}")
        if "use_sliding_window" not in self.table.used:
            return (window,) * layers
        kinds = self.raw.get("layer_types")
        if kinds is None:
            first = self.get("max_window_layers")
            kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
        if len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
            raise ConfigError(
                f"config.json: layer_types must hold {layers} times 'full_attention' or 'sliding_attention', "
                f"got {kinds!r}"
            )
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)

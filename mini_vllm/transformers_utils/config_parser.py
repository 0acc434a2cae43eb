"""The keys of a `config.json`, one by one: types, defaults, and what has to fit together."""

from __future__ import annotations

from typing import Any

from mini_vllm.transformers_utils.config_keys import GENERATION_DEFAULTS, KeyTable
from mini_vllm.transformers_utils.config_kinds import KINDS, MAX_SIZE
from mini_vllm.transformers_utils.config_moe import parse_moe
from mini_vllm.transformers_utils.config_rope import (
    LAYER_TYPES,
    RopeConfig,
    parse_local_rope,
    parse_modernbert_ropes,
    parse_rope,
)
from mini_vllm.utils.checks import shown

_REQUIRED = object()
_LIMITS = {"num_hidden_layers": 10_000, "vocab_size": 1 << 31, "max_position_embeddings": 1 << 40}


class ConfigError(ValueError):
    """`config.json` or `generation_config.json` is damaged, or asks for something this engine does not compute."""


class ConfigParser:
    """Turns the raw keys of one architecture into the fields of an `HFConfig`."""

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
        if value > _LIMITS.get(key, MAX_SIZE):
            most = _LIMITS.get(key, MAX_SIZE)
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

    def parse(self) -> dict[str, Any]:
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
        rope, rope_local = self._ropes()
        return dict(
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
            rope=rope,
            sliding_windows=self._windows(layers),
            tie_word_embeddings=self.flag("tie_word_embeddings"),
            qkv_bias=self.architecture == "Qwen2ForCausalLM" or bias,
            o_bias=bias,
            mlp_bias=bias if is_opt else self.flag("mlp_bias"),
            qk_norm=self.architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
            norm_before=self.flag("do_layer_norm_before", True),
            bos_token_id=next(iter(self._token_ids("bos_token_id", "config.json")), None),
            eos_token_ids=self._eos(),
            generation_defaults={
                k: v for k, v in self.generation.items() if k in GENERATION_DEFAULTS and v is not None
            },
            quantization_config=self._quantization(),
            moe=parse_moe(self, layers),
            own={key: self._own(key, default) for key, default in self.table.own.items()},
            rope_local=rope_local,
            dtype=str(self.get("dtype", self.get("torch_dtype", None)) or "") or None,
            raw=self.raw,
        )

    def _ropes(self) -> tuple[RopeConfig, RopeConfig | None]:
        """Of the layers with full attention, and of those with a window where they have their own."""
        if "global_rope_theta" in self.table.used:
            return parse_modernbert_ropes(self, ConfigError)
        if self.table.is_encoder or self.architecture == "OPTForCausalLM":
            return RopeConfig(), None
        return parse_rope(self, ConfigError), parse_local_rope(self, ConfigError)

    def _own(self, key: str, default: Any) -> Any:
        """The value of a key of the model's own, of its default's kind; null stands for itself."""
        value = self.raw.get(key, default)
        if value is default or (value is None and key in KINDS and KINDS[key].allows(None)):
            return value
        kind: Any = int | float if default is None or isinstance(default, float) else type(default)
        is_number = not isinstance(value, bool) and isinstance(value, int | float)
        if not isinstance(value, kind) or isinstance(value, bool) != isinstance(default, bool):
            kind_name = "a number" if kind == int | float else f"of type {type(default).__name__}"
            raise ConfigError(f"config.json: {key} must be {kind_name}, got {shown(value)}")
        if is_number and not (0 <= value < MAX_SIZE and (value or default == 0)):
            raise ConfigError(f"config.json: {key} must be a number above 0 and at most {MAX_SIZE:,}, got {value!r}")
        return value

    def _quantization(self) -> dict[str, Any] | None:
        """As it stands; `layers/quantization/` reads it. Old compressed-tensors files say `compression_config`."""
        old = self.get("compression_config", None)
        value = self.get("quantization_config", old)
        if old is not None and value != old:
            raise ConfigError(f"config.json: quantization_config and compression_config disagree: {value} and {old}")
        if value is not None and not (isinstance(value, dict) and isinstance(value.get("quant_method"), str)):
            raise ConfigError(f"config.json: quantization_config must be an object with a quant_method, got {value!r}")
        return value

    def _head_dim(self, hidden: int, heads: int, kv_heads: int) -> int:
        if heads % kv_heads:
            raise ConfigError(
                f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
            )
        has_own = "head_dim" in self.table.defaults or self.table.head_dim_keys
        if self.raw.get("head_dim") is None and not has_own and hidden % heads:
            raise ConfigError(f"config.json: hidden_size {hidden} must be a multiple of num_attention_heads {heads}")
        if self.table.head_dim_keys:
            return sum(self.positive(key, self.table.own[key]) for key in self.table.head_dim_keys)
        head_dim = self.positive("head_dim", hidden // heads)
        if head_dim % 2 and self.architecture != "OPTForCausalLM":
            raise ConfigError(f"config.json: head_dim must be even for rotary positions, got {head_dim}")
        if "head_dim" not in self.table.used and head_dim != hidden // heads:
            raise ConfigError(f"config.json: head_dim = {head_dim} is not supported; allowed: {hidden // heads}")
        return head_dim

    def _token_ids(self, key: str, file: str) -> list[int]:
        """The ids. One that ends a text is in the vocabulary; others, which small checkpoints keep from a large one's
        defaults, are asked by nobody."""
        value = (self.raw if file == "config.json" else self.generation).get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
            raise ConfigError(f"{file}: {key} must be a token id or a list of them, got {shown(value)}")
        last = self.positive("vocab_size") - 1
        if key == "eos_token_id" and any(not 0 <= i <= last for i in ids):
            raise ConfigError(f"{file}: {key} must be ids of the vocabulary, 0 to {last}, got {shown(value)}")
        return ids

    def _eos(self) -> list[int]:
        for file in ("config.json", "generation_config.json"):
            self._token_ids("pad_token_id", file)
        self._token_ids("bos_token_id", "generation_config.json")
        ids = self._token_ids("eos_token_id", "config.json") + self._token_ids("eos_token_id", "generation_config.json")
        return list(dict.fromkeys(ids))

    def _windows(self, layers: int) -> tuple[int | None, ...]:
        """Mistral: one window for all layers. Qwen: only those of `layer_types`, or from `max_window_layers` on."""
        named = self.raw.get("layer_types") if "layer_types" in self.table.used else None
        if named is not None and (len(named) != layers or not set(named) <= set(LAYER_TYPES)):
            raise ConfigError(
                f"config.json: layer_types must hold {layers} times 'full_attention' or 'sliding_attention', "
                f"got {named!r}"
            )
        if "sliding_window" not in self.table.used:
            return (None,) * layers
        window = self.raw.get("sliding_window", self.table.defaults.get("sliding_window"))
        if "use_sliding_window" in self.table.used and not self.flag("use_sliding_window"):
            window = None
        if window is None:
            return (None,) * layers
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ConfigError(f"config.json: sliding_window must be a number of tokens of at least 1, got {window!r}")
        every = self.raw.get("sliding_window_pattern") or self.table.full_every
        if "use_sliding_window" not in self.table.used and not every:
            return (window,) * layers
        kinds = self.raw.get("layer_types")
        if kinds is None and every:
            every = self.positive("sliding_window_pattern", every)
            kinds = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
        if kinds is None:
            first = self.get("max_window_layers")
            kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)

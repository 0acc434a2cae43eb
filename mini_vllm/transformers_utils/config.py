"""Reads a checkpoint's `config.json` and checks that this engine computes what the file describes.

Every key has to be known: used, without influence on the result, or supported with certain values only. Any other key
could change the mathematics, so it is an error that names it (upstream accepts what it does not know).
Upstream twin: `vllm/transformers_utils/config.py` and `vllm/config/model.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mini_vllm.logger import warning_once
from mini_vllm.transformers_utils import generation_config
from mini_vllm.transformers_utils.config_encoder import ENCODERS, LIKE
from mini_vllm.transformers_utils.config_keys import ARCHITECTURES, MEDIA, KeyTable
from mini_vllm.transformers_utils.config_keys_decoders import DECODERS
from mini_vllm.transformers_utils.config_kinds import check_keys
from mini_vllm.transformers_utils.config_moe import MoEConfig
from mini_vllm.transformers_utils.config_parser import ConfigError, ConfigParser
from mini_vllm.transformers_utils.config_rope import RopeConfig
from mini_vllm.utils.checks import naming
from mini_vllm.utils.import_utils import resolve_obj_by_qualname
from mini_vllm.utils.json_files import load_json_object


def known_architectures() -> list[str]:
    """Names that have a table of keys, sorted; those of `register_model` are among them."""
    return sorted({*ARCHITECTURES, *DECODERS, *ENCODERS, *LIKE})


def key_table(architecture: str) -> KeyTable:
    """The keys of an architecture. What `register_model` was given comes first, whenever it was given.

    Raises KeyError where nobody knows the name.
    """
    for tables in (ARCHITECTURES, DECODERS, ENCODERS):
        if architecture in tables:
            return tables[architecture]
    like = LIKE[architecture]
    return replace(key_table(like), like=like)


@dataclass(frozen=True)
class HFConfig:
    """A checked `config.json`. Sizes are counts; `sliding_windows` has one entry per layer (tokens, or None).

    `eos_token_ids` starts with the config's own id; those of `generation_config.json` follow.
    `generation_defaults` holds what that file says about sampling (temperature, top_p, ...); `quantization_config` is
    what `config.json` says about stored weights, unread; `dtype` what it says that they are, e.g. "bfloat16".
    `own` has what only the model's file reads (`KeyTable.own`); `rope_local` is that of the layers with a window, None
    where they have no other than the rest. `media`: what a model that takes media has beside its language model, which
    the other fields describe; None for text alone. `raw` is the file, for what one architecture alone wants to know.
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
    own: dict[str, Any] = field(default_factory=dict)
    rope_local: RopeConfig | None = None
    media: Any = None
    dtype: str | None = field(default=None, compare=False)
    raw: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def max_model_len(self) -> int:
        """Context in tokens; most ways of scaling stretch it, but Gemma 3 says how long it is afterwards.

        Upstream: upstream/vllm/config/model.py:2204 — "derived_max_model_len *= scaling_factor".
        """
        of_gemma = self.rope_local is not None and "rope_local_base_freq" in self.table.used
        plain = self.rope.max_position_embeddings == 0 or of_gemma
        return self.max_position_embeddings if plain else self.rope.longest

    @property
    def default_model_len(self) -> int:
        """What is served where nobody says: with longrope and dynamic, the context before it was stretched, so that
        short sequences are computed as they were learned.

        Upstream: upstream/vllm/config/model.py:2213 — "For LongRoPE, default to original_max_position_embeddings";
        with "dynamic" it serves the longer context, and leaves the base alone.
        """
        if self.rope.rope_type == "dynamic":
            return self.max_position_embeddings
        is_long = self.rope.rope_type == "longrope"
        return min(self.rope.original_max_position_embeddings, self.max_model_len) if is_long else self.max_model_len

    def serving(self, max_model_len: int | None) -> HFConfig:
        """For sequences of so many tokens at most; None: `default_model_len`. See `RopeConfig.max_len`."""
        length = max_model_len or self.default_model_len
        ropes = [each for each in (self.rope, self.rope_local) if each is not None]
        if any(each.rope_type == "dynamic" for each in ropes) and length > self.max_position_embeddings:
            warning_once(__name__, f"max_model_len={length} stretches the rotary base for short sequences too: "
                         f"up to {self.max_position_embeddings} it is that of the checkpoint")  # fmt: skip
        local = self.rope_local and replace(self.rope_local, max_len=length)
        return replace(self, rope=replace(self.rope, max_len=length), rope_local=local)

    @property
    def least_parameters(self) -> int:
        """Weights that a model of these sizes has at least: embeddings, attention and one MLP a layer."""
        heads = 2 * (self.num_attention_heads + self.num_key_value_heads) * self.head_dim
        if self.table.head_dim_keys:  # projected through something smaller
            heads = 0
        layers, mixtures = self.num_hidden_layers, 0 if self.moe is None else sum(self.moe.layers)
        inner = 2 * self.intermediate_size * (layers - mixtures)
        if self.moe is not None:
            inner += 3 * self.moe.intermediate_size * self.moe.num_experts * mixtures
        more = 0 if self.media is None else self.media.least_parameters
        return self.hidden_size * (self.vocab_size + layers * heads + inner) + more

    @property
    def text_config(self) -> HFConfig:
        """The language model's own, of a model that takes media.

        Upstream: upstream/vllm/transformers_utils/config.py:1090 — `get_hf_text_config`.
        """
        return replace(self, architecture=self.media.text_architecture, media=None)

    @property
    def table(self) -> KeyTable:
        """The keys of this architecture; with media, of its language model."""
        return key_table(self.architecture if self.media is None else self.media.text_architecture)

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
        architecture = _architecture(raw)
        if architecture in MEDIA:
            config: Any = MEDIA[architecture]
            text, media = (resolve_obj_by_qualname(config) if isinstance(config, str) else config).split(raw)
            return replace(cls.from_dict(text, generation), architecture=architecture, media=media)
        table = key_table(architecture)
        check_keys(raw, table, architecture, ConfigError)
        checked = generation_config.KEYS.read(generation or {}, error=ConfigError)
        return cls(**ConfigParser(raw, table, architecture, checked).parse())


def read_generation_config(folder: str | Path, missing_is_fine: bool = False) -> dict[str, Any]:
    """`generation_config.json` of a folder; {} where there is none and `missing_is_fine`.

    Raises FileNotFoundError, or ConfigError where it is damaged.
    Upstream: upstream/vllm/transformers_utils/config.py:1107 — `try_get_generation_config`.
    """
    file = Path(folder) / "generation_config.json"
    with naming("generation_config", str(folder)):
        there = file.is_file()
    if not there:
        if missing_is_fine:
            return {}
        raise FileNotFoundError(
            f"generation_config={str(folder)!r} must be 'auto', 'vllm', or a folder with {file.name}"
        )
    return generation_config.KEYS.read_file(file, ConfigError)


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures")
    known = sorted({*known_architectures(), *MEDIA})
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ConfigError(f"config.json: architectures must name one of {', '.join(known)}, got {names!r}")
    if names[0] not in known:
        raise ConfigError(f"config.json: architecture {names[0]!r} is not supported; allowed: {', '.join(known)}")
    return names[0]

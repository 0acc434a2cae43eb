"""`adapter_config.json` of an adapter in PEFT's layout. Upstream twin: `vllm/lora/peft_helper.py`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mini_vllm.config.lora import LoRAConfig
from mini_vllm.transformers_utils.file_keys import (
    COUNT,
    EMPTY,
    FLAG,
    NUMBER,
    TEXT,
    TEXTS,
    WHOLE,
    WHOLES,
    FileKeys,
    Kind,
    one_of,
)
from mini_vllm.utils.json_files import load_json_object

CONFIG_NAME = "adapter_config.json"
_OFF = one_of(False, None)
_INITS = one_of(True, False, None, "gaussian", "eva", "orthogonal", "mica")
_MOVES = (
    "PEFT changes the base's weights when it loads such an adapter; save it as a plain one "
    "(`path_initial_model_for_weight_conversion` of `save_pretrained`)"
)
KEYS = FileKeys(
    CONFIG_NAME,
    used={
        "r": COUNT,
        "lora_alpha": NUMBER,
        "target_modules": TEXT | TEXTS,
        "exclude_modules": TEXT | TEXTS,
        "layers_to_transform": WHOLE | WHOLES,
        "layers_pattern": TEXT | TEXTS,
        "use_rslora": FLAG,
    },
    fixed={
        "peft_type": one_of("LORA"),
        "bias": one_of("none"),
        "init_lora_weights": Kind(_INITS.said, lambda v: _INITS.allows(v.lower() if isinstance(v, str) else v)),
        "modules_to_save": EMPTY,
        "rank_pattern": EMPTY,
        "alpha_pattern": EMPTY,
        "trainable_token_indices": EMPTY,
        "alora_invocation_tokens": EMPTY,
        "layer_replication": EMPTY,
        "target_parameters": EMPTY,
        "megatron_config": EMPTY,
        "velora_config": EMPTY,
        "monteclora_config": EMPTY,
        "arrow_config": EMPTY,
        "kasa_config": EMPTY,
        **dict.fromkeys(("use_dora", "use_qalora", "use_bdlora", "lora_bias"), _OFF),
    },
    harmless=frozenset({
        # about training, the base's name, or the library
        "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
        "lora_dropout", "runtime_config", "megatron_core",
        # of an initialization, which `init_lora_weights` names
        "loftq_config", "eva_config", "corda_config", "lora_ga_config",
        "fan_in_fan_out",  # PEFT itself sets it to false for linear layers, and there are no others here
        "qalora_group_size",  # of use_qalora
        "ensure_weight_tying",  # of embeddings and whole modules, which are refused
    }),
    needed=frozenset({"r", "lora_alpha", "target_modules"}),
    because={
        "peft_type": "other kinds of adapters are not served",
        "bias": "adapter bias is not supported",
        "lora_bias": "adapter bias is not supported",
        "init_lora_weights": _MOVES,
        "use_dora": "DoRA is not supported",
        "use_qalora": "QALoRA pools the inputs, which is not computed here",
        "use_bdlora": "block-diagonal factors are not supported",
        "modules_to_save": "whole modules are not supported",
        "rank_pattern": "one rank for all modules",
        "alpha_pattern": "one strength for all modules",
        "trainable_token_indices": "changed embeddings are not supported",
        "alora_invocation_tokens": "an adapter here works on all tokens of a request",
        "layer_replication": "layers of the base are not repeated here",
        "target_parameters": "adapters of experts are not served",
        "kasa_config": "KaSA changes the base's weights",
        "monteclora_config": "its factors are drawn anew",
        "arrow_config": "adapters are not routed here",
    },
)  # fmt: skip
"""Every field of `LoraConfig` of PEFT 0.21; upstream reads seven, and passes over the others."""


@dataclass
class PEFTHelper:
    """What an adapter says of itself.

    Attributes:
        r: its rank. lora_alpha: its strength; the product of its factors counts alpha / r times, or alpha / sqrt(r)
            with `use_rslora`. target_modules: names of the projections that it changes, or one pattern.
        exclude_modules: those left out of them. layers_to_transform, layers_pattern: numbers of the layers that count,
            and the name of the list of layers.
        scaling: that factor (upstream: `vllm_lora_scaling_factor`).

    Raises:
        ValueError: a field is missing or has no meaning.

    Upstream: upstream/vllm/lora/peft_helper.py:20 — `PEFTHelper`.
    """

    r: int
    lora_alpha: float
    target_modules: str | list[str]
    use_rslora: bool = False
    exclude_modules: str | list[str] = field(default_factory=list)
    layers_to_transform: int | list[int] = field(default_factory=list)
    layers_pattern: str | list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        KEYS.read({f.name: getattr(self, f.name) for f in fields(self)})
        if self.layers_to_transform != [] and isinstance(self.target_modules, str):
            raise ValueError(f"{CONFIG_NAME}: layers_to_transform cannot stand beside a pattern of target_modules")
        if self.layers_pattern and self.layers_to_transform == []:
            raise ValueError(f"{CONFIG_NAME}: layers_pattern cannot stand without layers_to_transform")
        self.scaling = self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], where: str = CONFIG_NAME) -> PEFTHelper:
        """Raises ValueError for a field that is missing, that nobody knows, or that asks for what is not computed."""
        return cls(**KEYS.read(config, where))

    @classmethod
    def from_local_dir(cls, lora_path: str | Path) -> PEFTHelper:
        """Read a folder. Raises FileNotFoundError where there is no such file, ValueError for what is in it.

        Upstream: upstream/vllm/lora/peft_helper.py:81 — `PEFTHelper.from_local_dir`.
        """
        path = Path(lora_path) / CONFIG_NAME
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there")
        return cls.from_dict(load_json_object(path), str(path))

    def validate_legal(self, config: LoRAConfig) -> None:
        """Raises ValueError for too high a rank; whatever else cannot be served has been refused by `from_dict`.

        Upstream: upstream/vllm/lora/peft_helper.py:114 — `PEFTHelper.validate_legal`.
        """
        if self.r > config.max_lora_rank:
            raise ValueError(f"LoRA rank {self.r} is greater than max_lora_rank {config.max_lora_rank}")

    def selects(self, module: str) -> bool:
        """Whether it changes a projection of the base, e.g. "model.layers.0.self_attn.q_proj": by PEFT's rules.

        Raises ValueError for a pattern that is none, or that takes too long.
        """
        if self.exclude_modules and _names("exclude_modules", self.exclude_modules, module):
            return False
        if self.target_modules == "all-linear":  # no output matrix and no embedding, which is a table
            kind = module.rpartition(".")[2]
            return kind not in ("lm_head", "score", "classifier") and not kind.startswith("embed_")
        if not _names("target_modules", self.target_modules, module):
            return False
        wanted = self.layers_to_transform
        if isinstance(self.target_modules, str) or wanted == []:
            return True
        lists = [self.layers_pattern] if isinstance(self.layers_pattern, str) else self.layers_pattern
        found = [_layer_of(module, rf"(?:^|.*?\.){each}\.(\d+)\.") for each in lists or ()]
        number = next((n for n in found if n is not None), None) if lists else _layer_of(module, r".*?\.[^.]*\.(\d+)\.")
        return number is not None and number in ([wanted] if isinstance(wanted, int) else wanted)


def _names(key: str, given: str | list[str], module: str) -> bool:
    if isinstance(given, list):
        return any(module == each or module.endswith(f".{each}") for each in given)
    return _match(key, given, module, whole=True) is not None


def _layer_of(module: str, pattern: str) -> int | None:
    match = _match("layers_pattern", pattern, module, whole=False)
    return None if match is None else int(match[1])


def _match(key: str, pattern: str, module: str, whole: bool) -> Any:
    """By `regex`, which can be stopped: a pattern of a file may take for ever."""
    import regex

    try:
        match = regex.fullmatch if whole else regex.match
        return match(pattern, module, timeout=1.0)
    except (regex.error, re.error) as error:
        raise ValueError(f"{CONFIG_NAME}: {key} {pattern!r} is no regular expression: {error}") from None
    except TimeoutError:
        raise ValueError(f"{CONFIG_NAME}: {key} {pattern!r} takes more than a second on {module!r}") from None

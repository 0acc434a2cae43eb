"""`adapter_config.json` of an adapter in PEFT's layout. Upstream twin: `vllm/lora/peft_helper.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from mini_vllm.config.lora import LoRAConfig
from mini_vllm.utils.checks import is_int, is_real, require, shown
from mini_vllm.utils.json_files import load_json_object

CONFIG_NAME = "adapter_config.json"


@dataclass
class PEFTHelper:
    """What an adapter says of itself.

    Attributes:
        r: its rank. lora_alpha: its strength; the product of its factors counts alpha / r times, or alpha / sqrt(r)
            with `use_rslora`. target_modules: names of the projections that it changes, or one pattern.
        scaling: that factor (upstream: `vllm_lora_scaling_factor`).

    Raises:
        ValueError: a field is missing or has no meaning.

    Upstream: upstream/vllm/lora/peft_helper.py:20 — `PEFTHelper`.
    """

    r: int
    lora_alpha: float
    target_modules: Any
    bias: str = "none"
    modules_to_save: Any = None
    use_rslora: bool = False
    use_dora: bool = False
    rank_pattern: Any = None
    alpha_pattern: Any = None
    lora_bias: Any = None
    peft_type: str = "LORA"

    def __post_init__(self) -> None:
        require(is_int(self.r) and self.r > 0, "r", self.r, "a whole number above 0")
        ok = is_real(self.lora_alpha) and math.isfinite(self.lora_alpha)
        require(ok, "lora_alpha", self.lora_alpha, "a number")
        self.scaling = self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> PEFTHelper:
        """Fields that are not known are passed over. Raises ValueError for one that is missing."""
        missing = sorted(f.name for f in fields(cls) if f.default is MISSING and f.name not in config)
        if missing:
            raise ValueError(f"{CONFIG_NAME} must have {', '.join(missing)}, got {shown(sorted(config))}")
        return cls(**{f.name: config[f.name] for f in fields(cls) if f.name in config})

    @classmethod
    def from_local_dir(cls, lora_path: str | Path) -> PEFTHelper:
        """Read a folder. Raises FileNotFoundError where there is no such file, ValueError for what is in it.

        Upstream: upstream/vllm/lora/peft_helper.py:81 — `PEFTHelper.from_local_dir`.
        """
        path = Path(lora_path) / CONFIG_NAME
        if not path.is_file():
            raise FileNotFoundError(f"{path} is not there")
        try:
            return cls.from_dict(load_json_object(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def validate_legal(self, config: LoRAConfig) -> None:
        """Raises ValueError for what cannot be served: too high a rank, biases, DoRA, whole modules.

        Upstream: upstream/vllm/lora/peft_helper.py:114 — `PEFTHelper.validate_legal`.
        """
        wrong = []
        if self.r > config.max_lora_rank:
            wrong.append(f"LoRA rank {self.r} is greater than max_lora_rank {config.max_lora_rank}")
        if self.bias != "none" or self.lora_bias:
            wrong.append("adapter bias is not supported")
        if self.use_dora:
            wrong.append("DoRA is not supported")
        if self.modules_to_save:
            wrong.append(f"modules_to_save must be empty, got {shown(self.modules_to_save)}")
        if self.rank_pattern or self.alpha_pattern:
            wrong.append("rank_pattern and alpha_pattern must be empty: one rank and one strength for all modules")
        if self.peft_type != "LORA":
            wrong.append(f"peft_type must be 'LORA', got {shown(self.peft_type)}")
        if wrong:
            raise ValueError("; ".join(wrong))

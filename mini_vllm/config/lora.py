"""How many adapters a step may have, and how large they may be. Upstream twin: `vllm/config/lora.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mini_vllm.config.utils import flag, one_of, whole_number
from mini_vllm.utils.checks import check_list, shown

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
LORA_DTYPES = ("auto", "float32", "float64")
"""Adapters are computed in the model's dtype here ("auto"), whatever their files hold."""


@dataclass
class LoRAConfig:
    """The reservation for adapters, made once, before the first of them is known.

    Attributes:
        max_lora_rank: rows of the buffers; an adapter of a smaller rank is padded with zeros.
        max_loras: slots, and so different adapters in a step.
        max_cpu_loras: adapters that are kept in memory, in a slot or not; None: as many as there are slots. Where it
            is larger, one that lost its slot comes back without its files being read again.
        target_modules: names of projections that get buffers ("o_proj"); None: all that can.
        fully_sharded_loras: False: with ranks, one half of each product is cut, and nothing is exchanged for it.

    Raises:
        ValueError: names the argument, the value and what is allowed.

    Upstream: upstream/vllm/config/lora.py:31 — `LoRAConfig`.
    """

    max_lora_rank: int = 16
    max_loras: int = 1
    max_cpu_loras: int | None = None
    lora_dtype: str = "auto"
    target_modules: list[str] | None = None
    fully_sharded_loras: bool = False

    def __post_init__(self) -> None:
        if self.max_lora_rank not in MAX_LORA_RANKS or isinstance(self.max_lora_rank, bool):
            raise ValueError(f"max_lora_rank must be one of {MAX_LORA_RANKS}, got {shown(self.max_lora_rank)}")
        whole_number("max_loras", self.max_loras, 1)
        if self.max_cpu_loras is None:
            self.max_cpu_loras = self.max_loras
        whole_number("max_cpu_loras", self.max_cpu_loras, 1)
        if self.max_cpu_loras < self.max_loras:
            raise ValueError(f"max_cpu_loras must be at least max_loras ({self.max_loras}), got {self.max_cpu_loras}")
        one_of("lora_dtype", self.lora_dtype, LORA_DTYPES)
        check_list("lora_target_modules", self.target_modules, str, "a list of names of projections")
        if flag("fully_sharded_loras", self.fully_sharded_loras):
            raise ValueError(
                "fully_sharded_loras must be False: the half that is cut saves an exchange, and memory is shared here"
            )

    @classmethod
    def of(cls, enable_lora: Any, **settings: Any) -> LoRAConfig | None:
        """The checked settings; None where adapters are not enabled, and then none may be given."""
        given = {name: value for name, value in settings.items() if value is not None}
        if not flag("enable_lora", enable_lora):
            for name, value in given.items():
                if value != getattr(cls, name):
                    name = "lora_target_modules" if name == "target_modules" else name
                    raise ValueError(f"{name} needs enable_lora=True, got {shown(value)}")
            return None
        return cls(**given)

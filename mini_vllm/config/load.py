"""Where weights come from. Upstream twin: `vllm/config/load.py`."""

from __future__ import annotations

from dataclasses import dataclass

from mini_vllm.config.utils import one_of

LOAD_FORMATS = ("auto", "safetensors", "dummy")


@dataclass
class LoadConfig:
    """`load_format`: "auto" and "safetensors" read the checkpoint's safetensors files, "dummy" fills the weights with
    small random numbers, so that a shape can be measured without its weights.

    Upstream: upstream/vllm/config/load.py:26 — `LoadConfig`, which reads a dozen formats more.
    """

    load_format: str = "auto"

    def __post_init__(self) -> None:
        self.load_format = one_of("load_format", self.load_format, LOAD_FORMATS)

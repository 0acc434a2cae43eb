"""Where weights come from. Upstream twin: `vllm/config/load.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mini_vllm.config.utils import one_of
from mini_vllm.utils.checks import shown

LOAD_FORMATS = ("auto", "safetensors", "dummy")


@dataclass
class LoadConfig:
    """`load_format`: "auto" and "safetensors" read the checkpoint's safetensors files, "dummy" fills the weights with
    small random numbers, so that a shape can be measured without its weights. `download_dir`: where the hub's files are
    kept; None: where huggingface_hub keeps them.

    Upstream: upstream/vllm/config/load.py:26 — `LoadConfig`, which reads a dozen formats more.
    """

    load_format: str = "auto"
    download_dir: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.download_dir, str | Path | None) or self.download_dir == "":
            raise ValueError(f"download_dir must be a folder or None, got {shown(self.download_dir)}")
        self.load_format = one_of("load_format", self.load_format, LOAD_FORMATS)

"""What a prompt may have beside its text, and how it is made ready. Upstream twin: `vllm/config/multimodal.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mini_vllm.config.utils import flag, one_of, whole_number
from mini_vllm.utils.checks import is_int, is_real, naming, shown

MODALITIES = ("image", "video", "audio")
_MAX_ITEMS = 999
_TAKEN = "multimodal_config"


@dataclass
class MultiModalConfig:
    """Attributes:
        limit_per_prompt: items that a prompt may have, by modality, as a number or as {"count": number}; 999 where it
            is not said. Sizes beside the count, which upstream profiles with, change nothing here.
        language_model_only: no items at all.
        media_io_kwargs: of what reads files, by modality.
        mm_processor_kwargs: of the model's processor, in the place of what the checkpoint says.
        mm_processor_cache_gb: GiB for items that are ready; 0: none are kept. A core in a process of its own takes as
            much again.
        mm_processor_cache_type: "lru". mm_encoder_tp_mode: "weights": ranks share each layer of the encoder; "data":
            each has all of it, and takes some of the items (Qwen2-VL; other models fall back to the first).
        interleave_mm_strings: where a template takes texts, pictures stand where they stood among the parts.
        allowed_local_media_path: a folder whose files a request may name by a file: URL; "": none.
        allowed_media_domains: whose http: URLs may be read; nothing is ever fetched here, so that it has no effect.

    Raises:
        ValueError, TypeError: names the argument, the value and what is allowed.

    Upstream: upstream/vllm/config/multimodal.py:74 — `MultiModalConfig`; the last two are in
    upstream/vllm/config/model.py:182 — "allowed_local_media_path: str".
    """

    limit_per_prompt: Mapping[str, Any] = field(default_factory=dict)
    language_model_only: bool = False
    media_io_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mm_processor_kwargs: Mapping[str, Any] | None = None
    mm_processor_cache_gb: float = 4
    mm_processor_cache_type: str = "lru"
    mm_encoder_tp_mode: str = "weights"
    interleave_mm_strings: bool = False
    skip_mm_profiling: bool = False
    allowed_local_media_path: str = ""
    allowed_media_domains: list[str] | None = None

    def __post_init__(self) -> None:
        self.limit_per_prompt = _limits(self.limit_per_prompt)
        for name in ("language_model_only", "interleave_mm_strings", "skip_mm_profiling"):
            flag(name, getattr(self, name))
        gib = self.mm_processor_cache_gb
        if not is_real(gib) or not 0 <= gib < float("inf"):
            raise ValueError(f"mm_processor_cache_gb must be a number of GiB of at least 0, got {shown(gib)}")
        one_of("mm_processor_cache_type", self.mm_processor_cache_type, ("lru",))
        one_of("mm_encoder_tp_mode", self.mm_encoder_tp_mode, ("weights", "data"))
        for name in ("media_io_kwargs", "mm_processor_kwargs"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise TypeError(f"{name} must be a dict, got {shown(getattr(self, name))}")
        domains = self.allowed_media_domains
        if domains is not None and not (isinstance(domains, list) and all(isinstance(each, str) for each in domains)):
            raise TypeError(f"allowed_media_domains must be a list of names, got {shown(domains)}")
        self._check_path()

    def _check_path(self) -> None:
        """Upstream: upstream/vllm/multimodal/media/connector.py:107 — "allowed_local_media_path_ = Path"."""
        path = self.allowed_local_media_path
        if not isinstance(path, str):
            raise TypeError(f"allowed_local_media_path must be the path of a folder, got {shown(path)}")
        with naming("allowed_local_media_path", path):
            there = not path or Path(path).exists()
        if not there:
            raise ValueError(f"Invalid `--allowed-local-media-path`: The path {path} does not exist.")
        if path and not Path(path).is_dir():
            raise ValueError(f"Invalid `--allowed-local-media-path`: The path {path} must be a directory.")

    @classmethod
    def of(cls, given: Any) -> MultiModalConfig:
        """From what the engine's arguments say: None, a dict, or one of these."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping | None):
            raise TypeError(f"{_TAKEN} must be a dict, got {shown(given)}")
        known = {each.name for each in fields(cls)}
        unknown = sorted(set(given or {}) - known)
        if unknown:
            raise ValueError(f"{_TAKEN} must have keys among {sorted(known)}, got {shown(unknown)}")
        return cls(**{name: value for name, value in (given or {}).items() if value is not None})

    def get_limit_per_prompt(self, modality: str) -> int:
        """Items of a modality that a prompt may have, whatever the model takes.

        Upstream: upstream/vllm/config/multimodal.py:310 — `MultiModalConfig.get_limit_per_prompt`.
        """
        return 0 if self.language_model_only else self.limit_per_prompt.get(modality, _MAX_ITEMS)


def _limits(given: Any) -> dict[str, int]:
    if not isinstance(given, Mapping):
        raise TypeError(f"limit_mm_per_prompt must be a dict by modality, got {shown(given)}")
    found = {}
    for modality, value in given.items():
        name = f"limit_mm_per_prompt[{modality!r}]"
        if modality not in MODALITIES:
            raise ValueError(f"limit_mm_per_prompt may have {list(MODALITIES)}, got {shown(modality)}")
        if isinstance(value, Mapping):
            sizes = {key: size for key, size in value.items() if key != "count"}
            if not all(is_int(size) and size > 0 for size in sizes.values()):
                raise ValueError(f"{name} must have whole numbers above 0, got {shown(value)}")
            value = value.get("count", _MAX_ITEMS)
        found[modality] = whole_number(name, value, 0)
    return found

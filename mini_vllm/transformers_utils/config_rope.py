"""What `config.json` says about rotary positions, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_INERT = {"partial_rotary_factor": 1.0, "factor": 1.0}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions: `rope_type` is "default", "linear" or "llama3"; the other numbers belong to the last two."""

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 0


def parse_rope(parser: Any, error: type[ValueError]) -> RopeConfig:
    """Both spellings: `rope_parameters` (since transformers 5) or `rope_theta` with `rope_scaling`.

    Where a file has both, `rope_scaling` counts and all of `rope_parameters` is passed over, its `rope_theta` too: so
    does transformers 5, which upstream asks (upstream/vllm/transformers_utils/config.py:458 — `patch_rope_parameters`).

    Args:
        parser: `mini_vllm.transformers_utils.config._Parser`. error: raised, and names the key.
    """
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(parser.raw.get(key) or {}, dict):
            raise error(f"config.json: {key} must be an object, got {parser.raw[key]!r}")
    scaling = dict(parser.raw.get("rope_scaling") or parser.raw.get("rope_parameters") or {})
    rope_type = scaling.pop("rope_type", None) or scaling.get("type") or "default"
    scaling.pop("type", None)
    theta = scaling.pop("rope_theta", None) or parser.get("rope_theta", 10000.0)
    if isinstance(theta, bool) or not isinstance(theta, int | float) or not 0 < theta < float("inf"):
        raise error(f"config.json: rope_theta must be a number above 0, got {theta!r}")
    if not isinstance(rope_type, str) or rope_type not in _NEEDED:
        allowed = ", ".join(repr(k) for k in _NEEDED)
        raise error(f"config.json: rope_scaling type {rope_type!r} is not supported; allowed: {allowed}")
    needed = _NEEDED[rope_type]
    for key in needed:
        value = scaling.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise error(f"config.json: rope_scaling {rope_type!r} needs a {key} > 0, got {value!r}")
    for key, value in scaling.items():
        if key not in needed and value is not None and _INERT.get(key) != value:
            raise error(f"config.json: rope_scaling {rope_type!r} has unknown key {key!r} = {value!r}")
    return RopeConfig(float(theta), rope_type, **{key: scaling[key] for key in needed})

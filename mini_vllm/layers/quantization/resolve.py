"""Which format a model gets: what its checkpoint says, and what the user asked for, made to agree.

Upstream twin: `ModelConfig._verify_quantization` in `vllm/config/model.py`, and `get_quant_config` in
`vllm/model_executor/model_loader/weight_utils.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mini_vllm.layers.quantization import ONLINE_METHODS, get_quantization_config
from mini_vllm.layers.quantization.base_config import QuantizationConfig
from mini_vllm.utils.json_files import load_json_object

ALIASES = {
    "auto_gptq": "gptq", "gptq_marlin": "gptq", "awq_marlin": "awq", "compressed_tensors": "compressed-tensors",
}  # fmt: skip
"""Upstream's names of formats that differ by their kernels only."""
_OWN_FILES = {"gptq": ("quantize_config.json",), "awq": ("quant_config.json", "quantize_config.json")}
"""Where older writers put what now stands in config.json."""
_MODELOPT = "hf_quant_config.json"
"""Read where config.json says nothing: upstream/vllm/transformers_utils/config.py:788 — "hf_quant_config.json"."""


def resolve_quantization(
    folder: str | Path,
    of_checkpoint: dict[str, Any] | None,
    quantization: str | None = None,
    quantization_config: dict[str, Any] | None = None,
) -> QuantizationConfig | None:
    """The config of the model, None: floats.

    Args:
        of_checkpoint: `quantization_config` of config.json.
        quantization: the user's choice: one of `ONLINE_METHODS` for a float checkpoint, or the name of the format that
            the checkpoint has, which then must agree.
        quantization_config: settings of an online method, e.g. `{"group_size": 32}`.

    Raises:
        ValueError: unknown or contradicting names; a format that the checkpoint does not have.

    Upstream: upstream/vllm/config/model.py:1002 — `ModelConfig._verify_quantization`.
    """
    if quantization is not None:
        get_quantization_config(quantization)  # unknown names end here
    wanted = ALIASES.get(quantization or "", quantization)
    if of_checkpoint is None and (Path(folder) / _MODELOPT).is_file():
        raise ValueError(
            f"{Path(folder) / _MODELOPT}: modelopt says here how the weights are quantized, and its formats are not "
            "supported; allowed: a checkpoint whose config.json has a quantization_config, or one of floats"
        )
    if of_checkpoint is None and wanted in _OWN_FILES:
        of_checkpoint = _read_own_file(Path(folder), wanted)
    if of_checkpoint is None:
        return _online(wanted, quantization_config)
    method = of_checkpoint["quant_method"].lower()
    method = ALIASES.get(method, method)
    if wanted is not None and wanted != method:
        raise ValueError(
            f"Quantization method specified in the model config ({method}) does not match the quantization method "
            f"specified in the `quantization` argument ({quantization})."
        )
    if quantization_config is not None:
        raise ValueError("quantization_config is for float checkpoints; this one brings its own in config.json")
    try:
        config_class = get_quantization_config(method)
    except ValueError as error:
        raise ValueError(f"config.json: quant_method {method!r} is not supported: {error}") from None
    return config_class.from_config({**of_checkpoint, "quant_method": method})


def _online(method: str | None, settings: dict[str, Any] | None) -> QuantizationConfig | None:
    if method is None:
        if settings is not None:
            raise ValueError(f"quantization_config needs quantization to be one of {', '.join(ONLINE_METHODS)}")
        return None
    if method in ("compressed-tensors", *_OWN_FILES):
        raise ValueError(
            f"quantization={method!r} needs a checkpoint in that format, and config.json has no quantization_config; "
            f"a float checkpoint can be loaded with {', '.join(ONLINE_METHODS)}"
        )
    if settings is not None and not isinstance(settings, dict):
        raise ValueError(f"quantization_config must be a dict, got {settings!r}")
    return get_quantization_config(method).from_config(settings or {})


def _read_own_file(folder: Path, method: str) -> dict[str, Any] | None:
    for name in _OWN_FILES[method]:
        if (folder / name).is_file():
            return {"quant_method": method, **load_json_object(folder / name)}
    return None

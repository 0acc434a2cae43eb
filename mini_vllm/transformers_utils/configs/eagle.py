"""The config of an EAGLE head. Upstream twin: `vllm/transformers_utils/configs/eagle.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mini_vllm.transformers_utils.config import ConfigError, HFConfig
from mini_vllm.utils.json_files import load_json_object

_BASE = "LlamaForCausalLM"


def read_eagle_config(folder: str | Path) -> HFConfig:
    """The `config.json` of a head: a Llama's, under its own name or with `Eagle` before it.

    Raises:
        FileNotFoundError: no such file. ConfigError: another architecture; see also `HFConfig.from_dict`.

    Upstream: upstream/vllm/transformers_utils/configs/eagle.py:11 — `EAGLEConfig`.
    """
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"no config.json in {str(folder)!r}: not a checkpoint in Hugging Face layout")
    raw = load_json_object(file, ConfigError)
    if raw.get("architectures") not in ([_BASE], [f"Eagle{_BASE}"]):
        raise ConfigError(
            f"{file}: the architecture of an EAGLE head must be {_BASE} or Eagle{_BASE}, got {raw.get('architectures')}"
        )
    config = HFConfig.from_dict({**raw, "architectures": [_BASE]})
    return replace(config, architecture=f"Eagle{_BASE}")

"""What every rank of an engine must have alike, whichever machine it is on: a hello that differs is refused.

Upstream has no twin: there a rank with other arguments hangs or answers something else.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed.node_ranks import dist_backend

_OWN = {
    "node_rank", "master_addr", "master_port", "distributed_timeout_seconds", "download_dir", "hf_token",
    "served_model_name", "disable_log_stats", "shutdown_timeout", "stream_interval", "generation_config",
    "skip_tokenizer_init", "tokenizer_mode",
}  # fmt: skip
"""Settings that may differ from node to node, and those of the front end, and the one that is nobody's business."""
_PLAIN = (int, float, str, bool, type(None))


def node_settings(config: EngineConfig, resolved_model: ResolvedModel) -> dict[str, Any]:
    """Names and values, JSON: all plain engine arguments, and what tells one model from another."""
    values = {each.name: getattr(config, each.name) for each in fields(config) if each.name not in _OWN}
    plain = {name: value for name, value in values.items() if isinstance(value, _PLAIN)}
    return {
        "version": _version(),
        "model": fingerprint(resolved_model),
        "MINI_VLLM_DIST_BACKEND": dist_backend(),
        **plain,
    }


def fingerprint(resolved_model: ResolvedModel) -> str:
    """The beginning of a hash of `config.json`, and the bytes of the weights: the same in every copy of a folder."""
    folder = Path(resolved_model.model)
    text = (folder / "config.json").read_bytes()
    size = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    return f"{hashlib.sha256(text).hexdigest()[:12]}, {size} bytes of weights"


def _version() -> str:
    import mini_vllm

    return mini_vllm.__version__

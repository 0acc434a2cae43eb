"""Where the file of a block is: ROOT/MODEL_DIGEST_r0/HHH/HH_gGROUP/HASH.bin. Upstream twin:
`vllm/v1/kv_offload/file_mapper.py`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.kv_offload.base import OffloadingSpec, OffloadKey, get_offload_block_hash, get_offload_group_idx

if TYPE_CHECKING:
    from mini_vllm.config.resolved_model import ResolvedModel

_BASE_PATH_HASH_LEN = 12
_PIECES, _PIECE = 16, 4096


def model_fingerprint(resolved_model: ResolvedModel) -> str:
    """The folder's name and a hash of what is in it: other weights under the same name have another one.

    Of each file of weights its length and sixteen pieces of 4 KiB are looked at, spread over all of it.

    Raises:
        ValueError: a finished model, which nobody could tell from another.
    """
    if resolved_model.hf_config is None:
        raise ValueError("secondary_tiers need a checkpoint's folder, got a finished model: files outlive it")
    folder = Path(resolved_model.model).resolve()
    said = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        said.update(f"{path.name} {size}".encode())
        with open(path, "rb") as file:
            for piece in range(_PIECES):
                file.seek(max(0, size - _PIECE) * piece // (_PIECES - 1))
                said.update(file.read(_PIECE))
    return f"{folder.name}-{said.hexdigest()[:32]}"


class FileMapper:
    """Blocks of one model in one layout have a folder of their own.

    Args:
        root_dir: the folder of all. model: which weights (`model_fingerprint`); what stands before the hash names the
            folder.
        offloading_spec: types and sizes.

    Attributes:
        fields: all that two engines must have in common to read each other's files.

    Upstream: upstream/vllm/v1/kv_offload/file_mapper.py:18 — `FileMapper`.
    """

    def __init__(self, root_dir: Path, model: str, offloading_spec: OffloadingSpec) -> None:
        config = offloading_spec.vllm_config
        groups = offloading_spec.kv_cache_config.kv_cache_groups
        self.fields: dict[str, Any] = {
            "model_name": model,
            "hash_block_size": offloading_spec.hash_block_size,
            "hash_algo": config.prefix_caching_hash_algo,
            "gpu_blocks_per_file": offloading_spec.block_size_factor,
            "tp_size": config.tensor_parallel_size,
            "dtype": str(config.dtype),
            "cache_dtype": config.kv_cache_dtype,
            "quantization": [config.quantization, config.quantization_config],
            "kv_cache_groups": [[repr(group.kv_cache_spec), list(group.layer_names)] for group in groups],
            "inference_engine": "mini_vllm",
        }
        text = json.dumps(self.fields, sort_keys=True, separators=(",", ":"))
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self.base_path = root_dir / f"{model.rpartition('-')[0] or model}_{self.digest[:_BASE_PATH_HASH_LEN]}"

    def get_file_name(self, key: OffloadKey) -> Path:
        """Of a block; the ranks' parts are one file.

        Upstream: upstream/vllm/v1/kv_offload/file_mapper.py:99 — `FileMapper.get_file_name`.
        """
        name, group = get_offload_block_hash(key).hex(), get_offload_group_idx(key)
        return self.blocks_path / name[:3] / f"{name[3:5]}_g{group}" / f"{name}.bin"

    @property
    def blocks_path(self) -> Path:
        """The folder of all blocks."""
        return self.base_path.with_name(f"{self.base_path.name}_r0")

    def get_key(self, path: Path) -> OffloadKey | None:
        """The block of a file below `blocks_path`; None where it is no such file."""
        try:
            group = int(path.parent.name.partition("_g")[2])
            key = OffloadKey(bytes.fromhex(path.stem) + group.to_bytes(4, "big"))
        except (ValueError, OverflowError):
            return None
        return key if self.get_file_name(key) == path else None

    def get_config_file_path(self) -> Path:
        """Where `fields` are, for people to read."""
        return self.base_path / "config.json"

"""A connector in a folder: prompts' keys and values as files, for every engine that sees the same folder.

A prompt is a folder named by a hash of its tokens, with a file for each layer. It is written by the step that computes
the prompt's end, and read whole by the step that admits an equal prompt. Nothing happens in the background, and nobody
looks for a shorter prefix: it is the smallest connector that does something, to be read first.

Upstream twin: `vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py`. It writes what the first step of a
prompt has, chunked or not, straight into the folder that others look for, and knows neither salts nor adapters; the
token that it leaves to be computed is another one. A damaged file raises there.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.distributed.kv_transfer.kv_connector.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from mini_vllm.distributed.kv_transfer.kv_connector.utils import yield_req_data
from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mini_vllm.attention.backend import AttentionMetadata
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.core.kv_cache_manager import KVCacheBlocks
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.kv_cache_interface import KVCacheConfig
    from mini_vllm.request import Request


@dataclass
class ReqMeta:
    """One prompt to be loaded or stored: its folder's name, the first of its tokens to be loaded, and the slots of all.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py:33 — `ReqMeta`.
    """

    folder: str
    slot_mapping: list[int]
    is_store: bool
    first: int = 0


@dataclass
class ExampleConnectorMetadata(KVConnectorMetadata):
    """A step's loads and stores."""

    requests: list[ReqMeta] = field(default_factory=list)


@dataclass
class _Tracked:
    """What the scheduler's half remembers of a request: how many tokens it loads in this step, and its blocks."""

    request: Request
    num_external_tokens: int
    block_ids: list[int]


class ExampleConnector(KVConnectorBase_V1):
    """`kv_connector_extra_config={"shared_storage_path": FOLDER}`; by default one in the system's temporary folder.
    A folder is for engines of one model: the weights are no part of a prompt's name.

    Raises:
        ValueError: the folder's name is no text. OSError: the folder cannot be made.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py:85 — `ExampleConnector`.
    """

    def __init__(self, vllm_config: EngineConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        default = str(Path(tempfile.gettempdir(), "mini_vllm_kv"))
        path = self._kv_transfer_config.get_from_extra_config("shared_storage_path", default)
        if not isinstance(path, str) or not path:
            raise ValueError(f"kv_connector_extra_config['shared_storage_path'] must be a folder's name, got {path!r}")
        self._storage_path = Path(path)
        self._storage_path.mkdir(parents=True, exist_ok=True)
        self._block_size = vllm_config.block_size
        self._requests: dict[str, _Tracked] = {}
        self._kv_caches: Mapping[str, Array] = {}
        self._saving: dict[str, Path] = {}
        self._failed: set[int] = set()

    # The scheduler's half

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """All whole blocks of the prompt but the last token's, where its folder is there."""
        if not (self._storage_path / self._folder_of(request)).is_dir():
            return 0, False
        return max(self._num_stored(request) - num_computed_tokens, 0), False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Remember who is admitted."""
        block_ids = list(blocks.get_block_ids()[0])
        self._requests[request.request_id] = _Tracked(request, num_external_tokens, block_ids)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> ExampleConnectorMetadata:
        """Load for those that are admitted, store for those whose prompt ends in this step and is not there."""
        cached, meta = scheduler_output.scheduled_cached_reqs, ExampleConnectorMetadata()
        computed = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        known = set(cached.req_ids)  # of the others the plan has all blocks
        for req_id, new_ids, is_all in yield_req_data(scheduler_output):
            if new_ids and req_id in self._requests:
                held = self._requests[req_id].block_ids if req_id in known and not is_all else []
                self._requests[req_id].block_ids = held + new_ids[0]
        for req_id, start in computed.items():
            tracked = self._requests.get(req_id)
            if tracked is None:
                continue
            if tracked.num_external_tokens:
                meta.requests.append(self._meta(tracked, False, start - tracked.num_external_tokens))
                tracked.num_external_tokens = 0
            last = self._num_stored(tracked.request)
            if start < last <= start + scheduler_output.num_scheduled_tokens[req_id]:
                meta.requests.append(self._meta(tracked, True))
        for req_id in (*scheduler_output.finished_req_ids, *scheduler_output.preempted_req_ids):
            tracked = self._requests.get(req_id)  # a new request may have the id of one that has ended
            if tracked is not None and (tracked.request.is_finished() or req_id in scheduler_output.preempted_req_ids):
                del self._requests[req_id]
        return meta

    def _meta(self, tracked: _Tracked, is_store: bool, first: int = 0) -> ReqMeta:
        count, size = self._num_stored(tracked.request), self._block_size
        slots = [tracked.block_ids[i // size] * size + i % size for i in range(count)]
        return ReqMeta(self._folder_of(tracked.request), slots, is_store, first)

    def _num_stored(self, request: Request) -> int:
        return align_to_block_size(request.num_prompt_tokens, self._block_size)

    def _folder_of(self, request: Request) -> str:
        tokens = request.prompt_token_ids[: self._num_stored(request)]
        lora = None if request.lora_request is None else request.lora_request.lora_name
        media = [(feature.identifier, feature.mm_position.offset) for feature in request.mm_features]
        text = repr((tokens, request.cache_salt, lora, self._block_size, *media))
        return hashlib.sha256(text.encode()).hexdigest()

    # The worker's half

    def register_kv_caches(self, kv_caches: Mapping[str, Array]) -> None:
        """Remember the arrays."""
        self._kv_caches = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Read all files of a prompt, and only then write into the cache: a damaged one leaves nothing half done, and
        its folder goes, so that the prompt can be stored again."""
        for request in self._metadata().requests:
            if request.is_store:
                continue
            slots = np.array(request.slot_mapping)
            try:
                found = {name: self._read(request, name, kv_cache) for name, kv_cache in self._kv_caches.items()}
            except (OSError, ValueError, KeyError):
                self._failed.update((slots[request.first :] // self._block_size).tolist())
                shutil.rmtree(self._storage_path / request.folder, ignore_errors=True)
                continue
            for name, values in found.items():
                _slots_of(self._kv_caches[name])[slots[request.first :]] = values[request.first :]

    def _read(self, request: ReqMeta, layer_name: str, kv_cache: Array) -> Array:
        """[tokens, ...] of a layer. Raises CheckpointError, a ValueError, where the file is not what it should be."""
        from mini_vllm.model_loader.safetensors_reader import STORED, SafetensorsFile

        file = SafetensorsFile(self._storage_path / request.folder / f"{layer_name}.safetensors")
        try:
            values = np.array(file.read_stored("kv_cache", STORED))
        finally:
            file.close()
        expected = len(request.slot_mapping), *kv_cache.shape[2:]
        if values.shape != expected or values.dtype != kv_cache.dtype:
            raise ValueError(f"{file.path}: {values.dtype}{values.shape}, expected {kv_cache.dtype}{expected}")
        if not np.isfinite(values).all():
            raise ValueError(f"{file.path}: a value is not finite")
        return values

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All was loaded before the first layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: Array, attn_metadata: AttentionMetadata, **kwargs: Any) -> None:
        """Write a layer of the prompts that end in this step, into a folder that nobody looks for yet."""
        from mini_vllm.model_loader.random_checkpoint import write_safetensors

        for request in self._metadata().requests:
            if not request.is_store or (self._storage_path / request.folder).exists():
                continue
            if request.folder not in self._saving:
                self._saving[request.folder] = Path(tempfile.mkdtemp(prefix=".saving-", dir=self._storage_path))
            values = np.ascontiguousarray(_slots_of(kv_layer)[np.array(request.slot_mapping)])
            write_safetensors(self._saving[request.folder] / f"{layer_name}.safetensors", {"kv_cache": values})

    def wait_for_save(self) -> None:
        """Give what is complete its name. Whoever was first stays."""
        saving, self._saving = self._saving, {}
        for folder, path in saving.items():
            try:
                path.rename(self._storage_path / folder)
            except OSError:  # another engine has stored it meanwhile
                shutil.rmtree(path, ignore_errors=True)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks whose prompt had a damaged file."""
        failed, self._failed = self._failed, set()
        return failed

    def _metadata(self) -> ExampleConnectorMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, ExampleConnectorMetadata)
        return metadata


def _slots_of(kv_layer: Array) -> Array:
    """[num_blocks, block_size, ...] as [slots, ...], a view."""
    return kv_layer.reshape(-1, *kv_layer.shape[2:])


def align_to_block_size(num_tokens: int, block_size: int) -> int:
    """Tokens of the whole blocks, at least one token left out.

    Upstream: upstream/vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py:455 — `align_to_block_size`.
    """
    return (num_tokens - 1) // block_size * block_size

"""A tier of files: one for each offloaded block, no more bytes than are allowed.

Whoever uses the same folder with the same weights and layout finds the files of others, and of earlier runs. A file
that is damaged, too short, of something else, or gone is named in a warning, and its block computed again.

Upstream twin: `vllm/v1/kv_offload/tiering/fs/manager.py`, which never deletes, and looks at nothing but the length.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mini_vllm.config.utils import one_of, whole_number
from mini_vllm.kv_offload.base import OffloadKey, ReqContext
from mini_vllm.kv_offload.cpu.manager import CACHE_POLICIES
from mini_vllm.kv_offload.cpu.policies.base import BlockStatus, CachePolicy
from mini_vllm.kv_offload.file_mapper import FileMapper
from mini_vllm.kv_offload.tiering.base import JobId, JobMetadata, JobResult, SecondaryTierManager
from mini_vllm.kv_offload.tiering.fs.io import load_block, make_header, store_block
from mini_vllm.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool, Task
from mini_vllm.logger import init_logger
from mini_vllm.utils.arrays import Array
from mini_vllm.utils.checks import naming, shown
from mini_vllm.utils.mem_utils import format_gib

if TYPE_CHECKING:
    from mini_vllm.kv_offload.base import OffloadingSpec

logger = init_logger(__name__)
_LEFT_BEHIND_S = 3600.0
"""A temporary file of that age belongs to nobody any more."""


class FileSystemTierManager(SecondaryTierManager):
    """Args:
        root_dir: a folder; those of several models go side by side in it.
        max_bytes: of the files of this model and layout, at least of one.
        eviction_policy: which file goes, "lru" or "arc".
        n_read_threads, n_write_threads: see `DualQueueThreadPool`.

    Raises:
        ValueError: an argument is not what it should be, the disk is smaller, or the folder cannot be made.

    Upstream: upstream/vllm/v1/kv_offload/tiering/fs/manager.py:41 — `FileSystemTierManager`, with 16 threads of a kind.
    """

    def __init__(
        self, offloading_spec: OffloadingSpec, primary_kv_view: Array, tier_type: str, root_dir: str,
        max_bytes: int = 1 << 30, eviction_policy: str = "lru", n_read_threads: int = 2, n_write_threads: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(offloading_spec, primary_kv_view, tier_type)
        if not isinstance(root_dir, str) or not root_dir:
            raise ValueError(f"root_dir must be a folder's name, got {shown(root_dir)}")
        one_of("eviction_policy", eviction_policy, tuple(CACHE_POLICIES))
        whole_number("max_bytes", max_bytes, 1)
        whole_number("n_read_threads", n_read_threads, 1)
        whole_number("n_write_threads", n_write_threads, 1)
        self._root_dir, self._max_bytes, self._eviction_policy = Path(root_dir), max_bytes, eviction_policy
        with naming("root_dir", root_dir):
            self._root_dir.mkdir(parents=True, exist_ok=True)
        total = shutil.disk_usage(root_dir).total
        if max_bytes > total:
            raise ValueError(
                f"max_bytes={max_bytes} is {format_gib(max_bytes)}, but the disk of {root_dir} has {format_gib(total)}"
            )
        self._threads = n_read_threads, n_write_threads
        self._pool: DualQueueThreadPool | None = None
        self._jobs: dict[JobId, tuple[JobMetadata, list[OffloadKey]]] = {}
        self._void: set[OffloadKey] = set()
        self._unreadable: set[Path] = set()
        self.num_evicted = 0

    def bind_model(self, model: str) -> None:
        """Open the folder of these weights: the files that are there count, oldest first."""
        self.file_mapper = FileMapper(self._root_dir, model, self._offloading_spec)
        file_bytes = len(self._header(OffloadKey(bytes(36)))) + self._primary_kv_view.shape[1] + 4
        self._capacity = self._max_bytes // file_bytes
        if not self._capacity:
            raise ValueError(f"max_bytes must be at least {file_bytes}, which is one block's file: {self._max_bytes}")
        self._policy: CachePolicy = CACHE_POLICIES[self._eviction_policy](cache_capacity=self._capacity)
        self._num_files = 0
        with naming("root_dir", str(self._root_dir)):
            self.file_mapper.base_path.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.file_mapper.fields, indent=2, sort_keys=True)
            self.file_mapper.get_config_file_path().write_text(text, encoding="utf-8")
        found = [(path.stat().st_mtime, path) for path in self.file_mapper.blocks_path.rglob("*") if path.is_file()]
        for age, path in sorted(found):
            key = self.file_mapper.get_key(path)
            if key is not None:
                self._adopt(key)
            elif path.suffix == ".tmp" and age < time.time() - _LEFT_BEHIND_S:
                _unlink(path)
        self._pool = DualQueueThreadPool(*self._threads, thread_name_prefix="mini_vllm_kv_fs")

    def _header(self, key: OffloadKey) -> bytes:
        """What a file of this block begins with, always of one length."""
        shape = list(self._primary_kv_view.shape[1:])
        model, dtype = self.file_mapper.fields["model_name"], self.file_mapper.fields["dtype"]
        fields = {"model": model, "layout": self.file_mapper.digest, "dtype": dtype, "bytes": shape, "key": key.hex()}
        return make_header(fields)

    def _adopt(self, key: OffloadKey) -> bool:
        """Count a file that is there; False where it would have to go at once."""
        if not self._make_room(1, {key}):
            return False
        self._insert(key, 0)
        return True

    def _insert(self, key: OffloadKey, ref_cnt: int) -> None:
        self._policy.insert(key, BlockStatus(0, ref_cnt))
        self._num_files += 1

    def _remove(self, key: OffloadKey) -> None:
        self._policy.remove(key)
        self._num_files -= 1

    def _make_room(self, count: int, protected: set[OffloadKey]) -> bool:
        missing = self._num_files + count - self._capacity
        gone = self._policy.evict(missing, protected) if missing > 0 else []
        if gone is None:
            return False
        for key, _ in gone:
            _unlink(self.file_mapper.get_file_name(key))
        self._num_files -= len(gone)
        self.num_evicted += len(gone)
        return True

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """Whether the file is there, whoever has written it; None while it is being written."""
        status = self._policy.get(key)
        if status is not None and not status.is_ready:
            return None
        path = self.file_mapper.get_file_name(key)
        if path not in self._unreadable and path.exists():
            return status is not None or self._adopt(key)
        if status is not None and not status.ref_cnt:
            why = "cannot be read" if path in self._unreadable else "has vanished"
            logger.warning("%s: %s: its block is computed again", path, why)
            self._remove(key)
        return False

    def submit_store(self, job_metadata: JobMetadata) -> None:
        """Write those that are not there; none, where there is no room for all of them."""
        pairs = zip(job_metadata.keys, job_metadata.block_ids, strict=True)
        missing = [(key, block_id) for key, block_id in pairs if self.lookup(key, job_metadata.req_context) is False]
        missing = [pair for pair in missing if self.file_mapper.get_file_name(pair[0]) not in self._unreadable]
        keys = [key for key, _ in missing]
        if not self._make_room(len(missing), set(job_metadata.keys)):
            missing, keys = [], []
        for key in keys:
            self._insert(key, -1)
            self._void.discard(key)
        self._jobs[job_metadata.job_id] = job_metadata, keys
        self._started().enqueue_store(job_metadata.job_id, self._tasks(store_block, missing))

    def submit_load(self, job_metadata: JobMetadata) -> None:
        """Read them all. A block that was lost meanwhile fails, as one that is damaged."""
        for key in job_metadata.keys:
            status = self._policy.get(key)
            if status is not None:
                status.ref_cnt += 1
        self._jobs[job_metadata.job_id] = job_metadata, list(job_metadata.keys)
        pairs = zip(job_metadata.keys, job_metadata.block_ids, strict=True)
        self._started().enqueue_load(job_metadata.job_id, self._tasks(self._load, pairs))

    def _load(self, path: Path, header: bytes, block: Array) -> None:
        """In a thread: read a file. One that can be neither read nor deleted is not asked for again."""
        try:
            load_block(path, header, block)
        except OSError:
            if path.exists():
                self._unreadable.add(path)
            raise

    def _tasks(self, run: Callable[[Path, bytes, Array], None], pairs: Iterable[tuple[OffloadKey, int]]) -> list[Task]:
        view, name = self._primary_kv_view, self.file_mapper.get_file_name
        return [partial(run, name(key), self._header(key), view[block_id]) for key, block_id in pairs]

    def _started(self) -> DualQueueThreadPool:
        assert self._pool is not None, "bind_model comes first"
        return self._pool

    def get_finished(self) -> Iterable[JobResult]:
        """What has ended; of jobs that failed, the files that are there still count."""
        return [self._finish(job_id, success) for job_id, success in self._started().get_finished()]

    def _finish(self, job_id: JobId, success: bool) -> JobResult:
        job, keys = self._jobs.pop(job_id)
        for key in keys:
            status = self._policy.get(key)
            if status is None:
                continue
            status.ref_cnt = status.ref_cnt - 1 if job.is_promotion else 0
            if key in self._void:
                _unlink(self.file_mapper.get_file_name(key))
            if not status.ref_cnt and (key in self._void or not success):
                self._void.discard(key)
                if not self.file_mapper.get_file_name(key).exists():
                    self._remove(key)
        return JobResult(job_id, success)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """As the policy's."""
        self._policy.touch(keys)

    def forget(self, keys: Collection[OffloadKey]) -> None:
        """Delete the files; of what is on its way, when it has arrived."""
        for key in keys:
            status = self._policy.get(key)
            if status is None or status.ref_cnt == 0:
                _unlink(self.file_mapper.get_file_name(key))
                if status is not None:
                    self._remove(key)
            else:
                self._void.add(key)

    def reset_cache(self) -> None:
        """Delete all files of this model and layout."""
        self._started().wait_idle()
        self._started().get_finished()
        self._jobs.clear()
        self._void.clear()
        self._unreadable.clear()
        self._policy.clear()
        self._num_files = 0
        shutil.rmtree(self.file_mapper.blocks_path, ignore_errors=True)

    def shutdown(self) -> None:
        """What has not begun is dropped; the files stay."""
        if self._pool is not None:
            self._pool.shutdown()


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()

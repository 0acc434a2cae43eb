"""A tier below the host's memory: the interface. Upstream twin: `vllm/v1/kv_offload/tiering/base.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mini_vllm.kv_offload.base import OffloadKey, ReqContext
from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.kv_offload.base import OffloadingSpec

JobId = int


@dataclass
class JobMetadata:
    """Blocks on their way between the host's memory, where they have places `block_ids`, and a tier; `is_promotion`: up
    to the host.

    Upstream: upstream/vllm/v1/kv_offload/tiering/base.py:24 — `JobMetadata`.
    """

    job_id: JobId
    keys: list[OffloadKey]
    block_ids: list[int]
    is_promotion: bool
    req_context: ReqContext


@dataclass
class JobResult:
    """A job that has ended. Upstream: upstream/vllm/v1/kv_offload/tiering/base.py:35 — `JobResult`."""

    job_id: JobId
    success: bool


class SecondaryTierManager(ABC):
    """Knows which blocks are in a tier, and moves them. All methods are called beside the scheduler, and none waits but
    `reset_cache` and `shutdown`.

    Args:
        offloading_spec: sizes and settings.
        primary_kv_view: the host's memory, uint8[places, bytes of a block].
        tier_type: its word in the settings.

    Upstream: upstream/vllm/v1/kv_offload/tiering/base.py:42 — `SecondaryTierManager`.
    """

    def __init__(self, offloading_spec: OffloadingSpec, primary_kv_view: Array, tier_type: str) -> None:
        self._offloading_spec, self._primary_kv_view, self.tier_type = offloading_spec, primary_kv_view, tier_type

    def bind_model(self, model: str) -> None:  # noqa: B027
        """Which weights the blocks are of. Called once, before anything else. Upstream's settings have a name."""

    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """Whether a block is there; None: it is on its way, ask again."""

    @abstractmethod
    def submit_store(self, job_metadata: JobMetadata) -> None:
        """Begin to copy blocks from the host, which keeps them until the job has ended."""

    @abstractmethod
    def submit_load(self, job_metadata: JobMetadata) -> None:
        """Begin to copy blocks into the host."""

    @abstractmethod
    def get_finished(self) -> Iterable[JobResult]:
        """Jobs that have ended since the last call."""

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:  # noqa: B027
        """These blocks were of use."""

    def forget(self, keys: Collection[OffloadKey]) -> None:  # noqa: B027
        """Nobody is to find these blocks. Upstream has no such thing."""

    def reset_cache(self) -> None:  # noqa: B027
        """Wait for all jobs, forget them and all blocks. Upstream has no such thing."""

    def shutdown(self) -> None:  # noqa: B027
        """Let everything go."""

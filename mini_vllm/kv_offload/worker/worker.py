"""Copies under way, and who makes them. Upstream twin: `vllm/v1/kv_offload/worker/worker.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from mini_vllm.kv_offload.base import LoadStoreSpec

TransferSpec = tuple[LoadStoreSpec, LoadStoreSpec]
"""From where, and to where."""
TransferType = tuple[str, str]
"""Their words."""


@dataclass
class TransferResult:
    """A copy that has ended: bytes and seconds.

    Upstream: upstream/vllm/v1/kv_offload/worker/worker.py:18 — `TransferResult`.
    """

    job_id: int
    success: bool
    transfer_size: int | None = None
    transfer_time: float | None = None
    transfer_type: TransferType | None = None


class OffloadingHandler(ABC):
    """Makes copies of one kind, in the background.

    Upstream: upstream/vllm/v1/kv_offload/worker/worker.py:26 — `OffloadingHandler`.
    """

    @abstractmethod
    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Begin a copy. False where that is impossible."""

    @abstractmethod
    def get_finished(self) -> list[TransferResult]:
        """Copies that have ended since the last call."""

    @abstractmethod
    def wait(self, job_ids: set[int]) -> None:
        """Return when those of these copies that are its own have ended."""

    def shutdown(self) -> None:  # noqa: B027
        """Let everything go."""


class OffloadingWorker:
    """Hands each copy to the handler of its kind.

    Upstream: upstream/vllm/v1/kv_offload/worker/worker.py:77 — `OffloadingWorker`.
    """

    def __init__(self) -> None:
        self.handlers: list[OffloadingHandler] = []
        self.transfer_type_to_handler: dict[TransferType, OffloadingHandler] = {}

    def register_handler(
        self, src_cls: type[LoadStoreSpec], dst_cls: type[LoadStoreSpec], handler: OffloadingHandler
    ) -> None:
        """The handler for copies from `src_cls` to `dst_cls`; there is one."""
        kind = src_cls.medium(), dst_cls.medium()
        assert kind not in self.transfer_type_to_handler
        self.handlers.append(handler)
        self.transfer_type_to_handler[kind] = handler

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """As the handler's."""
        return self.transfer_type_to_handler[spec[0].medium(), spec[1].medium()].transfer_async(job_id, spec)

    def get_finished(self) -> list[TransferResult]:
        """Of all handlers."""
        return [result for handler in self.handlers for result in handler.get_finished()]

    def wait(self, job_ids: set[int]) -> None:
        """As the handlers'."""
        for handler in self.handlers:
            handler.wait(job_ids)

    def shutdown(self) -> None:
        """Of all handlers."""
        for handler in self.handlers:
            handler.shutdown()

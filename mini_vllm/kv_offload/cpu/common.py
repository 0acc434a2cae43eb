"""The host's memory as one end of a copy. Upstream twin: `vllm/v1/kv_offload/cpu/common.py`."""

from __future__ import annotations

from mini_vllm.kv_offload.base import BlockIDsLoadStoreSpec


class CPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Offloaded blocks, by their places.

    Upstream: upstream/vllm/v1/kv_offload/cpu/common.py:6 — `CPULoadStoreSpec`.
    """

    @staticmethod
    def medium() -> str:
        """ "CPU"."""
        return "CPU"

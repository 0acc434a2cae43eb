"""Runs the pinned release's own tests of KV connectors in the scheduler against ours, through an adapter.

Run by hand from the repository root under the CPU build of the pinned release, as `upstream_core_tests.py`:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/upstream_connector_tests.py

The tests of `tests/v1/kv_connector/unit` that are about the scheduler, and those of `tests/v1/core/test_scheduler.py`
that name a connector. Test functions, requests, and the connectors themselves (NIXL's scheduler half, mocks) are
upstream's; the scheduler and the KV cache are ours, with our `RemoteKV` around the connector. The result is the second
part of `docs/upstream-tests.md`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import pytest  # noqa: E402
import upstream_core_tests as core  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, SupportsHMA  # noqa: E402

from mini_vllm import request as our_request  # noqa: E402
from mini_vllm.core import kv_cache_manager  # noqa: E402
from mini_vllm.core.sched import load_failures, remote_kv  # noqa: E402
from mini_vllm.metrics.stats import PrefixCacheStats  # noqa: E402

UNIT = (
    "cache_pollution_prevention", "error_propagation", "invalid_blocks_correctness", "kv_load_failure_recovery",
    "remote_decode_lifecycle", "remote_prefill_lifecycle",
)  # fmt: skip
OF_SCHEDULER = "kv_connector or remote_kv or external_prefix or prepend_skipped or finished_recving"
# Tests that ask for something which is otherwise here, on purpose.
WHY = {
    "test_sync_load_failure_with_shared_blocks": "every reader of an invalid block goes back, see `load_failures.py`",
}


class _Connected:
    """What a scheduler with a connector is asked for in upstream's form; mixed into both of them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "connector" and value is not None and not isinstance(value, remote_kv.RemoteKV):
            value = remote_kv.RemoteKV(value, self.kv_cache_manager, self.policy_of_failures)  # type: ignore[attr-defined]
            self.table.connector = value  # type: ignore[attr-defined]
        object.__setattr__(self, "remote" if name == "connector" else name, value)

    @property
    def connector(self) -> Any:
        """Ours for ours, the connector itself for a test."""
        ours = sys._getframe(1).f_globals["__name__"].startswith("mini_vllm.")
        return self.remote if ours or self.remote is None else self.remote.connector  # type: ignore[attr-defined]

    @property
    def finished_recving_kv_req_ids(self) -> set[str]:
        return self.remote.finished_recving_kv_req_ids  # type: ignore[attr-defined]

    @property
    def failed_recving_kv_req_ids(self) -> set[str]:
        return self.remote.failures.failed_recving_kv_req_ids  # type: ignore[attr-defined]

    encoder_cache_manager = SimpleNamespace(freed=[], cached={})
    policy_of_failures = "fail"
    ec_connector = None

    def has_requests(self) -> bool:
        return self.has_unfinished_requests() or self.has_finished_requests()  # type: ignore[attr-defined]

    @property
    def block_size(self) -> int:
        return self.kv_cache_manager.block_size  # type: ignore[attr-defined]

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting) + len(self.skipped_waiting)  # type: ignore[attr-defined]

    def get_num_unfinished_requests(self) -> int:
        return self.table.num_unfinished  # type: ignore[attr-defined]

    def update_from_output(self, plan: Any, result: Any) -> Any:
        told = super().update_from_output(plan, result)  # type: ignore[misc]
        if self.remote is None:  # type: ignore[attr-defined]
            return told
        remote, manager = self.remote, self.kv_cache_manager  # type: ignore[attr-defined]
        group = told.setdefault(0, SimpleNamespace(outputs=[], scheduler_stats=SimpleNamespace()))
        group.scheduler_stats.connector_prefix_cache_stats = remote.prefix_cache_stats
        group.scheduler_stats.prefix_cache_stats = manager.prefix_cache_stats
        remote.prefix_cache_stats, manager.prefix_cache_stats = (
            PrefixCacheStats(),
            PrefixCacheStats(),
        )  # of a step there
        return told


class OurScheduler(_Connected, core.OurScheduler):
    """Plain."""


class OurAsyncScheduler(_Connected, core.OurAsyncScheduler):
    """One step ahead."""


def maker(kind: Any) -> Callable[..., Any]:
    """As `scheduler_maker`, with the connector that upstream's settings name."""
    plain = core.scheduler_maker(kind)

    def make(vllm_config: Any, kv_cache_config: Any, block_size: int, **others: Any) -> Any:
        transfer, vllm_config.kv_transfer_config = vllm_config.kv_transfer_config, None
        try:
            made = plain(vllm_config, kv_cache_config, block_size, **others)
        finally:
            vllm_config.kv_transfer_config = transfer
        if transfer is not None:
            made.policy_of_failures = transfer.kv_load_failure_policy
            role = KVConnectorRole.SCHEDULER
            made.connector = KVConnectorFactory.create_connector(vllm_config, role, kv_cache_config)
        made.kv_cache_manager.evict_blocks = lambda block_ids: None  # watched by a test; ours asks the pool itself
        return made

    return make


def unhashed(blocks: Any) -> list[list[int]]:
    """`KVCacheBlocks.get_unhashed_block_ids_all_groups` of upstream's."""
    return [[b.block_id for b in group if b.block_hash is None and not b.is_null] for group in blocks.blocks]


def main() -> int:
    """argv: parts of `test_NAME.py` of the unit tests; prints a line a test."""
    from vllm.v1.request import _FINISHED_REASON_MAP, RequestStatus

    core.WHY.clear()
    core.WHY.update(WHY)
    kv_cache_manager.KVCacheBlocks.get_unhashed_block_ids_all_groups = unhashed  # type: ignore[attr-defined]
    remote_kv.SupportsHMA = SupportsHMA  # type: ignore[misc,assignment]
    our_request._FINISHED_REASON_MAP = _FINISHED_REASON_MAP
    for module in (remote_kv, load_failures):
        module.RequestStatus = RequestStatus  # type: ignore[attr-defined]
    for name in ("tests.v1.core.utils", "tests.v1.kv_connector.unit.utils"):
        helper: Any = importlib.import_module(name)
        helper.Scheduler, helper.AsyncScheduler = maker(OurScheduler), maker(OurAsyncScheduler)
    plugin = core.Plugin()
    core.adapt()
    unit = [f"{ROOT}/upstream/tests/v1/kv_connector/unit/test_{name}.py" for name in sys.argv[1:] or UNIT]
    common = ["-q", "--noconftest", "-p", "no:cacheprovider"]
    pytest.main([*common, *unit], plugins=[plugin])
    if not sys.argv[1:]:
        pytest.main([*common, f"{ROOT}/upstream/tests/v1/core/test_scheduler.py", "-k", OF_SCHEDULER], plugins=[plugin])
    core.report(plugin)
    return 0


if __name__ == "__main__":
    sys.exit(main())

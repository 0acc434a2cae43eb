"""Drives the real `Scheduler` of vLLM 0.22.1 with a KV connector over random workloads and writes down its decisions.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_connector.py 260

The connector is a stand-in (`FakeStore` of `connector_workload.py`): it loads at once or in the background, whole or in
part, fails, keeps blocks after the end. As `record_groups.py`; each step's record is what is scheduled, drafted and
preempted, what the connector was asked, and a checksum over all that the scheduler knows. The known bugs
(`upstream_patches.py`) are patched. The result is `scheduler-connector.json.xz`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"  # block hashes begin with it, on both sides
os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"  # every failed load is an error there
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

from connector_workload import (  # noqa: E402
    FakeStore,
    end_of_transfers,
    free_name,
    make_connector_workload,
    picks,
    scheduler_state,
    short,
)
from draft_workload import proposed, verified  # noqa: E402
from record_groups import GroupRecorder  # noqa: E402
from record_scheduler import STEP_LIMIT, counts, model_output, stand_in_model, write  # noqa: E402
from scheduler_workload import Workload, sampled_token  # noqa: E402
from upstream_patches import CONNECTOR_PATCHES, COORDINATOR_PATCHES, PATCHES, applied  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402
from vllm.distributed.kv_events import BlockRemoved  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: E402
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator  # noqa: E402
from vllm.v1.core.kv_cache_utils import init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.metrics.stats import PrefixCacheStats  # noqa: E402
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

from mini_vllm.core.kv_cache_utils import make_block_hash_with_group_id  # noqa: E402

STATS = ("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits")


class Loads(KVConnectorMetadata):
    """What begins to load in a step."""

    def __init__(self, loads: Any) -> None:
        self.loads = loads


class FakeConnector(KVConnectorBase_V1):
    """The scheduler's half: hands every question to the `FakeStore`; the worker's half is in the recorder."""

    store: FakeStore

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.store.get_num_new_matched_tokens(request, num_computed_tokens)

    def on_new_request(self, request: Any) -> None:
        self.store.on_new_request(request)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.store.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        return Loads(self.store.build_connector_meta(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        self.store.update_connector_output(connector_output)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, Any]:
        return self.store.request_finished(request, block_ids)

    def take_events(self) -> Any:
        return [BlockRemoved([number], "DISK") for number in self.store.take_events()]

    def reset_cache(self) -> bool:
        return self.store.reset_cache()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        raise AssertionError("there is no worker")

    wait_for_layer_load = save_kv_layer = wait_for_save = start_load_kv


class FakeConnectorOfGroups(FakeConnector, SupportsHMA):
    """Is told the blocks of every group."""

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, Any]:
        return self.store.request_finished(request, block_ids)


for name in (FakeConnector.__name__, FakeConnectorOfGroups.__name__):
    KVConnectorFactory._registry[name] = lambda name=name: globals()[name]


class ConnectorRecorder(GroupRecorder):
    """One workload with a connector, and perhaps with drafts."""

    def __init__(self, workload: Workload, model_folder: str) -> None:
        super().__init__(workload, model_folder)
        self.store = self.scheduler.connector.store = FakeStore(workload)
        self.planned: dict[str, list[int]] = {}
        self.told: list[Any] = []
        self.looked_up = [0] * len(STATS)
        self.seen: Counter[str] = Counter()

    def _kv_transfer_config(self) -> KVTransferConfig:
        settings = self.workload.config["connector"]
        return KVTransferConfig(
            kv_connector=(FakeConnectorOfGroups if settings["hma"] else FakeConnector).__name__,
            kv_role="kv_both",
            kv_load_failure_policy=settings["policy"],
        )

    def run(self) -> list[dict[str, Any]]:
        """Until nothing is left, the transfers included."""
        steps: list[dict[str, Any]] = []
        while len(steps) < len(self.workload.arrivals) or self.is_busy():
            if len(steps) == STEP_LIMIT:
                raise RuntimeError(f"workload {self.workload.seed} does not end")
            steps.append(self._step(len(steps)))
        assert end_of_transfers(self.store)
        return steps

    def is_busy(self) -> bool:
        """As `EngineCore` asks."""
        return self.scheduler.has_unfinished_requests() or self.scheduler.has_finished_requests()

    def _make_request(self, arrival: Any) -> Any:
        planned = {name for output, _ in self.in_flight for name in output.num_scheduled_tokens}
        taken = {*self.scheduler.requests, *planned}
        return super()._make_request(replace(arrival, request_id=free_name(arrival.request_id, taken)))

    def _abort(self, number: Any) -> None:
        names = picks(list(self.scheduler.requests), number)
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def _reset(self, running_too: bool) -> None:
        try:
            done = self.scheduler.reset_prefix_cache(running_too, reset_connector=running_too)
        except RuntimeError:
            done = "transfers are under way"
        self.told.append(["reset", done])

    def _step(self, index: int) -> dict[str, Any]:
        record = super()._step(index)
        state = scheduler_state(self.scheduler, self.transfers(), self.hash_of)
        told, self.told = self.told, []
        pending = self.scheduler.connector_prefix_cache_stats  # of a step whose results are not taken in yet
        looked_up = [n + getattr(pending, name) for n, name in zip(self.looked_up, STATS, strict=True)]
        self.last = {"record": record, "told": told, "state": state, "looked_up": looked_up}
        self.last |= {"drafts": self.planned, "calls": list(self.store.calls)}
        return short(record, self.planned, self.store.take_calls(), [told, state, looked_up])

    def transfers(self) -> list[list[str]]:
        """Those that have ended, and those of them that failed."""
        return [sorted(self.scheduler.finished_recving_kv_req_ids), sorted(self.scheduler.failed_recving_kv_req_ids)]

    @staticmethod
    def hash_of(block: Any) -> bytes:
        """As ours has it."""
        key = block.block_hash
        return make_block_hash_with_group_id(key[:-4], int.from_bytes(key[-4:], "big"))

    def _update(self, output: Any) -> None:
        self.planned = {name: list(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        self.told.append(["meta", output.kv_connector_metadata.loads])
        ids, sampled = list(output.num_scheduled_tokens), []
        for name in ids:
            due = not self.scheduler.requests[name].is_prefill_chunk
            sampled.append(self.sample(name) if due else [])
            self.num_sampled[name] += len(sampled[-1])
        result = model_output(ids, [list(tokens) for tokens in sampled])
        result.kv_connector_output = self.connector_output(*self.store.work())
        numbers = self.workload.config["aborts_in_flight"].get(self.store.step)
        if numbers and self.scheduler.requests:
            self._abort(numbers)
        self.in_flight.append((output, result))
        if self.workload.config["async"] and ids and len(self.in_flight) < 2:
            return
        self.take_in(self.scheduler.update_from_output(*self.in_flight.popleft()))
        if "drafts" in self.workload.config and not self.workload.config["async"]:
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, self.drafts(ids)))

    def sample(self, name: str) -> list[int]:
        """The next tokens of a request."""
        seed, count = self.workload.seed, self.num_sampled[name]
        if "drafts" not in self.workload.config:
            return [sampled_token(seed, name, count)]
        return verified(seed, name, count, self.planned.get(name, []))

    def drafts(self, names: list[str]) -> list[list[int]]:
        """What the drafter offers for the next step."""
        k = self.workload.config["drafts"]["k"]
        return [proposed(self.workload.seed, name, self.num_sampled[name], k) for name in names]

    def connector_output(self, sent: list[str], received: list[str], bad: list[int]) -> KVConnectorOutput | None:
        """Lists in the place of sets: the release frees in their order."""
        self.seen.update(sent=len(sent), received=len(received), blocks_that_failed=len(bad))
        if not (sent or received or bad):
            return None
        return KVConnectorOutput(finished_sending=sent, finished_recving=received, invalid_block_ids=bad)

    def take_in(self, outputs: Any) -> None:
        """What the front end is told, and the statistics of a step."""
        for one in (one for group in outputs.values() for one in group.outputs):
            stats = one.prefill_stats
            cached = None if stats is None else stats.num_cached_tokens
            reason = None if one.finish_reason is None else str(one.finish_reason)
            self.seen["failed"] += reason == "error"
            told = [one.request_id, one.new_token_ids, reason, one.stop_reason, one.kv_transfer_params, cached]
            self.told.append(told)
        for group in outputs.values():
            stats = group.scheduler_stats and group.scheduler_stats.connector_prefix_cache_stats
            new = stats or PrefixCacheStats()
            self.looked_up = [a + getattr(new, name) for a, name in zip(self.looked_up, STATS, strict=True)]


def main() -> None:
    num_workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 260
    init_none_hash(sha256)
    traces, features, seen, calls = [], Counter(), Counter(), Counter()
    first = applied(KVCacheCoordinator, [*COORDINATOR_PATCHES])
    with stand_in_model() as folder, first, applied(Scheduler, [*PATCHES, *CONNECTOR_PATCHES]):
        for seed in range(num_workloads):
            workload = make_connector_workload(seed)
            recorder = ConnectorRecorder(workload, folder)
            traces.append({"steps": recorder.run()})
            settings = workload.config["connector"]
            kinds = {f"{name}={settings[name]}" for name in ("kind", "hma", "aligned", "fails", "keeps", "unsure")}
            kinds.add(f"kv_load_failure_policy={settings['policy']}")
            kinds.add(f"groups={len(workload.config['groups'])}")
            features.update({*workload.features, *kinds, f"drafts={'drafts' in workload.config}"})
            seen.update(recorder.seen)
            calls.update(call[0] for step in traces[-1]["steps"] for call in step["calls"])
    steps = [step for trace in traces for step in trace["steps"]]
    all_patches = {**PATCHES, **CONNECTOR_PATCHES, **COORDINATOR_PATCHES}
    more = {
        **counts(traces, steps),
        "calls": dict(sorted(calls.items())),
        "worker": dict(sorted(seen.items())),
        "workloads_by_feature": dict(sorted(features.items())),
        "patches": {name: patch.why for name, patch in all_patches.items()},
    }
    write("scheduler-connector.json.xz", f"record_connector.py {num_workloads}", more, traces=traces)


if __name__ == "__main__":
    main()

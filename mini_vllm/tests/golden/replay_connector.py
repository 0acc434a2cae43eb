"""A recorded workload with a KV connector through our scheduler: as `record_connector.py`."""

from dataclasses import replace
from types import SimpleNamespace

from mini_vllm.config.kv_transfer import KVTransferConfig
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.core.kv_cache_groups import get_kv_cache_config_from_groups
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.drafts import Drafts
from mini_vllm.core.sched.remote_kv import RemoteKV
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.distributed.kv_events import BlockRemoved
from mini_vllm.distributed.kv_transfer.kv_connector.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from mini_vllm.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec
from mini_vllm.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from mini_vllm.request import RequestStatus
from mini_vllm.tests.golden.connector_workload import FakeStore, free_name, picks, scheduler_state, short
from mini_vllm.tests.golden.draft_workload import proposed, verified
from mini_vllm.tests.golden.replay import GroupReplay, limits_of
from mini_vllm.tests.golden.scheduler_workload import sampled_token

STATS = ("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits")


class Loads(KVConnectorMetadata):
    """What begins to load in a step."""

    def __init__(self, loads):
        self.loads = loads


class FakeConnector(KVConnectorBase_V1):
    """The scheduler's half: hands every question to the `FakeStore`; the worker's half is in the replay."""

    store: FakeStore

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.store.get_num_new_matched_tokens(request, num_computed_tokens)

    def on_new_request(self, request):
        self.store.on_new_request(request)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.store.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return Loads(self.store.build_connector_meta(scheduler_output))

    def update_connector_output(self, connector_output):
        self.store.update_connector_output(connector_output)

    def request_finished(self, request, block_ids):
        return self.store.request_finished(request, block_ids)

    def take_events(self):
        return [BlockRemoved([number], "DISK") for number in self.store.take_events()]

    def reset_cache(self):
        return self.store.reset_cache()

    def start_load_kv(self, forward_context, **kwargs):
        raise AssertionError("there is no worker")

    wait_for_layer_load = save_kv_layer = wait_for_save = start_load_kv


class FakeConnectorOfGroups(FakeConnector, SupportsHMA):
    """Is told the blocks of every group."""

    def request_finished_all_groups(self, request, block_ids):
        return self.store.request_finished(request, block_ids)


def make_connector_scheduler(workload, **held):
    """Our scheduler for the settings of a workload, with its connector. held: what else it holds."""
    config, settings = workload.config, workload.config["connector"]
    groups = []
    for i, (window, block_size) in enumerate(config["groups"]):
        common = {"block_size": block_size, "num_kv_heads": 1, "head_size": 64 // block_size}
        full = FullAttentionSpec(**common) if window is None else SlidingWindowSpec(**common, sliding_window=window)
        groups.append(KVCacheGroupSpec([f"layer.{i}"], full))
    method = config["drafts"]["method"] if "drafts" in config else None
    manager = KVCacheManager(
        kv_cache_config=get_kv_cache_config_from_groups(groups, config["num_blocks"]),
        enable_caching=config["caching"],
        max_model_len=config["max_model_len"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        enable_kv_cache_events=True,
        use_eagle=method == "eagle",
        expects_drafts=method is not None,
    )
    limits = limits_of(config)
    drafts = None
    if method is not None:
        drafts = Drafts(SpeculativeConfig(config["drafts"]["k"], method, None if method == "ngram" else "stand-in"))
    transfer = KVTransferConfig("fake", kv_role="kv_both", kv_load_failure_policy=settings["policy"])
    connector = (FakeConnectorOfGroups if settings["hma"] else FakeConnector)(
        SimpleNamespace(kv_transfer_config=transfer), KVConnectorRole.SCHEDULER, manager.kv_cache_config
    )
    connector.store = FakeStore(workload)
    lookahead = 0 if drafts is None else drafts.num_lookahead_tokens
    remote = RemoteKV(connector, manager, transfer.kv_load_failure_policy, lookahead)
    kind = AsyncScheduler if config["async"] else Scheduler
    return kind(limits, manager, config["max_model_len"], drafts=drafts, connector=remote, **held)


class ConnectorReplay(GroupReplay):
    """One workload with a connector, and perhaps with drafts."""

    def __init__(self, workload):
        super().__init__(workload)
        self.store = self.scheduler.connector.connector.store
        self.planned, self.told, self.told_of = {}, [], set()

    def make_scheduler(self):
        return make_connector_scheduler(self.workload, **self.held(self.workload.config))

    def is_busy(self):
        """As the core asks."""
        return self.scheduler.has_unfinished_requests() or self.scheduler.has_finished_requests()

    def make_request(self, arrival):
        planned = {name for output, _ in self.in_flight for name in output.num_scheduled_tokens}
        name = free_name(arrival.request_id, {*self.scheduler.requests, *planned})
        self.told_of.discard(name)
        return super().make_request(replace(arrival, request_id=name))

    def abort(self, number):
        self.scheduler.finish_requests(picks(list(self.scheduler.requests), number), RequestStatus.FINISHED_ABORTED)

    def reset(self, running_too):
        try:
            done = self.scheduler.reset_prefix_cache(running_too, reset_connector=running_too)
        except RuntimeError:
            done = "transfers are under way"
        self.told.append(["reset", done])

    def step(self, index):
        record = super().step(index)
        state = scheduler_state(self.scheduler, self.transfers(), lambda block: block.block_hash)
        told, self.told = self.told, []
        self.last = {"record": record, "told": told, "state": state, "looked_up": self.looked_up()}
        self.last |= {"drafts": self.planned, "calls": list(self.store.calls)}
        return short(record, self.planned, self.store.take_calls(), [told, state, self.looked_up()])

    def transfers(self):
        """Those that have ended, and those of them that failed."""
        remote = self.scheduler.connector
        return [sorted(remote.finished_recving_kv_req_ids), sorted(remote.failures.failed_recving_kv_req_ids)]

    def looked_up(self):
        """Statistics of the connector's hits."""
        return [getattr(self.scheduler.connector.prefix_cache_stats, name) for name in STATS]

    def update(self, output):
        self.planned = {name: list(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        self.told.append(["meta", output.kv_connector_metadata.loads])
        ids, sampled = list(output.num_scheduled_tokens), []
        for name in ids:
            due = not self.scheduler.requests[name].is_prefill_chunk
            sampled.append(self.sample(name) if due else [])
            self.num_sampled[name] += len(sampled[-1])
        rows = list(range(len(ids)))
        self.shuffle(rows)
        result = ModelRunnerOutput([ids[row] for row in rows], [sampled[row] for row in rows])
        result.kv_connector_output = self.connector_output(*self.store.work())
        numbers = self.workload.config["aborts_in_flight"].get(self.store.step)
        if numbers and self.scheduler.requests:
            self.abort(numbers)
        self.in_flight.append((output, result))
        if self.workload.config["async"] and ids and len(self.in_flight) < 2:
            return
        self.take_in(self.scheduler.update_from_output(*self.in_flight.popleft()))
        if "drafts" in self.workload.config and not self.workload.config["async"]:
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, self.drafts(ids)))

    def sample(self, name):
        """The next tokens of a request."""
        seed, count = self.workload.seed, self.num_sampled[name]
        if "drafts" not in self.workload.config:
            return [sampled_token(seed, name, count)]
        return verified(seed, name, count, self.planned.get(name, []))

    def drafts(self, names):
        """What the drafter offers for the next step."""
        k = self.workload.config["drafts"]["k"]
        return [proposed(self.workload.seed, name, self.num_sampled[name], k) for name in names]

    def connector_output(self, sent, received, bad):
        """As a worker would report it."""
        if not (sent or received or bad):
            return None
        return KVConnectorOutput(set(sent), set(received), invalid_block_ids=set(bad))

    def take_in(self, outputs):
        """What the front end is told."""
        for one in outputs:
            failed = one.finish_reason is not None and str(one.finish_reason) == "error"
            first = one.request_id not in self.told_of and not failed
            self.told_of.add(one.request_id)
            reason = None if one.finish_reason is None else str(one.finish_reason)
            stop = None if failed else one.stop_reason  # the release gives no reason for a failed load
            cached = one.num_cached_tokens if first else None
            self.told.append([one.request_id, one.new_token_ids, reason, stop, one.kv_transfer_params, cached])

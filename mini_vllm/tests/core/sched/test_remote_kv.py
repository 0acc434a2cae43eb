"""What the scheduler does for a KV connector, one rule at a time, with a connector that says what the test wants."""

from types import SimpleNamespace

import pytest

from mini_vllm.config.kv_transfer import KVTransferConfig
from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.core.kv_cache_groups import get_kv_cache_config_from_groups
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.remote_kv import RemoteKV
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.distributed.kv_transfer.kv_connector.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from mini_vllm.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec
from mini_vllm.outputs import KVConnectorOutput, ModelRunnerOutput
from mini_vllm.request import RequestStatus
from mini_vllm.tests.helpers import make_request

BLOCK = 4


class Told(KVConnectorBase_V1):
    """has: request id -> (tokens, in the background). keeps: ids whose blocks are kept."""

    def __init__(self, policy="fail"):
        transfer = KVTransferConfig("Told", kv_role="kv_both", kv_load_failure_policy=policy)
        super().__init__(SimpleNamespace(kv_transfer_config=transfer), KVConnectorRole.SCHEDULER, None)
        self.has, self.keeps = {}, set()

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.has.get(request.request_id, (0, False))

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.has.pop(request.request_id, None)

    def build_connector_meta(self, scheduler_output):
        return KVConnectorMetadata()

    def request_finished(self, request, block_ids):
        kept = request.request_id in self.keeps
        return kept, {"from": request.request_id} if kept else None

    def start_load_kv(self, forward_context, **kwargs): ...

    wait_for_layer_load = save_kv_layer = wait_for_save = start_load_kv


class ToldOfGroups(Told, SupportsHMA):
    def request_finished_all_groups(self, request, block_ids):
        return self.request_finished(request, block_ids)


def make(policy="fail", num_blocks=40, windows=(None,), kind=Scheduler, **limits):
    """A scheduler of blocks of 4 tokens, and its connector."""
    specs = [
        FullAttentionSpec(BLOCK, num_kv_heads=1, head_size=1) if window is None
        else SlidingWindowSpec(BLOCK, num_kv_heads=1, head_size=1, sliding_window=window)
        for window in windows
    ]  # fmt: skip
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
    manager = KVCacheManager(
        kv_cache_config=get_kv_cache_config_from_groups(groups, num_blocks), max_model_len=64, max_num_batched_tokens=64
    )
    connector = (Told if len(windows) == 1 else ToldOfGroups)(policy)
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 8, **limits}
    config = SchedulerConfig(**limits, async_scheduling=kind is AsyncScheduler)
    return kind(config, manager, 64, connector=RemoteKV(connector, manager, policy)), connector


def add(scheduler, name, prompt, **params):
    request = make_request(name, prompt, block_size=BLOCK, **params)
    scheduler.add_request(request)
    return request


def update(scheduler, output, token=7, **reported):
    """The step's results: a token for each row that is due."""
    names = list(output.num_scheduled_tokens)
    due = [name in scheduler.requests and not scheduler.requests[name].is_prefill_chunk for name in names]
    result = ModelRunnerOutput(names, [[token] if one else [] for one in due])
    result.kv_connector_output = KVConnectorOutput(**reported) if reported else None
    return scheduler.update_from_output(output, result)


def step(scheduler, **reported):
    output = scheduler.schedule()
    return output, update(scheduler, output, **reported)


def num_free(scheduler):
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def test_tokens_that_load_at_once_are_a_head_start():
    scheduler, connector = make()
    request = add(scheduler, "a", 10)
    connector.has["a"] = 8, False
    output, _ = step(scheduler)
    assert output.num_scheduled_tokens == {"a": 2} and output.scheduled_new_reqs[0].num_computed_tokens == 8
    assert output.kv_connector_metadata is not None and request.num_cached_tokens == 8
    stats = scheduler.connector.prefix_cache_stats
    assert (stats.queries, stats.hits) == (10, 8)


def test_a_request_that_wants_every_token_computed_loads_none():
    scheduler, connector = make()
    request = add(scheduler, "a", 10, prompt_logprobs=1)
    connector.has["a"] = 8, False
    output, _ = step(scheduler)
    assert output.num_scheduled_tokens == {"a": 10} and request.num_cached_tokens == 0


def test_tokens_that_load_in_the_background_are_waited_for():
    scheduler, connector = make()
    request = add(scheduler, "a", 8)
    connector.has["a"] = 8, True
    output, _ = step(scheduler)
    assert not output.num_scheduled_tokens and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    assert list(scheduler.skipped_waiting) == [request] and num_free(scheduler) == 37
    other = add(scheduler, "b", list(range(8)))  # nobody finds what is not there yet
    output, _ = step(scheduler, finished_recving={"a"})
    assert output.num_scheduled_tokens == {"b": 8} and other.num_cached_tokens == 0
    output, _ = step(scheduler)
    assert output.num_scheduled_tokens["a"] == 1  # its last token, for the logits
    assert request.num_cached_tokens == 8


def test_who_does_not_know_yet_is_asked_again_and_holds_nobody_up():
    scheduler, connector = make()
    add(scheduler, "a", 8)
    add(scheduler, "b", [9] * 8)
    connector.has["a"] = None, False
    output, _ = step(scheduler)
    assert output.num_scheduled_tokens == {"b": 8}
    connector.has["a"] = 4, False
    output, _ = step(scheduler)
    assert output.num_scheduled_tokens == {"b": 1, "a": 4}


@pytest.mark.parametrize("answer", [(8, False), (9, True), (-1, False), (0, True), (2.5, False), (True, False)])
def test_an_answer_that_cannot_be_is_refused(answer):
    scheduler, connector = make()
    add(scheduler, "a", 8)
    connector.has["a"] = answer
    with pytest.raises(ValueError, match=r"get_num_new_matched_tokens of request 'a' must be a whole number from"):
        scheduler.schedule()


def test_an_abort_while_it_loads_keeps_the_blocks_until_nobody_writes_any_more():
    scheduler, connector = make()
    add(scheduler, "a", 8)
    connector.has["a"] = 8, True
    step(scheduler)
    assert scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED) == ["a"]
    assert num_free(scheduler) == 37 and not scheduler.has_unfinished_requests() and scheduler.has_finished_requests()
    assert scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED) == []
    with pytest.raises(ValueError, match="belongs to an unfinished request"):
        add(scheduler, "a", 8)
    step(scheduler, finished_recving={"a"})
    assert num_free(scheduler) == 39 and not scheduler.has_finished_requests()


def test_blocks_are_kept_until_they_are_sent_and_the_output_says_where():
    scheduler, connector = make()
    add(scheduler, "a", 8, max_tokens=1)
    connector.keeps.add("a")
    _, outputs = step(scheduler)
    assert outputs[0].finished and outputs[0].kv_transfer_params == {"from": "a"}
    assert num_free(scheduler) == 37 and scheduler.has_finished_requests()
    step(scheduler, finished_sending={"a"})
    assert num_free(scheduler) == 39 and not scheduler.requests


@pytest.mark.parametrize("kind", ["finished_sending", "finished_recving"])
@pytest.mark.parametrize("name", ["a", "nobody"])
def test_the_end_of_a_transfer_that_is_none_is_refused(kind, name):
    scheduler, _ = make()
    add(scheduler, "a", 8)
    with pytest.raises(ValueError, match=f"{kind}.*'{name}'"):
        step(scheduler, **{kind: {name}})


def test_a_block_that_is_none_is_refused():
    scheduler, _ = make()
    add(scheduler, "a", 8)
    with pytest.raises(ValueError, match="invalid_block_ids must be ids of blocks, from 1 to 39, got 40"):
        step(scheduler, invalid_block_ids={40})


def fails_at_once(policy, bad, **settings):
    scheduler, connector = make(policy, **settings)
    request = add(scheduler, "a", 18)
    connector.has["a"] = 16, False
    output = scheduler.schedule()
    table = scheduler.kv_cache_manager.get_block_ids("a")[0]
    return scheduler, request, output, table, update(scheduler, output, invalid_block_ids={table[bad]})


def test_under_recompute_it_goes_back_to_the_first_block_that_is_not_there():
    scheduler, request, _, table, outputs = fails_at_once("recompute", 2)
    assert outputs == [] and request.num_computed_tokens == 8 and request.status == RequestStatus.RUNNING
    pool = scheduler.kv_cache_manager.block_pool
    assert [pool.blocks[block].block_hash is not None for block in table[:4]] == [True, True, False, False]
    output, _ = step(scheduler)
    assert output.num_scheduled_tokens == {"a": 10}
    assert output.scheduled_cached_reqs.all_token_ids["a"] == request.prompt_token_ids  # the runner has sampled for it


def test_under_fail_it_ends_with_an_error():
    scheduler, request, _, table, outputs = fails_at_once("fail", 1)
    assert [str(output.finish_reason) for output in outputs] == [
        "error"
    ] and "could not be loaded" in request.stop_reason
    assert not scheduler.requests and num_free(scheduler) == 39
    pool = scheduler.kv_cache_manager.block_pool
    assert [pool.blocks[block].block_hash is not None for block in table[:4]] == [True, False, False, False]


def test_each_reader_of_an_invalid_block_goes_back():
    """The pinned release lets the second one go on: it would read block 0 in the next step, when the first one, held
    back by the threshold, has computed only a part of it."""
    scheduler, connector = make("recompute", long_prefill_token_threshold=2)
    first, second = add(scheduler, "a", 12), add(scheduler, "b", 12)
    connector.has["a"] = 8, False
    output = scheduler.schedule()
    assert second.num_cached_tokens == 8  # of what is only being loaded
    table = scheduler.kv_cache_manager.get_block_ids("a")[0]
    update(scheduler, output, invalid_block_ids={table[0]})
    assert first.num_computed_tokens == second.num_computed_tokens == 0
    third = add(scheduler, "c", 12)
    step(scheduler)
    assert third.num_cached_tokens == 0


def test_what_is_in_flight_behind_a_failed_load_is_dropped():
    """The pinned release takes the token of the second step, which was computed on nothing."""
    scheduler, connector = make("recompute", kind=AsyncScheduler)
    request = add(scheduler, "a", 10)
    connector.has["a"] = 8, False
    first, second = scheduler.schedule(), scheduler.schedule()
    assert second.num_scheduled_tokens == {"a": 1}
    table = scheduler.kv_cache_manager.get_block_ids("a")[0]
    update(scheduler, first, token=1, invalid_block_ids={table[0]})
    third = scheduler.schedule()
    assert third.num_scheduled_tokens == {"a": 10}
    assert update(scheduler, second, token=2) == [] and request.output_token_ids == []
    update(scheduler, third, token=3)
    assert request.output_token_ids == [3]


@pytest.mark.parametrize("in_background", [False, True])
def test_with_windows_it_begins_anew(in_background):
    """What the window of the first invalid block needs may be gone; the pinned release stops here."""
    scheduler, connector = make("recompute", windows=(None, 6))
    request = add(scheduler, "a", 18)
    connector.has["a"] = 16, in_background
    output = scheduler.schedule()
    block = scheduler.kv_cache_manager.get_block_ids("a")[1][3]
    ended = {"finished_recving": {"a"}} if in_background else {}
    update(scheduler, output, invalid_block_ids={block}, **ended)
    assert request.num_computed_tokens == 0
    output, _ = step(scheduler)
    assert output.num_scheduled_tokens == {"a": 18}


def test_in_the_background_a_failed_load_ends_before_it_is_computed():
    scheduler, connector = make("recompute")
    request = add(scheduler, "a", 18)
    connector.has["a"] = 16, True
    output = scheduler.schedule()
    table = scheduler.kv_cache_manager.get_block_ids("a")[0]
    update(scheduler, output, invalid_block_ids={table[2]})
    assert request.num_computed_tokens == 8 and not scheduler.schedule().num_scheduled_tokens
    step(scheduler, finished_recving={"a"})
    output, _ = step(scheduler)
    assert output.num_scheduled_tokens == {"a": 10}


def test_loaded_requests_give_way_where_nothing_else_could_happen():
    scheduler, connector = make(num_blocks=8, scheduler_reserve_full_isl=False)
    for name in "abc":
        add(scheduler, name, 8, max_tokens=4)
        connector.has[name] = 8, True
    step(scheduler)
    assert num_free(scheduler) == 1  # three blocks of two each; each needs one more
    step(scheduler, finished_recving={"a", "b", "c"})
    ended, steps = set(), 0
    while scheduler.has_unfinished_requests():
        _, outputs = step(scheduler)
        ended |= {output.request_id for output in outputs if output.finished}
        steps += 1
        assert steps < 40
    assert ended == set("abc")


def test_a_reset_while_blocks_are_loaded_says_so():
    scheduler, connector = make()
    add(scheduler, "a", 8)
    connector.has["a"] = 8, True
    step(scheduler)
    assert scheduler.reset_prefix_cache() is False
    with pytest.raises(RuntimeError, match="being loaded or sent"):
        scheduler.reset_prefix_cache(reset_running_requests=True)
    step(scheduler, finished_recving={"a"})
    step(scheduler)
    assert scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True) is True


def test_without_a_connector_there_is_none_to_reset():
    manager = KVCacheManager(8, BLOCK)
    scheduler = Scheduler(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=2), manager, 64)
    assert scheduler.connector is None and scheduler.reset_prefix_cache()
    assert scheduler.reset_prefix_cache(reset_connector=True) is False

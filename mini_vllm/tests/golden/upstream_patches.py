"""The bugs of vLLM 0.22.1's scheduler that we know, each as a named patch of its source, with its explanation.

The recorder applies them to the real `Scheduler` while it runs; the pinned files are not touched. A patch
whose text no longer stands there exactly once is an error: the bug was fixed, or moved.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Patch:
    """Replaces `old` by `new` in the source of a method of `Scheduler`."""

    name: str
    why: str
    old: str
    new: str
    method: str = "schedule"


PATCHES = {
    patch.name: patch
    for patch in (
        Patch(
            "index-follows-removal",
            "The cursor moves back only for a victim that had a share in the plan. One that was passed over with "
            "`continue` (nothing left to schedule, two steps in flight) stands before the cursor as well; the request "
            "that slides into its place is not looked at in this step.",
            """\
                        self.running.remove(preempted_req)
                        if preempted_req in scheduled_running_reqs:
""",
            """\
                        if (
                            self.running.index(preempted_req) < req_index
                            and preempted_req not in scheduled_running_reqs
                        ):
                            req_index -= 1
                        self.running.remove(preempted_req)
                        if preempted_req in scheduled_running_reqs:
""",
        ),
        Patch(
            "tie-goes-to-the-last",
            "Among requests of equal priority and arrival time `max` takes the first of `running`. It then gives "
            "way to the second, comes back behind it, and the second, now first, gives way in its turn: without "
            "`scheduler_reserve_full_isl` neither ever ends.",
            """\
                        preempted_req = max(
                            self.running,
""",
            """\
                        preempted_req = max(
                            reversed(self.running),
""",
        ),
        Patch(
            "forget-blocks-never-written",
            "Full blocks are registered in the prefix cache when they are allocated, before the model has filled them. "
            "A victim that loses its share of this very step leaves such blocks behind, and a later request finds "
            "them and reads what nobody wrote.",
            """\
                            scheduled_running_reqs.remove(preempted_req)
""",
            """\
                            scheduled_running_reqs.remove(preempted_req)
                            for _manager in self.kv_cache_manager.coordinator.single_type_managers:
                                _written = preempted_req.num_computed_tokens // _manager.block_size
                                for _block in _manager.req_to_blocks[preempted_req.request_id][_written:]:
                                    self.kv_cache_manager.block_pool._maybe_evict_cached_block(_block)
""",
        ),
    )
}

COORDINATOR_PATCHES = {
    patch.name: patch
    for patch in (
        Patch(
            "hits-of-all-groups-first",
            "Of a request with prefix hits in several KV cache groups and tokens that a connector loads, the first "
            "group takes its hits and new blocks, then the second its hits: they may be among the new blocks of the "
            "first by then, and two groups write into one block.",
            """\
        for i, manager in enumerate(self.single_type_managers):
            manager.allocate_new_computed_blocks(
                request_id,
                new_computed_blocks[i],
                num_local_computed_tokens,
                num_external_computed_tokens,
            )
""",
            """\
        held = []
        for i, manager in enumerate(self.single_type_managers):
            if request_id not in manager.num_cached_block:
                total = num_local_computed_tokens + num_external_computed_tokens
                skipped = manager.get_num_skipped_tokens(total) // manager.block_size
                held += new_computed_blocks[i][skipped:]
        self.block_pool.touch(held)
        for i, manager in enumerate(self.single_type_managers):
            manager.allocate_new_computed_blocks(
                request_id,
                new_computed_blocks[i],
                num_local_computed_tokens,
                num_external_computed_tokens,
            )
        for block in held:
            block.ref_cnt -= 1
""",
            "allocate_new_computed_blocks",
        ),
    )
}
"""Of `KVCacheCoordinator`."""

CONNECTOR_PATCHES = {
    patch.name: patch
    for patch in (
        Patch(
            "several-end-in-their-order",
            "Requests that are ended together are freed in the order of a set of strings, which differs from process "
            "to process, and with it the order in which their blocks are used again.",
            """\
            request_ids = set(request_ids)
""",
            """\
            request_ids = list(dict.fromkeys(request_ids))
""",
            "finish_requests",
        ),
        Patch(
            "failed-ones-end-in-their-order",
            "As the one before, for requests that end because their load failed.",
            """\
        if failed_kv_load_req_ids and not self.recompute_kv_load_failures:
""",
            """\
        if failed_kv_load_req_ids and not self.recompute_kv_load_failures:
            failed_kv_load_req_ids = sorted(failed_kv_load_req_ids)
""",
            "update_from_output",
        ),
        Patch(
            "every-reader-of-an-invalid-block-goes-back",
            "Of the requests that share a block that was not loaded only the first goes back to compute it; the others "
            "go on with it as if it were there. That holds only while the first computes it before they read it: not "
            "under `long_prefill_token_threshold`, and not where the first is aborted or preempted.",
            """\
                if block_id in marked_invalid_block_ids:
""",
            """\
                if False:
""",
            "_update_requests_with_invalid_blocks",
        ),
        Patch(
            "invalid-blocks-cannot-be-found",
            "Loaded blocks are registered in the prefix cache when they are allocated. Where the load fails and the "
            "policy is to recompute, they stay there, as does what was computed on top of them: a later request reads "
            "what nobody wrote. The same where the request is gone by the time its load is known to have failed.",
            """\
        if not total_failed_requests:
            return set()

        # evict invalid blocks and downstream dependent blocks from cache
        # only when not using recompute policy (where blocks will be recomputed
        # and reused by other requests sharing them)
        if sync_blocks_to_evict and not self.recompute_kv_load_failures:
            self.kv_cache_manager.evict_blocks(sync_blocks_to_evict)
""",
            """\
        self.kv_cache_manager.evict_blocks(sorted(sync_blocks_to_evict | set(invalid_block_ids)))
        if not total_failed_requests:
            return set()
""",
            "_handle_invalid_blocks",
        ),
        Patch(
            "a-failed-load-takes-back-what-is-in-flight",
            "Where scheduling runs ahead, a request whose load failed has a token in flight that was computed from "
            "garbage; it is taken for good, and the placeholders of the skipped step are never taken back.",
            """\
                kv_connector_output.invalid_block_ids,
                num_scheduled_tokens,
            )
""",
            """\
                kv_connector_output.invalid_block_ids,
                num_scheduled_tokens,
            )
            for _id in sorted(failed_kv_load_req_ids) if self.recompute_kv_load_failures else ():
                _request, _here = self.requests[_id], 0
                _row = model_runner_output.req_id_to_index.get(_id)
                if _row is not None and sampled_token_ids[_row]:
                    if _request.async_tokens_to_discard:
                        _request.async_tokens_to_discard -= 1
                    else:
                        _here = 1 + len(scheduler_output.scheduled_spec_decode_tokens.get(_id, ()))
                if not _request.num_output_placeholders:
                    continue
                _request.async_tokens_to_discard += _request.num_output_placeholders > _here
                _request.num_output_placeholders = 0
                _request.spec_token_ids = []
""",
            "update_from_output",
        ),
        Patch(
            "what-is-to-be-dropped-stays-so",
            "A second reason to begin anew, before the first one's stale result is there, forgets that one.",
            """\
                request.async_tokens_to_discard = request.num_output_placeholders
""",
            """\
                request.async_tokens_to_discard += min(request.num_output_placeholders, 1)
""",
            "reset_prefix_cache",
        ),
        Patch(
            "nothing-is-taken-back-for-what-is-dropped",
            "Rejected drafts are subtracted from what a request has computed even where the step's result is dropped, "
            "because the request has begun anew since.",
            """\
            if scheduled_spec_token_ids and generated_token_ids:
                num_draft_tokens = len(scheduled_spec_token_ids)
""",
            """\
            if scheduled_spec_token_ids and generated_token_ids and not request.async_tokens_to_discard:
                num_draft_tokens = len(scheduled_spec_token_ids)
""",
            "update_from_output",
        ),
        Patch(
            "loaded-ones-give-way",
            "A request that has been loaded holds its blocks while it waits for room. Where nothing runs, and those "
            "behind the first of the queue hold what the first lacks, nothing ever happens again.",
            """\
                    # NOTE: we need to untouch the request from the encode cache
""",
            """\
                    _others = [r for r in self.requests.values() if r is not request]
                    if not self.running and not any(
                        r.is_finished()
                        or (
                            r.status == RequestStatus.WAITING_FOR_REMOTE_KVS
                            and r.request_id not in self.finished_recving_kv_req_ids
                        )
                        for r in _others
                    ):
                        _held = self.kv_cache_manager.get_blocks
                        _loaded = [r for r in _others if any(_held(r.request_id).blocks)]
                        for _last in _loaded[-1:]:
                            if _last.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
                                self._try_promote_blocked_waiting_request(_last)
                            self.kv_cache_manager.free(_last)
                            _last.num_computed_tokens = 0
                    # NOTE: we need to untouch the request from the encode cache
""",
        ),
    )
}


PIPELINE_PATCHES = {
    patch.name: patch
    for patch in (
        Patch(
            "what-is-in-flight-lacks-nothing",
            "Drafts in flight are counted as computed, so that their request lacks fewer than no tokens; it is then "
            "given that many in the plan.",
            """\
            if num_new_tokens == 0:
                # The request cannot be scheduled because one of the following
""",
            """\
            if num_new_tokens <= 0:
                # The request cannot be scheduled because one of the following
""",
        ),
        Patch(
            "one-preempted-is-marked",
            "A request that is preempted while its token is in flight can be admitted again before the token is there, "
            "with three batches in flight or more, or after a reset. It then computes and samples the same token "
            "again, and both are taken. With `async_scheduling` the runner takes the last tokens of its prompt for "
            "output: the promised ones are counted and are not there.",
            """\
        self.kv_cache_manager.free(request)
        self.encoder_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
""",
            """\
        self.kv_cache_manager.free(request)
        self.encoder_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request._awaited = request.num_tokens + (request.num_computed_tokens >= request.num_tokens)
""",
            "_preempt_request",
        ),
        Patch(
            "one-preempted-waits-for-its-token",
            "The second half of the one before.",
            """\
                if self._is_blocked_waiting_status(
                    request.status
                ) and not self._try_promote_blocked_waiting_request(request):
""",
            """\
                if (
                    request.num_output_placeholders or request.num_tokens < getattr(request, "_awaited", 0)
                ) or self._is_blocked_waiting_status(
                    request.status
                ) and not self._try_promote_blocked_waiting_request(request):
""",
        ),
        Patch(
            "one-that-waits-can-end",
            "The third: its token may be its last.",
            """\
            self.waiting.remove_requests(stopped_preempted_reqs)
""",
            """\
            self.waiting.remove_requests(stopped_preempted_reqs)
            self.skipped_waiting.remove_requests(stopped_preempted_reqs)
""",
            "update_from_output",
        ),
        Patch(
            "all-in-flight-is-dropped",
            "A second reset, before the stale results of the first are there, forgets those.",
            """\
                request.async_tokens_to_discard = request.num_output_placeholders
""",
            """\
                request.async_tokens_to_discard += request.num_output_placeholders
                request._awaited = 0 if request.num_output_placeholders else request._awaited
""",
            "reset_prefix_cache",
        ),
    )
}


@contextmanager
def applied(scheduler_class: Any, names: Sequence[str], more: Mapping[str, Patch] | None = None) -> Iterator[None]:
    """While inside, the methods of `scheduler_class` (or the functions of a module) have these patches. more: patches
    that do not stand here.

    Raises:
        ValueError: the text to be replaced does not stand in the source exactly once.
    """
    both = {**PATCHES, **COORDINATOR_PATCHES, **CONNECTOR_PATCHES, **PIPELINE_PATCHES, **(more or {})}
    methods = dict.fromkeys(both[name].method for name in names)
    originals = {method: getattr(scheduler_class, method) for method in methods}
    try:
        for method, original in originals.items():
            patches = [both[name] for name in names if both[name].method == method]
            setattr(scheduler_class, method, _patched(original, patches))
        yield
    finally:
        for method, original in originals.items():
            setattr(scheduler_class, method, original)


def _patched(original: Any, patches: list[Patch]) -> Any:
    source = inspect.getsource(original)
    for patch in patches:
        count = source.count(patch.old)
        if count != 1:
            raise ValueError(f"{patch.name}: the text to replace stands {count} times in {patch.method}()")
        source = source.replace(patch.old, patch.new)
    scope: dict[str, Any] = {}
    name = f"{original.__name__} with {', '.join(patch.name for patch in patches)}"
    exec(compile(textwrap.dedent(source), name, "exec"), original.__globals__, scope)
    return scope[original.__name__]

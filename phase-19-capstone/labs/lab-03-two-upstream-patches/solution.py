"""Lab 19-03, reference: two patches of the pinned release, and the words to send them with.

Twins: `upstream/vllm/v1/core/sched/scheduler.py`, whose priority branch both patches mend.
"""

from __future__ import annotations


def predicted_hits() -> dict[str, int]:
    """With how many tokens `low` resumes after each of four patches against defect B, predicted from the code.

    The keys are "right", "forgets the whole table", "one block too late" and "counts the lost share": the last two
    forget from one block behind the first unwritten one, and as if the lost share had been computed.
    """
    return {"right": 16, "forgets the whole table": 0, "one block too late": 20, "counts the lost share": 20}


def patch_a() -> str:
    """The text of a diff against defect A, the missed turn, with its regression test; `git apply` takes it.

    It touches `vllm/v1/core/sched/scheduler.py` in at most 40 lines, and one file below `tests/`.
    """
    return _PATCH_A.lstrip()


def patch_b() -> str:
    """The text of a diff against defect B, found before it is written; bounds as for `patch_a`."""
    return _PATCH_B.lstrip()


def pull_request() -> str:
    """The description of both as one pull request, by upstream's template, with answers to a reviewer's questions."""
    return _PULL_REQUEST.lstrip()


_PATCH_A = r'''
diff --git a/tests/v1/core/test_async_scheduler.py b/tests/v1/core/test_async_scheduler.py
--- a/tests/v1/core/test_async_scheduler.py
+++ b/tests/v1/core/test_async_scheduler.py
@@ -7,6 +7,7 @@ import pytest

 from vllm.v1.core.sched.async_scheduler import AsyncScheduler
 from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
+from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
 from vllm.v1.outputs import ModelRunnerOutput
 from vllm.v1.request import RequestStatus
 from vllm.v1.utils import ConstantList
@@ -136,6 +137,36 @@ def test_preempt():
         assert req.num_output_tokens == abort_order_copy.index(i)


+def test_priority_preemption_of_passed_over_request():
+    """A victim without a share in the step stands before the cursor, too."""
+    scheduler = create_scheduler(
+        async_scheduling=True, num_blocks=7, block_size=4, max_num_batched_tokens=64
+    )
+    scheduler.policy = SchedulingPolicy.PRIORITY
+    scheduler.waiting = create_request_queue(scheduler.policy)
+    scheduler.skipped_waiting = create_request_queue(scheduler.policy)
+
+    (victim,) = create_requests(
+        1, num_tokens=7, max_tokens=2, block_size=4, req_ids=["v"]
+    )
+    victim.priority = 9
+    scheduler.add_request(victim)
+    first = scheduler.schedule()
+    for request in create_requests(
+        2, num_tokens=8, max_tokens=8, block_size=4, req_ids=["x", "y"]
+    ):
+        scheduler.add_request(request)
+    second = scheduler.schedule()
+    assert second.num_scheduled_tokens == {"v": 1, "x": 8, "y": 8}
+    scheduler.update_from_output(first, _make_model_runner_output(first))
+
+    # The last token of "v" is in flight, so that it is passed over. "x" takes
+    # its blocks; there is one for "y", too.
+    third = scheduler.schedule()
+    assert third.preempted_req_ids == {"v"}
+    assert third.num_scheduled_tokens == {"x": 1, "y": 1}
+
+
 def test_prefix_caching_for_prefill_dedup():
     CHUNK_SIZE = 1000
     BLOCK_SIZE = 16
diff --git a/vllm/v1/core/sched/scheduler.py b/vllm/v1/core/sched/scheduler.py
--- a/vllm/v1/core/sched/scheduler.py
+++ b/vllm/v1/core/sched/scheduler.py
@@ -458,7 +458,12 @@ class Scheduler(SchedulerInterface):
                             self.running,
                             key=lambda r: (r.priority, r.arrival_time),
                         )
-                        self.running.remove(preempted_req)
+                        preempted_index = self.running.index(preempted_req)
+                        del self.running[preempted_index]
+                        if preempted_index < req_index:
+                            # The list has moved under the cursor, whether or
+                            # not the victim has a share in this step.
+                            req_index -= 1
                         if preempted_req in scheduled_running_reqs:
                             preempted_req_id = preempted_req.request_id
                             scheduled_running_reqs.remove(preempted_req)
@@ -476,7 +481,6 @@ class Scheduler(SchedulerInterface):
                                     for i in preempted_encoder_inputs
                                 )
                                 encoder_compute_budget += num_embeds_to_restore
-                            req_index -= 1
                     else:
                         preempted_req = self.running.pop()

'''

_PATCH_B = r'''
diff --git a/tests/v1/core/test_scheduler.py b/tests/v1/core/test_scheduler.py
--- a/tests/v1/core/test_scheduler.py
+++ b/tests/v1/core/test_scheduler.py
@@ -2284,6 +2284,61 @@ def test_priority_scheduling_preemption_victim_selection():
     assert waiting_req_ids == ["1", "0"]


+def test_priority_scheduling_unwritten_blocks_cannot_be_hit():
+    """A victim that loses its share of the step must not hit, when it resumes,
+    blocks that this share was to fill."""
+    scheduler = create_scheduler_with_priority(
+        max_num_batched_tokens=64,
+        enable_prefix_caching=True,
+        long_prefill_token_threshold=8,
+        num_blocks=9,
+        block_size=4,
+    )
+
+    def run_step():
+        output = scheduler.schedule()
+        req_ids = list(output.num_scheduled_tokens)
+        sampled = [
+            [] if scheduler.requests[req_id].is_prefill_chunk else [100]
+            for req_id in req_ids
+        ]
+        scheduler.update_from_output(
+            output,
+            ModelRunnerOutput(
+                req_ids=req_ids,
+                req_id_to_index={req_id: i for i, req_id in enumerate(req_ids)},
+                sampled_token_ids=sampled,
+                logprobs=None,
+                prompt_logprobs_dict={},
+                pooler_output=[],
+            ),
+        )
+        return output
+
+    (low,) = create_requests_with_priority(
+        1, [9], num_tokens=24, max_tokens=2, block_size=4, req_ids=["low"]
+    )
+    (high,) = create_requests_with_priority(
+        1,
+        [0],
+        num_tokens=8,
+        max_tokens=3,
+        block_size=4,
+        starting_idx=1,
+        req_ids=["high"],
+    )
+    scheduler.add_request(low)
+    run_step()
+    scheduler.add_request(high)
+    assert run_step().num_scheduled_tokens == {"low": 8, "high": 8}
+    assert run_step().preempted_req_ids == {"low"}
+
+    while not (resumed := run_step().scheduled_cached_reqs).resumed_req_ids:
+        pass
+    # Two chunks of eight tokens have been computed, the third has not.
+    assert resumed.num_computed_tokens[resumed.req_ids.index("low")] == 16
+
+
 def test_priority_scheduling_equal_priority_preemption():
     """Test arrival time tiebreaker when requests have equal priority."""
     # This test verifies that arrival time is used as a tiebreaker for equal
diff --git a/vllm/v1/core/sched/scheduler.py b/vllm/v1/core/sched/scheduler.py
--- a/vllm/v1/core/sched/scheduler.py
+++ b/vllm/v1/core/sched/scheduler.py
@@ -462,6 +462,7 @@ class Scheduler(SchedulerInterface):
                         if preempted_req in scheduled_running_reqs:
                             preempted_req_id = preempted_req.request_id
                             scheduled_running_reqs.remove(preempted_req)
+                            self._evict_unwritten_blocks(preempted_req)
                             token_budget += num_scheduled_tokens.pop(preempted_req_id)
                             req_to_new_blocks.pop(preempted_req_id)
                             scheduled_spec_decode_tokens.pop(preempted_req_id, None)
@@ -926,6 +927,19 @@ class Scheduler(SchedulerInterface):
     ) -> KVConnectorMetadata:
         return connector.build_connector_meta(scheduler_output)

+    def _evict_unwritten_blocks(self, request: Request) -> None:
+        """Take out of the prefix cache what this step was to fill.
+
+        Full blocks can be found as soon as they are allocated. A request that
+        loses its share of the step will not fill those behind
+        `num_computed_tokens`, which does not count this step yet.
+        """
+        groups = self.kv_cache_config.kv_cache_groups
+        block_ids = self.kv_cache_manager.get_block_ids(request.request_id)
+        for group, ids in zip(groups, block_ids):
+            written = request.num_computed_tokens // group.kv_cache_spec.block_size
+            self.kv_cache_manager.evict_blocks(set(ids[written:]))
+
     def _preempt_request(self, request: Request, timestamp: float) -> None:
         """Preempt a request and put it back to the waiting queue.

'''

_PULL_REQUEST = """
# [Bugfix][Core] Undo all of a victim's step under the priority policy

## Purpose

Under the priority policy a running request may be preempted that stands anywhere in the list, also one that has a
share in this step. Two things are not undone.

- The cursor goes back only for a victim with a share. One that was passed over stands before it as well, for instance
  since its last token is in flight. The request that slides into the gap misses its turn (issue #49097).
- Full blocks can be found from their allocation on. The blocks that the lost share was to fill keep their hashes. The
  next request with this prefix, often the victim itself, takes them for computed: wrong output, and no error.

Two commits, one for each, in the same branch of `schedule`.

**Duplicate check.** Issue #49097 is closed and #43569 is open for the second defect, with another design (blocks are
registered after the step). Where it is still open at HEAD, nothing is sent for the second: it is reviewed instead.

### Cost per step

None without a preemption. `list.index` is O(n) and takes the place of the scan that `list.remove` did.

### Pipeline parallelism and async scheduling

Both let a request be passed over. The place decides in all cases. `num_computed_tokens` counts steps in flight, which
are written before any later step reads.

### Several KV cache groups

The helper goes through all groups, each with its own block size.

### Blocks that are shared

Blocks behind `num_computed_tokens` were allocated in this step. Nobody else can hold them: hits are looked for when
requests are admitted, which comes after the running ones, and not at all in a step that preempts.

### KV events

`evict_blocks` emits `BlockRemoved` for each hash, after the `BlockStored` of the allocation.

### Connectors

A connector saves what a plan names, and the victim is in no plan any more. One that keeps hashes of its own from the
allocation on is not helped by this change.

### Why not register after the step

Requests of the same step would no longer share a prefix. That changes hit rates for everybody.

## Test Plan

```bash
.venv/bin/python -m pytest -v tests/v1/core/test_scheduler.py tests/v1/core/test_async_scheduler.py
```

## Test Result

Before: 2 failed, each by its own assertion: the plan is `{x: 1}` where `{x: 1, y: 1}` is due, and `low` resumes with
20 computed tokens where 16 were computed. After: 2 passed, and all others of both files as before.

**AI assistance.** Both patches and this text were drafted with an AI tool; the author reviewed every line.

Signed-off-by: your name <your address>
"""

"""Add, step, abort, reset, in any order that hypothesis can think of: every invariant holds after every action."""

from collections import deque

import pytest

from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.request import RequestStatus
from mini_vllm.tests.helpers import check_scheduler, make_request, make_scheduler

pytest.importorskip("hypothesis", reason="hypothesis is in the extra `test`")
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

BLOCK_SIZE = 4
ASYNC_DEPTH = 2


class SchedulerMachine(RuleBasedStateMachine):
    """A scheduler over a tiny pool, and a model that samples whatever hypothesis likes."""

    async_scheduling = False

    @initialize(
        num_blocks=st.integers(8, 24),
        budget=st.integers(4, 24),
        seats=st.integers(1, 4),
        threshold=st.sampled_from([0, 3]),
        policy=st.sampled_from(["fcfs", "priority"]),
        reserve=st.booleans(),
        caching=st.booleans(),
    )
    def start(self, num_blocks, budget, seats, threshold, policy, reserve, caching):
        self.scheduler = make_scheduler(
            num_blocks,
            BLOCK_SIZE,
            caching,
            max_num_batched_tokens=budget,
            max_num_seqs=seats,
            long_prefill_token_threshold=threshold,
            scheduling_policy=policy,
            scheduler_reserve_full_isl=reserve,
            async_scheduling=self.async_scheduling,
        )
        self.in_flight = deque()
        self.caching, self.longest, self.count = caching, (num_blocks - 1) * BLOCK_SIZE, 0

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        tokens=st.integers(1, 8),
        priority=st.integers(0, 2),
    )
    def add(self, prompt, tokens, priority):
        if len(prompt) + tokens - 1 > self.longest:
            return
        size = BLOCK_SIZE if self.caching else None
        request = make_request(
            f"r{self.count}", prompt, block_size=size, priority=priority, arrival=self.count, max_tokens=tokens
        )
        self.count += 1
        self.scheduler.add_request(request)

    @rule(token=st.integers(0, 2))
    def step(self, token):
        scheduler, before = self.scheduler, dict(self.scheduler.requests)
        lengths = {name: request.num_output_tokens for name, request in before.items()}
        plan = scheduler.schedule()
        assert sum(plan.num_scheduled_tokens.values()) == plan.total_num_scheduled_tokens
        assert plan.total_num_scheduled_tokens <= scheduler.max_num_scheduled_tokens  # S2
        assert len(scheduler.running) <= scheduler.max_num_running_reqs  # S3
        for name in plan.preempted_req_ids:  # S5
            request = before[name]
            assert request.status == RequestStatus.PREEMPTED and request.num_computed_tokens == 0
            assert request.num_output_tokens == lengths[name]
        ids = list(plan.num_scheduled_tokens)
        due = {name for name in ids if before[name].num_computed_tokens == before[name].num_tokens}
        assert due == {name for name in ids if not before[name].is_prefill_chunk}  # S4
        scheduler.update_from_output(plan, ModelRunnerOutput(ids, [[token] if name in due else [] for name in ids]))
        for name, request in before.items():
            assert request.num_output_tokens == lengths[name] + (name in due)

    @precondition(lambda self: self.scheduler.requests)
    @rule(pick=st.integers(0, 99))
    def abort(self, pick):
        names = sorted(self.scheduler.requests)
        self.scheduler.finish_requests(names[pick % len(names)], RequestStatus.FINISHED_ABORTED)

    @rule(running_too=st.booleans())
    def reset(self, running_too):
        assert self.scheduler.reset_prefix_cache(running_too) or not running_too

    @invariant()
    def books_agree(self):
        if hasattr(self, "scheduler"):
            check_scheduler(self.scheduler)  # I1, I3, I4, S1

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for _ in range(2000):  # whatever happened, everybody gets through
            if not self.scheduler.has_unfinished_requests():
                break
            self.step(1)
        assert not self.scheduler.has_unfinished_requests()
        assert self.scheduler.kv_cache_manager.usage == 0.0


class AsyncSchedulerMachine(SchedulerMachine):
    """The same with two steps in flight: plans are made before the results of the step before are in."""

    async_scheduling = True

    @rule(token=st.integers(0, 2))
    def step(self, token):
        scheduler, before = self.scheduler, dict(self.scheduler.requests)
        plan = scheduler.schedule()
        assert plan.total_num_scheduled_tokens <= scheduler.max_num_scheduled_tokens  # S2
        assert len(scheduler.running) <= scheduler.max_num_running_reqs  # S3
        for name in plan.preempted_req_ids:  # S5
            assert before[name].status == RequestStatus.PREEMPTED and before[name].num_computed_tokens == 0
        ids = list(plan.num_scheduled_tokens)
        for name in ids:  # a token is due when everything known and everything on its way is computed
            request = before[name]
            known = request.num_tokens + request.num_output_placeholders - (not request.is_prefill_chunk)
            assert (request.num_computed_tokens == known) == (not request.is_prefill_chunk)  # S4
        rows = [[] if before[name].is_prefill_chunk else [token] for name in ids]
        self.in_flight.append((plan, ModelRunnerOutput(ids, rows)))
        if len(self.in_flight) == ASYNC_DEPTH or not ids:
            self.take_in()

    def take_in(self):
        plan, output = self.in_flight.popleft()
        requests = dict(self.scheduler.requests)
        lengths = {name: request.num_output_tokens for name, request in requests.items()}
        limits = {name: request.max_tokens for name, request in requests.items()}
        self.scheduler.update_from_output(plan, output)
        for name, request in requests.items():
            assert request.num_output_tokens - lengths[name] <= (name in plan.num_scheduled_tokens)
            assert request.num_output_tokens <= limits[name]
        for request in self.scheduler.running:  # a block that holds a placeholder has no hash and cannot be found
            (manager,) = self.scheduler.kv_cache_manager.coordinator.single_type_managers
            assert manager.num_cached_block.get(request.request_id, 0) * BLOCK_SIZE <= request.num_tokens


MACHINES = pytest.mark.parametrize("machine", [SchedulerMachine, AsyncSchedulerMachine])


def run(machine, examples):
    common = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40, **common))


@MACHINES
def test_every_state_keeps_the_invariants(machine):
    run(machine, 50)


@pytest.mark.slow
@MACHINES
def test_every_state_keeps_the_invariants_for_longer(machine):
    run(machine, 120)

"""The waiting queue, in order of arrival or of priority. Upstream twin: `vllm/v1/core/sched/request_queue.py`."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from mini_vllm.request import Request


class FCFSRequestQueue:
    """First come, first served; a preempted request goes back to the front."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def add_request(self, request: Request) -> None:
        """Queue at the end."""
        self._queue.append(request)

    def peek_request(self) -> Request:
        """The next request, left in place."""
        return self._queue[0]

    def pop_request(self) -> Request:
        """Take the next request."""
        return self._queue.popleft()

    def prepend_request(self, request: Request) -> None:
        """Put a preempted request before all others."""
        self._queue.appendleft(request)

    def remove_requests(self, requests: set[Request]) -> None:
        """Drop these requests, wherever they stand."""
        self._queue = deque(request for request in self._queue if request not in requests)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)


class PriorityRequestQueue:
    """Lowest `(priority, arrival_time, request_id)` first. There is no front to put a preempted request at."""

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add_request(self, request: Request) -> None:
        """Queue at the place that the request's priority gives it."""
        heapq.heappush(self._heap, request)

    prepend_request = add_request

    def peek_request(self) -> Request:
        """The next request, left in place."""
        return self._heap[0]

    def pop_request(self) -> Request:
        """Take the next request."""
        return heapq.heappop(self._heap)

    def remove_requests(self, requests: set[Request]) -> None:
        """Drop these requests, wherever they stand."""
        self._heap = [request for request in self._heap if request not in requests]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._heap))


RequestQueue = FCFSRequestQueue | PriorityRequestQueue


def create_request_queue(policy: str) -> RequestQueue:
    """The queue for a scheduling policy: "fcfs" or "priority"."""
    if policy == "fcfs":
        return FCFSRequestQueue()
    if policy == "priority":
        return PriorityRequestQueue()
    raise ValueError(f"scheduling_policy must be 'fcfs' or 'priority', got {policy!r}")


def select_waiting_queue(waiting: RequestQueue, skipped_waiting: RequestQueue) -> RequestQueue:
    """Whose first request is to be looked at next: those passed over come first, unless the policy has its own order.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:1619 — `_select_waiting_queue_for_scheduling`.
    """
    if isinstance(waiting, PriorityRequestQueue) and waiting and skipped_waiting:
        return waiting if waiting.peek_request() < skipped_waiting.peek_request() else skipped_waiting
    return skipped_waiting or waiting


def choose_victim(running: list[Request], policy: str) -> int:
    """The place of the running request that the policy can best spare."""
    if policy != "priority":
        return len(running) - 1
    # Of equals the last: the pinned release takes the first, and two of them can preempt each other for ever.
    return max(reversed(range(len(running))), key=lambda index: (running[index].priority, running[index].arrival_time))

"""Random calls of the scheduler's half of the point-to-point connector, for vLLM's and for ours.

`play` makes them on any such half, and gives what it answered; `record_nixl.py` and the test compare two of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

BLOCK_SIZE, LEASE_S, PORT = 4, 30, 5600
STATUSES = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED", "FINISHED_ABORTED", "FINISHED_ERROR")


class Blocks:
    """A request's table, of which the first `num_hashed` were found in the prefix cache."""

    def __init__(self, ids: list[int], num_hashed: int) -> None:
        self.ids, self.num_hashed = ids, num_hashed

    def get_block_ids(self) -> tuple[list[int], ...]:
        return (list(self.ids),)

    def get_unhashed_block_ids_all_groups(self) -> tuple[list[int], ...]:
        return (self.ids[self.num_hashed :],)


class Player:
    """One run of random calls.

    Args:
        half: with vLLM's methods. status_of: a name -> a member of its `RequestStatus`. build: its metadata, in the
            words of `meta_of`. forward: put its clock forward by seconds.
    """

    def __init__(
        self, half: Any, seed: int, status_of: Callable[[str], Any], build: Callable[[], Any],
        forward: Callable[[float], None],
    ) -> None:  # fmt: skip
        self.half, self.rng, self.status_of = half, random.Random(seed), status_of
        self.build, self.forward = build, forward
        self.waiting: list[Any] = []
        self.running: list[Any] = []
        self.said: list[Any] = []
        self.count = 0

    def run(self, num_calls: int) -> list[Any]:
        """What was answered, in order."""
        for _ in range(num_calls):
            self.rng.choice([self.come, self.come, self.admit, self.admit, self.end, self.step, self.step])()
        return self.said

    def come(self) -> None:
        """A request: for P, for D, or for neither."""
        kind, self.count = self.rng.choice("pdn"), self.count + 1
        length = self.rng.randrange(1, 40)
        params: Any = {"p": {"do_remote_decode": True, "do_remote_prefill": False}, "n": None}.get(kind)
        if kind == "d":
            params = {
                "do_remote_prefill": True, "do_remote_decode": False,
                "remote_block_ids": [[self.rng.randrange(1, 99) for _ in range(-(-length // BLOCK_SIZE))]],
                "remote_engine_id": self.rng.choice("xyz"), "remote_request_id": f"there-{self.count}",
                "remote_host": "localhost", "remote_port": self.rng.choice([5600, 5601]), "tp_size": 1,
            }  # fmt: skip
        request = SimpleNamespace(
            request_id=f"r{self.count}", kv_transfer_params=params, prompt_token_ids=list(range(length)),
            num_prompt_tokens=length, num_computed_tokens=0, status=None, cache_salt=None, lora_request=None,
            mm_features=[], table=[],
        )  # fmt: skip
        self.half.on_new_request(request)
        self.waiting.append(request)

    def admit(self) -> None:
        """A request that waits gets blocks; what it loads is there at once, and it is admitted once more."""
        if not self.waiting:
            return
        request = self.waiting.pop(self.rng.randrange(len(self.waiting)))
        most = (request.num_prompt_tokens - 1) // BLOCK_SIZE
        num_hashed = self.rng.randrange(most + 1)
        found = self.half.get_num_new_matched_tokens(request, num_hashed * BLOCK_SIZE)
        self.said.append(["match", request.request_id, *found])
        request.table = [self.rng.randrange(1, 99) for _ in range(-(-request.num_prompt_tokens // BLOCK_SIZE))]
        blocks = Blocks(request.table, num_hashed)
        self.half.update_state_after_alloc(request, blocks, found[0])
        if found[1]:
            self.step()
            self.half.update_connector_output(SimpleNamespace(
                finished_recving={request.request_id}, kv_connector_worker_meta=None
            ))  # fmt: skip
            self.half.update_state_after_alloc(request, Blocks(request.table, len(request.table)), 0)
        request.num_computed_tokens = request.num_prompt_tokens
        self.running.append(request)

    def end(self) -> None:
        """A request ends, running or not."""
        pool = self.rng.choice([self.waiting, self.running])
        if not pool:
            return
        request = pool.pop(self.rng.randrange(len(pool)))
        status = self.rng.choice(STATUSES) if pool is self.running else "FINISHED_ABORTED"
        request.status = self.status_of(status)
        self.said.append(["end", request.request_id, status, *self.half.request_finished(request, [request.table])])

    def step(self) -> None:
        """Time passes, and the worker is told."""
        self.forward(self.rng.choice([0, 1, 2, 6]))
        self.said.append(["meta", self.build()])


def meta_of(meta: Any, now: float, loads: dict[str, Any]) -> dict[str, Any]:
    """A step's metadata in JSON; loads: request -> (local blocks, where from). Who came and was ended before the step,
    which no scheduler does, is in two of vLLM's sets, of which the second counts."""
    return {
        "recv": loads,
        "send": {name: expires - now for name, expires in meta.reqs_to_send.items()},
        "batch": sorted(set(meta.reqs_in_batch) - meta.reqs_not_processed),
        "dropped": sorted(meta.reqs_not_processed),
        "heartbeats": {
            engine: [sorted(info.req_ids), info.host, info.port, info.tp_size]
            for engine, info in sorted(meta.heartbeat_by_engine.items())
        },
    }

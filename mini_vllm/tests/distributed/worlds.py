"""Ranks that meet over TCP, each in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mini_vllm.distributed import rendezvous
from mini_vllm.distributed.parallel_state import TensorParallelGroup

PATIENCE_S = 60.0


def meet(world_size: int, task: Callable[[Any], Any], settings: Any = None, timeout: float = PATIENCE_S) -> list[Any]:
    """`task(world)` on every rank; what each returned, or raised, by rank. settings: by rank, of those that differ."""
    listener = rendezvous.bind("127.0.0.1", 0)
    port, settings = listener.getsockname()[1], settings or {}
    found: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        world = None
        try:
            its = settings.get(rank, {"model": "m"})
            if rank == 0:
                world = rendezvous.lead(listener, world_size, its, timeout, transfer_timeout=PATIENCE_S)
            else:
                world = rendezvous.join(
                    rank, world_size, "127.0.0.1", port, its, timeout, transfer_timeout=PATIENCE_S
                )  # fmt: skip
            found[rank] = task(world)
        except Exception as error:
            found[rank] = error
        finally:
            if world is not None:
                world.links.close()
                for control in world.control.values():
                    control.close()

    on_threads(world_size, run)
    listener.close()
    return found


def on_threads(count: int, run: Callable[[int], None]) -> None:
    """`run(i)` for each, all at once."""
    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
        assert not thread.is_alive(), "a rank hangs"


def in_shared_memory(world_size: int, task: Callable[[Any], Any], num_elements: int, dtype: Any) -> list[Any]:
    """`task(group)` on every rank of a group in shared memory."""
    import copy

    group = TensorParallelGroup(world_size, num_elements, dtype)
    found: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        mine = copy.copy(group)
        mine.rank = rank
        found[rank] = task(mine)

    on_threads(world_size, run)
    return found

"""The bugs of vLLM 0.22.1's scheduler that we know, each as a named patch of its source, with its explanation.

The recorder applies them to the real `Scheduler.schedule` while it runs; the pinned files are not touched. A patch
whose text no longer stands there exactly once is an error: the bug was fixed, or moved.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Patch:
    """Replaces `old` by `new` in the source of a method."""

    name: str
    why: str
    old: str
    new: str


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


@contextmanager
def applied(scheduler_class: Any, names: Sequence[str]) -> Iterator[None]:
    """While inside, `scheduler_class.schedule` has these patches.

    Raises:
        ValueError: the text to be replaced does not stand in the source exactly once.
    """
    original = scheduler_class.schedule
    source = inspect.getsource(original)
    for name in names:
        patch = PATCHES[name]
        if source.count(patch.old) != 1:
            raise ValueError(f"{name}: the text to replace stands {source.count(patch.old)} times in schedule()")
        source = source.replace(patch.old, patch.new)
    scope: dict[str, Any] = {}
    exec(compile(textwrap.dedent(source), f"schedule with {', '.join(names)}", "exec"), original.__globals__, scope)
    scheduler_class.schedule = scope["schedule"]
    try:
        yield
    finally:
        scheduler_class.schedule = original

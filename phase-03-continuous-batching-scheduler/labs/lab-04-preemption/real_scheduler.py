"""Two small workloads through the *real* scheduler of vLLM 0.22.1, no model needed. Given material: nothing to edit.

Run from the repository root with the interpreter that has vLLM (`course vllm` builds it):

    .venv-vllm/bin/python phase-03-.../labs/lab-04-preemption/real_scheduler.py

    findable   a victim that lost its step resumes, and hits a block that nobody wrote
    skipped    a victim before the cursor without a share: the request behind the cursor misses its turn

It prints one JSON object. Sampled tokens are 5 for everybody.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "mini_vllm" / "tests" / "golden"))

from record_scheduler import make_scheduler, model_output, stand_in_model  # noqa: E402
from vllm import SamplingParams, __version__  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

CONFIG = {"block_size": 4, "max_model_len": 128, "max_num_batched_tokens": 64, "max_num_seqs": 4, "policy": "priority"}


class Drive:
    """The real scheduler, its plans, and up to two steps in flight where it schedules ahead."""

    def __init__(self, folder: str, **config) -> None:
        self.config = {**CONFIG, "threshold": 0, "reserve": True, "caching": True, **config}
        self.scheduler = make_scheduler(self.config, folder)
        self.hasher = get_request_block_hasher(4, sha256)
        self.in_flight: deque = deque()
        self.log: list[dict] = []

    def add(self, name: str, first: int, length: int, max_tokens: int, priority: int) -> None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0)
        tokens = list(range(first, first + length))
        request = Request(name, tokens, params, None, priority=priority, block_hasher=self.hasher)
        self.scheduler.add_request(request)

    def step(self) -> None:
        output = self.scheduler.schedule()
        resumed = output.scheduled_cached_reqs
        hits = dict(zip(resumed.req_ids, resumed.num_computed_tokens, strict=True))
        self.log.append(
            {
                "plan": dict(output.num_scheduled_tokens),
                "preempted": sorted(output.preempted_req_ids or ()),
                "resumed_with_hits": {name: hits[name] for name in sorted(resumed.resumed_req_ids)},
            }
        )
        ids = list(output.num_scheduled_tokens)
        rows = [[] if self.scheduler.requests[name].is_prefill_chunk else [5] for name in ids]
        self.in_flight.append((output, model_output(ids, rows)))
        if not self.config["async"] or len(self.in_flight) == 2:
            self.scheduler.update_from_output(*self.in_flight.popleft())


def main() -> None:
    init_none_hash(sha256)
    with stand_in_model() as folder:
        one = Drive(folder, num_blocks=9, threshold=8, **{"async": False})
        one.add("low", 100, 24, 2, priority=9)
        one.step()
        one.add("high", 500, 8, 3, priority=0)
        for _ in range(4):
            one.step()
        two = Drive(folder, num_blocks=7, caching=False, **{"async": True})
        two.add("v", 100, 7, 2, priority=9)
        two.step()
        two.add("x", 200, 8, 8, priority=0)
        two.add("y", 300, 8, 8, priority=0)
        two.step()
        two.step()
    print(json.dumps({"vllm": __version__, "findable": one.log, "skipped": two.log}, indent=1))


if __name__ == "__main__":
    main()

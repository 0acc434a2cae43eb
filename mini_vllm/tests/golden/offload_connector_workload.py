"""Our scheduler with the scheduler's half of an offloading connector, vLLM's or ours, over random conversations.

The half is asked what a scheduler asks; what it orders is carried out by a stand-in for the ranks, which takes a random
number of steps for each copy. What is written down is every answer and every order.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.core.kv_cache_groups import get_kv_cache_config_from_groups
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.kv_cache_utils import get_request_block_hasher
from mini_vllm.core.sched.remote_kv import RemoteKV
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.distributed.kv_transfer.kv_connector.base import SupportsHMA
from mini_vllm.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec
from mini_vllm.outputs import KVConnectorOutput, ModelRunnerOutput
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams

NUM_SEEDS, MAX_LEN = 240, 96


def settings_of(seed: int) -> dict[str, Any]:
    """Of a workload. `groups`: windows and tokens of a block, None: full attention. `factor`: of offloaded blocks."""
    rng = random.Random(f"offload settings {seed}")
    size = rng.choice([2, 4])
    kinds = [[(None, size)], [(None, size)], [(9, size)], [(None, size), (9, size)], [(None, 2 * size), (5, size)]]
    groups = rng.choice(kinds)
    full = groups == [(None, size)]
    caching = rng.random() < 0.8
    return {
        "groups": groups,
        "factor": rng.choice([1, 1, 2]) if full else 1,
        "num_blocks": sum(-(-MAX_LEN // block) for _, block in groups) + rng.choice([2, 20, 60]),
        "caching": caching or not full,
        "host": rng.choice([8, 30, 400]) if full else 4000,
        "policy": rng.choice(["lru", "arc"]),
        "threshold": rng.choice([0, 0, 0, 2]),
        "ranks": rng.choice([1, 1, 2]),
        "budget": rng.choice([8, 24, 200]),
        "seats": rng.choice([2, 4, 8]),
    }


class Half(SupportsHMA):
    """What the scheduler holds: hands every question to the half under test, and writes the answer down."""

    def __init__(self, half: Any, log: list[Any]) -> None:
        self.half, self.log = half, log

    def bind_gpu_block_pool(self, pool: Any) -> None:
        """Not needed."""

    def on_new_request(self, request: Any) -> None:
        """Not needed."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any:
        """Asked, and written down."""
        answer = self.half.get_num_new_matched_tokens(request, num_computed_tokens)
        self.log.append(["matched", request.request_id, num_computed_tokens, *answer])
        return answer

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Told."""
        self.half.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, output: Any) -> Any:
        """Asked, and written down."""
        meta = self.half.build_connector_meta(output)
        self.log.append(["loads", _jobs(meta.load_jobs)])
        self.log.append(["stores", _jobs(meta.store_jobs), sorted(meta.jobs_to_flush or ())])
        return meta

    def update_connector_output(self, output: Any) -> None:
        """Told."""
        self.half.update_connector_output(output)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        """Asked."""
        return self.half.request_finished(request)

    def take_events(self) -> Any:
        """Blocks that came and went."""
        events = [[type(event).__name__, len(event.block_hashes)] for event in self.half.take_events()]
        if events:
            self.log.append(["events", events])
        return []


def _jobs(jobs: dict[int, Any]) -> list[Any]:
    return [
        [number, job.req_id, *map(_end, job.transfer_spec)]
        for number, job in jobs.items()
    ]  # fmt: skip


def _end(spec: Any) -> list[Any]:
    more = [list(spec.group_sizes), list(spec.block_indices)] if hasattr(spec, "group_sizes") else []
    return [spec.block_ids.tolist(), *more]


class OffloadConnectorWorkload:
    """Args:
    seed: of the workload.
    make_half: (settings) -> the half under test.
    make_meta: (number -> how many ranks) -> what the ranks report, in the half's words.
    """

    def __init__(self, seed: int, make_half: Callable[..., Any], make_meta: Callable[..., Any]) -> None:
        self.settings = settings = settings_of(seed)
        self.rng, self.log = random.Random(f"offload {seed}"), list[Any]()
        self.half = make_half(settings)
        self.make_meta = make_meta
        groups = []
        for i, (window, size) in enumerate(settings["groups"]):
            common: dict[str, Any] = {"block_size": size, "num_kv_heads": 1, "head_size": 64 // size}
            spec = FullAttentionSpec(**common) if window is None else SlidingWindowSpec(**common, sliding_window=window)
            groups.append(KVCacheGroupSpec([f"layer.{i}"], spec))
        config = get_kv_cache_config_from_groups(groups, settings["num_blocks"])
        manager = KVCacheManager(
            kv_cache_config=config, enable_caching=settings["caching"], max_model_len=MAX_LEN,
            max_num_batched_tokens=settings["budget"],
        )  # fmt: skip
        limits = SchedulerConfig(max_num_batched_tokens=settings["budget"], max_num_seqs=settings["seats"])
        connector: Any = Half(self.half, self.log)
        self.scheduler = Scheduler(limits, manager, MAX_LEN, connector=RemoteKV(connector, manager))
        self.hasher = get_request_block_hasher(min(size for _, size in settings["groups"]))
        self.copies: dict[int, list[Any]] = {}
        self.made = 0
        rng = random.Random(f"texts {seed}")
        self.texts = [[rng.randrange(50) for _ in range(MAX_LEN)] for _ in range(rng.choice([2, 4, 6]))]

    def run(self) -> list[str]:
        """A line for each step: what was planned, answered and ordered."""
        lines = []
        while len(lines) < 40 or self._is_busy():
            assert len(lines) < 2000, "it does not end"
            if len(lines) < 40:
                self._arrive()
            self.log.clear()
            self._step()
            lines.append(json.dumps(self.log, separators=(",", ":")))
        return lines

    def _is_busy(self) -> bool:
        return self.scheduler.has_unfinished_requests() or self.scheduler.has_finished_requests() or bool(self.copies)

    def _arrive(self) -> None:
        for _ in range(self.rng.choice([0, 0, 1, 1, 2])):
            text = self.rng.choice(self.texts)
            prompt = text[: self.rng.randint(1, MAX_LEN - 20)]
            if self.rng.random() < 0.2:
                prompt = [*prompt[: len(prompt) // 2], 60 + self.made % 9, *prompt[len(prompt) // 2 :]]
            params = SamplingParams(temperature=0.0, max_tokens=self.rng.randint(1, 12), ignore_eos=True)
            self.scheduler.add_request(Request(f"r{self.made}", prompt, params, block_hasher=self.hasher))
            self.made += 1
        if self.scheduler.requests and self.rng.random() < 0.06:
            name = self.rng.choice(sorted(self.scheduler.requests))
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def _step(self) -> None:
        output = self.scheduler.schedule()
        meta: Any = output.kv_connector_metadata
        self.log.append(["planned", dict(output.num_scheduled_tokens), sorted(output.preempted_req_ids)])
        received, reports = set(), dict[int, int]()
        for number, job in {**meta.load_jobs, **meta.store_jobs}.items():
            loads = number in meta.load_jobs
            waits = [self.rng.choice([0, 0, 1, 3]) + (not loads) for _ in range(self.settings["ranks"])]
            self.copies[number] = [waits, job.req_id if loads else None]
        for number in list(self.copies):
            waits, loaded = self.copies[number]
            left = [0 if number in (meta.jobs_to_flush or ()) else wait for wait in waits]
            done = sum(wait == 0 for wait in left)
            if done:
                reports[number] = done
            self.copies[number][0] = [wait - 1 for wait in left if wait]
            if not self.copies[number][0]:
                del self.copies[number]
                received |= {loaded} if loaded else set()
        ids = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        sampled = [[] if requests[name].is_prefill_chunk else [self._token(requests[name])] for name in ids]
        said = KVConnectorOutput(None, received, kv_connector_worker_meta=self.make_meta(reports) if reports else None)
        self.scheduler.update_from_output(output, ModelRunnerOutput(ids, sampled, kv_connector_output=said))

    def _token(self, request: Request) -> int:
        """The next one of the text that the prompt is from, so that conversations go on."""
        text = next(
            (text for text in self.texts if text[: request.num_prompt_tokens] == request.prompt_token_ids), None
        )
        return 7 if text is None else text[min(request.num_tokens, MAX_LEN - 1)]


def packed(lines: list[str]) -> str:
    """Four letters for each step."""
    return "".join(f"{zlib.crc32(line.encode()) & 0xFFFF:04x}" for line in lines)


def spec_of(settings: dict[str, Any], **more: Any) -> SimpleNamespace:
    """What both halves read of an `OffloadingSpec`."""
    sizes = tuple(size for _, size in settings["groups"])
    return SimpleNamespace(
        gpu_block_size=sizes, block_size_factor=settings["factor"], hash_block_size=min(sizes),
        world_size=settings["ranks"], **more,
    )  # fmt: skip

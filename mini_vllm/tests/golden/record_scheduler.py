"""Drives the real `Scheduler` and `KVCacheManager` of vLLM 0.22.1 over random workloads and writes down every decision.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    .venv-vllm/bin/python mini_vllm/tests/golden/record_scheduler.py 300

No weights are needed: sampled tokens come from a seeded stand-in. The result is `scheduler-traces.json.xz`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mini_vllm.tests.golden.packed import write_packed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
for name, value in {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}.items():
    os.environ.setdefault(name, value)

import torch  # noqa: E402
from scheduler_workload import EOS, Workload, arrival_time, make_workload, pick, sampled_token  # noqa: E402
from vllm import SamplingParams, __version__  # noqa: E402
from vllm.config import (  # noqa: E402
    CacheConfig,
    KVEventsConfig,
    LoRAConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

STEP_LIMIT = 2000


@contextmanager
def stand_in_model(max_position_embeddings: int = 2048) -> Iterator[str]:
    """A folder with the `config.json` of an OPT: all of a model that the scheduler's settings read."""
    with tempfile.TemporaryDirectory() as folder:
        config = {"architectures": ["OPTForCausalLM"], "model_type": "opt"}
        text = json.dumps({**config, "max_position_embeddings": max_position_embeddings})
        Path(folder, "config.json").write_text(text, encoding="utf-8")
        yield folder


def make_scheduler(
    config: dict[str, Any], model_folder: str, kv_transfer_config: Any = None, groups: Any = None
) -> Scheduler:
    """The real scheduler over a pool without arrays. kv_transfer_config: names a KV connector. groups: as the release
    has them; None: those that the settings name."""
    model = ModelConfig(
        model=model_folder,
        dtype="float32",
        seed=0,
        skip_tokenizer_init=True,
        max_model_len=config["max_model_len"],
    )
    scheduling = SchedulerConfig(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        long_prefill_token_threshold=config["threshold"],
        enable_chunked_prefill=config.get("chunked", True),
        async_scheduling=config["async"],
        is_encoder_decoder=False,
        policy=config["policy"],
        scheduler_reserve_full_isl=config["reserve"],
    )
    cache = CacheConfig(block_size=config["block_size"], enable_prefix_caching=config["caching"])
    cache.num_gpu_blocks = config["num_blocks"]
    parallel = ParallelConfig(pipeline_parallel_size=config.get("stages", 1))
    vllm_config = VllmConfig(
        scheduler_config=scheduling,
        model_config=model,
        cache_config=cache,
        parallel_config=parallel,
        lora_config=LoRAConfig(max_loras=config["loras"]["max_loras"]) if "loras" in config else None,
        speculative_config=make_speculative_config(config, model, parallel, model_folder),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null") if "groups" in config else None,
        kv_transfer_config=kv_transfer_config,
    )
    groups = groups or make_groups(config.get("groups", [(None, config["block_size"])]))
    kv_cache_config = KVCacheConfig(config["num_blocks"], [], groups)
    block_size, hash_block_size = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    scheduler_class = AsyncScheduler if config["async"] else Scheduler
    return scheduler_class(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config,
        block_size=block_size,
        hash_block_size=hash_block_size,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(vllm_config),
    )


def make_speculative_config(config: dict[str, Any], model: Any, parallel: Any, folder: str) -> SpeculativeConfig | None:
    """Of a workload with drafts (`draft_workload.py`); the stand-in drafts for itself, an EAGLE head is any that is
    there."""
    if "drafts" not in config:
        return None
    method, k = config["drafts"]["method"], config["drafts"]["k"]
    return SpeculativeConfig(
        method=method,
        model={"draft_model": folder, "eagle": "models/pocket-eagle"}.get(method),
        num_speculative_tokens=k,
        target_model_config=model,
        target_parallel_config=parallel,
    )


def make_groups(groups: list[tuple[int | None, int]]) -> list[KVCacheGroupSpec]:
    """A group for each pair of a window (None: full attention) and a block size."""
    specs = []
    for window, block_size in groups:
        # Blocks of all groups are equally large, as the engine makes them.
        common = {"block_size": block_size, "num_kv_heads": 1, "head_size": 64 // block_size, "dtype": torch.float32}
        full = FullAttentionSpec(**common) if window is None else SlidingWindowSpec(**common, sliding_window=window)
        specs.append(full)
    return [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]


def model_output(ids: list[str], sampled: list[list[int]]) -> ModelRunnerOutput:
    """What a model runner would hand back for these requests: the tokens of each, none where none is due."""
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: row for row, request_id in enumerate(ids)},
        sampled_token_ids=sampled,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


class Recorder:
    """One workload through the real scheduler."""

    def __init__(self, workload: Workload, model_folder: str) -> None:
        self.workload = workload
        self.scheduler = self._make_scheduler(model_folder)
        sizes = [group[1] for group in workload.config.get("groups", [(None, workload.config["block_size"])])]
        self.hasher = get_request_block_hasher(math.gcd(*sizes), sha256)
        self.num_sampled: Counter[str] = Counter()
        self.hits = [0, 0, 0, 0]
        self.in_flight: deque[Any] = deque()

    def _make_scheduler(self, model_folder: str) -> Scheduler:
        return make_scheduler(self.workload.config, model_folder, self._kv_transfer_config())

    def run(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = []
        while len(steps) < len(self.workload.arrivals) or self.scheduler.has_unfinished_requests():
            if len(steps) == STEP_LIMIT:
                raise RuntimeError(f"workload {self.workload.seed} does not end")
            steps.append(self._step(len(steps)))
        return steps

    def _step(self, index: int) -> dict[str, Any]:
        if index < len(self.workload.arrivals):
            self._before(index)
        output = self.scheduler.schedule()
        stats = self.scheduler.kv_cache_manager.make_prefix_cache_stats()  # and reset them
        seen = (stats.queries, stats.hits, stats.preempted_queries, stats.preempted_hits)
        self.hits = [total + new for total, new in zip(self.hits, seen, strict=True)]
        cached = output.scheduled_cached_reqs
        record = {
            "tokens": dict(output.num_scheduled_tokens),
            "new": [[new.req_id, new.block_ids[0], new.num_computed_tokens] for new in output.scheduled_new_reqs],
            "cached": [
                [req_id, blocks[0] if blocks else None, computed, outputs]
                for req_id, blocks, computed, outputs in zip(
                    cached.req_ids,
                    cached.new_block_ids,
                    cached.num_computed_tokens,
                    cached.num_output_tokens,
                    strict=True,
                )
            ],
            "resumed": sorted(cached.resumed_req_ids),
            "preempted": sorted(output.preempted_req_ids),
            "finished": sorted(output.finished_req_ids),
            "hits": self.hits,
        }
        self._update(output)
        free = self.scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
        record["free"] = [len(free), *(block.block_id for block in free[:4])]
        return record

    def _before(self, index: int) -> None:
        for arrival in self.workload.arrivals[index]:
            self._add(self._make_request(arrival))
        abort, reset = self.workload.aborts[index], self.workload.resets[index]
        if abort is not None and self.scheduler.requests:
            self._abort(abort)
        if reset is not None:
            self._reset(reset)

    def _make_request(self, arrival: Any) -> Request:
        params = SamplingParams(
            max_tokens=arrival.max_tokens,
            stop_token_ids=list(arrival.stop_token_ids),
            ignore_eos=arrival.ignore_eos,
            skip_reading_prefix_cache=arrival.skip_reading,
            **self._more_params(arrival),
        )
        params.update_from_generation_config({}, EOS)
        return Request(
            request_id=arrival.request_id,
            prompt_token_ids=list(arrival.prompt),
            sampling_params=params,
            pooling_params=None,
            arrival_time=arrival_time(arrival),
            cache_salt=arrival.salt,
            priority=arrival.priority,
            lora_request=self._lora_request(arrival),
            block_hasher=self.hasher,
        )

    def _abort(self, number: Any) -> None:
        self.scheduler.finish_requests(pick(list(self.scheduler.requests), number), RequestStatus.FINISHED_ABORTED)

    def _reset(self, running_too: bool) -> None:
        self.scheduler.reset_prefix_cache(reset_running_requests=running_too)

    def _more_params(self, arrival: Any) -> dict[str, Any]:
        """None without grammars."""
        return {}

    def _lora_request(self, arrival: Any) -> Any:
        """None without adapters."""
        return None

    def _add(self, request: Request) -> None:
        self.scheduler.add_request(request)

    def _kv_transfer_config(self) -> Any:
        """None without a connector."""
        return None

    def _update(self, output: Any) -> None:
        """Take in the results of this step, or of the one before when scheduling runs ahead (two batches in flight)."""
        ids = list(output.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for request_id in ids:
            due = not self.scheduler.requests[request_id].is_prefill_chunk
            sampled.append([sampled_token(self.workload.seed, request_id, self.num_sampled[request_id])] if due else [])
            self.num_sampled[request_id] += due
        self.in_flight.append((output, model_output(ids, sampled)))
        if self.workload.config["async"] and ids and len(self.in_flight) < 2:
            return
        self.scheduler.update_from_output(*self.in_flight.popleft())


def counts(traces: list[Any], steps: list[dict[str, Any]]) -> dict[str, int]:
    """What a document holds, for its provenance."""
    preempted = sum(bool(step["preempted"]) for step in steps)
    return {"workloads": len(traces), "steps": len(steps), "steps_with_preemption": preempted}


def write(name: str, command: str, more: dict[str, Any], **content: Any) -> None:
    """A golden document: where it comes from, with `more`, and its content. The same content is the same bytes."""
    provenance = {"vllm": __version__, "python": platform.python_version(), "command": command, **more}
    document = {"provenance": provenance, **content}
    size = write_packed(HERE / name, document)
    print(json.dumps(provenance, indent=1), size, "bytes")


def main() -> None:
    num_workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    init_none_hash(sha256)
    traces, features = [], Counter()
    with stand_in_model() as folder:
        for seed in range(num_workloads):
            workload = make_workload(seed)
            traces.append(Recorder(workload, folder).run())
            features.update(workload.features)
    steps = [step for trace in traces for step in trace]
    more = {**counts(traces, steps), "workloads_by_feature": dict(sorted(features.items()))}
    write("scheduler-traces.json.xz", f"record_scheduler.py {num_workloads}", more, traces=traces)


if __name__ == "__main__":
    main()

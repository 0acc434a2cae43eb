"""The release's own scheduler, loaded from a source tree without torch and without a build. Given: nothing to edit.

    python bare_scheduler.py FOLDER

FOLDER holds a `vllm/` (the pinned tree, or a copy of it with a patch). The scheduler, its queues, the KV cache
managers, the block pool and the requests are the code of that folder, unchanged. What else they import, they get as
empty names: the scheduler asks nothing of it in the workloads here. The script reads a list of workloads from standard
input (JSON, as `workloads.py` makes them) and prints, for each, what the scheduler planned step by step.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.abc
import importlib.util
import json
import logging
import pickle
import sys
import traceback
from collections import deque
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

REAL = [
    "vllm.envs",
    "vllm.utils.math_utils",
    "vllm.v1.utils",
    "vllm.v1.request",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.metrics.stats",
    *(
        f"vllm.v1.core.{name}"
        for name in (
            "kv_cache_utils",
            "kv_cache_metrics",
            "block_pool",
            "single_type_kv_cache_manager",
            "kv_cache_coordinator",
            "kv_cache_manager",
            "encoder_cache_manager",
        )
    ),
    *(
        f"vllm.v1.core.sched.{name}"
        for name in ("output", "interface", "request_queue", "utils", "scheduler", "async_scheduler")
    ),
]
"""Modules that are loaded from the folder."""
EMPTY = [
    "vllm",
    "torch",
    "cbor2",
    "msgspec",
    "zmq",
    "uvloop",
    "psutil",
    "prometheus_client",
    "typing_extensions",
    "PIL",
]
"""Packages of which the rest is without content."""
STEP_LIMIT = 2000


class _AnyName(type):
    """A class of which any attribute is another such class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (_Anything,), {})

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


class _Anything(metaclass=_AnyName):
    """Takes any arguments, and keeps those with a name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__dict__.update(kwargs)

    @classmethod
    def new_event(cls, *args: Any) -> _Anything:
        return cls()


class _Empty(ModuleType):
    """A module in which every name is a class that does nothing."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _AnyName(name, (_Anything,), {})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The modules of `REAL` from the folder, all else below `EMPTY` without content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in REAL:
            return importlib.util.spec_from_file_location(name, self.folder / f"{name.replace('.', '/')}.py")
        if name.partition(".")[0] in EMPTY:
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        for name, value in _GIVEN.get(module.__name__, {}).items():
            setattr(module, name, value)


class _Logger(logging.Logger):
    debug_once = info_once = warning_once = staticmethod(lambda *args, **kwargs: None)


_GIVEN: dict[str, dict[str, Any]] = {
    "vllm.logger": {"init_logger": lambda name: _Logger(name, logging.ERROR)},
    "vllm.utils": {"length_from_prompt_token_ids_or_embeds": lambda ids, embeds: len(ids)},
    "vllm.utils.torch_utils": {"get_dtype_size": lambda dtype: 4},
    "vllm.multimodal": {"MULTIMODAL_REGISTRY": SimpleNamespace(supports_multimodal_inputs=lambda config: False)},
    "vllm.v1.structured_output.request": {
        "StructuredOutputRequest": SimpleNamespace(from_sampling_params=lambda params: None)
    },
    "vllm.distributed.kv_events": {
        "EventPublisherFactory": SimpleNamespace(create=lambda *args: SimpleNamespace(publish=lambda batch: None))
    },
    "torch.autograd.profiler": {"record_function": contextlib.nullcontext},
}


def load(folder: Path) -> SimpleNamespace:
    """`Scheduler`, `AsyncScheduler`, `Request` and the specs of the tree in `folder`."""
    sys.meta_path.insert(0, _Finder(folder))
    here = {name.rpartition(".")[2]: importlib.import_module(name) for name in REAL}
    here["kv_cache_utils"].init_none_hash(_hash)
    return SimpleNamespace(
        scheduler=here["scheduler"].Scheduler,
        async_scheduler=here["async_scheduler"].AsyncScheduler,
        request=here["request"],
        specs=here["kv_cache_interface"],
        hasher=here["kv_cache_utils"].get_request_block_hasher,
    )


def _hash(value: Any) -> bytes:
    return hashlib.sha256(pickle.dumps(value)).digest()


def make_scheduler(vllm: SimpleNamespace, config: dict[str, Any]) -> Any:
    """The scheduler for the settings of a workload, over a pool without arrays."""
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "policy")
    limits = SimpleNamespace(
        **{name: config[name] for name in names},
        max_num_scheduled_tokens=None,
        long_prefill_token_threshold=config["threshold"],
        enable_chunked_prefill=True,
        disable_chunked_mm_input=False,
        scheduler_reserve_full_isl=config["reserve"],
        async_scheduling=config["async"],
    )
    sizes = ("decode_context_parallel_size", "prefill_context_parallel_size", "pipeline_parallel_size")
    parallel = SimpleNamespace(data_parallel_index=0, **dict.fromkeys(sizes, 1))
    settings = SimpleNamespace(
        scheduler_config=limits,
        cache_config=SimpleNamespace(
            num_gpu_blocks=config["num_blocks"],
            enable_prefix_caching=config["caching"],
            block_size=config["block_size"],
            mamba_cache_mode="none",
        ),
        parallel_config=parallel,
        model_config=SimpleNamespace(
            is_encoder_decoder=False, max_model_len=config["max_model_len"], enable_return_routed_experts=False
        ),
        observability_config=SimpleNamespace(kv_cache_metrics=False, enable_mfu_metrics=False),
        use_v2_model_runner=False,
        **dict.fromkeys(
            ("lora_config", "kv_events_config", "kv_transfer_config", "ec_transfer_config", "speculative_config")
        ),
    )
    spec = vllm.specs.FullAttentionSpec(block_size=config["block_size"], num_kv_heads=1, head_size=1, dtype=None)
    pool = vllm.specs.KVCacheConfig(config["num_blocks"], [], [vllm.specs.KVCacheGroupSpec(["layer"], spec)])
    grammars = SimpleNamespace(should_advance=lambda request: False)
    kind = vllm.async_scheduler if config["async"] else vllm.scheduler
    return kind(settings, pool, grammars, config["block_size"], log_stats=True)


class Drive:
    """One workload through the scheduler, with up to two steps in flight where it schedules ahead."""

    def __init__(self, vllm: SimpleNamespace, workload: dict[str, Any]) -> None:
        self.vllm, self.workload, self.config = vllm, workload, workload["config"]
        self.scheduler = make_scheduler(vllm, self.config)
        self.hasher = vllm.hasher(self.config["block_size"], _hash) if self.config["caching"] else None
        self.in_flight: deque[Any] = deque()
        self.num_sampled: dict[str, int] = {}

    def run(self) -> dict[str, Any]:
        """`steps`, and `error`: what the scheduler raised, or None. It ends with the requests or with `num_steps`."""
        steps: list[dict[str, Any]] = []
        wanted = self.workload.get("num_steps")
        arrivals = self.workload["arrivals"]
        try:
            while len(steps) < (wanted or len(arrivals)) or (not wanted and self.scheduler.has_unfinished_requests()):
                if len(steps) == STEP_LIMIT:
                    return {"steps": steps, "error": f"no end after {STEP_LIMIT} steps"}
                for arrival in arrivals[len(steps)] if len(steps) < len(arrivals) else ():
                    self.scheduler.add_request(self.request(arrival))
                steps.append(self.step())
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"at {Path(where.filename).name}:{where.lineno} of the patched tree"
            return {"steps": steps, "error": f"{type(error).__name__} in step {len(steps) + 1}, {place}"}
        return {"steps": steps, "error": None}

    def request(self, arrival: dict[str, Any]) -> Any:
        params = SimpleNamespace(
            max_tokens=arrival["max_tokens"],
            min_tokens=0,
            stop_token_ids=arrival["stop_token_ids"],
            eos_token_id=arrival["eos"],
            **dict.fromkeys(("extra_args", "skip_reading_prefix_cache", "repetition_detection", "num_logprobs")),
        )
        return self.vllm.request.Request(
            arrival["name"],
            list(arrival["prompt"]),
            params,
            None,
            priority=arrival["priority"],
            arrival_time=arrival["time"],
            block_hasher=self.hasher,
        )

    def step(self) -> dict[str, Any]:
        output = self.scheduler.schedule()
        cached, stats = output.scheduled_cached_reqs, self.scheduler.kv_cache_manager.make_prefix_cache_stats()
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        record = {
            "tokens": dict(output.num_scheduled_tokens),
            "preempted": sorted(output.preempted_req_ids or ()),
            "resumed": {name: computed[name] for name in sorted(cached.resumed_req_ids)},
            "twice": sorted({name for name in cached.req_ids if cached.req_ids.count(name) > 1}),
            "hits": [stats.queries, stats.hits, stats.preempted_queries, stats.preempted_hits],
        }
        self.update(output)
        return record

    def update(self, output: Any) -> None:
        ids, sampled = list(output.num_scheduled_tokens), []
        for name in ids:
            due = not self.scheduler.requests[name].is_prefill_chunk
            sampled.append([self.token(name)] if due else [])
            self.num_sampled[name] = self.num_sampled.get(name, 0) + due
        rows = {name: row for row, name in enumerate(ids)}
        result = SimpleNamespace(
            req_ids=ids, req_id_to_index=rows, sampled_token_ids=sampled, prompt_logprobs_dict={}, pooler_output=[]
        )
        absent = ("logprobs", "num_nans_in_logits", "kv_connector_output", "cudagraph_stats", "routed_experts")
        result.__dict__.update(dict.fromkeys((*absent, "ec_connector_output")))
        self.in_flight.append((output, result))
        if self.config["async"] and ids and len(self.in_flight) < 2:
            return
        self.scheduler.update_from_output(*self.in_flight.popleft())

    def token(self, name: str) -> int:
        tokens = self.workload["tokens"].get(name, [])
        index = self.num_sampled.get(name, 0)
        return tokens[index] if index < len(tokens) else 5


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):  # what a patch prints while you search is not the answer
        vllm = load(Path(sys.argv[1]))
        plans = [Drive(vllm, workload).run() for workload in json.load(sys.stdin)]
    print(json.dumps(plans))


if __name__ == "__main__":
    main()

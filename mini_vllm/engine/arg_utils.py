"""Engine arguments, as `LLM(...)`, `LLMEngine(...)` and a command line take them.

Upstream twin: `vllm/engine/arg_utils.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mini_vllm.config.compilation import CUDAGraphMode, split_compilation_config
from mini_vllm.config.modes import double_what_is_not_given
from mini_vllm.config.multimodal import MultiModalConfig
from mini_vllm.config.utils import check_kind, plain
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.engine.arg_refusals import check_upstream_argument, is_upstreams
from mini_vllm.plugins import load_general_plugins
from mini_vllm.utils.checks import did_you_mean, shown

_ALIASES = {"num_gpu_blocks_override": "num_blocks", "max_seq_len_to_capture": "max_cudagraph_capture_size"}

_ARGUMENTS = {"limit_per_prompt": "limit_mm_per_prompt"}
"""Field of a config -> the argument that sets it, where their names differ."""
_ALSO: dict[str, Any] = {"cudagraph_mode": CUDAGraphMode, "attention_backend": Callable, "dtype": object}
"""What an argument may be beside a text; torch has dtypes of its own."""


@dataclass
class EngineArgs:
    """Every engine argument; None means the default. See `EngineConfig` for what they mean.

    model, tokenizer, with_labs: as `LLM` takes them. compilation_config: an int (0: `enforce_eager`; 3: the default),
    or a dict with `cudagraph_mode`, `cudagraph_capture_sizes`, `max_cudagraph_capture_size`, `mode`.

    An argument of vLLM that is not here is refused by a sentence that says what to use;
    its default is taken (`engine/arg_refusals.py`). Differs from upstream: `dtype` is "float32" ("auto" there),
    `async_scheduling` False, `cudagraph_mode` NONE, `kv_cache_memory_bytes` 1 GiB where `gpu_memory_utilization` (0.92
    there) is unset, `prefix_caching_hash_algo` our own hash ("sha256" there).

    Raises ValueError for an unknown argument, with its nearest neighbour.
    Upstream: upstream/vllm/engine/arg_utils.py:412 — `EngineArgs`.
    """

    model: Any = None
    tokenizer: Any = None
    with_labs: Any = None
    block_size: int | None = None
    num_blocks: int | None = None
    enable_prefix_caching: bool | None = None
    prefix_caching_hash_algo: str | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    mamba_cache_mode: str | None = None
    kv_offloading_size: float | None = None
    kv_offloading_backend: str | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    long_prefill_token_threshold: int | None = None
    enable_chunked_prefill: bool | None = None
    scheduler_reserve_full_isl: bool | None = None
    scheduling_policy: str | None = None
    async_scheduling: bool | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    quantization_config: dict[str, Any] | None = None
    attention_backend: str | None = None
    enforce_eager: bool | None = None
    compilation_config: int | dict[str, Any] | None = None
    cudagraph_mode: str | None = None
    cudagraph_capture_sizes: list[int] | None = None
    max_cudagraph_capture_size: int | None = None
    seed: int | None = None
    kv_oracle: bool | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    data_parallel_backend: str | None = None
    enable_expert_parallel: bool | None = None
    expert_placement_strategy: str | None = None
    all2all_backend: str | None = None
    distributed_executor_backend: Any = None
    execute_model_timeout_seconds: float | None = None
    nnodes: int | None = None
    node_rank: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    distributed_timeout_seconds: float | None = None
    disable_hybrid_kv_cache_manager: bool | None = None
    stream_interval: int | None = None
    disable_chunked_mm_input: bool | None = None
    kv_events_config: dict[str, Any] | Any = None
    kv_transfer_config: dict[str, Any] | Any = None
    ec_transfer_config: dict[str, Any] | Any = None
    structured_outputs_config: dict[str, Any] | Any = None
    speculative_config: dict[str, Any] | Any = None
    limit_mm_per_prompt: dict[str, Any] | None = None
    language_model_only: bool | None = None
    media_io_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_processor_cache_gb: float | None = None
    mm_processor_cache_type: str | None = None
    mm_encoder_tp_mode: str | None = None
    interleave_mm_strings: bool | None = None
    skip_mm_profiling: bool | None = None
    allowed_local_media_path: str | None = None
    allowed_media_domains: list[str] | None = None
    reasoning_config: dict[str, Any] | Any = None
    runner: str | None = None
    convert: str | None = None
    pooler_config: dict[str, Any] | Any = None
    enable_lora: bool | None = None
    max_loras: int | None = None
    max_lora_rank: int | None = None
    max_cpu_loras: int | None = None
    lora_dtype: str | None = None
    lora_target_modules: list[str] | None = None
    fully_sharded_loras: bool | None = None
    max_logprobs: int | None = None
    logprobs_mode: str | None = None
    use_fp64_gumbel: bool | None = None
    logits_processors: list[Any] | Any = None
    load_format: str | None = None
    disable_log_stats: bool | None = None
    generation_config: str | None = None
    override_generation_config: dict[str, Any] | None = None
    skip_tokenizer_init: bool | None = None
    tokenizer_mode: str | None = None
    trust_remote_code: bool | None = None
    revision: str | None = None
    served_model_name: str | list[str] | None = None
    device: str | None = None
    download_dir: str | None = None
    hf_token: bool | str | None = None
    performance_mode: str | None = None
    optimization_level: int | None = None
    shutdown_timeout: float | None = None
    cudagraph_metrics: bool | None = None

    def __post_init__(self) -> None:
        """A plug-in may bring what the arguments name. Upstream: upstream/vllm/engine/arg_utils.py:747 — calls
        `load_general_plugins`."""
        load_general_plugins()

    def create_engine_config(self) -> EngineConfig:
        """The checked settings. Raises ValueError naming the argument, its value and what is allowed.

        Upstream: upstream/vllm/engine/arg_utils.py:1697 — `EngineArgs.create_engine_config`.
        """
        given: dict[str, Any] = {f.name: getattr(self, f.name, None) for f in dataclasses.fields(EngineConfig)}
        given["multimodal_config"] = {
            f.name: getattr(self, _ARGUMENTS.get(f.name, f.name)) for f in dataclasses.fields(MultiModalConfig)
        }
        for name, value in split_compilation_config(self.compilation_config).items():
            if given.get(name) is not None:
                raise ValueError(f"{name} and compilation_config[{name!r}] are one setting; give one")
            given[name] = value
        double_what_is_not_given(given)
        try:
            config = EngineConfig(**given)
        except ValueError as error:
            raise self._as_named(error) from None
        for each in dataclasses.fields(self):  # after the checks that know more than the type
            check_kind(each.name, getattr(self, each.name), str(each.type), _ALSO.get(each.name, ()))
        if self.kv_cache_memory_bytes is not None:
            config.gpu_memory_utilization = None  # checked, and outdone, as upstream
        return config

    def _as_named(self, error: ValueError) -> ValueError:
        """The error with the name of an argument that was given, where it has two."""
        head, space, rest = str(error).partition(" ")
        name = getattr(self, "_other_names", {}).get(head)
        return ValueError(f"{name}{space}{rest}") if name else error

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add `--block-size`, `--max-num-seqs`, … to a parser; values are read as JSON where they are JSON.

        Upstream: upstream/vllm/engine/arg_utils.py:770 — `EngineArgs.add_cli_args`.
        """
        for each in dataclasses.fields(EngineArgs):
            flag, kind = "--" + each.name.replace("_", "-"), str(each.type)
            if flag in parser._option_string_actions:  # a server has it already
                continue
            if kind.startswith("bool"):
                parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None)
            else:
                more: dict[str, Any] = {"nargs": "+"} if kind.startswith("str | list[str]") else {}
                read = str if kind.startswith("str") else _json_or_text
                parser.add_argument(flag, type=read, default=None, **more)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """From what `add_cli_args` parsed; other attributes are passed over.

        Upstream: upstream/vllm/engine/arg_utils.py:1537 — `EngineArgs.from_cli_args`.
        """
        return cls(**{f.name: getattr(args, f.name) for f in dataclasses.fields(cls) if hasattr(args, f.name)})

    def as_kwargs(self) -> dict[str, Any]:
        """What differs from the defaults, as keyword arguments of `LLM`."""
        return {f.name: v for f in dataclasses.fields(self) if (v := getattr(self, f.name)) is not None}


_init = EngineArgs.__init__


@functools.wraps(_init)
def _checked_init(self: EngineArgs, *args: Any, **kwargs: Any) -> None:
    """The dataclass's own, behind a look at the names: other names of an argument, and vLLM's own."""
    known = tuple(EngineArgs.__dataclass_fields__)
    given: dict[str, Any] = {}
    for name, value in kwargs.items():
        if is_upstreams(name):
            check_upstream_argument(name, value)
            continue
        ours = _ALIASES.get(name, name)
        if ours not in known:
            raise ValueError(
                f"unknown engine argument {name!r}{did_you_mean(name, known) or '.'} Allowed: {', '.join(known)}."
            )
        if given.get(ours) is not None and value is not None:
            raise ValueError(f"{ours} and {name} are two names of one argument; give one")
        given[ours] = plain(name, value) if value is not None else given.get(ours)
    _init(self, *args, **given)
    vars(self)["_other_names"] = {_ALIASES[name]: name for name in kwargs if name in _ALIASES}


EngineArgs.__init__ = _checked_init  # type: ignore[method-assign]


AsyncEngineArgs = EngineArgs
"""Upstream's has one field more, `enable_log_requests`, which the server's flags have here
(upstream/vllm/engine/arg_utils.py:2568 — `AsyncEngineArgs`)."""


def _json_or_text(text: str) -> Any:
    """A text that begins as a list or an object of JSON must be one; any other may be a text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] in ("{", "["):
            raise argparse.ArgumentTypeError(f"{shown(text)} is not valid JSON ({error})") from None
        return text

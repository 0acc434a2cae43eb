"""`EngineArgs`: what it takes, what it refuses by name, and what becomes of it."""

import argparse
import ast
import dataclasses
import logging
from pathlib import Path

import pytest

from mini_vllm import LLM, EngineArgs, LLMEngine
from mini_vllm.distributed import shared_memory
from mini_vllm.engine.arg_refusals import is_upstreams
from mini_vllm.logger import warning_once
from mini_vllm.platforms.cpu import platform as cpu_platform
from mini_vllm.utils import mem_utils

UPSTREAM = Path(__file__).resolve().parents[3] / "upstream" / "vllm"
POCKET = str(UPSTREAM.parents[1] / "models" / "pocket")
needs_ranks = pytest.mark.skipif(not shared_memory.is_supported(), reason="two ranks need Linux on x86-64")
needs_tree = pytest.mark.skipif(not UPSTREAM.is_dir(), reason="upstream/ is absent: run `course upstream`")


def test_none_means_the_default_and_flags_are_checked():
    unset = dict.fromkeys(("block_size", "enable_prefix_caching", "max_num_batched_tokens", "async_scheduling"))
    llm = LLM(num_blocks=8, **unset)
    assert llm.llm_engine.config.enable_prefix_caching is True and llm.llm_engine.config.block_size == 16
    for name in ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling", "enforce_eager",
                 "scheduler_reserve_full_isl", "disable_log_stats", "skip_tokenizer_init",
                 "trust_remote_code"):  # fmt: skip
        with pytest.raises(ValueError, match=f"{name} must be True or False, got 'no'"):
            LLM(num_blocks=8, **{name: "no"})


@needs_tree
def test_every_engine_argument_of_upstream_is_ours_or_is_named():
    tree = ast.parse((UPSTREAM / "engine/arg_utils.py").read_text())
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "EngineArgs").body
    theirs = {n.target.id for n in body if isinstance(n, ast.AnnAssign)}
    ours = {f.name for f in dataclasses.fields(EngineArgs)} | {"num_gpu_blocks_override"}
    assert theirs - ours - {name for name in theirs if is_upstreams(name)} == set()
    assert {name for name in ours if is_upstreams(name)} == set()


def test_engine_args_there_and_back():
    args = EngineArgs(num_gpu_blocks_override=16, block_size=8, enforce_eager=True)
    assert LLM.from_engine_args(args).llm_engine.config.num_blocks == 16
    assert LLMEngine.from_engine_args(args).config.block_size == 8
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parsed = parser.parse_args(["--block-size", "8", "--num-blocks", "16", "--enforce-eager", "--dtype", "half",
                                "--no-enable-prefix-caching", "--compilation-config",
                                '{"cudagraph_mode": "FULL"}'])  # fmt: skip
    config = EngineArgs.from_cli_args(parsed).create_engine_config()
    assert (config.block_size, config.num_blocks, config.enforce_eager) == (8, 16, True)
    assert config.enable_prefix_caching is False and config.cudagraph_mode == "FULL"
    with pytest.raises(ValueError, match="unknown engine argument 'block_sise'; did you mean 'block_size'"):
        EngineArgs(block_sise=8)
    with pytest.raises(ValueError, match="num_blocks and num_gpu_blocks_override are two names of one argument"):
        EngineArgs(num_blocks=8, num_gpu_blocks_override=8)


def test_compilation_config():
    given = {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2]}
    config = EngineArgs(compilation_config=given).create_engine_config()
    assert config.resolved_capture_sizes == [1, 2]
    assert EngineArgs(compilation_config=0).create_engine_config().enforce_eager
    assert not EngineArgs(compilation_config=3).create_engine_config().enforce_eager
    for wrong in (1, 7, True, "x", {"zz": 1}, {"mode": 2}):
        with pytest.raises(ValueError, match="compilation_config"):
            EngineArgs(compilation_config=wrong).create_engine_config()
    with pytest.raises(ValueError, match="one setting; give one"):
        EngineArgs(compilation_config={"cudagraph_mode": "FULL"}, cudagraph_mode="NONE").create_engine_config()


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16", "half", "float"])
def test_other_types_are_computed_in_float32_and_said_once(dtype, caplog):
    warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            config = EngineArgs(dtype=dtype).create_engine_config()
    assert config.dtype == "float32" and config.model_config.dtype == dtype
    said = [r.message for r in caplog.records if "computed in float32" in r.message]
    assert len(said) == (0 if dtype == "float" else 1)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=needs_ranks)])
def test_gpu_memory_utilization_is_a_share_of_the_machine_less_what_is_held(monkeypatch, ranks):
    """Weights are in it. Two ranks share one machine: what each holds counts."""
    total, free = 1 << 40, 1 << 39
    monkeypatch.setattr(mem_utils, "total_memory", lambda: total)
    monkeypatch.setattr(mem_utils, "available_memory", lambda: free)
    counted, real, share = [], cpu_platform.memory_for_kv_cache, 2.0**-9  # 2 GiB
    monkeypatch.setattr(cpu_platform, "memory_for_kv_cache", lambda s, held: counted.append(held) or real(s, held))
    args = {"gpu_memory_utilization": share, "max_num_seqs": 2, "max_model_len": 64, "tensor_parallel_size": ranks}
    core = LLM(POCKET, **args).llm_engine.engine_core
    block = 16 * 8 * core.model.num_layers * ranks * core.model.num_kv_heads * core.model.head_dim
    held, rest = (2 << 30) - core.num_blocks * block, core.model_executor.collective_rpc(mem_utils.resident_memory)
    core.shutdown()
    assert 0 <= held - counted[0] < block, "the pool is what the share leaves"
    assert len(counted) == 1 and len(rest) == ranks
    assert sum(rest) / 2 < counted[0] < sum(rest) + (200 << 20), "each rank counts, as large as it was then"
    for known, message in (
        ((1 << 30, free), r"gpu_memory_utilization=.* of 1.00 GiB is 0.00 GiB, but the engine holds .* allow more"),
        ((total, 1 << 20), r"gpu_memory_utilization=.* for the KV cache, but 0.00 GiB are free: allow less"),
    ):
        total, free = known
        with pytest.raises(ValueError, match=message):
            LLM(POCKET, gpu_memory_utilization=share)
    assert LLM(POCKET, gpu_memory_utilization=share, num_blocks=64).llm_engine.engine_core.num_blocks == 64


def test_an_exact_size_wins_over_the_share_and_a_share_is_checked():
    both = EngineArgs(gpu_memory_utilization=0.25, kv_cache_memory_bytes=1 << 26).create_engine_config()
    assert both.gpu_memory_utilization is None and both.resolve_num_blocks(1 << 20, 64) == 64  # as upstream
    alone = EngineArgs(gpu_memory_utilization=0.25).create_engine_config()
    assert alone.resolve_num_blocks(1 << 20, 64, memory=1 << 28) == 256
    with pytest.raises(
        ValueError, match=r"gpu_memory_utilization=0\.25 leaves 1048576 bytes for the KV cache, which hold"
    ):
        alone.resolve_num_blocks(1 << 20, 64, memory=1 << 20)
    for wrong in (0, -1, 1.1, float("nan"), "x", True):
        with pytest.raises(ValueError, match="gpu_memory_utilization must be above 0 and at most 1"):
            EngineArgs(gpu_memory_utilization=wrong).create_engine_config()

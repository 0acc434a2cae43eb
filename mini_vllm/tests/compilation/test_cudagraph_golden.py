"""The decisions about CUDA graphs against those of real vLLM 0.22.1, recorded by `golden/record_cudagraph.py`."""

from __future__ import annotations

from typing import Any

import pytest

from mini_vllm.attention.backend import AttentionCGSupport
from mini_vllm.compilation.cudagraph.stats import CUDAGraphStat, CUDAGraphStats
from mini_vllm.compilation.cudagraph_dispatcher import BatchDescriptor, CudagraphDispatcher
from mini_vllm.config.compilation import CUDAGraphMode, resolve_capture_sizes, resolve_cudagraph_mode
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN

RECORDED = read_packed(GOLDEN / "cudagraph.json.xz")


def row(mode: CUDAGraphMode, key: BatchDescriptor) -> list[Any]:
    return [mode.name, key.num_tokens, key.num_reqs, key.uniform]


def test_the_record_is_of_the_pinned_release() -> None:
    assert RECORDED["provenance"]["vllm"] == "0.22.1"
    assert sum(len(case["decisions"]) for case in RECORDED["dispatchers"]) > 10_000
    assert {case["mode"] for case in RECORDED["dispatchers"]} == set(CUDAGraphMode.__members__)


@pytest.mark.parametrize("mode", CUDAGraphMode.__members__)
def test_every_dispatch_and_the_order_of_capture(mode: str) -> None:
    for case in RECORDED["dispatchers"]:
        if case["mode"] != mode:
            continue
        dispatcher = CudagraphDispatcher(
            CUDAGraphMode.from_name(mode), case["sizes"], case["max_num_seqs"], case["query_len"]
        )
        order = [row(runtime, key) for runtime, keys in dispatcher.get_capture_descs() for key in keys]
        assert order == case["capture"], case
        for num_tokens, uniform, no_full, *expected in case["decisions"]:
            without = {CUDAGraphMode.FULL} if no_full else None
            got = row(*dispatcher.dispatch(num_tokens, uniform, invalid_modes=without))
            assert got == expected, (case["sizes"], case["max_num_seqs"], num_tokens, uniform, no_full)


def test_every_mode_is_resolved_as_there_and_says_so_in_the_same_words() -> None:
    for asked, support, split, query_len, expected, warnings in RECORDED["resolutions"]:
        args = (CUDAGraphMode[asked], AttentionCGSupport[support], "X")
        options = {"uniform_decode_query_len": query_len, "attention_is_split": split}
        try:
            mode, said = resolve_cudagraph_mode(*args, **options)
        except ValueError as error:
            assert f"ValueError: {error}" == expected
            continue
        assert (mode.name, said) == (expected, warnings), (asked, support, split, query_len)


def test_the_sizes_to_capture() -> None:
    for case in RECORDED["sizes"]:
        sizes = resolve_capture_sizes(
            case["asked"],
            max_num_seqs=case["max_num_seqs"],
            max_num_batched_tokens=case["max_num_batched_tokens"],
            max_size=case["max_size"],
        )
        assert sizes == case["sizes"], case


def test_the_table_of_steps_is_the_same_text() -> None:
    for case in RECORDED["tables"]:
        stats = CUDAGraphStats()
        for step, count in case["steps"]:
            for _ in range(count):
                stats.observe(CUDAGraphStat(*step), 1, 1)
        assert stats.metric_table(case["mode"], case["sizes"]) == case["table"]

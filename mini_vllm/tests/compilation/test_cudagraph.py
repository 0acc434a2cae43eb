"""The parts of the graphs by themselves: modes, sizes, padding, the window in which capture is open, counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mini_vllm.attention.backend import AttentionCGSupport, AttentionMetadata
from mini_vllm.compilation.cuda_graph import CUDAGraphWrapper, GraphPool, address
from mini_vllm.compilation.cudagraph.buffers import InputBuffers
from mini_vllm.compilation.cudagraph.launches import ForwardLaunches
from mini_vllm.compilation.cudagraph.stats import CUDAGraphStat, CUDAGraphStats
from mini_vllm.compilation.cudagraph_dispatcher import BatchDescriptor, CudagraphDispatcher, is_uniform_decode
from mini_vllm.config.compilation import (
    CUDAGraphMode,
    default_capture_sizes,
    pad_to_capture_size,
    resolve_capture_sizes,
    resolve_cudagraph_mode,
)

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL

# --- modes and sizes


def test_what_each_mode_means() -> None:
    table = {mode.name: (mode.decode_mode().name, mode.mixed_mode().name) for mode in CUDAGraphMode}
    assert table == {
        "NONE": ("NONE", "NONE"),
        "PIECEWISE": ("PIECEWISE", "PIECEWISE"),
        "FULL": ("FULL", "FULL"),
        "FULL_DECODE_ONLY": ("FULL", "NONE"),
        "FULL_AND_PIECEWISE": ("FULL", "PIECEWISE"),
    }
    assert [mode.name for mode in CUDAGraphMode if mode.requires_piecewise_compilation()] == [
        "PIECEWISE", "FULL_AND_PIECEWISE",
    ]  # fmt: skip
    assert [mode.name for mode in CUDAGraphMode if not mode.has_full_cudagraphs()] == ["NONE", "PIECEWISE"]
    assert not NONE and CUDAGraphMode.FULL_DECODE_ONLY
    with pytest.raises(AssertionError):
        FULL.has_mode(CUDAGraphMode.FULL_AND_PIECEWISE)


def test_a_mode_by_its_name() -> None:
    assert CUDAGraphMode.from_name("full_and_piecewise") is CUDAGraphMode.FULL_AND_PIECEWISE
    assert CUDAGraphMode.from_name(None) is NONE and CUDAGraphMode.from_name(FULL) is FULL
    with pytest.raises(ValueError, match="cudagraph_mode must be one of NONE, PIECEWISE, FULL, FULL_DECODE_ONLY"):
        CUDAGraphMode.from_name("full_decode")


def test_a_backend_for_single_decodes_steps_further_down_for_drafts() -> None:
    one = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    assert resolve_cudagraph_mode(FULL, one)[0] is CUDAGraphMode.FULL_AND_PIECEWISE
    mode, warnings = resolve_cudagraph_mode(FULL, one, "B", uniform_decode_query_len=2)
    assert mode is PIECEWISE and len(warnings) == 2 and "with spec-decode for attention backend B" in warnings[1]


def test_the_ladder() -> None:
    assert default_capture_sizes(64) == [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]
    assert len(default_capture_sizes(512)) == 51 and sum(size <= 256 for size in default_capture_sizes(512)) == 35
    assert default_capture_sizes(3) == [1, 2] and default_capture_sizes(0) == []
    assert default_capture_sizes(300)[-4:] == [248, 256, 272, 288]
    sizes = default_capture_sizes(64)
    assert [pad_to_capture_size(n, sizes) for n in (1, 3, 9, 33, 64, 65)] == [1, 4, 16, 40, 64, None]


def test_sizes_of_the_user() -> None:
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
    assert resolve_capture_sizes([8, 2, 8, 100], **limits) == [2, 8]
    assert resolve_capture_sizes(None, **limits) == [1, 2, 4, 8, 16]
    for wrong in ([0], [True], ["4"], []):
        with pytest.raises(ValueError, match="cudagraph_capture_sizes must hold whole numbers of at least 1"):
            resolve_capture_sizes(wrong, **limits)
    assert resolve_capture_sizes([64, 65], **limits) == [64] and resolve_capture_sizes([65], **limits) == []
    assert resolve_capture_sizes([1, 2], max_size=2, **limits) == [1, 2]
    for sizes, largest in (([1, 2], 2), ([65], 0)):
        with pytest.raises(ValueError, match=rf"max_cudagraph_capture_size=16 contradicts .* is {largest}$"):
            resolve_capture_sizes(sizes, max_size=16, **limits)


def test_what_counts_as_a_batch_of_decodes() -> None:
    assert is_uniform_decode(1, 5, 5) and not is_uniform_decode(2, 6, 5) and not is_uniform_decode(2, 10, 5)
    assert is_uniform_decode(3, 15, 5, 3) and not is_uniform_decode(3, 14, 5, 3)


def test_no_graph_where_none_was_captured() -> None:
    dispatcher = CudagraphDispatcher(CUDAGraphMode.FULL_AND_PIECEWISE, [1, 2, 4], 4)
    assert dispatcher.dispatch(5, True) == (NONE, BatchDescriptor(5))
    with pytest.raises(ValueError, match="no graph for 3 tokens"):
        CudagraphDispatcher(CUDAGraphMode.FULL_DECODE_ONLY, [1, 2, 4], 4).dispatch(3, valid_modes={FULL})
    with pytest.raises(ValueError, match="no cudagraph mode allowed"):
        dispatcher.dispatch(1, valid_modes={FULL}, invalid_modes={FULL})
    assert CudagraphDispatcher(NONE, [], 4).dispatch(1, True) == (NONE, BatchDescriptor(1))
    assert CudagraphDispatcher(NONE, [], 4).get_capture_descs() == []


def test_a_mask_of_modes_is_left_as_it_was() -> None:
    dispatcher, valid = CudagraphDispatcher(FULL, [4], 4), {FULL, NONE}
    dispatcher.dispatch(3, valid_modes=valid, invalid_modes={FULL})
    assert valid == {FULL, NONE}


# --- buffers, wrapper


def step_of(lens: list[tuple[int, int]], block_size: int = 4) -> AttentionMetadata:
    """(new tokens, tokens in all) of each request, blocks 1, 2, ..."""
    widths = [-(-total // block_size) for _, total in lens]
    tables, slots, block = np.zeros((len(lens), max(widths)), np.int64), [], 1
    for row, (new, total) in enumerate(lens):
        tables[row, : widths[row]] = range(block, block + widths[row])
        block += widths[row]
        position = np.arange(total - new, total)
        slots += (tables[row, position // block_size] * block_size + position % block_size).tolist()
    starts = np.cumsum([0, *(new for new, _ in lens)])
    return AttentionMetadata(starts, np.array([total for _, total in lens]), tables, np.array(slots))


def test_padding_is_made_harmless_whatever_stood_there() -> None:
    buffers = InputBuffers(8, 8, 3)
    key = BatchDescriptor(8, 8, True)
    large, small = step_of([(1, 9)] * 8), step_of([(1, 5)] * 3)
    buffers.load_inputs(np.arange(10, 18), np.full(8, 8), 8)
    buffers.load_metadata(large, key)
    views = buffers.metadata(key)
    buffers.load_inputs(np.arange(20, 23), np.full(3, 4), 8)
    buffers.load_metadata(small, key)
    assert views.slot_mapping.tolist() == [*small.slot_mapping.tolist(), -1, -1, -1, -1, -1]
    assert views.seq_lens.tolist() == [5, 5, 5, 0, 0, 0, 0, 0]
    assert views.query_start_loc.tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert views.block_tables[:3, :2].tolist() == small.block_tables.tolist()
    assert not views.block_tables[:, 2:].any() and not views.block_tables[3:].any()
    ids, positions = buffers.inputs(8)
    assert ids.tolist() == [20, 21, 22, 0, 0, 0, 0, 0] and positions.tolist() == [4, 4, 4, 0, 0, 0, 0, 0]
    real = views.without_padding()
    assert (real.num_tokens, real.num_reqs) == (3, 3)
    four = buffers.metadata(BatchDescriptor(4, 4, True))
    assert [len(x) for x in (four.query_start_loc, four.seq_lens, four.block_tables, four.slot_mapping)] == [5, 4, 4, 4]
    assert buffers.nbytes == 8 * (8 + 8 + 8 + 9 + 8 + 8 * 3)


def test_what_belongs_to_a_larger_size_is_left_alone() -> None:
    buffers = InputBuffers(8, 8, 2)
    buffers.load_inputs(np.full(8, 9), np.full(8, 9), 8)
    buffers.load_inputs(np.full(3, 5), np.full(3, 5), 4)
    assert buffers.input_ids.tolist() == [5, 5, 5, 0, 9, 9, 9, 9]


@pytest.mark.parametrize(
    ("starts", "tokens", "real"),
    [
        ([0, 1, 2, 3], 3, None),  # nothing is padded: the very same object
        ([0, 2, 3], 3, None),
        ([0, 5], 5, None),
        ([0, 1, 2, 3], 8, (3, 3)),  # tokens alone
        ([0, 1, 2, 2, 2], 2, (2, 2)),  # requests alone
        ([0, 4, 6, 6], 8, (6, 2)),
        ([0, 0, 0], 4, (0, 0)),
    ],
)
def test_what_is_left_of_a_padded_step(starts: list[int], tokens: int, real: tuple[int, int] | None) -> None:
    num_reqs = len(starts) - 1
    lens = np.diff(starts)
    meta = AttentionMetadata(np.array(starts), lens * 9, np.arange(num_reqs)[:, None], np.arange(tokens))
    left = meta.without_padding()
    if real is None:
        assert left is meta
        return
    assert (left.num_tokens, left.num_reqs) == real
    assert left.query_start_loc.tolist() == starts[: real[1] + 1]
    assert left.seq_lens.tolist() == (lens * 9).tolist()[: real[1]]
    assert left.block_tables[:, 0].tolist() == list(range(real[1]))


def make_wrapper(debug: bool = False) -> tuple[CUDAGraphWrapper, list[tuple[np.ndarray, ...]]]:
    seen: list[tuple[np.ndarray, ...]] = []

    def runnable(*args: Any) -> np.ndarray:
        seen.append(args)
        return np.stack([args[0], args[0] * 2], axis=1)

    return CUDAGraphWrapper(runnable, FULL, GraphPool(), debug), seen


def test_the_wrapper_captures_once_and_replays_over_the_recorded_arrays() -> None:
    wrapper, seen = make_wrapper()
    wrapper.capturing = True
    static, key = np.arange(4.0), BatchDescriptor(4)
    first = wrapper(FULL, key, static)
    assert first.tolist() == [[0, 0], [1, 2], [2, 4], [3, 6]]
    wrapper.capturing = False
    static[:] = 7
    second = wrapper(FULL, key, np.zeros(4))  # whatever the caller holds: the recording reads `static`
    assert seen[1][0] is static and (second == [7, 14]).all()
    assert address(second) == address(first) and len(wrapper.entries) == 1


def test_another_mode_passes_through() -> None:
    wrapper, seen = make_wrapper()
    for mode in (NONE, PIECEWISE):
        assert (wrapper(mode, BatchDescriptor(2), np.ones(2)) == [1, 2]).all()
    assert len(seen) == 2 and not wrapper.entries


def test_no_capture_outside_of_the_window() -> None:
    wrapper, _ = make_wrapper()
    with pytest.raises(RuntimeError, match="capturing detected at an inappropriate time: no FULL BatchDescriptor"):
        wrapper(FULL, BatchDescriptor(4), np.ones(4))


def test_inputs_that_lie_elsewhere_are_noticed_in_debug_mode() -> None:
    wrapper, _ = make_wrapper(debug=True)
    wrapper.capturing = True
    static = np.arange(4.0)
    wrapper(FULL, BatchDescriptor(4), static)
    wrapper(FULL, BatchDescriptor(4), static)
    with pytest.raises(RuntimeError, match="Input addresses for cudagraphs are different during replay"):
        wrapper(FULL, BatchDescriptor(4), static.copy())


def test_the_pool_is_shared_and_as_large_as_the_first_graph() -> None:
    wrapper, _ = make_wrapper()
    wrapper.capturing = True
    large = wrapper(FULL, BatchDescriptor(8), np.arange(8.0))
    small = wrapper(FULL, BatchDescriptor(4), np.arange(4.0))
    assert address(large) == address(small) and wrapper.pool.nbytes == large.nbytes
    with pytest.raises(RuntimeError, match="capture largest first"):
        wrapper(FULL, BatchDescriptor(9), np.arange(9.0))


# --- counts


@pytest.mark.parametrize(("layers", "none", "piecewise"), [(32, 322, 97), (12, 122, 37), (0, 2, 1)])
def test_launches_of_a_forward_pass(layers: int, none: int, piecewise: int) -> None:
    """32 layers: 33 pieces and 64 launches between them; 12 layers (OPT-125m): 13 and 24."""
    launches = ForwardLaunches(layers)
    assert [launches.in_mode(mode) for mode in (NONE, PIECEWISE, FULL)] == [none, piecewise, 1]


def test_kernels_of_a_layer_depend_on_the_architecture() -> None:
    def kernels(**config: Any) -> int:
        return ForwardLaunches.of(SimpleNamespace(num_layers=3, config=SimpleNamespace(**config))).kernels_per_layer

    assert kernels() == kernels(qk_norm=False, moe=None) == 10
    assert kernels(qk_norm=True) == 12 and kernels(moe=object()) == 14
    assert ForwardLaunches.of(SimpleNamespace(num_layers=0)) == ForwardLaunches(0)


def test_statistics_add_up() -> None:
    stats = CUDAGraphStats()
    for tokens, size, mode in ((3, 4, "FULL"), (4, 4, "FULL"), (33, 40, "PIECEWISE"), (700, 700, "NONE")):
        stats.observe(CUDAGraphStat(tokens, size, size - tokens, mode), launches=2, eager_launches=20)
    assert stats.by_size() == [("FULL", 4, 2, 7, 1), ("PIECEWISE", 40, 1, 33, 7), ("NONE", 0, 1, 700, 0)]
    assert stats.replays == {("FULL", 4): 2, ("PIECEWISE", 40): 1}
    assert (stats.num_steps, stats.num_steps_without_graph, stats.num_tokens, stats.num_paddings) == (4, 1, 740, 8)
    assert stats.waste_fraction == 8 / 740 and stats.launch_ratio == 10.0
    stats.reset()
    assert (stats.num_steps, stats.waste_fraction, stats.launch_ratio) == (0, 0.0, 1.0)
    assert not stats.replays and stats.launches == stats.eager_launches == 0

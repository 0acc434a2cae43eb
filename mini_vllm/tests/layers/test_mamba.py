"""The operators of a state-space layer, and which blocks of states a step reads and writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.backends.mamba_attn import MambaAttentionBackend, StatePiece
from mini_vllm.core.kv_cache_specs import MambaSpec
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.mamba.mamba_mixer2 import MambaMixer2
from mini_vllm.layers.mamba.mamba_utils import MambaStateShapeCalculator
from mini_vllm.layers.mamba.ops.ssd_combined import chunk_scan

BLOCK = 4


def backend(mode: str, block_size: int = BLOCK) -> MambaAttentionBackend:
    spec = MambaSpec(block_size, ((3, 5), (2, 3)), ("float64", "float32"), mamba_cache_mode=mode)
    return MambaAttentionBackend(spec, 2, 20)


def step(lens: list[int], seq_lens: list[int], tables: list[list[int]]) -> AttentionMetadata:
    starts = np.concatenate([[0], np.cumsum(lens)])
    return AttentionMetadata(starts, np.array(seq_lens), np.array(tables), np.zeros(starts[-1], np.int64))


def test_a_run_of_tokens_is_the_recurrence_token_after_token() -> None:
    rng = np.random.default_rng(0)
    x, b, c = rng.normal(size=(150, 3, 4)), rng.normal(size=(150, 3, 5)), rng.normal(size=(150, 3, 5))
    dt, a, state = rng.uniform(0.01, 2, (150, 3)), -rng.uniform(0.1, 3, 3), rng.normal(size=(3, 4, 5))
    y, last = chunk_scan(x, dt, a, b, c, state)
    for t in range(150):
        added = (dt[t, :, None] * x[t])[..., None] * b[t][:, None]
        state = np.exp(dt[t] * a)[:, None, None] * state + added
        np.testing.assert_allclose(y[t], np.einsum("hpn,hn->hp", state, c[t]), atol=1e-9)
    np.testing.assert_allclose(last, state, atol=1e-9)


def test_where_a_run_is_cut_makes_no_difference() -> None:
    rng = np.random.default_rng(1)
    parts = [rng.normal(size=(20, 2, 3)), rng.uniform(0, 1, (20, 2)), -np.ones(2)]
    parts += [rng.normal(size=(20, 2, 4)), rng.normal(size=(20, 2, 4))]
    x, dt, a, b, c = parts
    whole, last = chunk_scan(x, dt, a, b, c, np.zeros((2, 3, 4)))
    first, state = chunk_scan(x[:7], dt[:7], a, b[:7], c[:7], np.zeros((2, 3, 4)))
    rest, end = chunk_scan(x[7:], dt[7:], a, b[7:], c[7:], state)
    np.testing.assert_allclose(np.concatenate([first, rest]), whole, atol=1e-12)
    np.testing.assert_allclose(end, last, atol=1e-12)


def test_in_align_a_step_reads_the_block_before_and_writes_the_last() -> None:
    md = backend("align").build(step([8, 1, 1], [16, 9, 8], [[0, 3, 0, 7], [0, 5, 6, 0], [0, 4, 0, 0]]))
    assert md.pieces == [StatePiece(0, 8, 3, 7)]
    assert md.decode_rows.tolist() == [8, 9]
    assert md.state_indices_input.tolist() == [5, 4] and md.state_indices_output.tolist() == [6, 4]


def test_in_all_a_step_writes_every_block_that_it_reaches() -> None:
    md = backend("all").build(step([9], [11], [[3, 4, 5]]))
    assert md.pieces == [StatePiece(0, 2, 3, 3), StatePiece(2, 6, 3, 4), StatePiece(6, 9, 4, 5)]


def test_without_hits_there_is_one_block() -> None:
    md = backend("none", 64).build(step([5, 1], [5, 30], [[3], [9]]))
    assert md.pieces == [StatePiece(0, 5, 0, 3)]
    assert md.state_indices_input.tolist() == md.state_indices_output.tolist() == [9]


def test_a_first_token_starts_from_the_null_block_which_is_zero() -> None:
    states = backend("align")
    md = states.build(step([1, 3], [1, 3], [[4], [5]]))
    assert md.state_indices_input.tolist() == [0] and md.pieces == [StatePiece(1, 4, 0, 5)]
    assert [[array.shape for array in layer] for layer in states.layers] == [[(20, 3, 5), (20, 2, 3)]] * 2
    assert [array.dtype.name for array in states.layers[0]] == ["float64", "float32"]


@pytest.mark.parametrize(
    ("made", "expected"),
    [(MambaStateShapeCalculator.mamba1_state_shape(2, 64, 16, 4), ((3, 32), (32, 16))),
     (MambaStateShapeCalculator.mamba2_state_shape(1, 64, 2, 8, 8, 16, 4), ((3, 128), (8, 8, 16))),
     (MambaStateShapeCalculator.mamba2_state_shape(4, 64, 1, 8, 8, 16, 4, 2), ((5, 48), (2, 8, 16))),
     (MambaStateShapeCalculator.short_conv_state_shape(2, 64, 3), ((2, 32),))],
)  # fmt: skip
def test_shapes_of_a_state_are_upstream_s(made: Any, expected: Any) -> None:
    assert made == expected


def test_a_rank_s_share_must_be_whole() -> None:
    with pytest.raises(ValueError, match="tensor_parallel_size must divide intermediate_size, 64, got 3"):
        MambaStateShapeCalculator.mamba1_state_shape(3, 64, 16, 4)


def test_groups_must_divide_the_heads() -> None:
    with pytest.raises(ValueError, match="n_groups must divide num_heads=4, got 3"):
        MambaMixer2(16, 4, 4, 4, 4, ModelContext(), "mixer", n_groups=3)

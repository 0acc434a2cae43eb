"""Lab 07-03: tiling changes nothing but the traffic, and the formula for the traffic is what the code fetches."""

from itertools import pairwise

import numpy as np
import pytest

from course.fixtures import close

RAGGED = [
    (37, 23, 19, 8, 8, 4),
    (37, 23, 19, 16, 5, 7),
    (5, 3, 2, 64, 64, 64),
    (1, 40, 33, 1, 16, 8),
    (9, 1, 4, 2, 3, 3),
]


def matrices(M, N, K, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((M, K)).astype(dtype), rng.standard_normal((K, N)).astype(dtype)


class Counted(np.ndarray):
    """An array that counts the numbers that are sliced out of it, and keeps a diary of the slices."""

    fetched, diary = 0, []

    def __getitem__(self, key):
        part = np.asarray(self)[key]
        Counted.fetched += part.size
        Counted.diary.append((self.base, key, part.shape))
        return part


def count_fetches(impl, A, B, *tiles):
    Counted.fetched, Counted.diary = 0, []
    impl.tiled_gemm(A.view(Counted), B.view(Counted), *tiles)
    return Counted.fetched


# ---- the product ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tiles", [(8, 8, 8), (16, 32, 4), (64, 32, 48), (1, 32, 16)])
def test_tiled_equals_matmul_divisible(impl, tiles):
    A, B = matrices(64, 32, 48)
    close(impl.tiled_gemm(A, B, *tiles), A @ B, "product")


@pytest.mark.parametrize(("M", "N", "K", "tm", "tn", "tk"), RAGGED)
def test_tiled_equals_matmul_ragged(impl, M, N, K, tm, tn, tk):
    A, B = matrices(M, N, K)
    out = impl.tiled_gemm(A, B, tm, tn, tk)
    close(out, A @ B, "product")


def test_tile_size_one_is_the_naive_algorithm(impl):
    A, B = matrices(6, 5, 7)
    close(impl.tiled_gemm(A, B, 1, 1, 1), A @ B, "product")
    assert impl.tiled_traffic(6, 5, 7, 1, 1) == impl.naive_traffic(6, 5, 7) == 420


def test_sums_are_kept_in_float32(impl):
    """In float16, 2048 + 1 is 2048: a half-precision sum of ones stands still there."""
    A, B = np.ones((2, 4096), np.float16), np.ones((4096, 3), np.float16)
    out = impl.tiled_gemm(A, B, 2, 2, 1)
    assert out.dtype == np.float16 and (out == 4096).all()
    assert np.add.accumulate(A[0], dtype=np.float16)[-1] == 2048


def test_result_types(impl):
    for dtype in (np.float16, np.float32, np.float64):
        assert impl.tiled_gemm(*matrices(4, 4, 4, dtype=dtype), 2, 2, 2).dtype == dtype
    whole = impl.tiled_gemm(np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2), 1, 1, 2)
    close(whole, np.arange(6).reshape(2, 3) @ np.arange(6).reshape(3, 2), "whole numbers stay whole", 0)
    A, B = matrices(8, 8, 8)
    given = A.copy(), B.copy()
    impl.tiled_gemm(A, B, 4, 4, 4)
    close(A, given[0], "A after the call", 0)
    close(B, given[1], "B after the call", 0)
    assert np.abs(impl.tiled_gemm(A, B, 4, 4, 4) - A @ B).max() < 1e-13, "float64 sums stay in float64"


def test_nothing_to_sum(impl):
    close(impl.tiled_gemm(np.empty((3, 0)), np.empty((0, 4)), 2, 2, 2), np.zeros((3, 4)), "no terms", 0)


def test_inner_dimensions_must_agree(impl):
    with pytest.raises(ValueError, match="inner dimensions differ"):
        impl.tiled_gemm(np.ones((2, 3)), np.ones((4, 2)), 1, 1, 1)


# ---- the traffic ---------------------------------------------------------------------------------------------------


def test_traffic_formulas(impl):
    assert impl.naive_traffic(1024, 1024, 1024) == 2_147_483_648
    assert all(isinstance(impl.tiled_traffic(n, n, n, 3, 7), int) for n in (1, 10**9)), "numbers are counted: an int"
    assert impl.tiled_traffic(10**9 + 1, 10**9 + 1, 1, 10**9, 1) == (10**9 + 1) ** 2 + 2 * (10**9 + 1), "exact"
    assert impl.tiled_traffic(1024, 1024, 1024, 128, 128) == 16_777_216
    assert impl.naive_traffic(2, 3, 5) == 60 and impl.tiled_traffic(2, 3, 5, 2, 3) == 25, "each number of A and B once"
    assert impl.tiled_traffic(37, 23, 19, 8, 8) == 37 * 19 * 3 + 19 * 23 * 5, "edges are tiles too: round up"


@pytest.mark.parametrize(("M", "N", "K", "tm", "tn", "tk"), [*RAGGED, (64, 32, 48, 16, 8, 12), (1, 64, 32, 1, 16, 32)])
def test_the_formula_is_what_the_code_fetches(impl, M, N, K, tm, tn, tk):
    A, B = matrices(M, N, K)
    assert count_fetches(impl, A, B, tm, tn, tk) == impl.tiled_traffic(M, N, K, tm, tn)


@pytest.mark.parametrize("tile_k", [1, 7, 48, 64])
def test_one_tile_after_the_other_in_steps_along_k(impl, tile_k):
    """Two matrices of 40 x 48 and 48 x 24 in tiles of 16 x 8: nine tiles, each finished before the next is begun."""
    A, B = matrices(40, 24, 48)
    count_fetches(impl, A, B, 16, 8, tile_k)
    rows = [(key[0].start or 0, shape) for base, key, shape in Counted.diary if base is A]
    cols = [(key[1].start or 0, shape) for base, key, shape in Counted.diary if base is B]
    steps = -(-48 // tile_k)
    assert len(rows) == len(cols) == 9 * steps, f"{len(rows)} fetches of A, {len(cols)} of B; 9 tiles of {steps} steps"
    assert max(shape[1] for _, shape in rows) == max(shape[0] for _, shape in cols) == min(tile_k, 48), "tile_k a step"
    tiles = [(row, col) for (row, _), (col, _) in zip(rows, cols, strict=True)]
    begun = 1 + sum(a != b for a, b in pairwise(tiles))
    assert begun == len(set(tiles)) == 9, f"{begun} times another tile, for 9 tiles: sums were put aside and taken up"


def test_the_step_along_k_does_not_change_the_traffic(impl):
    A, B = matrices(16, 16, 24)
    assert {count_fetches(impl, A, B, 8, 4, tile_k) for tile_k in (1, 3, 24, 100)} == {
        impl.tiled_traffic(16, 16, 24, 8, 4)
    }


def test_bigger_tiles_mean_less_traffic(impl):
    loads = [impl.tiled_traffic(4096, 4096, 4096, t, t) for t in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    assert all(b * 2 == a for a, b in pairwise(loads)), "twice the side, half the traffic"


def test_reuse_factor_is_the_harmonic_tile_size(impl):
    assert impl.reuse_factor(128, 128) == pytest.approx(128)
    assert impl.reuse_factor(256, 16) == pytest.approx(30.1176, abs=1e-4), "the small side decides"
    assert impl.reuse_factor(1, 1) == pytest.approx(1)
    for tm, tn in ((64, 128), (32, 256), (128, 16)):
        ratio = impl.naive_traffic(512, 512, 64) / impl.tiled_traffic(512, 512, 64, tm, tn)
        assert impl.reuse_factor(tm, tn) == pytest.approx(ratio)


@pytest.mark.parametrize(("tile_n", "reuse"), [(16, 1.8824), (128, 1.9845), (1024, 1.9980), (4096, 1.9995)])
def test_decode_shape_has_no_reuse_to_harvest(impl, tile_n, reuse):
    ratio = impl.naive_traffic(1, 4096, 4096) / impl.tiled_traffic(1, 4096, 4096, 1, tile_n)
    assert ratio == pytest.approx(reuse, abs=1e-4) == pytest.approx(impl.reuse_factor(1, tile_n), abs=1e-4)
    assert ratio < 2, "every weight is needed once, and there is nobody to share it with"


def test_batching_buys_reuse(impl):
    assert impl.reuse_factor(32, 128) == pytest.approx(51.2)
    ratio = impl.naive_traffic(32, 4096, 4096) / impl.tiled_traffic(32, 4096, 4096, 32, 128)
    assert ratio == pytest.approx(51.2), "32 requests in a step: each weight is fetched once for all of them"


def test_what_fits(impl):
    assert impl.fast_memory_bytes(128, 128, 64, 2) == 96 * 1024
    assert impl.fast_memory_bytes(2, 3, 5, 1) == 2 * 5 + 5 * 3 + 4 * 6
    assert impl.fast_memory_bytes(2, 3, 5, 8) == 8 * 25 + 4 * 6, "sums are float32 for any type of A and B"
    best = max(t for t in range(16, 512, 16) if impl.fast_memory_bytes(t, t, 64, 2) <= 100_000)
    assert best == 128, "144 would need 119,808 bytes"


# ---- against the engine --------------------------------------------------------------------------------------------


def test_a_grouped_gemm_is_many_of_these(impl):
    """Two experts of mini_vllm's layer, each a product of its own rows: your tiles give the same numbers."""
    from mini_vllm import moe_align_block_size

    rng = np.random.default_rng(5)
    ids = rng.integers(0, 3, (20, 2))
    x, weights = rng.standard_normal((20, 12)), rng.standard_normal((3, 12, 10))
    sorted_ids, expert_ids, total = (np.asarray(a) for a in moe_align_block_size(ids, 4, 3))
    out = np.zeros((40, 10))
    for block in range(int(total.reshape(-1)[0]) // 4):
        slots = sorted_ids[4 * block : 4 * block + 4]
        slots = slots[slots < 40]
        out[slots] = impl.tiled_gemm(x[slots // 2], weights[expert_ids[block]], 4, 4, 4)
    wanted = np.einsum("td,tdn->tn", x[np.arange(40) // 2], weights[ids.reshape(-1)])
    close(out, wanted, "two experts")

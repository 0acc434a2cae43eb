"""Lab 06-06: what eight bits do to keys and values, and how many more tokens they buy."""

import json
import lzma
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from course.fixtures import close

CAPTURED = Path(__file__).resolve().parents[1] / "lab-02-quantize-and-eval" / "captured"
POCKET = (8, 2, 64)
GIB = 1 << 30


def error(approx, exact):
    """Relative error in the Frobenius norm."""
    return np.linalg.norm(approx - exact) / np.linalg.norm(exact)


def kv(tokens=64, heads=2, dim=64, seed=0):
    return np.random.default_rng(seed).standard_normal((tokens, heads, dim)).astype(np.float32)


def loud_channel(seed=0, factor=40.0):
    """One channel of every key is loud, as in many real models."""
    x = kv(seed=seed)
    x[:, :, 5] *= factor
    return x


# ---- int8, a scale for each token and head ------------------------------------------------------------------------


def test_int8_by_hand(impl):
    assert impl.quantize_int8_per_token_head(kv().astype(float))[1].dtype == np.float32, (
        "scales are float32 in any case"
    )
    x = np.array([[[254.0, -3.0, 1.0], [0.0, 0.0, 0.0]], [[1.0, 0.5, -1.0], [-12.7, 6.36, 0.0]]], np.float32)
    codes, scales = impl.quantize_int8_per_token_head(x)
    assert codes.dtype == np.int8 and scales.dtype == np.float32
    assert codes.tolist() == [[[127, -2, 0], [0, 0, 0]], [[127, 64, -127], [-127, 64, 0]]]
    close(scales, np.array([[2.0, 1e-6], [1 / 127, 0.1]], np.float32), "scales", 1e-8)


def test_int8_rounds_to_nearest(impl):
    x = kv()
    codes, scales = impl.quantize_int8_per_token_head(x)
    back = codes * scales[:, :, None]
    assert (np.abs(back - x) <= scales[:, :, None] / 2 * (1 + 1e-5)).all()
    assert 0.004 < error(back, x) < 0.008
    cut = np.trunc(x / scales[:, :, None]) * scales[:, :, None]
    assert 1.8 < error(cut, x) / error(back, x) < 2.2, "cutting the fraction off doubles the error"


def test_a_loud_token_is_its_own_affair(impl):
    x = kv()
    x[7] *= 1000
    codes, scales = impl.quantize_int8_per_token_head(x)
    back = codes * scales[:, :, None]
    others = np.arange(64) != 7
    assert error(back[others], x[others]) < 0.008


def test_a_loud_head_is_its_own_affair(impl):
    x = kv()
    x[:, 1] *= 1000
    codes, scales = impl.quantize_int8_per_token_head(x)
    assert error(codes[:, 0] * scales[:, 0, None], x[:, 0]) < 0.008


def test_a_loud_channel_is_everybodys(impl):
    """The scale of a token covers its channels: one loud channel takes the resolution of the other 63."""
    x = loud_channel()
    codes, scales = impl.quantize_int8_per_token_head(x)
    quiet = np.arange(64) != 5
    back = codes * scales[:, :, None]
    assert error(back[:, :, quiet], x[:, :, quiet]) > 0.04
    fp8 = impl.fake_fp8_per_token_head(x)
    assert error(fp8[:, :, quiet], x[:, :, quiet]) < 0.03, "a float has a scale of its own in every number"


# ---- fp8 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "rounded"),
    [
        (1.0, 1.0), (1.06, 1.0), (1.0625, 1.0), (1.07, 1.125), (1.1875, 1.25), (-1.07, -1.125), (15.4, 15.0),
        (17.0, 16.0), (447.0, 448.0), (448.0, 448.0), (10_000.0, 448.0), (-1e9, -448.0), (0.0, 0.0),
        (2**-6, 2**-6), (2**-9, 2**-9), (1.4 * 2**-9, 2**-9), (2**-10, 0.0), (1.5 * 2**-9, 2**-8), (1e-5, 0.0),
    ],
)  # fmt: skip
def test_e4m3_by_hand(impl, x, rounded):
    assert impl.round_to_e4m3(np.array([x]))[0] == rounded


def test_e4m3_keeps_type_and_shape(impl):
    out = impl.round_to_e4m3(kv())
    assert out.dtype == np.float32 and out.shape == (64, 2, 64)
    x = kv()
    for dtype in (np.float32, np.float64):
        for fake in (impl.round_to_e4m3, impl.fake_fp8, impl.fake_fp8_per_token_head):
            got = fake(x.astype(dtype))
            assert got.dtype == dtype and got.shape == x.shape, f"{fake.__name__} keeps type and shape"
    close(impl.fake_fp8(x, 2.0), 2 * impl.round_to_e4m3(x / 2), "with a scale of 2", 0)
    close(x, kv(), "x after the calls", 0)


def test_e4m3_relative_error_is_at_most_a_sixteenth(impl):
    x = np.random.default_rng(1).uniform(2**-6, 448, 5000)
    assert (np.abs(impl.round_to_e4m3(x) - x) / x).max() <= 1 / 16
    assert (np.abs(impl.round_to_e4m3(x) - x) / x).max() > 0.05


def test_scale_one_is_fine_until_it_is_not(impl):
    """Uncalibrated fp8 has scale 1.0: the same error over many powers of two, then saturation, or nothing left."""
    x = kv()
    errors = {gain: error(impl.fake_fp8(x * gain), x * gain) for gain in (1e-4, 0.1, 1.0, 32.0, 1000.0)}
    assert 0.02 < errors[0.1] < 0.04 and 0.02 < errors[1.0] < 0.03 and 0.02 < errors[32.0] < 0.03
    assert errors[1000.0] > 0.4, "beyond 448 all is 448"
    assert errors[1e-4] > 0.99, "below 2^-10 all is 0"
    assert impl.fake_fp8(np.array([1000.0]))[0] == 448.0


def test_a_scale_moves_the_window(impl):
    x = kv() * 1000
    assert error(impl.fake_fp8(x, scale=float(np.abs(x).max() / 448)), x) < 0.03
    np.testing.assert_array_equal(impl.fake_fp8(np.array([448.0 * 3]), 3.0), [448.0 * 3])


def test_fp8_per_token_head(impl):
    x = kv()
    x[3] *= 1e5
    x[4] = 0
    with np.errstate(all="raise"):
        back = impl.fake_fp8_per_token_head(x)
    assert not back[4].any()
    assert error(np.delete(back, 3, 0), np.delete(x, 3, 0)) < 0.03 and error(back[3], x[3]) < 0.03
    peaks, kept = np.abs(x).max(axis=2), np.abs(back).max(axis=2)
    assert (np.abs(kept - peaks) <= 1e-6 * peaks).all(), "the largest of each token and head is the last number"
    tiny = np.full((1, 1, 4), 1.06e-5, np.float32)
    close(impl.fake_fp8_per_token_head(tiny), 1e-6 * impl.round_to_e4m3(tiny / np.float32(1e-6)), "the floor", 1e-9)


def test_int8_beats_fp8_where_nothing_is_loud(impl):
    x = kv(seed=2)
    codes, scales = impl.quantize_int8_per_token_head(x)
    assert 3 * error(codes * scales[:, :, None], x) < error(impl.fake_fp8_per_token_head(x), x)


# ---- attention -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "dim"), [(0, 32), (1, 32), (2, 64), (3, 16)])
def test_scales_leave_both_products(impl, seed, dim):
    q, k, v = kv(1, 4, dim, seed)[0], kv(50, 4, dim, seed + 10), kv(50, 4, dim, seed + 20) * 3
    k[9] *= 4
    (kc, ks), (vc, vs) = impl.quantize_int8_per_token_head(k), impl.quantize_int8_per_token_head(v)
    given = [each.copy() for each in (q, kc, ks, vc, vs)]
    folded = impl.attend_quantized(q, kc, ks, vc, vs)
    for name, now, then in zip(("q", "k", "k_scales", "v", "v_scales"), (q, kc, ks, vc, vs), given, strict=True):
        close(now, then, f"{name} after the call", 0)
    expanded = impl.attend(q, kc * ks[:, :, None], vc * vs[:, :, None])
    close(folded, expanded, "attention", 3e-5)
    assert error(folded, impl.attend(q, k, v)) < 0.03


def test_neither_k_nor_v_is_there_as_floats(impl):
    """2,048 tokens, 8 heads of 64: 1 MiB of codes each, 4 MiB as float32."""
    q, k, v = kv(1, 8, 64)[0], kv(2048, 8, 64, 1), kv(2048, 8, 64, 2)
    (kc, ks), (vc, vs) = impl.quantize_int8_per_token_head(k), impl.quantize_int8_per_token_head(v)
    expanded = impl.attend(q, kc * ks[:, :, None], vc * vs[:, :, None])
    tracemalloc.start()
    try:
        out = impl.attend_quantized(q, kc, ks, vc, vs)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    close(out, expanded, "attention", 1e-4)
    assert peak < kc.nbytes, f"{peak:,} bytes at once; K's codes have {kc.nbytes:,}, its floats four times as many"


def test_large_scores_do_not_overflow(impl):
    q, k, v = kv(1, 2, 32)[0] * 300, kv(20, 2, 32, 1) * 300, kv(20, 2, 32, 2)
    (kc, ks), (vc, vs) = impl.quantize_int8_per_token_head(k), impl.quantize_int8_per_token_head(v)
    with np.errstate(over="raise", invalid="raise"):
        assert np.isfinite(impl.attend_quantized(q, kc, ks, vc, vs)).all()


# ---- room ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "per_token"),
    [("bf16", 131_072), ("fp8", 65_536), ("int8_per_token_head", 67_584), ("fp8_per_token_head", 67_584)],
)
def test_bytes_of_llama3_8b(impl, mode, per_token):
    assert impl.kv_bytes_per_token(32, 8, 128, mode) == per_token


def test_small_heads_pay_more_for_their_scales(impl):
    def overhead(dim):
        return impl.kv_bytes_per_token(8, 2, dim, "int8_per_token_head") / impl.kv_bytes_per_token(8, 2, dim, "fp8")

    assert (overhead(64), overhead(128), overhead(256)) == (1.0625, 1.03125, 1.015625)


def test_unknown_mode(impl):
    with pytest.raises(ValueError, match="mode must be one of"):
        impl.kv_bytes_per_token(8, 2, 64, "int3")


def test_whole_blocks_only(impl):
    assert impl.kv_capacity_tokens(10_000, 100, 16) == 96
    assert impl.kv_capacity_tokens(1599, 100, 16) == 0
    assert impl.kv_capacity_tokens(1600, 100, 16) == 16
    assert impl.kv_capacity_tokens(10_000, 100, 24) == 96 and impl.kv_capacity_tokens(10_000, 100, 7) == 98
    assert impl.kv_capacity_tokens(10_000, 300, 8) == 32
    assert impl.kv_capacity_tokens(3 * 10**17, 1, 1) == 3 * 10**17, "whole numbers stay whole"


@pytest.mark.parametrize(
    ("arm", "mode"), [("bf16", "bf16"), ("bf16-kv-fp8", "fp8"), ("bf16-kv-int8", "int8_per_token_head")]
)
def test_capacity_equals_the_real_engines(impl, arm, mode):
    """1 GiB of KV cache for pocket in blocks of 32: the line that vLLM 0.22.1 printed in each arm."""
    log = (CAPTURED / f"cpu-{arm}.log").read_text(encoding="utf-8")
    printed = int(log.partition("KV cache size: ")[2].partition(" tokens")[0].replace(",", ""))
    assert impl.kv_capacity_tokens(GIB, impl.kv_bytes_per_token(*POCKET, mode), 32) == printed
    run = json.loads(lzma.decompress((CAPTURED / f"cpu-{arm}.json.xz").read_bytes()))
    blocks = run.get("num_gpu_blocks", printed // 32)
    assert blocks * 32 == printed


# ---- the engine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_same_as_the_engine(impl, seed):
    from mini_vllm import KVQuantMode, kv_bytes_per_token, quantize_kv
    from mini_vllm.layers.quantization.utils import fp8_utils as fp8

    x = kv(seed=seed) * 10 ** np.random.default_rng(seed).uniform(-3, 3)
    close(impl.round_to_e4m3(x), fp8.decode_e4m3(fp8.encode_e4m3(x)), "E4M3", 0)
    codes, scales = impl.quantize_int8_per_token_head(x)
    theirs, their_scales = quantize_kv(x, KVQuantMode.INT8_PER_TOKEN_HEAD)
    assert (np.abs(scales - their_scales) <= 1e-6 * their_scales).all() and scales.shape == their_scales.shape
    assert (codes != theirs).mean() < 1e-3, "dividing by the scale and multiplying by its inverse round differently"
    for mode in ("fp8", "int8_per_token_head", "fp8_per_token_head"):
        assert impl.kv_bytes_per_token(3, 2, 64, mode) == kv_bytes_per_token(6, 64, mode)

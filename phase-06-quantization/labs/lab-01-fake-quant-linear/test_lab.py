"""Lab 06-01: the error is small and known, the bytes are a quarter, and one loud row ruins a shared scale."""

import tracemalloc

import numpy as np
import pytest

from course.fixtures import close


def error(approx, exact):
    """Relative error in the Frobenius norm."""
    return np.linalg.norm(approx - exact) / np.linalg.norm(exact)


def row_errors(approx, exact):
    """The same for each row."""
    return np.linalg.norm(approx - exact, axis=1) / np.linalg.norm(exact, axis=1)


def loud_row():
    W = np.random.default_rng(0).standard_normal((64, 128))
    W[0] *= 100
    return W


@pytest.mark.parametrize("shape", [(256, 512), (64, 128)])
def test_roundtrip_error_small(impl, shape):
    W = np.random.default_rng(0).standard_normal(shape)
    q, scales = impl.quantize_per_channel(W)
    assert q.dtype == np.int8 and q.shape == shape and scales.shape == shape[:1]
    assert 0.004 < error(impl.dequantize(q, scales), W) < 0.01


def test_by_hand(impl):
    W = np.array([[63.5, -31.8, 0.2, 0.25], [0.0, 254.0, -1.0, -254.0]])
    q, scales = impl.quantize_per_channel(W)
    assert q.tolist() == [[127, -64, 0, 0], [0, 127, 0, -127]], "half to even: 0.5 and -0.5 go to 0"
    close(scales, [0.5, 2.0], "scales", 0)
    q, scale = impl.quantize_per_tensor(W)
    assert isinstance(scale, float) and scale == 2.0
    assert q.tolist() == [[32, -16, 0, 0], [0, 127, 0, -127]]


def test_no_value_is_off_by_more_than_half_a_step(impl):
    W = np.random.default_rng(1).standard_normal((40, 96))
    q, scales = impl.quantize_per_channel(W)
    assert (np.abs(impl.dequantize(q, scales) - W) <= scales[:, None] / 2 + 1e-12).all()
    q, scale = impl.quantize_per_tensor(W)
    assert (np.abs(impl.dequantize(q, scale) - W) <= scale / 2 + 1e-12).all()


def test_the_largest_of_each_row_has_the_last_code(impl):
    W = np.random.default_rng(2).standard_normal((40, 96))
    q, _ = impl.quantize_per_channel(W)
    assert (np.abs(q.astype(int)).max(axis=1) == 127).all()
    assert q.min() >= -127, "-128 is left out, so that -W has the codes -q"


def test_negation_is_exact(impl):
    W = np.random.default_rng(3).standard_normal((16, 32))
    for quantize in (impl.quantize_per_channel, impl.quantize_per_tensor):
        np.testing.assert_array_equal(quantize(-W)[0], -quantize(W)[0])


def test_clip_comes_after_rounding(impl):
    """float16 scales are rounded themselves, so that the largest weight can land on 127.6."""
    W = np.array([[0.1221, 0.05, -0.1221]], np.float16)
    q, scales = impl.quantize_per_channel(W)
    assert scales.dtype == np.float16
    assert q[0, 0] == 127 and q[0, 2] == -127
    tiny = np.full((1, 4), 1.06e-5, np.float16)  # its scale is rounded down to 2^-24, the smallest number there is
    codes = impl.quantize_per_channel(tiny)[0]
    assert (codes >= 0).all(), "an overflow past 127 would show as a negative code"


def test_a_zero_row_stays_zero(impl):
    W = np.random.default_rng(4).standard_normal((4, 8))
    W[2] = 0
    with np.errstate(all="raise"):
        q, scales = impl.quantize_per_channel(W)
        nothing, scale = impl.quantize_per_tensor(np.zeros((2, 3)))
    assert not q[2].any() and scales[2] == 1.0
    assert not nothing.any() and scale == 1.0


def test_per_channel_beats_per_tensor_on_outlier(impl):
    W = loud_row()
    shared = row_errors(impl.dequantize(*impl.quantize_per_tensor(W)), W)
    own = row_errors(impl.dequantize(*impl.quantize_per_channel(W)), W)
    assert shared[1:].mean() > 0.4 and own.mean() < 0.01
    assert shared[0] < 0.01, "the loud row itself is fine: it has set the scale"


def test_a_row_can_vanish(impl):
    W = np.array([[254.0, -254.0, 127.0], [0.9, -1.0, 0.5]])
    assert not impl.dequantize(*impl.quantize_per_tensor(W))[1].any()
    assert row_errors(impl.dequantize(*impl.quantize_per_channel(W)), W)[1] < 0.005


def test_memory_saving_about_4x(impl):
    W = np.random.default_rng(5).standard_normal((100, 100)).astype(np.float32)
    q, scales = impl.quantize_per_channel(W)
    assert (impl.memory_bytes(W), impl.memory_bytes_quant(q, scales)) == (40_000, 10_400)
    assert impl.memory_bytes_quant(*impl.quantize_per_tensor(W)) == 10_004
    assert impl.memory_bytes_quant(q, scales.astype(np.float16)) == 10_200, "scales of two bytes"
    assert (impl.memory_bytes(W.astype(np.float16)), impl.memory_bytes(W.astype(float))) == (20_000, 80_000)
    assert 3.5 < impl.memory_bytes(W) / impl.memory_bytes_quant(q, scales) <= 4


def test_quant_linear_matches_fp_matmul(impl):
    rng = np.random.default_rng(6)
    W, x = rng.standard_normal((256, 512)), rng.standard_normal((8, 512))
    q, scales = impl.quantize_per_channel(W)
    out = impl.quant_linear(x, q, scales)
    close(out, x @ (q * scales[:, None]).T, "product", 1e-9)
    assert error(out, x @ W.T) < 0.01, "no worse than the weights themselves"


def test_quant_linear_keeps_the_type_of_x(impl):
    rng = np.random.default_rng(7)
    q, scales = impl.quantize_per_channel(rng.standard_normal((6, 10)).astype(np.float32))
    assert scales.dtype == np.float32
    x = rng.standard_normal((3, 10)).astype(np.float32)
    close(impl.quant_linear(x, q, scales), x @ (q * scales[:, None]).T, "product", 1e-5)


def test_w_is_never_there_as_floats(impl):
    """512 x 1,024 codes: as float32 2 MiB, of which an eighth may be there at a time."""
    rng = np.random.default_rng(8)
    q, x = rng.integers(-127, 128, (512, 1024)).astype(np.int8), rng.standard_normal((2, 1024)).astype(np.float32)
    scales = rng.uniform(0.5, 1, 512).astype(np.float32)
    wanted = x @ (q * scales[:, None]).T
    tracemalloc.start()
    try:
        out = impl.quant_linear(x, q, scales)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    close(out, wanted, "product", 0.1)
    assert peak < 300_000, f"{peak:,} bytes at once; an eighth of W as float32 is 262,144"


def test_rows_of_a_square(impl):
    q, scales = np.array([[1, 2], [3, 4]], np.int8), np.array([10.0, 100.0])
    close(impl.dequantize(q, scales), [[10.0, 20.0], [300.0, 400.0]], "a scale for each row", 0)
    close(impl.dequantize(q, 10.0), [[10.0, 20.0], [30.0, 40.0]], "one scale", 0)
    close(impl.quant_linear(np.eye(2), q, scales), [[10.0, 300.0], [20.0, 400.0]], "product", 0)


def test_types_and_shapes(impl):
    W = np.random.default_rng(9).standard_normal((2, 3, 4))
    for shaped in (W, W[0, 0]):
        q, scale = impl.quantize_per_tensor(shaped)
        assert q.shape == shaped.shape and q.dtype == np.int8 and isinstance(scale, float)
    for dtype in (np.float16, np.float32, np.float64):
        q, scales = impl.quantize_per_channel(W[0].astype(dtype))
        assert scales.dtype == dtype and impl.dequantize(q, scales).dtype == dtype, "the type of the scales"
    for rows in (1, 3, 9, 17):
        q, scales = impl.quantize_per_channel(np.arange(1.0, 4 * rows + 1).reshape(rows, 4))
        close(impl.quant_linear(W[0], q, scales), W[0] @ (q * scales[:, None]).T, f"{rows} rows", 1e-9)


def test_arguments_stay(impl):
    rng = np.random.default_rng(10)
    W, x = rng.standard_normal((6, 10)), rng.standard_normal((3, 10))
    W[0, 0] = 1e-12
    before, given = W.copy(), x.copy()
    impl.quantize_per_tensor(W)
    q, scales = impl.quantize_per_channel(W)
    codes, kept = q.copy(), scales.copy()
    impl.dequantize(q, scales)
    impl.quant_linear(x, q, scales)
    impl.memory_bytes(W)
    impl.memory_bytes_quant(q, scales)
    for name, now, then in (("W", W, before), ("x", x, given), ("q", q, codes), ("scales", scales, kept)):
        close(now, then, f"{name} after the calls", 0)


@pytest.mark.parametrize("seed", range(8))
def test_same_codes_as_the_engine(impl, seed):
    from mini_vllm.layers.quantization import primitives

    rng = np.random.default_rng(seed)
    W = rng.standard_normal((int(rng.integers(1, 40)), int(rng.integers(1, 90)))) * 10 ** rng.uniform(-3, 3)
    W[rng.random(len(W)) < 0.1] = 0
    for ours, theirs in zip(impl.quantize_per_channel(W), primitives.quantize_per_channel(W), strict=True):
        close(ours, theirs, "a scale a row", 0)
    q, scale = impl.quantize_per_tensor(W)
    wanted, their_scale = primitives.quantize_per_tensor(W)
    close(q, wanted, "one scale", 0)
    assert isinstance(scale, float) and scale == their_scale

"""Lab 06-05: levels where the mass is; half a bit for the scales, and how to get most of it back."""

import numpy as np
import pytest

from course.fixtures import close

PUBLISHED = [
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
]  # fmt: skip


def error(approx, exact):
    """Relative error in the Frobenius norm."""
    return np.linalg.norm(approx - exact) / np.linalg.norm(exact)


def normal(shape=(64, 512), seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def int4(W, block):
    """Fifteen even levels with the same scales, for comparison (lab 03)."""
    groups = W.reshape(len(W), -1, block)
    scales = np.abs(groups).max(axis=2, keepdims=True) / 7
    return (np.rint(groups / scales) * scales).reshape(W.shape)


def test_the_codebook_is_the_published_one(impl):
    levels = impl.nf4_levels()
    assert levels.dtype == np.float32 and levels.shape == (16,)
    np.testing.assert_allclose(levels, PUBLISHED, atol=2e-7)
    assert levels[7] == 0, "an exact zero"


def test_levels_are_dense_in_the_middle(impl):
    steps = np.diff(impl.nf4_levels())
    assert steps.argmin() in (7, 8) and steps[0] == steps.max()
    assert steps[0] / steps[7] > 3.5


def test_codes_are_used_more_evenly(impl):
    """Of normal weights NF4's codes get 1.7 to 9.2 percent each; of the even grid's 1.2 to 14.7. Not equal shares."""
    W = normal((256, 1024))
    codes, _ = impl.quantize_nf4(W)
    share = np.bincount(codes.reshape(-1), minlength=16) / codes.size
    assert (share > 0).all() and share.sum() == pytest.approx(1)
    assert 0.016 < share.min() < 0.018 and 0.09 < share.max() < 0.095


def test_codes_by_hand(impl):
    W = np.array([[4.0, -4.0, 0.0, 0.3, 0.1, -2.4, 2.4, 1.0]], np.float32)
    codes, absmax = impl.quantize_nf4(W, 8)
    assert codes.dtype == np.uint8 and absmax.dtype == np.float32
    assert codes.tolist() == [[15, 0, 7, 8, 7, 2, 13, 10]] and absmax.tolist() == [[4.0]]
    levels = [1, -1, 0, 0.0795803, 0, -0.52507305, 0.562617, 0.2461123]
    back = impl.dequantize_nf4(codes, absmax)
    close(back, np.array([[4 * level for level in levels]], np.float32), "weights, float32", 4e-6)
    close(impl.dequantize_nf4(codes, np.array([[4.0, 0.5]], np.float32))[:, 4:], back[:, 4:] / 8, "blocks of 4", 1e-6)


def test_nearest_really_is_nearest(impl):
    W = normal((4, 64), seed=1)
    codes, absmax = impl.quantize_nf4(W)
    chosen = np.abs(impl.dequantize_nf4(codes, absmax) - W)
    for level in PUBLISHED:
        assert (chosen <= np.abs(level * absmax[:, :, None].repeat(64, 2).reshape(W.shape) - W) + 1e-6).all()


def test_better_than_even_levels_for_normal_weights(impl):
    W = normal()
    nf4, even = error(impl.dequantize_nf4(*impl.quantize_nf4(W)), W), error(int4(W, 64), W)
    assert 0.08 < nf4 < 0.1 and nf4 < 0.92 * even


def test_worse_than_even_levels_for_uniform_weights(impl):
    """A codebook is a bet on the distribution."""
    W = np.random.default_rng(2).uniform(-1, 1, (64, 512)).astype(np.float32)
    assert error(impl.dequantize_nf4(*impl.quantize_nf4(W)), W) > 1.2 * error(int4(W, 64), W)


def test_the_ends_of_a_block_are_exact(impl):
    W = normal((8, 128), seed=3)
    back = impl.dequantize_nf4(*impl.quantize_nf4(W))
    blocks, restored = W.reshape(8, 2, 64), back.reshape(8, 2, 64)
    place = np.abs(blocks).argmax(axis=2)[:, :, None]
    np.testing.assert_allclose(np.take_along_axis(restored, place, 2), np.take_along_axis(blocks, place, 2), rtol=1e-6)


def test_a_zero_block_is_safe(impl):
    W = normal((2, 128), seed=4)
    W[0, 64:] = 0
    with np.errstate(all="raise"):
        codes, absmax = impl.quantize_nf4(W)
    assert (codes[0, 64:] == 7).all() and absmax[0, 1] == 0
    assert not impl.dequantize_nf4(codes, absmax)[0, 64:].any()


@pytest.mark.parametrize("block_size", [0, -64, 48])
def test_blocks_must_fit(impl, block_size):
    with pytest.raises(ValueError, match="block_size must divide"):
        impl.quantize_nf4(np.ones((2, 64)), block_size)


def test_a_block_of_one_keeps_every_weight(impl):
    W = normal((2, 8), seed=5)
    before = W.copy()
    close(impl.dequantize_nf4(*impl.quantize_nf4(W, 1)), W, "a block of one", 1e-6)
    codes, absmax = impl.quantize_nf4(W.astype(float), 8)
    assert codes.dtype == np.uint8 and absmax.dtype == np.float32, "uint8 and float32, whatever W is"
    assert impl.dequantize_nf4(codes, absmax.astype(float)).dtype == np.float32
    close(W, before, "W after the calls", 0)


def test_packing_is_the_other_way_round(impl):
    packed = impl.pack_nf4(np.array([[15, 1, 0, 7]], np.uint8))
    got = [f"{byte:#04x}" for byte in packed[0]]
    assert packed.dtype == np.uint8 and got == ["0xf1", "0x07"], f"bytes {got} of {packed.dtype}, not 0xf1 0x07"


def test_bits_per_weight(impl):
    assert impl.bits_per_weight() == 4.5
    assert impl.bits_per_weight(128) == 4.25
    assert impl.bits_per_weight(64, double=True) == 4 + 8 / 64 + 32 / (64 * 256)
    assert impl.bits_per_weight(128, True) == 4 + 8 / 128 + 32 / (128 * 256), "4.06348: other blocks"
    assert impl.bits_per_weight() - impl.bits_per_weight(double=True) == pytest.approx(0.373, abs=5e-4)


def test_double_quantization_by_hand(impl):
    absmax = np.array([[1.0, 2.0], [3.0, 6.0]], np.float32)
    codes, scales, mean = impl.double_quantize(absmax)
    assert mean == 3.0 and codes.dtype == np.int8 and scales.dtype == np.float32
    assert codes.tolist() == [[-85, -42], [0, 127]]
    np.testing.assert_allclose(scales, [3 / 127], rtol=1e-6)
    given = codes.copy(), scales.copy()
    close(impl.restore_scales(codes, scales, mean), absmax, "restored, float32", 3 / 254 + 1e-6)
    close(codes, given[0], "codes after the call", 0)
    close(scales, given[1], "scales after the call", 0)
    close(absmax, np.array([[1, 2], [3, 6]], np.float32), "absmax after the call", 0)
    assert isinstance(mean, float), "the mean is a float"
    assert impl.restore_scales(codes, scales.astype(float), mean).dtype == np.float32, "float32, whatever comes in"


def test_small_scales_keep_their_resolution(impl):
    absmax = np.array([[0.01, 0.02, 0.03, 0.06]], np.float32)
    codes, scales, mean = impl.double_quantize(absmax)
    assert codes.tolist() == [[-85, -42, 0, 127]] and scales[0] == pytest.approx(0.03 / 127, rel=1e-5)
    np.testing.assert_allclose(impl.restore_scales(codes, scales, mean), absmax, atol=0.03 / 254 + 1e-6)


def test_each_run_of_256_has_its_own_scale(impl):
    rng = np.random.default_rng(6)
    absmax = np.concatenate([rng.uniform(1, 2, (2, 128)), rng.uniform(10, 90, (1, 128))]).astype(np.float32)
    codes, scales, mean = impl.double_quantize(absmax)
    assert scales.shape == (2,) and scales[1] > scales[0], "256 scales, then the 128 that are left"
    restored = impl.restore_scales(codes, scales, mean)
    half = np.repeat(scales, 256)[: absmax.size].reshape(absmax.shape) / 2
    assert (np.abs(restored - absmax) <= half + 1e-5).all()


def test_equal_scales_are_safe(impl):
    absmax = np.full((2, 8), 0.5, np.float32)
    with np.errstate(all="raise"):
        codes, scales, mean = impl.double_quantize(absmax)
    assert not codes.any() and scales.tolist() == [1.0]
    close(impl.restore_scales(codes, scales, mean), absmax, "restored", 0)


def test_double_quantization_costs_almost_nothing(impl):
    W = normal((256, 1024), seed=7)
    codes, absmax = impl.quantize_nf4(W)
    once = error(impl.dequantize_nf4(codes, absmax), W)
    twice = error(impl.dequantize_nf4(codes, impl.restore_scales(*impl.double_quantize(absmax))), W)
    assert twice / once < 1.005


@pytest.mark.parametrize("seed", range(6))
def test_same_as_the_engine(impl, seed):
    from mini_vllm.layers.quantization import nf4

    rng = np.random.default_rng(seed)
    W = (rng.standard_normal((int(rng.integers(1, 20)), 64 * int(rng.integers(1, 5)))) * 0.03).astype(np.float32)
    codes, absmax = impl.quantize_nf4(W)
    theirs, their_absmax = nf4.quantize_nf4(W)
    close(absmax, their_absmax, "absmax", 0)
    assert (codes != theirs).mean() < 1e-3, "ties in the last bit of a float may fall either way"
    close(impl.dequantize_nf4(theirs, absmax), nf4.dequantize_nf4(theirs, absmax), "weights", 1e-7)
    close(impl.pack_nf4(theirs), nf4.pack_nf4(theirs), "bytes", 0)

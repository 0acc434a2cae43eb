"""Lab 06-04: two loud channels of 256 spoil int8 activations; an exact rescaling repairs most of it."""

import numpy as np
import pytest

from course.fixtures import close

SEEDS = range(4)


def error(approx, exact):
    """Relative error in the Frobenius norm."""
    return np.linalg.norm(approx - exact) / np.linalg.norm(exact)


def layer(seed=0, loud=80.0):
    """64 tokens, 256 input channels of which 7 and 123 are loud, 128 outputs."""
    rng = np.random.default_rng(seed)
    X, W = rng.standard_normal((64, 256)), rng.standard_normal((128, 256)) * 0.05
    X[:, [7, 123]] *= loud
    return X, W


def test_codes_by_hand(impl):
    q, scale = impl.quantize_per_tensor(np.array([[254.0, -3.0], [1.0, -254.0]]))
    assert q.dtype == np.int8 and q.tolist() == [[127, -2], [0, -127]] and scale == 2.0
    np.testing.assert_array_equal(impl.fake_quant(np.array([[254.0, -3.0], [1.0, -254.0]])), [[254, -4], [0, -254]])
    rows = impl.fake_quant_rows(np.array([[254.0, -3.0], [127.0, 0.6]]))
    np.testing.assert_array_equal(rows, [[254, -4], [127, 1]])


def test_zeros_are_safe(impl):
    with np.errstate(all="raise"):
        q, scale = impl.quantize_per_tensor(np.zeros((2, 3)))
        rows = impl.fake_quant_rows(np.array([[0.0, 0.0], [127.0, 1.0]]))
    assert scale == 1.0 and not q.any()
    np.testing.assert_array_equal(rows, [[0, 0], [127, 1]])


@pytest.mark.parametrize("seed", SEEDS)
def test_smoothing_is_mathematically_exact(impl, seed):
    X, W = layer(seed)
    X_hat, W_hat = impl.smooth(X, W)
    assert np.abs(X_hat @ W_hat.T - X @ W.T).max() < 1e-10
    assert not np.allclose(X_hat, X)


@pytest.mark.parametrize("seed", SEEDS)
def test_outliers_wreck_naive_w8a8(impl, seed):
    X, W = layer(seed)
    assert error(impl.w8a8_matmul(X, W), X @ W.T) > 0.05
    calm, _ = layer(seed, loud=1.0)
    assert error(impl.w8a8_matmul(calm, W), calm @ W.T) < 0.02


def test_what_is_left_for_the_others(impl):
    """With one channel 80 times as loud, the rest has fewer than two levels on each side of zero."""
    X, _ = layer()
    q, _ = impl.quantize_per_tensor(X)
    quiet = np.delete(np.abs(q.astype(int)), [7, 123], axis=1)
    assert np.median(quiet) == 0 and quiet.max() <= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_smoothing_rescues_w8a8(impl, seed):
    X, W = layer(seed)
    naive = error(impl.w8a8_matmul(X, W), X @ W.T)
    assert error(impl.w8a8_matmul(*impl.smooth(X, W)), X @ W.T) < naive / 3


def test_no_outliers_means_little_to_gain(impl):
    X, W = layer(loud=1.0)
    raw, smoothed = error(impl.w8a8_matmul(X, W), X @ W.T), error(impl.w8a8_matmul(*impl.smooth(X, W)), X @ W.T)
    assert raw < 0.02 and 0.7 < smoothed / raw < 1.1


def test_migration_actually_moved_the_magnitude(impl):
    X, W = layer()
    X_hat, W_hat = impl.smooth(X, W)

    def peak(T):
        loudness = np.abs(T).max(axis=0)
        return loudness.max() / np.median(loudness)

    assert peak(X) / peak(X_hat) > 5
    assert np.abs(W_hat).max() > 5 * np.abs(W).max(), "nothing is free: the weights are louder now"
    np.testing.assert_allclose(np.abs(X_hat).max(axis=0), np.abs(W_hat).max(axis=0))


def test_alpha_is_a_u(impl):
    X, W = layer()
    errors = [error(impl.w8a8_matmul(*impl.smooth(X, W, alpha)), X @ W.T) for alpha in (0, 0.25, 0.5, 0.75, 1)]
    assert min(errors) == errors[2]
    assert errors[0] > errors[1] > errors[2] < errors[3] < errors[4]


def test_alpha_one_and_zero(impl):
    X, W = layer()
    loud, _ = impl.smooth(X, W, 1.0)
    np.testing.assert_allclose(np.abs(loud).max(axis=0), 1.0)
    _, flat = impl.smooth(X, W, 0.0)
    np.testing.assert_allclose(np.abs(flat).max(axis=0), 1.0)


def test_factors_by_hand(impl):
    X, W = np.array([[8.0, 0.01], [-2.0, 0.0]]), np.array([[0.5, -0.25], [0.1, 0.04]])
    close(impl.smoothing_factors(X, W), [4.0, 0.2], "alpha 0.5, where none is given")
    close(impl.smoothing_factors(X, W, 1.0), [8.0, 0.01], "alpha 1")
    close(impl.smoothing_factors(X, W, 0.0), [2.0, 4.0], "alpha 0")


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.45, 0.8])
def test_factors_between(impl, alpha):
    """Even steps on a logarithmic scale, and `smooth` takes the same ones."""
    X, W = layer()
    none, all_ = (np.log(impl.smoothing_factors(X, W, end)) for end in (0.0, 1.0))
    s = impl.smoothing_factors(X, W, alpha)
    close(np.log(s), none + alpha * (all_ - none), f"log of the factors at {alpha}")
    for got, want in zip(impl.smooth(X, W, alpha), (X / s, W * s), strict=True):
        close(got, want, f"smoothed at {alpha}", 1e-9)


def test_arguments_stay(impl):
    X, W = layer()
    before = X.copy(), W.copy()
    impl.fake_quant(X), impl.fake_quant_rows(X), impl.smooth(X, W), impl.int8_matmul(X, W)
    for flags in ((False, False), (True, True)):
        impl.w8a8_matmul(X, W, per_token_x=flags[0], per_channel_w=flags[1])
    close(X, before[0], "X after the calls", 0)
    close(W, before[1], "W after the calls", 0)


def test_dead_channels_are_left_alone(impl):
    X, W = layer()
    X[:, 3], W[:, 5] = 0, 0
    with np.errstate(all="raise"):
        s = impl.smoothing_factors(X, W)
        X_hat, W_hat = impl.smooth(X, W)
    assert s[3] == 1 and s[5] == 1 and (s > 0).all()
    np.testing.assert_array_equal(W_hat[:, 3], W[:, 3])
    np.testing.assert_array_equal(X_hat[:, 5], X[:, 5])


@pytest.mark.parametrize("seed", SEEDS)
def test_scales_per_token_help_and_compose(impl, seed):
    X, W = layer(seed)
    exact = X @ W.T
    naive = error(impl.w8a8_matmul(X, W), exact)
    per_token = error(impl.w8a8_matmul(X, W, per_token_x=True, per_channel_w=True), exact)
    both = error(impl.w8a8_matmul(*impl.smooth(X, W), per_token_x=True, per_channel_w=True), exact)
    assert both < per_token / 3 and per_token < naive and both < 0.01


def test_a_row_scale_of_w_cannot_see_an_input_channel(impl):
    """With alpha = 1 all loudness sits in columns of W; scales for its rows do not isolate a column."""
    X, W = layer()
    balanced = error(impl.w8a8_matmul(*impl.smooth(X, W), per_channel_w=True), X @ W.T)
    all_in_w = error(impl.w8a8_matmul(*impl.smooth(X, W, 1.0), per_channel_w=True), X @ W.T)
    assert all_in_w > 2 * balanced


def test_which_side_gets_which_scales(impl):
    """A loud token calls for per_token_x, a loud output row for per_channel_w; each flag helps its own side only."""
    rng = np.random.default_rng(9)
    X, W = rng.standard_normal((16, 64)), rng.standard_normal((24, 64))
    X[0] *= 100
    quiet = X[1:] @ W.T
    assert error(impl.w8a8_matmul(X, W, per_token_x=True)[1:], quiet) < 0.03
    assert error(impl.w8a8_matmul(X, W, per_channel_w=True)[1:], quiet) > 0.2
    X[0] /= 100
    W[0] *= 100
    quiet = (X @ W.T)[:, 1:]
    assert error(impl.w8a8_matmul(X, W, per_channel_w=True)[:, 1:], quiet) < 0.03
    assert error(impl.w8a8_matmul(X, W, per_token_x=True)[:, 1:], quiet) > 0.2


def test_integers_first_scales_last(impl):
    X, W = layer()
    close(impl.int8_matmul(X, W), impl.w8a8_matmul(X, W), "integers, and rounded floats", 1e-9)
    for seed in range(3):
        X, W = layer(seed)
        (x, x_scale), (w, w_scale) = impl.quantize_per_tensor(X), impl.quantize_per_tensor(W)
        wanted = (x.astype(np.int64) @ w.T.astype(np.int64)) * (x_scale * w_scale)
        close(impl.int8_matmul(X, W), wanted, "exact integers times one number, to the last bit", 0)


def test_the_accumulator_must_be_wide(impl):
    """512 products of 127 * 127 are 8,258,048: far beyond int8, and beyond int16."""
    X = np.full((1, 512), 3.0)
    np.testing.assert_allclose(impl.int8_matmul(X, X), [[512 * 9.0]])


@pytest.mark.parametrize("seed", SEEDS)
def test_same_rounding_as_the_engine(impl, seed):
    from mini_vllm.layers.quantization import primitives

    X, _ = layer(seed)
    one, by_row = primitives.fake_quant(X), primitives.dequantize(*primitives.quantize_per_channel(X))
    close(impl.fake_quant(X), one, "one scale", 0)
    close(impl.fake_quant_rows(X), by_row, "a scale a row")

"""Lab 00-04: the roofline of an 8B model on an A100, in numbers that fit on a napkin."""

from __future__ import annotations

import math

import pytest

A100_PEAK, A100_BW = 312e12, 2.0e12  # dense bf16 FLOP/s; bytes/s, rounded
H100_PEAK, H100_BW = 990e12, 3.35e12
N_8B, N_70B = 8e9, 70e9
BF16 = 2
KV_8B = 131_072  # bytes per token, lab 00-02


def test_your_prediction(impl) -> None:
    """Compared before any value is shown: a wrong guess says only on which side it lies."""
    guess = impl.predicted_context()
    exact = 2 * N_8B / (A100_PEAK / A100_BW * KV_8B)
    assert guess > 0.95 * exact, "your prediction is too low: with this much context some batch still suffices"
    assert guess < 1.05 * exact, "your prediction is too high: with less context no batch suffices any more"


def test_a100_ridge_point(impl) -> None:
    got = impl.ridge_point(A100_PEAK, A100_BW)
    assert got == 156.0, f"expected 312e12 / 2e12 = 156 FLOP per byte, got {got}. README, 'What you should see'"
    assert impl.ridge_point(H100_PEAK, H100_BW) == pytest.approx(295.522, abs=0.001), "H100: 990e12 / 3.35e12"


def test_flops_and_bytes_of_a_step(impl) -> None:
    assert impl.step_flops(N_8B, 1) == 16e9, "one token: 2 FLOPs per parameter, 16 GFLOP. README, 'Background'"
    assert impl.step_flops(N_8B, 3) == 48e9, "three tokens: three times the arithmetic"
    assert impl.step_flops(N_70B, 2) == 280e9, "another model: 2 * 70e9 * 2"
    assert impl.step_bytes(N_8B, BF16) == 16e9, "8e9 weights of 2 bytes: 16 GB"
    assert impl.step_bytes(N_8B, 0.5) == 4e9, "4-bit weights: 4 GB"


def test_intensity_is_just_tokens_over_dtype(impl) -> None:
    for tokens in (1, 7, 156, 2048):
        small = impl.arithmetic_intensity(N_8B, tokens, BF16)
        large = impl.arithmetic_intensity(N_70B, tokens, BF16)
        assert small == large == tokens, (
            f"{tokens} tokens in bf16: expected 2 * {tokens} / 2 = {tokens} for both sizes, got {small} and {large}. "
            "README, 'Background': the number of parameters cancels"
        )
    assert impl.arithmetic_intensity(N_8B, 1, 1) == 2.0, "fp8 weights: half the bytes, twice the intensity"
    assert impl.arithmetic_intensity(N_8B, 3, 4) == 1.5, "fp32: 2 * 3 / 4"


def test_single_decode_is_hopelessly_bandwidth_bound(impl) -> None:
    ridge = impl.ridge_point(A100_PEAK, A100_BW)
    intensity = impl.arithmetic_intensity(N_8B, 1, BF16)
    assert impl.is_memory_bound(intensity, ridge) is True
    reached = impl.attainable_flops(intensity, A100_PEAK, A100_BW)
    assert reached == 2e12, f"1 FLOP per byte at 2e12 bytes per second is 2e12 FLOP/s, got {reached}"
    assert reached / A100_PEAK == pytest.approx(0.00641, abs=1e-5), "0.64 % of the chip's arithmetic is in use"


def test_prefill_is_compute_bound(impl) -> None:
    ridge = impl.ridge_point(A100_PEAK, A100_BW)
    intensity = impl.arithmetic_intensity(N_8B, 2048, BF16)
    assert intensity == 2048 and impl.is_memory_bound(intensity, ridge) is False
    assert impl.attainable_flops(intensity, A100_PEAK, A100_BW) == A100_PEAK, "no step can pass the compute roof"


def test_critical_batch_size_is_the_ridge(impl) -> None:
    ridge = impl.ridge_point(A100_PEAK, A100_BW)
    bound = {b: impl.is_memory_bound(impl.arithmetic_intensity(N_8B, b, BF16), ridge) for b in (155, 156, 157)}
    assert bound == {155: True, 156: False, 157: False}, (
        f"expected the switch between 155 and 156 tokens, got {bound}. README: at the ridge itself the answer is False"
    )
    assert impl.is_memory_bound(200, 295.5) is True and impl.is_memory_bound(200, 156) is False, (
        "every chip has its own"
    )
    assert impl.attainable_flops(155, A100_PEAK, A100_BW) == 310e12
    got = impl.attainable_flops(200, H100_PEAK, H100_BW)
    assert got == pytest.approx(670e12), f"intensity 200 on an H100 is 670 TFLOP/s, below its roof; got {got}"
    assert impl.attainable_flops(400, H100_PEAK, H100_BW) == H100_PEAK, "and 400 meets its roof"
    assert impl.attainable_flops(156, A100_PEAK, A100_BW) == impl.attainable_flops(157, A100_PEAK, A100_BW) == 312e12


def test_decode_speed_limit_8b_bf16(impl) -> None:
    got = impl.decode_tokens_per_second(N_8B, BF16, A100_BW)
    assert got == 125.0, f"expected 2e12 / 16e9 = 125 steps per second, one token each, got {got}"
    assert impl.decode_tokens_per_second(N_8B, 0.5, A100_BW) == 500.0, "4-bit weights: a quarter of the bytes"
    assert impl.decode_tokens_per_second(N_8B, BF16, H100_BW) == pytest.approx(209.4, abs=0.1)


def test_batching_multiplies_decode_throughput_for_free(impl) -> None:
    """Free as long as the KV cache's own bytes are ignored; `test_kv_reads_end_the_free_lunch` counts them."""
    assert impl.decode_tokens_per_second(N_8B, BF16, A100_BW, batch=64) == 8000.0, "64 sequences share one weight read"


def test_kv_bytes_per_step(impl) -> None:
    assert impl.kv_bytes_per_step(1, 1, KV_8B) == KV_8B
    assert impl.kv_bytes_per_step(2, 3, 5) == 30, "two sequences with three tokens of five bytes"
    got = impl.kv_bytes_per_step(64, 2048, KV_8B)
    assert got == 17_179_869_184, f"expected 64 * 2048 * 131,072 = 16 GiB, got {got}"


def test_kv_crossover(impl) -> None:
    got = impl.kv_crossover_context(N_8B, BF16, 64, KV_8B)
    assert got == pytest.approx(1907.35, abs=0.01), (
        f"expected 16e9 / (64 * 131,072) = 1,907 tokens, got {got}. README, 'What you should see'"
    )
    assert impl.kv_crossover_context(N_8B, BF16, 1, KV_8B) == pytest.approx(122_070.3, abs=0.1), "alone: 122,070 tokens"
    assert impl.kv_crossover_context(N_8B, 1, 64, KV_8B) == pytest.approx(953.67, abs=0.01), "fp8 weights: half of it"
    assert impl.kv_crossover_context(60, 2, 3, 4) == 10, "60 weights of 2 bytes; 3 sequences with 4 bytes a token"


def test_kv_reads_end_the_free_lunch(impl) -> None:
    kv_bytes = impl.kv_bytes_per_step(64, 2048, KV_8B)
    got = impl.decode_tokens_per_second(N_8B, BF16, A100_BW, batch=64, kv_bytes=kv_bytes)
    assert got == pytest.approx(3857.7, abs=0.1), (
        f"expected 64 * 2e12 / (16e9 + 17.18e9) = 3,858 tokens/s instead of 8,000, got {got}"
    )
    alone = impl.decode_tokens_per_second(N_8B, BF16, A100_BW, 1, 2048 * KV_8B)
    assert alone == pytest.approx(122.94, abs=0.01), f"one sequence reads its cache too: expected 122.94, got {alone}"
    got = impl.decode_tokens_per_second(N_70B, 1, H100_BW, batch=8, kv_bytes=10e9)
    assert got == pytest.approx(335.0), f"8 * 3.35e12 / (70e9 + 10e9) = 335 tokens/s, got {got}"
    context = impl.kv_crossover_context(N_8B, BF16, 64, KV_8B)
    at_crossover = impl.decode_tokens_per_second(N_8B, BF16, A100_BW, 64, 64 * context * KV_8B)
    assert at_crossover == pytest.approx(4000.0), "at the crossover the KV reads cost exactly half of the speed"


def test_critical_batch(impl) -> None:
    ridge = A100_PEAK / A100_BW
    alone = impl.critical_batch(N_8B, BF16, 0, KV_8B, ridge)
    assert alone == pytest.approx(156, rel=1e-12), f"without context it is the ridge itself, got {alone}"
    got = [impl.critical_batch(N_8B, BF16, context, KV_8B, ridge) for context in (128, 512, 700)]
    assert got == pytest.approx([186.5, 451.3, 1479.6], abs=0.1), f"context 128, 512, 700 tokens: got {got}"
    assert impl.critical_batch(N_8B, BF16, 700, KV_8B // 2, ridge) == pytest.approx(282.2, abs=0.1), "half the KV bytes"
    toy = impl.critical_batch(1, 1, 1, 1, 1.5)
    assert toy == pytest.approx(3.0, rel=1e-12), f"a toy: 2 * 3 FLOPs over 1 + 3 bytes is 1.5, so 3, got {toy}"
    assert impl.critical_batch(N_70B, 1, 512, 327_680, 295.5) == pytest.approx(228.8, abs=0.1), "another model and chip"


def test_from_some_context_on_no_batch_suffices(impl) -> None:
    """The limit is where one more sequence brings as much waiting as work: also exactly there."""
    ridge = A100_PEAK / A100_BW
    assert impl.critical_batch(N_8B, BF16, 782, KV_8B, ridge) > 200_000, "782 tokens: a batch that nobody has"
    close = impl.critical_batch(2**40, 2, 1, 2**41 - 2, 1)
    assert close == pytest.approx(2**40, rel=1e-9), f"two bytes below the limit there is still a batch, got {close}"
    for context in (783, 1024, 2000, 128_000):
        got = impl.critical_batch(N_8B, BF16, context, KV_8B, ridge)
        assert got == math.inf, f"context {context}: no batch reaches the ridge, expected infinity, got {got}"
    assert impl.critical_batch(8, BF16, 4, 2, 2) == math.inf, "2 * 8 FLOPs against 2 * 4 * 2: exactly at the limit"


def test_the_critical_batch_is_exactly_at_the_ridge(impl) -> None:
    for context in (0, 64, 300, 781):
        batch = impl.critical_batch(N_8B, BF16, context, KV_8B, 156.0)
        flops, read = 2 * N_8B * batch, N_8B * BF16 + batch * context * KV_8B
        assert flops / read == pytest.approx(156.0, rel=1e-9), f"context {context}: {flops / read} FLOP per byte"

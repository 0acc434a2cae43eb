"""Lab 00-04: the roofline of an 8B model on an A100, in numbers that fit on a napkin."""

from __future__ import annotations

import pytest

A100_PEAK, A100_BW = 312e12, 2.0e12  # dense bf16 FLOP/s; bytes/s, rounded
H100_PEAK, H100_BW = 990e12, 3.35e12
N_8B, N_70B = 8e9, 70e9
BF16 = 2
KV_8B = 131_072  # bytes per token, lab 00-02


def test_a100_ridge_point(impl) -> None:
    got = impl.ridge_point(A100_PEAK, A100_BW)
    assert got == 156.0, f"expected 312e12 / 2e12 = 156 FLOP per byte, got {got}. README, 'What you should see'"
    assert impl.ridge_point(H100_PEAK, H100_BW) == pytest.approx(295.5, abs=0.1), "H100: 990e12 / 3.35e12"


def test_flops_and_bytes_of_a_step(impl) -> None:
    assert impl.step_flops(N_8B, 1) == 16e9, "one token: 2 FLOPs per parameter, 16 GFLOP. README, 'Background'"
    assert impl.step_flops(N_8B, 3) == 48e9, "three tokens: three times the arithmetic"
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
    assert impl.attainable_flops(155, A100_PEAK, A100_BW) == 310e12
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
    got = impl.kv_bytes_per_step(64, 2048, KV_8B)
    assert got == 17_179_869_184, f"expected 64 * 2048 * 131,072 = 16 GiB, got {got}"


def test_kv_crossover(impl) -> None:
    got = impl.kv_crossover_context(N_8B, BF16, 64, KV_8B)
    assert got == pytest.approx(1907.35, abs=0.01), (
        f"expected 16e9 / (64 * 131,072) = 1,907 tokens, got {got}. README, 'What you should see'"
    )
    assert impl.kv_crossover_context(N_8B, BF16, 1, KV_8B) == pytest.approx(122_070.3, abs=0.1), "alone: 122,070 tokens"
    assert impl.kv_crossover_context(N_8B, 1, 64, KV_8B) == pytest.approx(953.67, abs=0.01), "fp8 weights: half of it"


def test_kv_reads_end_the_free_lunch(impl) -> None:
    kv_bytes = impl.kv_bytes_per_step(64, 2048, KV_8B)
    got = impl.decode_tokens_per_second(N_8B, BF16, A100_BW, batch=64, kv_bytes=kv_bytes)
    assert got == pytest.approx(3857.7, abs=0.1), (
        f"expected 64 * 2e12 / (16e9 + 17.18e9) = 3,858 tokens/s instead of 8,000, got {got}"
    )
    context = impl.kv_crossover_context(N_8B, BF16, 64, KV_8B)
    at_crossover = impl.decode_tokens_per_second(N_8B, BF16, A100_BW, 64, 64 * context * KV_8B)
    assert at_crossover == pytest.approx(4000.0), "at the crossover the KV reads cost exactly half of the speed"

"""Primitives, the registry, and a `Linear` that never asks how its weight is stored."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.layers.linear import Linear
from mini_vllm.layers.quantization import get_quantization_config, quantization_methods, register_quantization_config
from mini_vllm.layers.quantization import primitives as p
from mini_vllm.layers.quantization.activations import ActivationScheme, quantize_activations
from mini_vllm.layers.quantization.base_config import QuantizationConfig
from mini_vllm.layers.quantization.int8 import Int8LinearMethod
from mini_vllm.layers.quantization.repack import awq_pack, awq_unpack, gptq_pack, gptq_unpack, pack_int32, unpack_int32
from mini_vllm.layers.quantization.utils.fp8_utils import decode_e4m3, encode_e4m3, quantize_fp8
from mini_vllm.layers.utils import UnquantizedLinearMethod
from mini_vllm.parameter import ArraySource
from mini_vllm.utils.arrays import Array

PREFIX = "model.layers.0.mlp.gate_up_proj"


def normal(*shape: int, seed: int = 0) -> Array:
    """Standard normal float32."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def error(approximation: Array, exact: Array) -> float:
    """Relative Frobenius error."""
    return float(np.linalg.norm(approximation - exact) / np.linalg.norm(exact))


def make(name: str, W: Array, **config: Any) -> Linear:
    """A weight stored in this format."""
    quant_config = get_quantization_config(name).from_config(config)
    half = len(W) // 2
    return Linear(W.shape[1], len(W), quant_config, PREFIX, partitions=[half, len(W) - half]).load(W)


def test_a_code_is_at_most_half_a_step_off() -> None:
    W = normal(64, 96)
    q, scales = p.quantize_per_channel(W)
    assert q.dtype == np.int8 and np.abs(q.astype(int)).max() == 127
    assert (np.abs(W - p.dequantize(q, scales)) <= scales[:, None] / 2 * (1 + 1e-5)).all()


def test_one_loud_row_ruins_one_scale_for_all() -> None:
    W = normal(64, 128)
    W[0] *= 100
    quiet = slice(1, None)
    by_tensor, by_row = (p.dequantize(*f(W)) for f in (p.quantize_per_tensor, p.quantize_per_channel))
    assert error(by_tensor[quiet], W[quiet]) > 30 * error(by_row[quiet], W[quiet])


@pytest.mark.parametrize("quantize", [p.quantize_per_channel, p.quantize_per_tensor])
def test_zeros_stay_zeros(quantize: Any) -> None:
    q, scale = quantize(np.zeros((4, 8), np.float32))
    assert not q.any() and (np.asarray(scale) == 1).all() and not p.dequantize(q, scale).any()


def test_smaller_groups_follow_local_magnitude() -> None:
    W = normal(32, 256) * np.repeat(10 ** np.random.default_rng(1).uniform(-1, 1, 16), 16).astype(np.float32)
    errors = [error(p.dequantize_grouped(*p.quantize_grouped(W, size), size), W) for size in (16, 64, 256)]
    assert errors == sorted(errors) and errors[0] < 0.6 * errors[2]


def test_zero_points_pay_where_weights_lean_to_one_side() -> None:
    W = normal(16, 64) * np.float32(0.2) + np.float32(0.5)
    q, scales, zeros = p.quantize_grouped_asymmetric(W, 32)
    assert error(p.dequantize_grouped(q, scales, 32, zeros), W) < 0.6 * error(
        p.dequantize_grouped(*p.quantize_grouped(W, 32), 32), W
    )


def test_nibbles_lie_low_half_first() -> None:
    assert p.pack_int4(np.array([[-7, 7, 0, 1]], np.int8)).tolist() == [[0xF1, 0x98]]


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_packing_is_lossless(data: Any) -> None:
    rows, columns = data.draw(st.integers(1, 5)), 8 * data.draw(st.integers(1, 6))
    bits = data.draw(st.sampled_from([4, 8]))
    codes = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 2**bits, (rows, columns), dtype=np.uint8)
    np.testing.assert_array_equal(unpack_int32(pack_int32(codes, bits), bits), codes)
    np.testing.assert_array_equal(gptq_unpack(gptq_pack(codes.T, bits), bits), codes.T)
    np.testing.assert_array_equal(awq_unpack(awq_pack(codes, bits), bits), codes)
    if bits == 4:
        signed = codes.astype(np.int8) - np.int8(8)
        np.testing.assert_array_equal(p.unpack_int4(p.pack_int4(signed)), signed)


def test_bad_shapes_are_errors_by_name() -> None:
    with pytest.raises(ValueError, match=r"group_size must divide the 64 inputs evenly .*, got 48"):
        p.quantize_grouped(normal(4, 64), 48)
    with pytest.raises(ValueError, match="two codes share a byte, so their number must be even, got 7"):
        p.pack_nibbles(np.zeros((2, 7), np.uint8))
    with pytest.raises(ValueError, match="8 codes share an int32"):
        pack_int32(np.zeros((2, 12), np.uint8), 4)


def test_fp8_landmarks() -> None:
    values = np.array([0, -0.0, 1, 448, 1000, np.inf, -np.inf, 2.0**-9, 2.0**-10, 2.0**-6, np.nan], np.float32)
    expected = [0x00, 0x80, 0x38, 0x7E, 0x7E, 0x7E, 0xFE, 0x01, 0x00, 0x08, 0x7F]
    assert encode_e4m3(values).tolist() == expected


def test_fp8_rounds_ties_to_even() -> None:
    codes = np.arange(0x7E, dtype=np.uint8)
    low, high = decode_e4m3(codes), decode_e4m3(codes + np.uint8(1))
    middle = (low + high) / 2
    np.testing.assert_array_equal(encode_e4m3(middle), codes + (codes & 1))
    np.testing.assert_array_equal(encode_e4m3(np.nextafter(middle, np.float32(0))), codes)
    np.testing.assert_array_equal(encode_e4m3(np.nextafter(middle, np.float32(999))), codes + 1)


@pytest.mark.needs_torch
def test_fp8_equals_torch_on_random_bits() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 1_000_000, dtype=np.uint32).view(np.float32)
    middling = (rng.standard_normal(1_000_000) * 10.0 ** rng.uniform(-4, 3, 1_000_000)).astype(np.float32)
    for x in (bits, middling):
        theirs = torch.clamp(torch.from_numpy(x), -448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        np.testing.assert_array_equal(encode_e4m3(x), theirs)
    codes = np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(decode_e4m3(codes), theirs)


def test_fp8_error_is_relative() -> None:
    W = normal(100, 100)
    codes, scale = quantize_fp8(W)
    relative = np.abs(decode_e4m3(codes) * scale - W) / np.abs(W)
    assert relative[np.abs(W) > scale * 2.0**-6].max() <= 1 / 16 * (1 + 1e-5)


# --- the registry ---------------------------------------------------------------------------------------------------


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"quantization must be one of .*int8.*, got 'int3'"):
        get_quantization_config("int3")


def test_an_unknown_setting_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"of 'int4': unknown key 'groupsize' = 32: .*did you mean 'group_size'"):
        get_quantization_config("int4").from_config({"groupsize": 32})


def test_a_format_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    from mini_vllm.layers import quantization

    monkeypatch.setattr(quantization, "_CONFIGS", dict(quantization._CONFIGS))

    @register_quantization_config("mine")
    class MyConfig(QuantizationConfig):
        @classmethod
        def get_name(cls) -> str:
            return "mine"

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
            return cls()

        def get_quant_method(self, layer_name: str, kind: str = "linear") -> Any:
            return Int8LinearMethod() if layer_name.endswith("gate_up_proj") else None

    assert "mine" in quantization_methods()
    assert make("mine", normal(8, 16)).weight.dtype == np.int8
    with pytest.raises(ValueError, match="all linear layers should support quant method; none for 'x'"):
        Linear(4, 4, MyConfig(), "x")
    with pytest.raises(ValueError, match="must be a subclass"):
        register_quantization_config("other")(int)  # type: ignore[type-var]


# --- Linear ---------------------------------------------------------------------------------------------------------

FORMATS = [
    ("int8", {}, 0.01, 1.05), ("fp8", {}, 0.03, 1.05), ("int4", {}, 0.13, 0.52),
    ("int4", {"group_size": 32}, 0.11, 0.57), ("nf4", {}, 0.1, 0.57), ("nf4", {"double_quant": True}, 0.1, 0.53),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "config", "most_error", "most_bytes"), FORMATS)
def test_bytes_fall_and_the_product_is_close(
    name: str, config: dict[str, Any], most_error: float, most_bytes: float, dtype: str
) -> None:
    W, x = normal(320, 256), normal(7, 256, seed=1)
    quant_config = get_quantization_config(name).from_config(config)
    linear = Linear(256, 320, quant_config, PREFIX, partitions=[160, 160], dtype=dtype).load(W)
    assert linear.nbytes <= most_bytes * W.size
    assert linear(x).dtype == np.dtype(dtype)
    assert error(linear(x), x @ W.T) < most_error
    np.testing.assert_allclose(linear(x), x @ linear.dequantized().T, rtol=1e-3, atol=1e-3)


def test_formats_are_ordered_by_bytes() -> None:
    W = normal(64, 256)
    sizes = [Linear(256, 64).load(W).nbytes, *(make(name, W).nbytes for name in ("int8", "int4"))]
    assert sizes[0] == W.nbytes and sizes == sorted(sizes, reverse=True)
    assert sizes[2] == W.size // 2 + 2 * W.size // 128


def test_an_ignored_layer_stays_exact() -> None:
    config = get_quantization_config("int8").from_config(
        {"ignored_layers": ["model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"]}
    )
    W = normal(8, 16)
    linear = Linear(16, 8, config, PREFIX).load(W)
    assert isinstance(linear.quant_method, UnquantizedLinearMethod)
    np.testing.assert_array_equal(linear.dequantized(), W)
    with pytest.raises(ValueError, match=r"some but not all shards of model\.layers\.0.mlp.gate_up_proj"):
        half = get_quantization_config("int8").from_config({"ignored_layers": ["model.layers.0.mlp.up_proj"]})
        Linear(16, 8, half, PREFIX)


def test_fp8_keeps_a_scale_for_each_shard() -> None:
    W = normal(8, 64)
    W[4:] *= 100
    linear = make("fp8", W)
    scales = np.unique(linear.weight_scale)
    assert len(scales) == 2 and scales[1] == pytest.approx(np.abs(W[4:]).max() / 448)


@pytest.mark.parametrize("name", ["int8", "int4", "fp8", "nf4"])
def test_no_float_copy_of_the_weight_is_made(name: str) -> None:
    rows, columns = 4096, 512
    linear = make(name, normal(rows, columns))
    x, out = np.ascontiguousarray(normal(1, columns).T), np.empty((rows, 1), np.float32)
    linear.project_into(x, out)
    tracemalloc.start()
    linear.project_into(x, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < rows * columns * 4 / 8


def test_loading_makes_no_float_copy_of_the_weight() -> None:
    W = normal(4096, 512)

    class Counting(ArraySource):
        most = 0

        def read(self, name: str, first: int = 0, last: int | None = None) -> Array:
            piece = super().read(name, first, last)
            self.most = max(self.most, piece.size)
            return piece

    for name in ("int8", "int4", "fp8", "nf4"):
        linear = Linear(512, 4096, get_quantization_config(name).from_config({}), PREFIX)
        source = Counting({"weight": W})
        linear[:].load(source)
        assert source.most <= W.size / 8, name


@pytest.mark.parametrize("scheme", [ActivationScheme("int8"), ActivationScheme("int8", symmetric=False),
                                    ActivationScheme("fp8")])  # fmt: skip
def test_every_token_has_its_own_scale(scheme: ActivationScheme) -> None:
    x = normal(64, 3) * np.array([[1, 100, 0]], np.float32)
    values, scale = quantize_activations(x, scheme)
    for token in (0, 1):
        assert error(values[:, token] * scale[0, token], x[:, token]) < 0.04
    assert not values[:, 2].any()


def test_a_static_scale_saturates() -> None:
    values, scale = quantize_activations(
        np.array([[1.0], [300.0]], np.float32), ActivationScheme("int8", static=True), 1.0
    )
    assert scale == 1.0 and values.ravel().tolist() == [1, 127]


def test_w8a8_is_an_integer_product_and_one_multiplication() -> None:
    W, x = normal(16, 64), normal(3, 64, seed=1)
    linear = Linear(64, 16)
    method = Int8LinearMethod(activations=ActivationScheme("int8"))
    linear.quant_method = method
    method.create_weights(linear, 64, [16], np.float32)
    linear.load(W)
    q_x = np.rint(x / (np.abs(x).max(axis=1, keepdims=True) / 127)).astype(np.int32)
    integers = q_x @ linear.weight.T.astype(np.int32)
    expected = integers * (np.abs(x).max(axis=1, keepdims=True) / 127) * linear.weight_scale.T
    np.testing.assert_allclose(linear(x), expected, rtol=1e-5)

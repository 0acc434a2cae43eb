"""Lab 06-03: fifteen levels are enough if few weights share them; and a nibble in the wrong place is garbage."""

import json
import lzma
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from course.fixtures import close

CAPTURED = Path(__file__).resolve().parents[1] / "lab-02-quantize-and-eval" / "captured"
POCKET = Path(__file__).resolve().parents[3] / "models" / "pocket"


def error(approx, exact):
    """Relative error in the Frobenius norm."""
    return np.linalg.norm(approx - exact) / np.linalg.norm(exact)


def banded(seed=0):
    """16 bands of 16 columns, each with a loudness of its own between 1/10 and 10."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((32, 256)) * np.repeat(10 ** rng.uniform(-1, 1, 16), 16)


def test_codes_by_hand(impl):
    W = np.array([[3.5, -1.75, 0.25, 0.0, 70.0, 5.0, -70.0, 14.0]])
    q, scales = impl.quantize_grouped(W, 4)
    assert q.dtype == np.int8 and q.tolist() == [[7, -4, 0, 0, 7, 0, -7, 1]]
    np.testing.assert_allclose(scales, [[0.5, 10.0]])
    np.testing.assert_allclose(impl.dequantize_grouped(q, scales, 4), [[3.5, -2, 0, 0, 70, 0, -70, 10]])


def test_grouped_roundtrip_error_bounded(impl):
    W = np.random.default_rng(0).standard_normal((64, 256))
    q, scales = impl.quantize_grouped(W, 32)
    assert scales.shape == (64, 8)
    assert np.abs(q.astype(int)).max() == 7, "symmetric: -8 is left out"
    assert 0.08 < error(impl.dequantize_grouped(q, scales, 32), W) < 0.11


def test_no_value_is_off_by_more_than_half_a_step(impl):
    W = banded(3)
    q, scales = impl.quantize_grouped(W, 16)
    step = np.repeat(scales, 16, axis=1)
    assert (np.abs(impl.dequantize_grouped(q, scales, 16) - W) <= step / 2 + 1e-12).all()


def test_smaller_groups_capture_local_magnitude(impl):
    W = banded()
    errors = [error(impl.dequantize_grouped(*impl.quantize_grouped(W, g), g), W) for g in (16, 64, 256)]
    assert errors[0] < 0.1 < errors[1] < errors[2] and errors[2] > 0.15


def test_scales_keep_the_type_and_zero_groups_are_safe(impl):
    W = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    W[1, 4:] = 0
    with np.errstate(all="raise"):
        q, scales = impl.quantize_grouped(W, 4)
    assert scales.dtype == np.float32 and scales[1, 1] == 1 and not q[1, 4:].any()
    before = W.copy()
    for dtype in (np.float16, np.float32, np.float64):
        q, scales = impl.quantize_grouped(W.astype(dtype), 4)
        assert scales.dtype == dtype and impl.dequantize_grouped(q, scales, 4).dtype == dtype, "the type of W"
    q, scales = impl.quantize_grouped(W, 4)
    given = q.copy(), scales.copy()
    impl.dequantize_grouped(q, scales, 4)
    for name, now, then in (("W", W, before), ("q", q, given[0]), ("scales", scales, given[1])):
        close(now, then, f"{name} after the calls", 0)


def test_rounding_can_go_past_the_last_code(impl):
    """A float16 scale is rounded itself: 5e-7 / 7 becomes 5.96e-8, the smallest there is, and 5e-7 would be code 8."""
    q, scales = impl.quantize_grouped(np.full((1, 4), 5e-7, np.float16), 4)
    assert scales.dtype == np.float16
    assert q.tolist() == [[7, 7, 7, 7]]


@pytest.mark.parametrize("group_size", [0, -4, 3, 48])
def test_groups_must_fit(impl, group_size):
    with pytest.raises(ValueError, match="group_size must divide"):
        impl.quantize_grouped(np.ones((2, 32)), group_size)


def test_a_group_may_be_a_single_weight_or_a_whole_row(impl):
    W = banded()
    assert error(impl.dequantize_grouped(*impl.quantize_grouped(W, 1), 1), W) < 1e-12
    assert impl.quantize_grouped(W, 256)[1].shape == (32, 1)


def test_packing_byte_by_byte(impl):
    packed = impl.pack_int4(np.array([[-7, 7, 0, 1]], np.int8))
    got = [f"{byte:#04x}" for byte in packed[0]]
    assert packed.dtype == np.uint8 and got == ["0xf1", "0x98"], f"bytes {got}, not 0xf1 0x98"


def test_pack_unpack_roundtrip_is_exact(impl):
    every = np.array([[a, b] for a in range(-8, 8) for b in range(-8, 8)], np.int8).reshape(16, 32)
    packed = impl.pack_int4(every)
    assert packed.shape == (16, 16)
    out = impl.unpack_int4(packed)
    assert out.dtype == np.int8
    np.testing.assert_array_equal(out, every)


def test_odd_rows_cannot_be_packed(impl):
    with pytest.raises(ValueError, match="must be even"):
        impl.pack_int4(np.zeros((2, 5), np.int8))


def test_words_nibble_by_nibble(impl):
    nibbles = np.arange(8, dtype=np.uint8)[None]
    assert impl.pack_int32(nibbles).dtype == np.int32
    word = int(impl.pack_int32(nibbles).view(np.uint32)[0, 0])
    assert word == 0x76543210, f"{word:#010x}, not 0x76543210"
    for order, word in (((0, 2, 4, 6, 1, 3, 5, 7), 0x75316420), ((7, 6, 5, 4, 3, 2, 1, 0), 0x01234567)):
        for given in (order, list(order)):
            got = int(impl.pack_int32(nibbles, given).view(np.uint32)[0, 0])
            assert got == word, f"order {order}: {got:#010x}, not {word:#010x}; bits 4k to 4k + 3 hold order[k]"
    two = impl.pack_int32(np.arange(32, dtype=np.uint8).reshape(2, 16) % 16).view(np.uint32)
    assert two.shape == (2, 2) and hex(two[1, 1]) == "0xfedcba98", f"two rows of two words: {hex(two[1, 1])}"


def test_four_bytes_in_a_row_are_a_word(impl):
    """On a little-endian machine the pair packing IS the layout of compressed-tensors, read four bytes at a time."""
    q = np.random.default_rng(2).integers(-8, 8, (5, 32)).astype(np.int8)
    words = impl.pack_int32((q + 8).astype(np.uint8))
    np.testing.assert_array_equal(words, impl.pack_int4(q).view("<i4"))


def test_a_wrong_order_loads_and_is_garbage(impl):
    W = np.random.default_rng(3).standard_normal((8, 64))
    q, scales = impl.quantize_grouped(W, 32)
    packed = impl.pack_int4(q)
    swapped = (packed >> 4) | (packed << 4)
    assert swapped.shape == packed.shape and swapped.dtype == packed.dtype, "no error can notice it"
    wrong = impl.dequantize_grouped(impl.unpack_int4(swapped), scales, 32)
    assert error(wrong, W) > 1, "worse than a matrix of zeros"


@pytest.mark.parametrize(("group", "per_weight"), [(16, 0.625), (32, 0.5625), (64, 0.53125), (128, 0.515625)])
def test_bytes_per_weight(impl, group, per_weight):
    assert impl.memory_bytes_grouped((256, 1024), group) == per_weight * 256 * 1024
    codes = 256 * 1024 // 2
    for scale_bytes in (1, 2, 4, 8):
        wanted = codes + (per_weight - 0.5) * 256 * 1024 / 2 * scale_bytes
        assert impl.memory_bytes_grouped((256, 1024), group, scale_bytes) == wanted, f"{scale_bytes} bytes a scale"
    assert impl.memory_bytes_grouped((3, 10), 5, 2) == 15 + 12, "codes share bytes over the whole weight"


def test_memory_about_8x_smaller_than_fp32(impl):
    W = np.zeros((512, 1024), np.float32)
    assert W.nbytes / impl.memory_bytes_grouped(W.shape, 128) == pytest.approx(7.7576, abs=1e-3)


def test_group_scale_overhead_is_the_tradeoff(impl):
    W = np.random.default_rng(4).standard_normal((8, 256))
    few, many = impl.quantize_grouped(W, 128)[1], impl.quantize_grouped(W, 16)[1]
    assert many.size == 8 * few.size


def test_a_layer_of_70b_fits(impl):
    """70e9 weights at group 128: 36.1 GB, where 16 bits need 140."""
    assert impl.memory_bytes_grouped((70_000, 1_000_000 // 128 * 128), 128) == pytest.approx(36.1e9, rel=0.002)


@pytest.mark.parametrize("group_size", [2, 16, 64])
def test_grouped_linear_is_the_product(impl, group_size):
    rng = np.random.default_rng(5)
    W, x = rng.standard_normal((24, 64)), rng.standard_normal((5, 64))
    q, scales = impl.quantize_grouped(W, group_size)
    packed = impl.pack_int4(q)
    given = [each.copy() for each in (x, packed, scales)]
    wanted = x @ (q * np.repeat(scales, group_size, axis=1)).T
    close(impl.grouped_linear(x, packed, scales, group_size), wanted, "product", 1e-9)
    single = impl.grouped_linear(x.astype(np.float32), packed, scales.astype(np.float32), group_size)
    close(single, wanted.astype(np.float32), "product in float32", 1e-4)
    for name, now, then in zip(("x", "packed", "scales"), (x, packed, scales), given, strict=True):
        close(now, then, f"{name} after the call", 0)


def test_w_is_never_there_as_a_whole(impl):
    """512 x 1,024 weights in 256 KiB: unpacked they are 512 KiB, as float32 2 MiB."""
    rng = np.random.default_rng(6)
    q, x = rng.integers(-7, 8, (512, 1024)).astype(np.int8), rng.standard_normal((2, 1024)).astype(np.float32)
    scales = rng.uniform(0.5, 1, (512, 16)).astype(np.float32)
    packed, wanted = impl.pack_int4(q), x @ (q * np.repeat(scales, 64, axis=1)).T
    tracemalloc.start()
    try:
        out = impl.grouped_linear(x, packed, scales, 64)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    close(out, wanted, "product", 0.01)
    assert peak < 1.5 * packed.nbytes + out.nbytes, (
        f"{peak:,} bytes at once; the packed weight has {packed.nbytes:,}. Is the piece before still alive?"
    )


def test_sizes_of_a_checkpoint_that_the_real_engine_loaded(impl):
    """What vLLM 0.22.1 kept of q, k and v of pocket (512 rows, 256 inputs): your numbers predict its shapes."""
    run = json.loads(lzma.decompress((CAPTURED / "cpu-bf16-w4a16.json.xz").read_bytes()))
    stored = {row["name"].rpartition(".")[2]: row["shape"] for row in run["stored"] if "qkv_proj" in row["name"]}
    words, scales = np.prod(stored["weight_packed"]), np.prod(stored["weight_scale"])
    assert 4 * words + 2 * scales == impl.memory_bytes_grouped((512, 256), 128)


def test_your_functions_serve_a_real_model(impl, monkeypatch):
    """A format of the engine made of this lab: every projection of pocket, packed and multiplied by your code."""
    from mini_vllm import LLM, QuantizationConfig, QuantizeMethodBase, SamplingParams
    from mini_vllm.layers import quantization

    class YourMethod(QuantizeMethodBase):
        def create_weights(self, layer, input_size, output_partition_sizes, dtype):
            rows = sum(output_partition_sizes)
            layer.packed = np.empty((rows, input_size // 2), np.uint8)
            layer.scales = np.empty((rows, input_size // 128), np.float32)

        def load_shard(self, layer, rows, source):
            q, scales = impl.quantize_grouped(source.read("weight"), 128)
            layer.packed[rows], layer.scales[rows] = impl.pack_int4(q), scales.astype(np.float16)

        def dequantize_rows(self, layer, rows, out):
            out[:] = impl.dequantize_grouped(impl.unpack_int4(layer.packed[rows]), layer.scales[rows], 128)

        def apply(self, layer, x, out):
            out[:] = impl.grouped_linear(np.ascontiguousarray(x.T), layer.packed, layer.scales, 128).T

    class YourConfig(QuantizationConfig):
        get_name = classmethod(lambda cls: "lab-06-03")
        from_config = classmethod(lambda cls, config: cls())

        def get_quant_method(self, layer_name, kind="linear"):
            return YourMethod() if kind == "linear" else None

    monkeypatch.setattr(quantization, "_CONFIGS", dict(quantization._CONFIGS))
    quantization.register_quantization_config("lab-06-03")(YourConfig)
    answers = []
    for name in ("lab-06-03", "int4"):
        llm = LLM(model=str(POCKET), quantization=name, num_blocks=16, max_model_len=128)
        chat = [{"role": "user", "content": "What is a KV block?"}]
        answers.append(llm.chat([chat], SamplingParams(temperature=0.0, max_tokens=6))[0].outputs[0])
    assert answers[0].token_ids == answers[1].token_ids, answers[0].text


@pytest.mark.parametrize("seed", range(6))
def test_same_as_the_engine(impl, seed):
    from mini_vllm.layers.quantization import primitives, repack

    rng = np.random.default_rng(seed)
    group = int(rng.choice([8, 16, 32]))
    W = rng.standard_normal((int(rng.integers(1, 5)) * 8, group * int(rng.integers(1, 6)))) * 10 ** rng.uniform(-2, 2)
    q, scales = impl.quantize_grouped(W, group)
    theirs = primitives.quantize_grouped(W, group)
    close(q, theirs[0], "codes", 0)
    close(scales, theirs[1], "scales", 0)
    close(impl.pack_int4(q), primitives.pack_int4(q), "bytes", 0)
    nibbles = (q + 8).astype(np.uint8)
    close(impl.pack_int32(nibbles), repack.pack_int32(nibbles, 4), "words", 0)
    columns = np.ascontiguousarray(nibbles.T)
    close(impl.pack_int32(columns, repack.AWQ_ORDER[4]), repack.awq_pack(columns), "AWQ's words", 0)

"""Keys and values in eight bits: what is written comes back nearly, any backend reads it, and more tokens fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.backends.registry import get_attention_backend
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.attention.quantized_kv_cache import QuantizedKVCache, make_kv_cache, quantize_kv
from mini_vllm.kv_cache_interface import KV_CACHE_DTYPES, KVQuantMode, get_kv_quant_mode, kv_bytes_per_token
from mini_vllm.layers.quantization.utils.fp8_utils import decode_e4m3, encode_e4m3
from mini_vllm.tests.helpers import POCKET

QUANTIZED = ["int8", "fp8", "fp8_per_token_head"]
SHAPE = (2, 6, 4, 3, 16)  # layers, blocks, block size, KV heads, head size


def normal(*shape: int, seed: int = 0) -> Any:
    """Standard normal float32."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_names_and_modes() -> None:
    modes = [get_kv_quant_mode(name) for name in KV_CACHE_DTYPES]
    assert modes == [0, 2, 2, 1, 1, 3]
    with pytest.raises(ValueError, match=r"kv_cache_dtype must be one of auto, int8.*, got 'fp4'"):
        get_kv_quant_mode("fp4")


@pytest.mark.parametrize("name", QUANTIZED)
def test_every_number_is_one_byte(name: str) -> None:
    cache = make_kv_cache(*SHAPE, kv_cache_dtype=name)
    layers, blocks, size, heads, dim = SHAPE
    assert isinstance(cache, QuantizedKVCache) and cache.data.itemsize == 1 and cache.dtype == np.float32
    assert cache.nbytes == kv_bytes_per_token(layers * heads, dim, name) * blocks * size
    assert type(make_kv_cache(*SHAPE)) is KVCache


def test_bytes_per_token_of_pocket() -> None:
    # 8 layers of 2 KV heads of 64 numbers, keys and values; int8 has 4 bytes of scale for each 64 numbers.
    found = {name: kv_bytes_per_token(16, 64, name) for name in ("auto", "int8", "fp8")}
    assert found == {"auto": 8192, "int8": 2176, "fp8": 2048}


@pytest.mark.parametrize(("name", "most"), [("int8", 0.005), ("fp8", 0.03), ("fp8_per_token_head", 0.03)])
def test_what_is_written_comes_back_nearly(name: str, most: float) -> None:
    cache = make_kv_cache(*SHAPE, kv_cache_dtype=name)
    k, v = normal(5, 3, 16), normal(5, 3, 16, seed=1)
    slots = np.array([9, 4, 20, 5, 23])
    cache.write(1, slots, k, v)
    out = np.empty((6, cache.data[0, 0].size), np.float32)
    cache.gather(1, np.arange(6), out)
    gathered = out.reshape(24, 2, 3, 16)
    for at, (wanted, whole) in enumerate(((k, cache.key(1)), (v, cache.value(1)))):
        assert np.linalg.norm(gathered[slots, at] - wanted) < most * np.linalg.norm(wanted) * 1.5
        np.testing.assert_array_equal(gathered[:, at], whole.reshape(24, 3, 16))
    others = np.setdiff1d(np.arange(24), slots)
    assert not gathered[others].any() and not cache.data[0].any()


def test_a_loud_head_does_not_touch_its_neighbours() -> None:
    x = normal(4, 3, 16)
    x[:, 1] *= 1000
    codes, scales = quantize_kv(x, KVQuantMode.INT8_PER_TOKEN_HEAD)
    assert scales is not None and scales.shape == (4, 3)
    error = np.abs(codes * scales[..., None] - x)
    assert (error <= scales[..., None] / 2 * (1 + 1e-5)).all()
    assert np.abs(codes).max(axis=-1).min() == 127


def test_rounding_is_half_the_error_of_cutting_off() -> None:
    """Upstream's kernel cuts off (see `quantize_kv`)."""
    x = normal(64, 2, 64)
    codes, scales = quantize_kv(x, KVQuantMode.INT8_PER_TOKEN_HEAD)
    assert scales is not None
    cut = np.trunc(x / scales[..., None]).astype(np.int8)
    errors = [np.linalg.norm(q * scales[..., None] - x) for q in (codes, cut)]
    assert errors[1] / errors[0] == pytest.approx(2, abs=0.1)


def test_fp8_has_scale_one_and_saturates() -> None:
    cache = make_kv_cache(*SHAPE, kv_cache_dtype="fp8")
    assert isinstance(cache, QuantizedKVCache) and cache.scales is None
    k = normal(1, 3, 16)
    k[0, 0, 0] = 1e6
    cache.write(0, slice(4, 5), k, k)
    np.testing.assert_array_equal(cache.key(0)[1, 0], decode_e4m3(encode_e4m3(k[0])))
    assert cache.key(0)[1, 0, 0, 0] == 448


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("backend", ["dense", "paged_gather", "paged_online", "split_kv"])
def test_every_backend_reads_the_same_floats(name: str, backend: str) -> None:
    """Attention over the quantized cache equals attention over floats that went through the same rounding."""
    rng = np.random.default_rng(4)
    lens, query_lens = np.array([9, 14, 5]), np.array([1, 6, 1])
    starts = np.concatenate([[0], np.cumsum(query_lens)])
    tables = np.array([[1, 2, 3, 0], [4, 5, 6, 7], [8, 9, 0, 0]])
    slots = np.concatenate([
        tables[row, pos // 4] * 4 + pos % 4
        for row, (n, q) in enumerate(zip(lens, query_lens, strict=True)) for pos in [np.arange(n - q, n)]
    ])  # fmt: skip
    shape = (1, 10, 4, 3, 16)
    quantized, plain = make_kv_cache(*shape, kv_cache_dtype=name), KVCache(*shape)
    context = rng.standard_normal((2, 40, 3, 16)).astype(np.float32)
    quantized.write(0, np.arange(40), *context)
    q, k, v = (rng.standard_normal((8, heads, 16)).astype(np.float32) for heads in (6, 3, 3))
    quantized.write(0, slots, k, v)
    plain.write(0, np.arange(40), *quantized.slots(0))
    metadata = AttentionMetadata(starts, lens, tables, slots)
    found = get_attention_backend(backend)(quantized, 6, [None]).begin_step(metadata)(0, q, k, v)
    expected = get_attention_backend("dense")(plain, 6, [None]).begin_step(metadata)(0, q, *_rounded(k, v, name))
    np.testing.assert_allclose(found, expected, atol=2e-6)


def _rounded(k: Any, v: Any, name: str) -> tuple[Any, Any]:
    cache = make_kv_cache(1, 8, 1, 3, 16, kv_cache_dtype=name)
    cache.write(0, np.arange(8), k, v)
    return cache.slots(0)


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_nan_does_not_outlive_its_request(name: str) -> None:
    cache = make_kv_cache(*SHAPE, kv_cache_dtype=name)
    k = normal(4, 3, 16)
    k[2, 1, 5] = np.nan
    with np.errstate(invalid="ignore"):
        cache.write(0, slice(8, 12), k, k)
        assert np.isnan(cache.key(0)[2]).any()
    cache.clear_blocks(np.array([2]))
    assert not np.isnan(cache.key(0)).any() and not cache.key(0)[2].any()


PROMPTS = ["What is a KV block?", "What is 47 + 85?", "Tell me a joke.", "Why do we need a block table?"]


def answers(**args: Any) -> tuple[LLM, list[list[int]]]:
    """Greedy answers of pocket to four questions, 24 tokens each at most."""
    llm = LLM(str(POCKET), kv_cache_memory_bytes=32 << 20, **args)
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    outputs = llm.chat(chats, SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False)
    return llm, [output.outputs[0].token_ids for output in outputs]


def test_pocket_answers_the_same_and_more_tokens_fit() -> None:
    llm, exact = answers()
    blocks = llm.llm_engine.engine_core.num_blocks
    for name, factor in (("int8", 8192 / 2176), ("fp8", 4.0)):
        llm, found = answers(kv_cache_dtype=name)
        same = sum(a == b for x, y in zip(exact, found, strict=True) for a, b in zip(x, y, strict=False))
        assert same >= 0.95 * sum(map(len, exact))
        assert llm.llm_engine.engine_core.num_blocks == pytest.approx(factor * blocks, abs=1)
        cache = llm.llm_engine.engine_core.model_runner.kv_cache
        assert cache is not None and cache.data.itemsize == 1 and cache.nbytes <= 32 << 20


def test_the_cache_is_really_read() -> None:
    """Were keys and values kept elsewhere in floats, breaking the scales would go unnoticed."""
    llm, exact = answers(kv_cache_dtype="int8")
    cache: Any = llm.llm_engine.engine_core.model_runner.kv_cache
    write = cache.write

    def broken(layer: int, slots: Any, k: Any, v: Any) -> None:
        write(layer, slots, k, v)
        cache.scales[layer] *= 0

    cache.write = broken
    llm.llm_engine.reset_prefix_cache()
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    outputs = llm.chat(chats, SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] != exact


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_prefix_caching_and_preemption_change_nothing(name: str) -> None:
    """A quantized block is shared as any other; a preempted request computes the same codes again."""
    args = {"kv_cache_dtype": name, "dtype": "float64", "block_size": 8}
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    prompts = [{"prompt_token_ids": [1, *range(40, 56), 7 + i]} for i in range(6)]
    found = []
    for extra in ({"enable_prefix_caching": False, "num_blocks": 200}, {"num_blocks": 16, "max_model_len": 64}):
        llm = LLM(str(POCKET), **args, **extra)
        found.append([out.outputs[0].token_ids for out in llm.generate(prompts, params, use_tqdm=False)])
    assert found[0] == found[1]


@pytest.mark.slow
def test_ranks_keep_quantized_caches_of_their_own() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompts = [{"prompt_token_ids": [1, 20 + i, 30, 40]} for i in range(6)]
    found = []
    for ranks in (1, 2):
        llm = LLM(str(POCKET), kv_cache_dtype="int8", dtype="float64", tensor_parallel_size=ranks, num_blocks=64)
        found.append([out.outputs[0].token_ids for out in llm.generate(prompts, params, use_tqdm=False)])
    assert found[0] == found[1]

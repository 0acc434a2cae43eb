"""Lab 00-02: the KV formula, the division that gives users per card, and vLLM's own startup figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

GIB = 1024**3
MIB = 1024**2


def test_llama3_8b_per_token(impl) -> None:
    got = impl.kv_bytes_per_token(num_layers=32, num_kv_heads=8, head_dim=128)
    assert got == 131_072, (
        f"expected 2 * 32 * 8 * 128 * 2 = 131,072 bytes, got {got}. "
        "README, 'What to implement': K and V, hence the first 2"
    )


def test_every_factor_counts(impl) -> None:
    got = impl.kv_bytes_per_token(3, 5, 7, 4)
    assert got == 840, f"expected 2 * 3 * 5 * 7 * 4 = 840, got {got}: each factor of the formula multiplies"
    assert impl.kv_bytes_per_token(80, 8, 128) == 327_680, "Llama-3-70B: 320 KiB per token"
    assert impl.kv_bytes_per_token(8, 2, 64, 4) == 8_192, "the course's pocket model in fp32: 8 KiB per token"


CONFIGS = {
    "all keys": ({"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
                  "head_dim": 128}, 2, 131_072),
    "no head_dim, as Qwen2.5-0.5B": ({"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                                      "hidden_size": 896}, 2, 12_288),
    "head_dim null": ({"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                       "hidden_size": 896, "head_dim": None}, 1, 6_144),
    "from before GQA, as Llama-1-7B": ({"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}, 2,
                                       524_288),
    "num_key_value_heads null": ({"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
                                  "num_key_value_heads": None}, 2, 524_288),
    "one KV head": ({"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 1, "hidden_size": 64}, 2,
                    64),
    "head_dim is not hidden_size / heads, as Qwen3-0.6B": (
        {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 1024,
         "head_dim": 128, "torch_dtype": "bfloat16"}, 2, 114_688),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_bytes_of_a_config(impl, name: str) -> None:
    config, dtype_bytes, expected = CONFIGS[name]
    before = dict(config)
    got = impl.kv_bytes_of_config(config, dtype_bytes)
    assert got == expected, f"a config.json with {name}: expected {expected:,} bytes per token, got {got}"
    if dtype_bytes == 2:
        assert impl.kv_bytes_of_config(config) == expected, "two bytes a number unless told otherwise"
    assert isinstance(got, int), f"bytes are an int, got {type(got).__name__}"
    assert config == before, "the config was changed"


def test_bytes_of_pockets_config(impl) -> None:
    file = Path(__file__).resolve().parents[3] / "models" / "pocket" / "config.json"
    got = impl.kv_bytes_of_config(json.loads(file.read_text(encoding="utf-8")), dtype_bytes=4)
    assert got == 8_192, f"models/pocket with a cache in fp32: expected 8 KiB per token, got {got}"


def test_bytes_per_sequence(impl) -> None:
    got = impl.kv_bytes_per_seq(131_072, 2048)
    assert got == 256 * MIB, f"expected 131,072 * 2,048 = 256 MiB = {256 * MIB}, got {got}"
    assert impl.kv_bytes_per_seq(131_072, 0) == 0, "an empty sequence occupies nothing"


def test_llama3_8b_concurrency(impl) -> None:
    per_seq = 256 * MIB
    got = impl.max_concurrent_seqs(24 * GIB, 16 * GIB, per_seq)
    assert got == 32, f"expected (24 - 16) GiB / 256 MiB = 32, got {got}. README, 'What you should see'"
    assert isinstance(got, int), f"a count of sequences is an int, got {type(got).__name__}"


def test_a_part_of_a_sequence_does_not_count(impl) -> None:
    assert impl.max_concurrent_seqs(1000, 0, 300) == 3, "1000 / 300 = 3.33: three fit, not 3.33 and not 4"
    assert impl.max_concurrent_seqs(1199, 0, 300) == 3, "1199 / 300 = 3.997: still three"
    assert impl.max_concurrent_seqs(1200, 0, 300) == 4, "1200 / 300 = 4 exactly: four fit"
    got = impl.max_concurrent_seqs(3 * 10**17, 1, 10**17)
    assert got == 2, f"one byte short of three sequences of 10^17 bytes: two fit, got {got}; floats are not exact here"


def test_fp8_kv_doubles_concurrency(impl) -> None:
    per_token = impl.kv_bytes_per_token(32, 8, 128, dtype_bytes=1)
    got = impl.max_concurrent_seqs(24 * GIB, 16 * GIB, impl.kv_bytes_per_seq(per_token, 2048))
    assert got == 64, f"half the bytes per number, twice the sequences: expected 64, got {got}"


def test_gqa_saves_vs_mha(impl) -> None:
    mha = impl.kv_bytes_per_token(32, 32, 128)
    gqa = impl.kv_bytes_per_token(32, 8, 128)
    assert mha == 4 * gqa, f"32 KV heads against 8: expected four times the bytes, got {mha} and {gqa}"


def test_no_room_returns_zero(impl) -> None:
    assert impl.max_concurrent_seqs(24 * GIB, 24 * GIB, 1) == 0, "weights fill the card: no byte is left"
    got = impl.max_concurrent_seqs(24 * GIB, 141 * GIB, 256 * MIB)
    assert got == 0, f"weights larger than the card: expected 0, got {got}. README: never a negative number of users"


def test_a_sequence_of_zero_bytes_is_refused(impl) -> None:
    for per_seq in (0, -5):
        with pytest.raises(ValueError, match=rf"^per_seq must be at least 1 byte, got {per_seq}$"):
            impl.max_concurrent_seqs(24 * GIB, 16 * GIB, per_seq)
        with pytest.raises(ValueError, match=rf"^per_seq must be at least 1 byte, got {per_seq}$"):
            impl.max_concurrent_seqs(1, 2, per_seq)  # no room: still refused
    assert impl.max_concurrent_seqs(10, 4, 1) == 6, "one byte is the smallest sequence allowed"


def test_engine_capacity_where_lengths_are_whole_blocks(impl) -> None:
    got = impl.engine_capacity(8 * GIB, 131_072, max_model_len=2048)
    assert got == (4096, 65_536, 32.0), (
        f"expected 4,096 blocks of 2 MiB, 65,536 tokens, 32.0 sequences, got {got}. README, 'What you should see'"
    )


def test_engine_capacity_rounds_a_sequence_up_to_blocks(impl) -> None:
    num_blocks, num_tokens, concurrency = impl.engine_capacity(8 * GIB, 131_072, max_model_len=1000)
    assert num_blocks == 4096
    assert concurrency == pytest.approx(4096 / 63), (
        f"1,000 tokens need ceil(1000 / 16) = 63 blocks, so 4096 / 63 = 65.02 sequences, got {concurrency}"
    )
    assert num_tokens == 65_015, (
        f"65.0158 sequences of 1,000 tokens: expected 65,015, got {num_tokens}; it is less than 4096 * 16 = 65,536"
    )
    assert [type(x) for x in (num_blocks, num_tokens, concurrency)] == [int, int, float], "two counts and a ratio"
    got = impl.engine_capacity(8 * GIB, 131_072, max_model_len=1000, block_size=32)
    assert got == (2048, 64_000, 64.0), f"blocks of 32: 1,000 tokens need 32 of 2,048 blocks, got {got}"
    assert impl.engine_capacity(1600, 10, 5) == (10, 50, 10.0), "5 tokens still take a whole block"


def test_engine_capacity_drops_a_partial_block(impl) -> None:
    assert impl.engine_capacity(1599, 10, 16, block_size=16) == (9, 144, 9.0), "1599 // 160 = 9 blocks, not 9.99"
    assert impl.engine_capacity(1599, 10, 4, block_size=4) == (39, 156, 39.0), "blocks of 4 tokens lose less"
    assert impl.engine_capacity(100, 10, 16)[0] == 0, "less than one block: no block"


@pytest.mark.parametrize("log", ["startup-1000", "startup-2048", "h200-opt-125m-256", "h200-opt-125m-2048"])
def test_agrees_with_the_log_of_the_real_engine(impl, log: str) -> None:
    """Four starts of vLLM 0.22.1, captured (`captured/provenance.json`): pocket on a CPU, OPT-125m on an H200."""
    text = (Path(__file__).with_name("captured") / f"{log}.log").read_text(encoding="utf-8")
    tokens = int(re.search(r"cache size: ([\d,]+) tokens", text)[1].replace(",", ""))
    length, concurrency = re.search(r"concurrency for ([\d,]+) tokens per request: ([\d.]+)x", text).groups()
    num_blocks = int(re.search(r"num_gpu_blocks (\d+)", text)[1])
    per_token = (
        impl.kv_bytes_per_token(8, 2, 64, 4) if log.startswith("startup") else impl.kv_bytes_per_token(12, 12, 64)
    )
    available = 512 * MIB if log.startswith("startup") else num_blocks * 16 * per_token + 12_345
    got = impl.engine_capacity(available, per_token, int(length.replace(",", "")))
    assert got[:2] == (num_blocks, tokens) and f"{got[2]:.2f}" == concurrency, (
        f"{log}: vLLM printed {num_blocks} blocks, {tokens} tokens, {concurrency}x, you computed {got}. "
        "README, 'What you should see'"
    )


def test_block_rounding_never_gains(impl) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        available = int(rng.integers(1, 10**9))
        per_token = int(rng.integers(1, 5000))
        length = int(rng.integers(1, 3000))
        block = int(rng.choice([1, 8, 16, 32]))
        exact = available / (per_token * length)
        num_blocks, num_tokens, concurrency = impl.engine_capacity(available, per_token, length, block)
        assert concurrency <= exact * (1 + 1e-9), "README, 'Background': blocks can only cost room"
        assert num_blocks * block * per_token <= available, "the blocks must fit into the memory"
        assert num_blocks == available // (block * per_token), f"{available=}, {per_token=}, {block=}: whole blocks"
        blocks = -(-length // block)
        assert concurrency == pytest.approx(num_blocks / blocks, rel=1e-12), f"{num_blocks} blocks, {blocks} a sequence"
        assert num_tokens in (int(concurrency * length), num_blocks * length // blocks), f"{concurrency} of {length}"
        assert num_tokens <= num_blocks * block, "no more tokens than slots"

"""Upstream's hashes of blocks: the digests of the pinned release, and an engine that uses them."""

import sys

import pytest

from mini_vllm import LLM, EngineArgs, LLMEngine, SamplingParams
from mini_vllm.core.kv_cache_utils import get_block_hash, get_group_id, make_block_hash_with_group_id
from mini_vllm.utils.hashing import PREFIX_CACHING_HASH_ALGOS, get_block_hasher, get_hash_fn_by_name

DIGESTS = {
    "sha256": [
        "d67577b119fe6ece7c79db2df846bd1a74e0a371406bfef1ecb009d0a3c0a804",
        "3ada45dd1141ada6228b058fc9cb689a1d8fc12dfff5c199ec80b9deafbab0d5",
    ],
    "sha256_cbor": [
        "fc4ede16a2de1e091ff40df14d03495873c6222d8e61532d7f2682cbfe0401a9",
        "9346c95939ea28dd628a8d6c65ac970e2eb2c32d8b56d33c29d79c36fc2ebf9f",
    ],
    "xxhash": ["186e4c5eaa25c0fdf606e2bf8afc4128", "7d9719304940c49dba99f5a7ef13220c"],
    "xxhash_cbor": ["bb29b422ae2526db96b716ceda012b72", "47d9ada2f564822363376052e9be78d8"],
}
"""Two blocks in a chain, the first with a salt, PYTHONHASHSEED=0: what `vllm.utils.hashing` of 0.22.1 gives with cbor2
6.3.0 and xxhash 4.1.0; the first two also what its `hash_block_tokens` gives."""
EVERY = pytest.mark.parametrize("algo", PREFIX_CACHING_HASH_ALGOS)


def hash_fn(algo):
    for part, library in (("xxhash", "xxhash"), ("cbor", "cbor2")):
        if part in algo:
            pytest.importorskip(library)
    return get_hash_fn_by_name(algo)


@EVERY
def test_digests_are_those_of_the_pinned_release(algo, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    hash_block = get_block_hasher(hash_fn(algo))
    first = hash_block(None, [1, 2, 3, 4], ("salt",))
    assert [first.hex(), hash_block(first, (5, 600, 70000, 8)).hex()] == DIGESTS[algo]
    monkeypatch.delenv("PYTHONHASHSEED")
    assert get_block_hasher(hash_fn(algo))(None, [1]) == hash_fn(algo)((bytes(32), (1,), None))


@EVERY
def test_an_engine_names_its_blocks_so_and_finds_them_again(algo):
    expected = get_block_hasher(hash_fn(algo))
    llm = LLM(num_blocks=32, block_size=4, prefix_caching_hash_algo=algo)
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    tokens = [llm.generate([{"prompt_token_ids": list(range(2, 12))}], params)[0] for _ in range(2)]
    assert tokens[0].outputs[0].token_ids == tokens[1].outputs[0].token_ids and tokens[1].num_cached_tokens == 8
    engine = llm.llm_engine
    engine.add_request("a", {"prompt_token_ids": list(range(2, 12)), "cache_salt": "x"}, params)
    first = expected(None, (2, 3, 4, 5), ("x",))
    assert engine.scheduler.requests["a"].block_hashes == [first, expected(first, (6, 7, 8, 9))]


@EVERY
def test_a_hash_of_any_length_keeps_its_group(algo):
    block_hash = bytes.fromhex(DIGESTS[algo][0])
    for content in (block_hash, block_hash * 3):  # of one block, and of three that make a longer one
        for group in (0, 1, 7):
            key = make_block_hash_with_group_id(content, group)
            assert (get_block_hash(key), get_group_id(key)) == (content, group)


def test_a_wrong_name_and_a_library_that_is_not_here_are_refused_by_name(monkeypatch):
    with pytest.raises(ValueError, match=r"prefix_caching_hash_algo must be one of sha256, .*, got 'md5'"):
        LLM(num_blocks=8, prefix_caching_hash_algo="md5")
    for library, algo in (("cbor2", "sha256_cbor"), ("xxhash", "xxhash"), ("xxhash", "xxhash_cbor")):
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.setitem(sys.modules, "cbor2", None if library == "cbor2" else object())
        with pytest.raises(
            ImportError, match=f"prefix_caching_hash_algo='{algo}' needs {library}: pip install {library}"
        ):
            EngineArgs(prefix_caching_hash_algo=algo).create_engine_config()
    assert LLMEngine(num_blocks=8, prefix_caching_hash_algo=None).config.prefix_caching_hash_algo is None

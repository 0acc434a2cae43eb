"""Keys gathered once for a chain of drafts: what the backend's own attention computes, pass after pass."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.backends.dense import DenseBackend
from mini_vllm.attention.backends.paged_gather import PagedGatherBackend
from mini_vllm.attention.kv_cache import KVCache
from mini_vllm.attention.quantized_kv_cache import make_kv_cache
from mini_vllm.spec_decode import llm_base_proposer
from mini_vllm.spec_decode.chain_attention import chain_attention
from mini_vllm.tests.helpers import MODELS, POCKET

LAYERS, BLOCKS, SIZE, KV_HEADS, HEADS, DIM = 2, 40, 4, 2, 6, 8


def make(kind=PagedGatherBackend, **more):
    rng = np.random.default_rng(0)
    cache = KVCache(LAYERS, BLOCKS, SIZE, KV_HEADS, DIM, "float64")
    cache.data[:] = rng.normal(size=cache.data.shape)
    return kind(cache, HEADS, [None] * LAYERS, **more)


@pytest.mark.parametrize("starts", [[9], [0], [7, 12, 3], [15, 15]])
def test_every_pass_is_the_backends_own(starts):
    """Requests of several lengths over blocks in disorder; chains that cross the end of a block."""
    rng, passes = np.random.default_rng(1), 6
    positions, rows = np.array(starts), np.arange(len(starts))
    table = rng.permutation(np.arange(1, BLOCKS))[: len(starts) * 6].reshape(len(starts), 6)
    mine, judge = make(), make(DenseBackend)
    chain = chain_attention(mine, table, positions, passes)
    for index in range(passes):
        here = positions + index
        slots = table[rows, here // SIZE] * SIZE + here % SIZE
        step = judge.begin_step(AttentionMetadata(np.arange(len(rows) + 1), here + 1, table, slots))
        for layer in range(LAYERS):
            q = rng.normal(size=(len(rows), HEADS, DIM))
            k, v = rng.normal(size=(2, len(rows), KV_HEADS, DIM))
            assert np.allclose(chain(layer, q, k, v), step(layer, q, k, v), atol=1e-12), (index, layer)
        chain.advance()
    assert np.array_equal(mine.kv_cache.data, judge.kv_cache.data), "the cache has what was written, pass by pass"


def test_where_it_is_not_for():
    table, one = np.ones((1, 4), int), np.array([3])
    assert chain_attention(make(), table, one, 2) is not None
    assert chain_attention(make(DenseBackend), table, one, 2) is None and chain_attention(make(), table, one, 0) is None
    windowed = PagedGatherBackend(make().kv_cache, HEADS, [None, 4])
    quantized = PagedGatherBackend(
        make_kv_cache(1, 8, SIZE, KV_HEADS, DIM, np.float32, "int8_per_token_head"), 6, [None]
    )
    assert chain_attention(windowed, table, one, 2) is None and chain_attention(quantized, table, one, 2) is None
    large = np.ones((64, 20_000), int)
    assert chain_attention(make(), large, np.full(64, 60_000), 2) is None, "16 MiB at most"


@pytest.mark.parametrize("name", ["eagle", "draft_model"])
def test_drafts_are_the_same_with_it_and_without(name, monkeypatch):
    """Ragged batches, tokens and acceptance; float64, so that nothing hangs on a last bit."""
    model = MODELS / ("pocket-eagle" if name == "eagle" else "pocket-draft")
    config = {"method": name, "model": str(model), "num_speculative_tokens": 4}
    prompts = ["What is meant by Prefill?", "Tell me a story about a lamp.", "What is 17 + 25?"]
    told, used = [], []
    real = chain_attention
    for chosen in (lambda *given: used.append(1) or real(*given), lambda *given: None):
        monkeypatch.setattr(llm_base_proposer, "chain_attention", chosen)
        llm = LLM(str(POCKET), dtype="float64", num_blocks=64, max_model_len=256, speculative_config=config)
        params = SamplingParams(temperature=0.0, max_tokens=14)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        stats = llm.llm_engine.stats.spec_decoding
        told.append(([o.outputs[0].token_ids for o in outputs], stats.num_draft_tokens, stats.num_accepted_tokens))
    assert told[0] == told[1] and used and told[0][2] > 0

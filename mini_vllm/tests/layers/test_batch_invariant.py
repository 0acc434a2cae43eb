"""`VLLM_BATCH_INVARIANT=1`: the same bits whatever the batch, its order, the chunks and the cache; and nothing else
changes."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm import LLM, EngineConfig, SamplingParams
from mini_vllm.distributed import shared_memory
from mini_vllm.layers import batch_invariant
from mini_vllm.layers.batch_invariant import TILE, linear_batch_invariant, place_does_not_matter
from mini_vllm.tests.helpers import MODELS, POCKET
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

needs_pocket = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
SHARED = "The scheduler plans a step. "
PROMPTS = ["What is a KV block?", SHARED + "A block", "Hi", SHARED + "The runner makes flat arrays of it", "é 漢字 ok",
           "x", SHARED * 3, "A page"]  # fmt: skip


@pytest.fixture
def invariant(monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")


def bits(outputs):
    """All log-probabilities that a request reported, exactly."""
    return [
        ([{t: e.logprob for t, e in step.items()} for step in output.outputs[0].logprobs],
         [{t: e.logprob for t, e in (step or {}).items()} for step in output.prompt_logprobs or ()])
        for output in outputs
    ]  # fmt: skip


def run(folder, prompts, params, **args):
    llm = LLM(str(folder), **{"num_blocks": 256, "max_num_seqs": 16, **args})
    return llm.generate(prompts, params, use_tqdm=False)


def params(i, **given):
    kinds = ({"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9, "seed": i}, {"temperature": 1.2, "seed": i})
    return SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3, **{**kinds[i % 3], **given})


@pytest.mark.parametrize(("rows", "columns"), [(40, 24), (512, 256), (300, 700), (4096, 256), (1, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_has_the_same_bits_in_every_batch_and_at_every_place(rows, columns, dtype):
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((rows, columns)).astype(dtype)
    x = rng.standard_normal((70, columns)).astype(dtype)
    alone = np.concatenate([linear_batch_invariant(row[None], weight) for row in x])
    assert np.allclose(alone, x @ weight.T, rtol=1e-4, atol=1e-4)
    for size in (*range(1, 2 * TILE + 2), 33, 64, 70):
        assert np.array_equal(linear_batch_invariant(x[:size], weight), alone[:size])
    order = rng.permutation(70)
    assert np.array_equal(linear_batch_invariant(x[order], weight), alone[order])
    assert np.array_equal(linear_batch_invariant(np.asfortranarray(x), weight), alone)


def test_rows_go_one_by_one_where_a_tile_minds_the_place(monkeypatch):
    weight = np.random.default_rng(0).standard_normal((30, 20)).astype(np.float32)

    def minds(x, weight):
        return x @ weight.T + np.arange(len(x), dtype=np.float32)[:, None]

    monkeypatch.setattr(batch_invariant, "_safe", {})
    monkeypatch.setattr(batch_invariant, "_in_tiles", minds)
    assert not place_does_not_matter(weight)
    x = np.ones((5, 20), dtype=np.float32)
    out = linear_batch_invariant(x, weight)
    assert np.array_equal(out, np.repeat(out[:1], 5, axis=0)) and np.allclose(out[0], weight.sum(axis=1), atol=1e-5)


@needs_pocket
@pytest.mark.slow
def test_batch_sizes_orders_and_chunks_change_no_bit(invariant):
    given = [params(i) for i in range(len(PROMPTS))]
    alone = [run(POCKET, [prompt], [each])[0] for prompt, each in zip(PROMPTS, given, strict=True)]
    expected = bits(alone)
    for count, args in ((len(PROMPTS), {}), (3, {}), (len(PROMPTS), {"max_num_batched_tokens": 16}),
                        (len(PROMPTS), {"max_num_batched_tokens": 23, "max_num_seqs": 3, "block_size": 4}),
                        (len(PROMPTS), {"enable_prefix_caching": False, "async_scheduling": True})):  # fmt: skip
        outputs = run(POCKET, PROMPTS[:count], given[:count], **args)
        assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in alone[:count]]
        assert bits(outputs) == expected[:count]
    turned = run(POCKET, PROMPTS[::-1], given[::-1])
    assert bits(turned) == expected[::-1]


@needs_pocket
def test_prompts_the_prefix_cache_and_preemption_change_no_bit(invariant):
    given = [params(i, prompt_logprobs=2, skip_reading_prefix_cache=True) for i in range(4)]
    alone = [run(POCKET, [prompt], [each])[0] for prompt, each in zip(PROMPTS[:4], given, strict=True)]
    assert bits(run(POCKET, PROMPTS[:4], given, max_num_batched_tokens=8, max_num_seqs=4)) == bits(alone)
    llm = LLM(str(POCKET), num_blocks=14, block_size=4, max_num_batched_tokens=16, scheduler_reserve_full_isl=False)
    plain = [params(0), params(1), params(2)]
    first, second = (llm.generate([PROMPTS[1], PROMPTS[3], PROMPTS[6]], plain, use_tqdm=False) for _ in range(2))
    assert any(output.num_cached_tokens for output in second) and bits(first) == bits(second)
    assert llm.llm_engine.scheduler.num_preemptions > 0


@needs_pocket
def test_it_is_off_unless_asked_for_and_changes_no_token_in_float64(monkeypatch):
    plain = run(POCKET, PROMPTS, [params(i) for i in range(len(PROMPTS))], dtype="float64")
    assert not EngineConfig().enforce_eager
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert EngineConfig().enforce_eager
    with_it = run(POCKET, PROMPTS, [params(i) for i in range(len(PROMPTS))], dtype="float64")
    assert [o.outputs[0].token_ids for o in plain] == [o.outputs[0].token_ids for o in with_it]


@pytest.mark.parametrize(
    "architecture", ["llama", "opt", pytest.param("qwen3", marks=pytest.mark.slow), "mistral-window"]
)
def test_other_architectures(architecture, invariant, tmp_path):
    folder = save_tiny(architecture, tmp_path / architecture)
    rng = np.random.default_rng(0)
    prompts = [{"prompt_token_ids": rng.integers(3, 200, n).tolist()} for n in (3, 17, 9, 40)]
    given = [params(i, detokenize=False) for i in range(4)]
    alone = [run(folder, [prompt], [each])[0] for prompt, each in zip(prompts, given, strict=True)]
    assert bits(run(folder, prompts, given, max_num_batched_tokens=12, max_num_seqs=4)) == bits(alone)


def test_what_makes_no_promise_is_refused_by_name(invariant, monkeypatch):
    if (MODELS / "pocket-moe").is_dir():
        with pytest.raises(ValueError, match=r"dense models with float weights: .*experts.* makes no promise"):
            LLM(str(MODELS / "pocket-moe"), num_blocks=64)
    if POCKET.is_dir():
        with pytest.raises(ValueError, match=r"dense models with float weights: .*\(QKVParallelLinear\)"):
            LLM(str(POCKET), num_blocks=64, quantization="int8")
        with pytest.raises(ValueError, match=r"paged_gather is not valid .*batch invariance not supported"):
            LLM(str(POCKET), num_blocks=64, attention_backend="paged_gather")
        with pytest.raises(ValueError, match=r"per_token is not valid .*kv_cache_dtype not supported"):
            LLM(str(POCKET), num_blocks=64, kv_cache_dtype="fp8")
    LLM(num_blocks=64)  # the toy model has no weights
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "yes")
    with pytest.raises(ValueError, match="VLLM_BATCH_INVARIANT must be 0 or 1, got 'yes'"):
        EngineConfig()


@needs_pocket
@pytest.mark.slow
@pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
def test_two_ranks_keep_the_promise_among_themselves(invariant):
    given = [params(i) for i in range(3)]
    alone = [run(POCKET, [p], [each], tensor_parallel_size=2)[0] for p, each in zip(PROMPTS[:3], given, strict=True)]
    assert bits(
        run(POCKET, PROMPTS[:3], given, tensor_parallel_size=2, max_num_batched_tokens=8, max_num_seqs=4)
    ) == bits(alone)

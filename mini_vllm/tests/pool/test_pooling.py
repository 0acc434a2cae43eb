"""Pooling in the engine: ragged batches are one by one, chunks and caches and preemption change nothing, doors."""

import asyncio

import numpy as np
import pytest

from mini_vllm import LLM, AsyncLLM, PoolingParams, SamplingParams
from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint, write_safetensors
from mini_vllm.model_loader.safetensors_reader import Checkpoint
from mini_vllm.pool.metadata import PoolingMetadata, PoolingStates
from mini_vllm.tests.models.pooling_checkpoints import FAMILIES, TASKS, VOCAB, engine_args, prompts, save_family


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("pooling")
    return {family: str(save_family(family, root / family)) for family in FAMILIES}


def make(folders, family, **args):
    return LLM(folders[family], dtype="float64", **engine_args(family), **args)


def pooled(llm, given, task, params=None):
    return [output.outputs.data for output in llm.encode(given, params, pooling_task=task, use_tqdm=False)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_ragged_batch_is_one_by_one(folders, family):
    llm = make(folders, family)
    assert llm.supported_tasks == TASKS[family]
    for task in TASKS[family]:
        together = pooled(llm, prompts(), task)
        for ids, got in zip(prompts(), together, strict=True):
            np.testing.assert_allclose(got, pooled(llm, [ids], task)[0], atol=1e-12)


@pytest.mark.parametrize("kind", ["CLS", "LAST", "MEAN"])
def test_chunks_caches_and_preemption_change_nothing(folders, kind):
    config = {"pooling_type": kind}
    want = pooled(
        make(folders, "qwen3-embedding", pooler_config=config, enable_prefix_caching=False), prompts(), "embed"
    )
    tight = {"max_num_batched_tokens": 7, "block_size": 4, "num_blocks": 17, "scheduler_reserve_full_isl": False}
    llm = make(folders, "qwen3-embedding", pooler_config=config, **tight)
    for _ in range(2):
        np.testing.assert_allclose(pooled(llm, prompts(), "embed"), want, atol=1e-12)
    for row, one in zip(pooled(llm, prompts(), "token_embed"), prompts(), strict=True):
        assert row.shape == (len(one), 64)
    hits = [output.num_cached_tokens for output in llm.embed([prompts()[4]] * 2, use_tqdm=False)]
    assert any(hits) == (kind == "LAST"), "a mean needs all rows"


def test_tasks_and_settings_mix_in_one_batch(folders):
    llm = make(folders, "bert")
    wanted = [PoolingParams(task="embed", dimensions=16), PoolingParams(task="token_embed"),
              PoolingParams(task="embed", use_activation=False), PoolingParams(task="embed")]  # fmt: skip
    for i, params in enumerate(wanted):
        llm.llm_engine.add_request(str(i), prompts()[2], params)
    done = {}
    while llm.llm_engine.has_unfinished_requests():
        done |= {output.request_id: output.outputs.data for output in llm.llm_engine.step()}
    short, tokens, raw, whole = (done[str(i)] for i in range(4))
    assert tokens.shape == (17, 64) and len(short) == 16
    np.testing.assert_allclose([np.linalg.norm(short), np.linalg.norm(whole)], 1)
    np.testing.assert_allclose(raw / np.linalg.norm(raw), whole, atol=1e-12)
    np.testing.assert_allclose(short, whole[:16] / np.linalg.norm(whole[:16]), atol=1e-12)


def test_steps_of_a_reward_model(folders):
    llm = make(folders, "qwen2-process-reward")
    every = make(folders, "qwen2-process-reward", pooler_config={"pooling_type": "ALL"})
    [all_rows] = pooled(every, [[5, 7, 9, 7, 8]], "token_classify")
    [at_tag] = pooled(llm, [[5, 7, 9, 7, 8]], "token_classify", PoolingParams(step_tag_id=7))
    np.testing.assert_allclose(at_tag, all_rows[[1, 3]], atol=1e-12)
    [column] = pooled(
        llm, [[5, 7]], "token_classify", PoolingParams(returned_token_ids=[1], step_tag_id=7, use_activation=False)
    )
    assert column.shape == (1, 1)


def test_async_encode_and_a_core_of_its_own(folders):
    pytest.importorskip("zmq")
    want = pooled(make(folders, "bert"), prompts(), "embed")

    async def run():
        engine = AsyncLLM(folders["bert"], dtype="float64", enable_multiprocessing=True)
        try:
            params = PoolingParams(task="embed")

            async def one(i, ids):
                return [output async for output in engine.encode(ids, params, str(i))][-1].outputs.data

            return await asyncio.gather(*(one(i, ids) for i, ids in enumerate(prompts())))
        finally:
            engine.shutdown()

    np.testing.assert_allclose(asyncio.run(run()), want, atol=1e-15)


def test_doors(folders):
    llm = make(folders, "bert")
    refusals = [
        (lambda: llm.generate([[5]], SamplingParams(max_tokens=1)), "this model pools"),
        (lambda: llm.classify([[5]]), "Classification API is not supported"),
        (lambda: llm.encode([[5]]), "pooling_task required"),
        (lambda: llm.embed([[5]], pooling_params=PoolingParams(dimensions=17)), r"only supports \[16, 32, 64\]"),
        (lambda: llm.embed([[5] * 65]), "more than max_model_len = 64"),
        (lambda: llm.embed([[5]], pooling_params=PoolingParams(step_tag_id=3)), "does not support"),
        (lambda: llm.embed([[5]], pooling_params=PoolingParams(task="classify")), "cannot overwrite"),
        (lambda: PoolingParams(dimensions="many"), "dimensions must be a whole number"),
        (lambda: make(folders, "bert", long_prefill_token_threshold=4), "long_prefill_token_threshold"),
        (lambda: LLM(folders["bert"], runner="generate"), "runner must be 'pooling' or 'auto'"),
        (lambda: LLM(folders["bert"], pooler_config={"pooling_type": "MAX"}), "pooling_type"),
        (lambda: LLM(folders["qwen3-embedding"]).embed([[5]]), "only supported for pooling models"),
        (lambda: LLM(folders["bert"], max_num_batched_tokens=32), "max_num_batched_tokens must be at least"),
    ]
    for call, said in refusals:
        with pytest.raises(ValueError, match=said):
            call()
    assert len(llm.embed([[5] * 64], use_tqdm=False)[0].outputs.embedding) == 64, "a prompt may fill the context"


@pytest.mark.parametrize("family, head", [("qwen3-embedding", "lm_head.weight"), ("bert", "cls.predictions.bias")])
def test_a_head_that_is_not_asked_changes_nothing(folders, tmp_path, family, head):
    """Also where the output matrix is not the embedding, as of most generators."""
    untied = save_random_checkpoint(tmp_path, {**FAMILIES[family], "tie_word_embeddings": False}, seed=1)
    with Checkpoint(untied) as checkpoint:
        tensors = {name: checkpoint.read(name) for name in checkpoint.names()}
    rng = np.random.default_rng(2)
    found = []
    for shape in ((VOCAB, 64), (VOCAB,)) if family == "bert" else ((VOCAB, 64),) * 2:
        tensors[head] = rng.standard_normal(shape).astype(np.float32)
        write_safetensors(untied / "model.safetensors", tensors)
        found.append(pooled(LLM(str(untied), runner="pooling"), prompts()[:1], "embed")[0])
    np.testing.assert_array_equal(*found)


def test_metadata_wants_its_cursor():
    metadata = PoolingMetadata(np.array([2]), [np.array([1, 2])], [PoolingParams(task="embed")], [PoolingStates()])
    with pytest.raises(RuntimeError, match="build_pooling_cursor"):
        metadata.get_pooling_cursor()
    with pytest.raises(ValueError, match="does not match the number of sequences"):
        metadata.build_pooling_cursor(np.array([1, 1]), np.array([1, 1]))
    with pytest.raises(ValueError, match="must have a task set"):
        PoolingMetadata(np.array([2]), [], [PoolingParams()], [PoolingStates()])

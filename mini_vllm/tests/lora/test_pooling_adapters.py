"""Adapters of models that pool: a mixed batch gives what each alone gives, and what the merged weights give."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, AsyncLLM, LoRARequest, PoolingParams
from mini_vllm.lora.lora_model import TENSORS_NAME
from mini_vllm.lora.peft_helper import CONFIG_NAME
from mini_vllm.model_loader.random_checkpoint import write_safetensors
from mini_vllm.model_loader.safetensors_reader import SafetensorsFile
from mini_vllm.tests.lora.adapters import ALL, ATTENTION, save_adapter, save_merged
from mini_vllm.tests.models.pooling_checkpoints import prompts, save_family

SETTINGS = {"dtype": "float64", "runner": "pooling", "skip_tokenizer_init": True}
FAMILIES = {"qwen3-embedding": "embed", "qwen3-classifier": "classify", "qwen2-process-reward": "token_classify"}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("pooling")
    return {family: save_family(family, root / family) for family in FAMILIES}


@pytest.fixture(scope="module")
def adapters(bases, tmp_path_factory):
    """For each family two: of all projections, and of attention with another rank."""
    root = tmp_path_factory.mktemp("adapters")
    return {
        family: [
            LoRARequest("a", 1, str(save_adapter(root / family / "a", base, seed=1, targets=ALL))),
            LoRARequest("b", 2, str(save_adapter(root / family / "b", base, seed=2, rank=8, targets=ATTENTION))),
        ]
        for family, base in bases.items()
    }


def pooled(llm, given, task, lora_request=None):
    outputs = llm.encode(given, pooling_task=task, lora_request=lora_request, use_tqdm=False)
    return [output.outputs.data for output in outputs]


@pytest.mark.parametrize("family", [
    "qwen3-embedding", *(pytest.param(each, marks=pytest.mark.slow) for each in FAMILIES if each != "qwen3-embedding")
])  # fmt: skip
def test_a_mixed_batch_equals_each_alone_and_the_merged_weights(bases, adapters, tmp_path, family):
    task, (a, b) = FAMILIES[family], adapters[family]
    given = [[*ids, 7] for ids in prompts()] if family == "qwen2-process-reward" else prompts()
    params = {"pooler_config": {"step_tag_id": 7}} if family == "qwen2-process-reward" else {}
    wanted = [a, None, b, a, b, None, a]
    tight = {"max_num_batched_tokens": 16, "block_size": 4, "max_num_seqs": 4}  # in chunks, with blocks to find again
    llm = LLM(str(bases[family]), enable_lora=True, max_loras=2, **SETTINGS, **tight, **params)
    mixed = [pooled(llm, given, task, wanted) for _ in range(2)]
    for request in (None, a, b):
        rows = [i for i, each in enumerate(wanted) if each is request]
        folder = bases[family]
        if request is not None:
            folder = save_merged(tmp_path / request.lora_name, folder, Path(request.lora_path))
        want = pooled(LLM(str(folder), **SETTINGS, **params), [given[i] for i in rows], task)
        for run in mixed:
            for i, row in zip(rows, want, strict=True):
                np.testing.assert_allclose(run[i], row, rtol=0, atol=1e-9)
    base = pooled(llm, given, task)
    assert all(np.abs(base[i] - mixed[0][i]).max() > 1e-3 for i in (0, 2, 3, 4, 6)), "an adapter changes its rows"


@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], r"layers\.\d+\.(self_attn\.q|mlp\.down)_proj"])
def test_an_adapter_of_the_bare_model_has_names_without_its_first_part(bases, adapters, tmp_path, targets):
    """PEFT around `AutoModel` writes "base_model.model.layers.0…", and its patterns are about such names."""
    base = bases["qwen3-embedding"]
    whole = save_adapter(tmp_path / "whole", base, seed=3, targets=("q_proj", "down_proj"))
    bare = tmp_path / "bare"
    bare.mkdir()
    file = SafetensorsFile(whole / TENSORS_NAME)
    write_safetensors(bare / TENSORS_NAME, {n.replace(".model.model.", ".model."): file.read(n) for n in file.tensors})
    config = json.loads((whole / CONFIG_NAME).read_text())
    (bare / CONFIG_NAME).write_text(json.dumps({**config, "target_modules": targets}))
    llm = LLM(str(base), enable_lora=True, max_loras=2, **SETTINGS)
    requests = LoRARequest("whole", 1, str(whole)), LoRARequest("bare", 2, str(bare))
    one, other = (pooled(llm, prompts(), "embed", request) for request in requests)
    np.testing.assert_array_equal(one, other)
    assert np.abs(one[0] - pooled(llm, prompts()[:1], "embed")[0]).max() > 1e-3


def test_one_that_cannot_be_read_any_more_ends_its_own_requests_alone(bases, adapters, tmp_path):
    base, (a, _) = bases["qwen3-embedding"], adapters["qwen3-embedding"]
    gone = save_adapter(tmp_path / "gone", base, seed=4)
    llm = LLM(str(base), enable_lora=True, max_loras=2, **SETTINGS)
    want = pooled(llm, prompts()[:1], "embed", a)[0]
    params = PoolingParams(task="embed")
    engine = llm.llm_engine
    engine.add_request("lost", prompts()[2], params, lora_request=LoRARequest("gone", 3, str(gone)))
    engine.add_request("kept", prompts()[0], params, lora_request=a)
    (gone / TENSORS_NAME).unlink()
    done = {}
    while engine.has_unfinished_requests():
        done.update({output.request_id: output.outputs for output in engine.step()})
    assert done["lost"].data is None and "'gone' is not there" in done["lost"].error
    np.testing.assert_allclose(done["kept"].data, want, atol=1e-12)


def test_the_other_doors_take_an_adapter(bases, adapters):
    base, (a, b) = bases["qwen3-embedding"], adapters["qwen3-embedding"]
    llm = LLM(str(base), enable_lora=True, max_loras=2, **SETTINGS)
    want = pooled(llm, prompts()[:2], "embed", [a, b])
    found = llm.embed(prompts()[:2], lora_request=[a, b], use_tqdm=False)
    np.testing.assert_array_equal([output.outputs.embedding for output in found], want)

    async def ask():
        engine = AsyncLLM(str(base), enable_lora=True, enable_multiprocessing=False, **SETTINGS)
        try:
            async for output in engine.encode(prompts()[0], PoolingParams(task="embed"), "x", lora_request=a):
                return output.outputs.data
        finally:
            engine.shutdown()

    np.testing.assert_allclose(asyncio.run(ask()), want[0], atol=1e-12)
    classifier, (c, _) = bases["qwen3-classifier"], adapters["qwen3-classifier"]
    llm = LLM(str(classifier), enable_lora=True, **SETTINGS)
    [output] = llm.classify(prompts()[:1], lora_request=c, use_tqdm=False)
    np.testing.assert_array_equal(output.outputs.probs, pooled(llm, prompts()[:1], "classify", c)[0])


def test_what_is_refused_and_how(bases, adapters, tmp_path):
    bert = save_family("bert", tmp_path / "bert")
    with pytest.raises(ValueError, match="enable_lora must be False for an encoder"):
        LLM(str(bert), enable_lora=True, skip_tokenizer_init=True)
    a = adapters["qwen3-embedding"][0]
    with pytest.raises(ValueError, match="needs an engine with enable_lora=True"):
        LLM(str(bases["qwen3-embedding"]), **SETTINGS).embed(prompts()[:1], lora_request=a)
    score = save_adapter(tmp_path / "score", bases["qwen3-classifier"], seed=1, targets=("q_proj", "score"))
    llm = LLM(str(bases["qwen3-classifier"]), enable_lora=True, **SETTINGS)
    with pytest.raises(ValueError, match=r"target modules must be among \[.*got \['score'\]"):
        llm.classify(prompts()[:1], lora_request=LoRARequest("s", 1, str(score)))
    with pytest.raises(ValueError, match="lora_request must be one, or one for each of 2 prompts, got 1"):
        llm.classify(prompts()[:2], lora_request=[LoRARequest("s", 1, str(score))])

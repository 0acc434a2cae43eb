"""Models that pool, against transformers on the same weights: hidden states, heads, ragged batches and one by one."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, PoolingParams
from mini_vllm.tests.models.pooling_checkpoints import FAMILIES, TASKS, engine_args, prompts, save_family

pytestmark = pytest.mark.needs_torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def hidden_states(family: str, folder: Any) -> list[np.ndarray]:
    """[L, H] of each prompt after the last norm, by transformers."""
    kind = {"bert": "BertModel", "modernbert": "ModernBertModel", "qwen3": "Qwen3Model", "qwen2": "Qwen2Model"}
    name = kind[FAMILIES[family]["model_type"]]
    more: dict[str, Any] = {"add_pooling_layer": False} if name == "BertModel" else {}
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float64, **more).eval()
    with torch.no_grad():
        return [model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy() for ids in prompts()]


def normed(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("pooling", ["CLS", "LAST", "MEAN"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "qwen3-embedding"])
def test_embeddings(family, pooling, tmp_path):
    folder = save_family(family, tmp_path)
    want = hidden_states(family, folder)
    llm = LLM(str(folder), pooler_config={"pooling_type": pooling}, dtype="float64", **engine_args(family))
    pick = {"CLS": lambda h: h[0], "LAST": lambda h: h[-1], "MEAN": lambda h: h.mean(0)}[pooling]
    got = [output.outputs.embedding for output in llm.embed(prompts(), use_tqdm=False)]
    np.testing.assert_allclose(got, [normed(pick(h)) for h in want], atol=2e-6)
    tokens = llm.encode(prompts(), pooling_task="token_embed", use_tqdm=False)
    for output, hidden in zip(tokens, want, strict=True):
        np.testing.assert_allclose(output.outputs.data, normed(hidden), atol=2e-6)


@pytest.mark.parametrize("family", ["bert-cross-encoder", "modernbert-classifier", "qwen3-classifier"])
def test_classifiers(family, tmp_path):
    folder = save_family(family, tmp_path)
    name = FAMILIES[family]["architectures"][0]
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        logits = np.stack([model(input_ids=torch.tensor([ids])).logits[0].numpy() for ids in prompts()])
    llm = LLM(str(folder), dtype="float64")
    raw = llm.classify(prompts(), pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
    np.testing.assert_allclose([output.outputs.probs for output in raw], logits, atol=5e-6)
    want = softmax(logits) if logits.shape[1] > 1 else 1 / (1 + np.exp(-logits))
    got = [output.outputs.probs for output in llm.classify(prompts(), use_tqdm=False)]
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_types_of_two_texts(tmp_path):
    folder = save_family("bert-cross-encoder", tmp_path)
    model = transformers.BertForSequenceClassification.from_pretrained(folder, dtype=torch.float64).eval()
    llm = LLM(str(folder), dtype="float64")
    for ids in prompts()[2:]:
        types = torch.tensor([[0] * 4 + [1] * (len(ids) - 4)])
        with torch.no_grad():
            want = torch.sigmoid(model(input_ids=torch.tensor([ids]), token_type_ids=types).logits[0]).numpy()
        params = PoolingParams(extra_kwargs={"compressed_token_type_ids": 4})
        [got] = llm.classify([ids], pooling_params=params, use_tqdm=False)
        np.testing.assert_allclose(got.outputs.probs, want, atol=2e-6)


@pytest.mark.parametrize("family", ["qwen2-reward", "qwen2-process-reward"])
def test_rewards(family, tmp_path):
    folder = save_family(family, tmp_path)
    from safetensors.numpy import load_file

    w = {k: v.astype(np.float64) for k, v in load_file(folder / "model.safetensors").items() if k.startswith("score")}
    params = (
        PoolingParams(step_tag_id=7, use_activation=False)
        if "process" in family
        else PoolingParams(use_activation=False)
    )
    llm = LLM(str(folder), dtype="float64")
    got = llm.encode(prompts(), params, pooling_task="token_classify", use_tqdm=False)
    for ids, output, h in zip(prompts(), got, hidden_states(family, folder), strict=True):
        want = np.maximum(h @ w["score.0.weight"].T + w["score.0.bias"], 0) @ w["score.2.weight"].T + w["score.2.bias"]
        if "process" in family:
            want = want[np.array(ids) == 7]
        np.testing.assert_allclose(output.outputs.data, want, atol=2e-5)


def test_every_family_is_tried():
    assert set(FAMILIES) == set(TASKS)

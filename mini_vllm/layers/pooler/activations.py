"""The last step of a pooler. Upstream twin: `vllm/model_executor/layers/pooler/activations.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mini_vllm.transformers_utils.file_keys import TEXT, FileKeys
from mini_vllm.utils.arrays import Array

Activation = Callable[[Array], Array]


def normalize(vectors: Array) -> Array:
    """Of length 1 along the last axis; a vector of zeros stays one.

    Upstream: upstream/vllm/model_executor/layers/pooler/activations.py:108 — `PoolerNormalize`.
    """
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * logits))


def classify(logits: Array) -> Array:
    """Probabilities [..., labels]: a sigmoid of one label, softmax over several.

    Upstream: upstream/vllm/model_executor/layers/pooler/activations.py:118 — `PoolerClassify`.
    """
    if logits.shape[-1] < 2:
        return sigmoid(logits)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def identity(logits: Array) -> Array:
    """As it is."""
    return logits


_BY_TORCH_NAME: dict[str, Activation] = {
    "Identity": identity,
    "Sigmoid": classify,
    "Softmax": classify,
    "Tanh": np.tanh,
}


SENTENCE_TRANSFORMERS = FileKeys(
    "config.json: sentence_transformers", used={"activation_fn": TEXT}, harmless=frozenset({"version"})
)
"""What a cross-encoder of that library writes into `config.json`."""


def get_act_fn(raw: dict[str, Any]) -> Activation:
    """What `config.json` wants to be done with the logits of a classifier.

    Raises:
        ValueError: it names an activation that is not here.

    Upstream: upstream/vllm/model_executor/layers/pooler/activations.py:19 — `get_act_fn`.
    """
    kind = raw.get("problem_type")
    if kind == "regression":
        return identity
    if kind == "multi_label_classification":
        return sigmoid
    if kind == "single_label_classification":
        return classify
    named = SENTENCE_TRANSFORMERS.read(raw.get("sentence_transformers") or {}).get("activation_fn")
    named = named or raw.get("sbert_ce_default_activation_function")
    if named is None:
        return classify
    name = str(named).rpartition(".")[2]
    if not str(named).startswith("torch.nn.modules.") or name not in _BY_TORCH_NAME:
        allowed = ", ".join(f"torch.nn.modules.….{each}" for each in _BY_TORCH_NAME)
        raise ValueError(f"config.json: activation_fn must be one of {allowed}, got {named!r}")
    return _BY_TORCH_NAME[name]

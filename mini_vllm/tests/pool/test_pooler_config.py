"""Every key of `pooler_config` has a kind and a range, and one sentence says so before anything is loaded."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mini_vllm import LLM, EngineArgs
from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint
from mini_vllm.tests.models.pooling_checkpoints import FAMILIES

WRONG: list[tuple[str, Any]] = [
    ("task", "nope"), ("task", 3), ("use_activation", "no"), ("logit_sigma", "x"), ("logit_sigma", math.inf),
    ("logit_sigma", 0), ("logit_mean", math.nan), ("step_tag_id", -5), ("step_tag_id", "x"), ("dimensions", "abc"),
    ("dimensions", 0), ("returned_token_ids", "abc"), ("returned_token_ids", [-1]), ("seq_pooling_type", "mean"),
    ("tok_pooling_type", "LAST"), ("pooling_type", []),
]  # fmt: skip
OF_THE_MODEL = [("attn_type", "banana"), ("is_matryoshka", "no"), ("matryoshka_dimensions", "x")]


@pytest.mark.parametrize("key, value", WRONG)
def test_a_value_of_another_kind_is_refused_at_the_door(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"pooler_config: {key} "):
        EngineArgs(pooler_config={key: value}).create_engine_config()


@pytest.mark.parametrize("key, value", OF_THE_MODEL)
def test_what_the_model_says_is_no_key_of_a_user(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"pooler_config must be .*{key}"):
        EngineArgs(pooler_config={key: value}).create_engine_config()
    with pytest.raises(ValueError, match=key):
        PoolerConfig(**{key: value})


def test_what_is_right_is_taken() -> None:
    given = {
        "task": "token_embed", "use_activation": False, "logit_mean": 1, "logit_sigma": -0.5, "dimensions": 8,
        "step_tag_id": 0, "returned_token_ids": [0, 3], "seq_pooling_type": "CLS",
    }  # fmt: skip
    taken = EngineArgs(pooler_config=given).create_engine_config().pooler_config
    assert {key: getattr(taken, key) for key in given} == given


def test_tokens_and_tasks_that_the_model_has_not_are_refused_and_its_task_comes_first(tmp_path: Any) -> None:
    folder = str(save_random_checkpoint(tmp_path, FAMILIES["bert"], seed=1))
    for key, value, allowed in [
        ("returned_token_ids", [10**9], "inside the vocabulary"), ("step_tag_id", 10**9, "inside the vocabulary"),
        ("task", "classify", "one of"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=f"pooler_config: {key} must be {allowed}"):
            LLM(folder, pooler_config={key: value})
    assert LLM(folder, pooler_config={"task": "token_embed"}).supported_tasks == ("token_embed", "embed")

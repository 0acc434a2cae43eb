"""`LLM(quantization=…)`: a float checkpoint is quantized while it loads, and its weights take the bytes they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.models.interfaces_base import linears_of
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

LINEARS = 8 * (256 * 512 + 256 * 256 + 2 * 512 * 256 + 512 * 256)
"""Weights in pocket's projections: q, k and v together, o, gate and up, down."""
FLOATS = (4096 * 256 + (2 * 8 + 1) * 256) * 4
"""Bytes of what stays float32: the tied embedding and the norms."""


@pytest.mark.parametrize(
    ("name", "config", "bits"),
    [
        ("int8", None, 8),
        ("fp8", None, 8),
        ("int4", None, 4 + 16 / 128),
        ("int4", {"group_size": 32}, 4 + 16 / 32),
        ("nf4", None, 4 + 32 / 64),
        ("nf4", {"double_quant": True}, 4 + 8 / 64 + 32 / 64 / 256),
    ],
)
def test_pocket_takes_the_bytes_that_the_format_promises(name: str, config: Any, bits: float) -> None:
    model = load_model(POCKET, quantization=name, quantization_config=config)
    linears = linears_of(dest for _, dest in model.weights())
    assert sum(linear.size for linear in linears) == LINEARS
    stored = model.weight_nbytes - FLOATS
    per_row = 4 * sum(linear.out_features for linear in linears) if bits == 8 else 0  # a float32 scale each
    assert stored == LINEARS * bits / 8 + per_row
    assert model.num_parameters == load_model(POCKET).num_parameters


def test_a_float_model_counts_all_its_bytes() -> None:
    assert load_model(POCKET).weight_nbytes == FLOATS + 4 * LINEARS


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral-window", "opt", "mixtral", "qwen3-moe"])
@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_every_family_is_close_to_its_floats(family: str, name: str, tmp_path: Path) -> None:
    folder = save_tiny(family, tmp_path)
    ids = np.array([1, 5, 9, 300, 2, 44])

    def hidden(model: Any) -> Any:
        attn = lambda layer, q, k, v: q.reshape(len(q), -1) * 0.1  # noqa: E731  # not attention, but the same for both
        return model.forward(ids, np.arange(len(ids)), attn).copy()

    exact, found = hidden(load_model(folder)), hidden(load_model(folder, quantization=name))
    errors = np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)
    # The median: where a token is sent to another expert, because two scored alike, its error has no bound.
    assert 0 < np.median(errors) < {"int8": 0.05, "fp8": 0.2}[name]


def test_pocket_still_answers() -> None:
    chat = [{"role": "user", "content": "What is 47 + 85?"}]
    for name in ("int8", "int4", "fp8", "nf4"):
        llm = LLM(str(POCKET), quantization=name, num_blocks=64)
        [output] = llm.chat(chat, SamplingParams(temperature=0.0, max_tokens=16), use_tqdm=False)
        assert output.outputs[0].text == "47 + 85 = 132", name


def test_batches_of_any_size_give_the_same_tokens() -> None:
    """Blocks of rows, few tokens or many: the same floats are multiplied."""
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = [{"prompt_token_ids": [1, *range(10 + i, 30 + 3 * i)]} for i in range(12)]
    llm = LLM(str(POCKET), quantization="int4", dtype="float64", num_blocks=64)
    together = [out.outputs[0].token_ids for out in llm.generate(prompts, params, use_tqdm=False)]
    alone = [llm.generate(prompt, params)[0].outputs[0].token_ids for prompt in prompts]
    assert together == alone


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"quantization": "int5"}, "quantization must be one of .*, got 'int5'"),
        ({"quantization": "awq"}, "quantization='awq' needs a checkpoint in that format"),
        ({"quantization_config": {"group_size": 32}}, "quantization_config needs quantization to be one of int8"),
        ({"quantization": "int4", "quantization_config": {"size": 3}}, "unknown key 'size' = 3"),
        ({"quantization": "int4", "quantization_config": {"group_size": 96}}, "group_size must divide the 256 inputs"),
        ({"quantization": "fp8", "quantization_config": {"activation_scheme": "static"}}, "needs a checkpoint with"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype must be one of auto, int8.*, got 'int4'"),
    ],
)  # fmt: skip
def test_bad_arguments_are_errors_by_name(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(str(POCKET), **args)


def test_a_model_in_memory_cannot_be_quantized() -> None:
    with pytest.raises(ValueError, match="quantization='int8' needs a checkpoint to load, got a finished model"):
        LLM(quantization="int8")

"""Rotary settings: one parser for every model and every kind of layer, and no default that no reference has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM
from mini_vllm.layers.rotary_embedding import inverse_frequencies
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.tests.models.decoder_checkpoints import DECODERS
from mini_vllm.tests.models.pooling_checkpoints import FAMILIES, save_family
from mini_vllm.tests.models.tiny_checkpoints import FAMILIES as TINY
from mini_vllm.transformers_utils.config import ConfigError, HFConfig

PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 160000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 5000.0}
MODERN = {key: value for key, value in FAMILIES["modernbert"].items() if not key.endswith("rope_theta")}
LLAMA = {key: value for key, value in TINY["llama"].items() if not key.startswith("rope")}
PHI3 = {key: value for key, value in DECODERS["phi3"].items() if not key.startswith("rope")}
LLAMA3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [3.0] * 16, "rope_theta": 10000.0}


def parse(base: dict[str, Any], **changes: Any) -> HFConfig:
    return HFConfig.from_dict({**base, **changes})


def test_both_kinds_of_layers_of_modernbert_have_their_own_settings() -> None:
    config = parse(MODERN, rope_parameters={"full_attention": LINEAR, "sliding_attention": YARN})
    full, local = config.rope, config.rope_local
    assert local is not None
    assert (full.rope_type, full.factor, full.theta) == ("linear", 4.0, 160000.0)
    assert (local.rope_type, local.factor, local.theta) == ("yarn", 4.0, 5000.0)
    assert config.max_model_len == 4 * MODERN["max_position_embeddings"]


def test_the_old_spellings_of_modernbert_count_for_both_kinds() -> None:
    config = parse(MODERN, global_rope_theta=77.0, rope_scaling={"rope_type": "linear", "factor": 3.0})
    assert config.rope_local is not None
    assert [(rope.theta, rope.factor) for rope in (config.rope, config.rope_local)] == [(77.0, 3.0), (10000.0, 3.0)]
    bare = parse(MODERN)
    assert bare.rope_local is not None and (bare.rope.theta, bare.rope_local.theta) == (160000.0, 10000.0)


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        (MODERN, {"rope_parameters": {"full_attention": {"rope_type": "ntk"}}}, "type 'ntk' is not supported"),
        (MODERN, {"rope_parameters": {"full_attention": {**PLAIN, "beta": 4}}}, "unknown key 'beta' = 4"),
        (MODERN, {"rope_parameters": {"sliding_attention": {"rope_type": "linear"}}}, "needs a factor > 0, got None"),
        (MODERN, {"rope_parameters": {"full_attention": 5}}, "must have an object for 'full_attention', got 5"),
        (MODERN, {"rope_parameters": {"chunked_attention": PLAIN}}, "must be an object with entries for"),
        (MODERN, {"rope_parameters": PLAIN}, "must be an object with entries for"),
        (MODERN, {"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "layer_types must hold 3"),
        (MODERN, {"layer_types": ["full_attention"]}, "layer_types must hold 3 times"),
        (LLAMA, {"rope_parameters": {"full_attention": PLAIN, "sliding_attention": LINEAR}}, "not supported for Llama"),
        (LLAMA, {"rope_parameters": {**PLAIN, "full_attention": LINEAR}}, "unknown key 'full_attention'"),
        (LLAMA, {"rope_parameters": {"rope_type": "linear", "type": "yarn", "factor": 2}}, "and type .yarn."),
        (LLAMA, {"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_theta must be a number above 0"),
        (LLAMA, {"rope_parameters": {"rope_type": ""}}, "type '' is not supported"),
        (DECODERS["gemma3"], {"rope_scaling": {"rope_type": "linear", "factor": 2.0},
                              "rope_parameters": {"full_attention": PLAIN}}, "give one of them"),
        (PHI3, {"rope_parameters": {**LONG, "original_max_position_embeddings": 41}}, "is 64, and 41 in rope_scaling"),
        (PHI3, {"original_max_position_embeddings": 1, "rope_parameters": LONG}, "must be at least 2, got 1"),
        ({k: v for k, v in PHI3.items() if k[0] != "o"},
         {"rope_parameters": {**LONG, "original_max_position_embeddings": 41}}, "is 4096, and 41 in rope_scaling"),
    ],
)  # fmt: skip
def test_what_a_parser_would_have_to_guess_is_refused(
    base: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(base, **changes)


def test_one_number_in_two_places_may_be_one_number() -> None:
    config = parse(PHI3, rope_parameters={**LONG, "original_max_position_embeddings": 64})
    assert config.rope.original_max_position_embeddings == 64
    assert parse(PHI3, rope_parameters=LONG).rope.original_max_position_embeddings == 64


DYNAMIC = {**LLAMA, "max_position_embeddings": 64, "rope_parameters": {**LINEAR, "rope_type": "dynamic"}}


def test_dynamic_serves_the_context_of_the_training_with_the_plain_base(caplog: pytest.LogCaptureFixture) -> None:
    config = parse(DYNAMIC)
    assert (config.default_model_len, config.max_model_len) == (64, 256)
    plain = inverse_frequencies(32, parse(DYNAMIC, rope_parameters={**PLAIN, "rope_theta": 160000.0}).rope)
    for length in (None, 32, 64):
        np.testing.assert_array_equal(inverse_frequencies(32, config.serving(length).rope), plain)
    assert not caplog.records
    assert not np.array_equal(inverse_frequencies(32, config.serving(65).rope), plain)
    assert "max_model_len=65 stretches the rotary base for short sequences too" in caplog.text


def test_an_engine_serves_dynamic_as_said(tmp_path: Path) -> None:
    from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint

    save_random_checkpoint(tmp_path, DYNAMIC, seed=1)
    lengths = [LLM(str(tmp_path), num_blocks=64, skip_tokenizer_init=True, max_model_len=n) for n in (None, 100)]
    assert [llm.llm_engine.engine_core.max_model_len for llm in lengths] == [64, 100]


@pytest.mark.needs_torch
@pytest.mark.parametrize("settings", [
    {"full_attention": LINEAR, "sliding_attention": PLAIN}, {"full_attention": PLAIN, "sliding_attention": YARN},
    {"full_attention": {**LINEAR, "rope_type": "dynamic"}, "sliding_attention": PLAIN},
])  # fmt: skip
def test_modernbert_equals_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    transformers, torch = pytest.importorskip("transformers", minversion="5.0"), pytest.importorskip("torch")
    folder = save_family("modernbert", tmp_path)
    raw = {k: v for k, v in json.loads((folder / "config.json").read_text()).items() if not k.endswith("rope_theta")}
    (folder / "config.json").write_text(json.dumps({**raw, "rope_parameters": settings}))
    tokens = list(range(5, 45))
    theirs = transformers.ModernBertModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        want = theirs(torch.tensor([tokens])).last_hidden_state[0, 0].numpy()
    assert load_model(folder).config.rope_local is not None
    found = LLM(str(folder), skip_tokenizer_init=True).embed([tokens], use_tqdm=False)[0].outputs.embedding
    np.testing.assert_allclose(found, want / np.linalg.norm(want), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "scaling, said",
    [
        ({**LLAMA3, "low_freq_factor": 4.5}, "'llama3' needs a low_freq_factor of at most high_freq_factor = 4.0"),
        ({**YARN, "beta_fast": 1, "beta_slow": 32}, "'yarn' needs a beta_slow of at most beta_fast = 1, got 32"),
        ({**YARN, "beta_slow": 33}, "'yarn' needs a beta_slow of at most beta_fast = 32.0, got 33"),
        ({**YARN, "attention_factor": 0.0}, "'yarn' needs a attention_factor > 0"),
        ({**YARN, "factor": 0.5}, "'yarn' needs a factor of at least 1, got 0.5"),
        ({**LINEAR, "factor": 0.5}, "'linear' needs a factor of at least 1, got 0.5"),
        ({**LLAMA3, "factor": 0.9}, "'llama3' needs a factor of at least 1, got 0.9"),
        ({"rope_type": "dynamic", "factor": 0.5}, "'dynamic' needs a factor of at least 1, got 0.5"),
    ],
)
def test_numbers_in_an_order_that_the_kind_has_not_are_refused(scaling: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(LLAMA, rope_scaling=scaling)


def test_a_ramp_of_no_width_is_served() -> None:
    assert parse(LLAMA, rope_scaling={**LLAMA3, "low_freq_factor": 4.0}).rope.low_freq_factor == 4.0
    assert parse(LLAMA, rope_scaling={**YARN, "beta_fast": 2.0, "beta_slow": 2.0}).rope.beta_slow == 2.0

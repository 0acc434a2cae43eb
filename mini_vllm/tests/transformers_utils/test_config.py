"""`config.json`: every spelling that is understood, and an error that names whatever is not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mini_vllm.config.model import ModelConfig
from mini_vllm.layers.rotary_embedding import inverse_frequencies
from mini_vllm.models.registry import get_model_class, get_supported_archs, register_model
from mini_vllm.transformers_utils.config import ConfigError, HFConfig

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"]}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"]}
OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"], "vocab_size": 100, "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip


def parse(base: dict[str, Any], **changes: Any) -> HFConfig:
    return HFConfig.from_dict({**base, **changes})


def test_defaults_of_each_family() -> None:
    llama = parse(LLAMA)
    assert (llama.head_dim, llama.tie_word_embeddings, llama.qkv_bias, llama.qk_norm) == (16, False, False, False)
    assert llama.sliding_windows == (None, None, None) and llama.max_model_len == 128
    assert parse({k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}).num_key_value_heads == 4
    assert parse(MISTRAL).sliding_windows == (4096,) * 3
    qwen2 = parse(QWEN2)
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = parse(QWEN3)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)
    opt = parse(OPT)
    assert (opt.tie_word_embeddings, opt.qkv_bias, opt.mlp_bias, opt.intermediate_size) == (True, True, True, 96)


@pytest.mark.parametrize("base", [LLAMA, MISTRAL, QWEN2, QWEN3, OPT], ids=lambda b: b["architectures"][0])
def test_what_changes_nothing_is_passed_over(base: dict[str, Any]) -> None:
    same = parse(base, torch_dtype="bfloat16", use_cache=False, transformers_version="4.1", attention_dropout=0.1,
                 pretraining_tp=2, quantization_config=None, something_new=None)  # fmt: skip
    assert same == parse(base)


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (
            LLAMA,
            {"logit_scale": 0.5},
            r"unknown key 'logit_scale' = 0\.5: it could change what LlamaForCausalLM computes",
        ),
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported for LlamaForCausalLM; allowed: 'silu'"),
        (LLAMA, {"quantization_config": {"bits": 4}}, "quantization_config must be an object with a quant_method"),
        (LLAMA, {"sliding_window": 8}, "unknown key 'sliding_window' = 8"),
        (LLAMA, {"partial_rotary_factor": 0.5}, r"partial_rotary_factor = 0\.5 is not supported"),
        (
            LLAMA,
            {"architectures": ["GemmaForCausalLM"]},
            "architecture 'GemmaForCausalLM' is not supported; allowed: Bert.*De.*Granite.*Llama.*Qwen3",
        ),
        (LLAMA, {"architectures": None}, "architectures must name one of"),
        (LLAMA, {"hidden_size": None}, "hidden_size must be a whole number of at least 1, got None"),
        (LLAMA, {"num_hidden_layers": 0}, "num_hidden_layers must be a whole number of at least 1, got 0"),
        (LLAMA, {"vocab_size": True}, "vocab_size must be a whole number of at least 1, got True"),
        (
            LLAMA,
            {"num_key_value_heads": 3},
            r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)",
        ),
        (LLAMA, {"hidden_size": 66}, "hidden_size 66 must be a multiple of num_attention_heads 4"),
        (LLAMA, {"head_dim": 15}, "head_dim must be even for rotary positions, got 15"),
        (LLAMA, {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, got 'yes'"),
        (LLAMA, {"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list of them, got '</s>'"),
        (
            LLAMA,
            {"rope_scaling": {"type": "ntk", "factor": 4.0}},
            "rope_scaling type 'ntk' is not supported; allowed",
        ),
        (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn' needs a original_max_position_embeddings"),
        (
            LLAMA,
            {"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 8, "short_factor": [0.0]}},
            "'longrope' needs a short_factor: numbers > 0",
        ),
        (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0, "alpha": 9.0}}, "unknown key 'alpha' = 9"),
        (
            LLAMA,
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 2.0,
                    "original_max_position_embeddings": 8,
                    "attn_factor": 2.0,
                }
            },
            "unknown key 'attn_factor'",
        ),
        (LLAMA, {"rope_scaling": {"type": "linear"}}, "rope_scaling 'linear' needs a factor > 0, got None"),
        (LLAMA, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'llama3' needs a low_freq_factor > 0"),
        (
            LLAMA,
            {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}},
            "unknown key 'mrope_section'",
        ),
        (QWEN2, {"head_dim": 32}, "head_dim = 32 is not supported; allowed: 16"),
        (QWEN2, {"use_mrope": True}, "use_mrope = True is not supported"),
        (
            QWEN2,
            {"use_sliding_window": True, "sliding_window": 0},
            "sliding_window must be a whole number of at least 1 or null, got 0",
        ),
        (
            QWEN3,
            {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["x"]},
            "layer_types must hold 3 times",
        ),
        (MISTRAL, {"attention_bias": True}, "attention_bias = True is not supported for MistralForCausalLM"),
        (OPT, {"word_embed_proj_dim": 32}, r"word_embed_proj_dim = 32 is not supported; allowed: hidden_size \(64\)"),
        (OPT, {"activation_function": "gelu"}, "activation_function = 'gelu' is not supported"),
        (OPT, {"rope_theta": 1.0}, r"unknown key 'rope_theta' = 1\.0"),
    ],
)
def test_what_would_change_the_result_is_an_error_by_name(
    base: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(base, **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("default", 10000.0, 1.0)),
        ({"rope_theta": 5e5, "rope_scaling": None}, ("default", 5e5, 1.0)),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}}, ("linear", 5e5, 2)),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 3.0, "factor": 2.0}}, ("linear", 3.0, 2.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 3.0, "partial_rotary_factor": 1.0}},
         ("default", 3.0, 1.0)),
    ],
)  # fmt: skip
def test_both_spellings_of_rope(changes: dict[str, Any], expected: tuple[str, float, float]) -> None:
    rope = parse(LLAMA, **changes).rope
    assert (rope.rope_type, rope.theta, rope.factor) == expected


def test_linear_scaling_stretches_the_context_and_llama3_does_not() -> None:
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 64}  # fmt: skip
    assert parse(LLAMA, rope_scaling={"type": "linear", "factor": 2.5}).max_model_len == 320
    assert parse(LLAMA, rope_scaling=llama3).max_model_len == 128


def test_llama3_keeps_fast_pairs_and_slows_slow_ones() -> None:
    """Worked by hand from the rule: wavelength < length / high unchanged, > length / low divided by the factor."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}  # fmt: skip
    plain = inverse_frequencies(16, parse(LLAMA).rope)
    scaled = inverse_frequencies(16, parse(LLAMA, rope_scaling=scaling).rope)
    wavelength = 2 * np.pi / plain
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled[wavelength < 16], plain[wavelength < 16])
    np.testing.assert_allclose(scaled[wavelength > 64], plain[wavelength > 64] / 8, rtol=1e-6)
    between = (wavelength >= 16) & (wavelength <= 64)
    assert between.any() and (scaled[between] < plain[between]).all() and (scaled[between] > plain[between] / 8).all()


def test_windows_by_layer() -> None:
    on = {"use_sliding_window": True, "sliding_window": 7}
    assert parse(QWEN2, sliding_window=7).sliding_windows == (None,) * 3
    assert parse(QWEN2, **on, max_window_layers=1).sliding_windows == (None, 7, 7)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert parse(QWEN3, **on, layer_types=kinds).sliding_windows == (7, None, 7)
    assert parse(MISTRAL, sliding_window=None).sliding_window is None
    assert parse(MISTRAL, sliding_window=9).sliding_window == 9


def test_eos_ids_of_both_files_and_sampling_defaults() -> None:
    generation = {"eos_token_id": [7, 5], "temperature": 0.6, "top_p": 0.9, "max_new_tokens": 12, "do_sample": True}
    config = HFConfig.from_dict({**LLAMA, "eos_token_id": 5}, generation)
    assert config.eos_token_ids == [5, 7]
    model = get_model_class("LlamaForCausalLM")(config)
    assert model.default_sampling_params == {"temperature": 0.6, "top_p": 0.9, "max_tokens": 12}


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_ids_that_end_a_text_are_those_of_the_vocabulary(file: str) -> None:
    def read(value: object, key: str = "eos_token_id") -> HFConfig:
        both = {"config.json": LLAMA, "generation_config.json": {}}
        both[file] = {**both[file], key: value}
        return HFConfig.from_dict(*both.values())

    last = LLAMA["vocab_size"] - 1
    for value in (10**9, [0, last + 1], [-2], -1):
        with pytest.raises(ConfigError, match=rf"^{file}: eos_token_id must be ids of the vocabulary, 0 to {last},"):
            read(value)
    assert read(last) and read([0, last]) and read(None)
    for key in ("bos_token_id", "pad_token_id"):
        assert read(-1, key) and read(151643, key), "as old configs of Llama, and small ones of Qwen, have it"


def test_token_ids_of_the_folder_that_generation_config_names(tmp_path: Path) -> None:
    config = ModelConfig(generation_config=str(tmp_path))
    for value, fits in ((5, True), ([0, 7], True), (8, False), ([-1], False), (10**9, False)):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
        if fits:
            assert config.eos_token_ids(SimpleNamespace(vocab_size=8), None)
            continue
        with pytest.raises(ValueError, match="eos_token_id must be ids of tokens, got"):
            config.eos_token_ids(SimpleNamespace(vocab_size=8), None)


def test_folders_that_are_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"model folder '.*nowhere' does not exist"):
        HFConfig.from_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no config\.json in"):
        HFConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: not valid JSON"):
        HFConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="must hold a JSON object, got list"):
        HFConfig.from_folder(tmp_path)


def test_the_two_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    assert HFConfig.from_folder(tmp_path).eos_token_ids == [3]


def test_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_vllm.models.registry._MODELS", {"A": ("llama", "LlamaForCausalLM")})
    assert get_model_class("A").__name__ == "LlamaForCausalLM"
    register_model("B", dict)
    assert get_model_class("B") is dict and get_supported_archs() == ["A", "B"]
    with pytest.raises(ValueError, match="architecture 'C' is not supported; allowed: A, B"):
        get_model_class("C")


ROPES = {
    "rope_scaling wins": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
                          "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "its own theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
                      "rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}},
    "an empty one is none": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3.0},
                             "rope_scaling": {}},
    "a default one wins too": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3.0},
                               "rope_scaling": {"rope_type": "default"}},
    "theta beside rope_parameters": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
                                     "rope_theta": 9.0},
    "theta beside rope_scaling": {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 9.0},
    "theta in one place": {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 9.0},
}  # fmt: skip


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", ROPES)
def test_two_spellings_of_rotary_positions_are_read_as_transformers_reads_them(name: str) -> None:
    transformers = pytest.importorskip("transformers", minversion="5.0")
    raw = {k: v for k, v in LLAMA.items() if k != "architectures"}
    theirs = transformers.LlamaConfig(**raw, **ROPES[name]).rope_parameters
    ours = parse(LLAMA, **ROPES[name]).rope
    assert (ours.rope_type, ours.theta) == (theirs["rope_type"], theirs["rope_theta"])
    assert ours.factor == theirs.get("factor", 1.0)


def test_a_type_hidden_behind_rope_parameters_is_refused() -> None:
    both = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_scaling": {"rope_type": "ntk"}}
    with pytest.raises(ConfigError, match="rope_scaling type 'ntk' is not supported; allowed: 'default', 'linear'"):
        parse(LLAMA, **both)


def test_opt_has_no_rotary_positions_so_any_head_size_will_do() -> None:
    assert parse(OPT, hidden_size=60).head_dim == 15
    with pytest.raises(ConfigError, match="head_dim must be even for rotary positions, got 15"):
        parse(LLAMA, hidden_size=60)

"""Every key of every file that is read from outside, changed in every way: used, harmless, or refused. Silent: none.

A value counts as used when somebody other than the gate asks for the key, or when what the reader returns is another.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mini_vllm
from mini_vllm.layers.pooler.activations import SENTENCE_TRANSFORMERS
from mini_vllm.layers.quantization import checkpoint_keys as quantized
from mini_vllm.layers.quantization.grouped import Int4Config
from mini_vllm.layers.quantization.int8 import Int8Config
from mini_vllm.layers.quantization.nf4 import Nf4Config
from mini_vllm.lora.peft_helper import KEYS as ADAPTER
from mini_vllm.model_loader.safetensors_reader import INDEX
from mini_vllm.models.registry import get_model_class
from mini_vllm.tests.models.decoder_checkpoints import DECODERS
from mini_vllm.tests.models.pooling_checkpoints import FAMILIES as POOLED
from mini_vllm.tests.models.tiny_checkpoints import FAMILIES as TINY
from mini_vllm.tokenizers import tokenizer_json_keys as tokenizer_json
from mini_vllm.tokenizers.tokenizer_keys import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG
from mini_vllm.transformers_utils import generation_config as generation
from mini_vllm.transformers_utils import sentence_transformers as st
from mini_vllm.transformers_utils.config import HFConfig, key_table, known_architectures
from mini_vllm.transformers_utils.config_keys import IGNORABLE, READ_BY_POOLERS
from mini_vllm.transformers_utils.config_kinds import ALWAYS_READ, KINDS
from mini_vllm.transformers_utils.configs import llava, medusa, qwen2_vl
from mini_vllm.transformers_utils.file_keys import FileKeys
from mini_vllm.transformers_utils.processors import clip
from mini_vllm.transformers_utils.processors import qwen2_vl as qwen2_vl_images

OTHERS = (None, True, False, 0, 1, 3, -1, 0.5, 1e30, "", "x", "mean", [], [1], ["x"], {}, {"x": 1}, float("nan"))


class Watched(dict):  # type: ignore[type-arg]
    """Remembers which keys were asked for by name."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)


GATES: dict[str, tuple[FileKeys, dict[str, Any]]] = {
    f"{number} {each.name}": (each, plain)
    for number, (each, plain) in enumerate(
        (
            (ADAPTER, {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}),
            (INDEX, {"weight_map": {"a": "b.safetensors"}}),
            (st.MODULES, {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}),
            (st.POOLING, {"embedding_dimension": 64, "pooling_mode": "mean"}),
            (
                st.DENSE,
                {"in_features": 4, "out_features": 4, "activation_function": "torch.nn.modules.linear.Identity"},
            ),
            (st.LAYER_NORM, {"dimension": 4}),
            (st.NORMALIZE, {}),
            (st.DROPOUT, {"dropout": 0.1}),
            (st.TRANSFORMER, {"max_seq_length": 8}),
            (st.MODEL, {}),
            (medusa.KEYS, {"hidden_size": 8, "vocab_size": 8}),
            (generation.KEYS, {}),
            (llava.KEYS, {"text_config": {"a": 1}, "vision_config": {"a": 1}}),
            (llava.VISION_KEYS, {"model_type": "clip_vision_model"}),
            (qwen2_vl.KEYS, {"text_config": {"a": 1}, "vision_config": {"a": 1}}),
            (qwen2_vl.VISION_KEYS, {}),
            (qwen2_vl_images.KEYS, {}),
            (clip.KEYS, {}),
            (clip.OF_PROCESSOR, {}),
            (TOKENIZER_CONFIG, {}),
            (SPECIAL_TOKENS_MAP, {}),
            (SENTENCE_TRANSFORMERS, {}),
            (tokenizer_json.FILE, {"model": {"a": 1}}),
            (tokenizer_json.MODEL, {"vocab": {"a": 1}, "merges": ["a b"]}),
            (tokenizer_json.ADDED_TOKEN, {"id": 7, "content": "y"}),
            *((keys, {}) for kinds in tokenizer_json.PARTS.values() for keys in kinds.values()),
            (tokenizer_json.PATTERN, {}),
            (quantized.GPTQ, {"bits": 4, "group_size": 16, "desc_act": False, "sym": True}),
            (quantized.AWQ, {"zero_point": True}),
            (quantized.FP8, {}),
            (quantized.COMPRESSED_TENSORS, {"config_groups": {"a": 1}}),
            (quantized.CONFIG_GROUP, {"targets": ["Linear"], "weights": {"a": 1}}),
            (quantized.QUANTIZATION_ARGS, {}),
            *((each.keys, {}) for each in (Int8Config, Int4Config, Nf4Config)),
        )
    )
}


@pytest.mark.parametrize("name", GATES)
def test_no_key_of_a_file_is_passed_over(name: str) -> None:
    keys, plain = GATES[name]
    before, outcomes = keys.read(plain), Counter[str]()
    for key in (*keys.used, *keys.fixed, *keys.harmless, "something_new", "pooling_mode_"):
        for value in OTHERS:
            if plain.get(key) == value:
                continue
            try:
                after = keys.read({**plain, key: value})
            except ValueError as error:
                assert key in str(error), f"the refusal of {key} = {value!r} does not name it: {error}"
                outcomes["refused"] += 1
                continue
            if value is None or key in keys.harmless:
                outcomes["harmless"] += 1
            elif after != before:
                outcomes["used"] += 1
            else:
                assert key in keys.fixed and keys.fixed[key].allows(value), f"{key} = {value!r} is passed over"
                outcomes["harmless"] += 1
    assert outcomes["refused"]


CONFIGS: dict[str, dict[str, Any]] = {
    raw["architectures"][0]: raw for raw in (*TINY.values(), *DECODERS.values(), *POOLED.values())
}
LIKE = {"Model": "ForCausalLM", "ForSequenceClassification": "ForCausalLM"}


def config_of(architecture: str) -> dict[str, Any]:
    if architecture not in CONFIGS:
        end = next(each for each in LIKE if architecture.endswith(each))
        base = (
            CONFIGS.get(architecture.removesuffix(end) + LIKE[end]) or CONFIGS[architecture.removesuffix(end) + "Model"]
        )
        return {**base, "architectures": [architecture]}
    return CONFIGS[architecture]


WITH = {"max_window_layers": {"use_sliding_window": True, "sliding_window": 4}}
"""What makes a key count that otherwise does not."""
SAME = {"compression_config": "quantization_config", "rope_parameters": "rope_scaling"}
"""Two spellings of one thing, of which errors name the second."""


def outcome(raw: dict[str, Any], key: str, value: Any) -> str:
    """ "refused", "used", "harmless" or "silent"."""
    architecture = raw["architectures"][0]
    table, watched = key_table(architecture), Watched({**raw, key: value})
    watched.update(WITH.get(key, {}) if "use_sliding_window" in table.used else {})
    try:
        config = HFConfig.from_dict(watched)
        if key not in watched.asked and (key in table.used or key in table.own):
            get_model_class(architecture)(config)
    except ValueError as error:
        said = str(error)
        named = any(each in said for each in (key, SAME.get(key, key), *raw))
        return "refused" if named else f"silent: refused as {said!r}"
    if key in IGNORABLE or key in table.ignorable or value is None or raw.get(key) == value:
        return "harmless"
    if key in table.used or key in table.own or key in READ_BY_POOLERS or key in ALWAYS_READ:
        return "used" if key in watched.asked or key in READ_BY_POOLERS else "silent"
    return "harmless" if value in table.fixed.get(key, ()) else "silent"


def keys_of(architecture: str) -> list[str]:
    table = key_table(architecture)
    return sorted({*table.used, *table.own, *table.fixed, *table.ignorable, *READ_BY_POOLERS, *ALWAYS_READ, "new_key"})


@pytest.mark.parametrize("architecture", sorted(set(known_architectures()) & {
    *CONFIGS, "LlamaModel", "Qwen3Model", "LlamaForSequenceClassification", "Qwen2Model",
}))  # fmt: skip
def test_no_key_of_a_config_is_passed_over(architecture: str) -> None:
    raw = config_of(architecture)
    found = {(key, str(value)): outcome(raw, key, value) for key in keys_of(architecture) for value in OTHERS}
    silent = {which: what for which, what in found.items() if what.startswith("silent")}
    assert not silent
    assert Counter(found.values())["refused"] > len(found) // 3


def test_every_key_that_is_read_has_a_kind() -> None:
    read = {key for name in known_architectures() for key in (*key_table(name).used, *key_table(name).own)}
    assert not sorted((read | READ_BY_POOLERS | ALWAYS_READ) - set(KINDS))


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0,
             "attention_factor": 0.9, "mscale": 0.8, "mscale_all_dim": 0.7, "truncate": False},
    "longrope": {"original_max_position_embeddings": 64, "short_factor": [1.0] * 16, "long_factor": [2.0] * 16,
                 "factor": 4.0, "attention_factor": 1.1},
    "default": {},
}  # fmt: skip
INERT = {("yarn", "mscale"), ("longrope", "factor")}
"""What a given `attention_factor` outdoes."""
ONE = [("partial_rotary_factor", 1), ("factor", 1)]


@pytest.mark.parametrize("base", ["LlamaForCausalLM", "ModernBertModel", "Gemma3ForCausalLM"])
@pytest.mark.parametrize("rope_type", ROPES)
def test_no_key_of_rotary_settings_is_passed_over(base: str, rope_type: str) -> None:
    raw = {key: value for key, value in config_of(base).items() if not key.startswith("rope_")}

    def parse(settings: dict[str, Any]) -> tuple[Any, Any]:
        nested = {"full_attention": settings, "sliding_attention": {"rope_type": "default"}}
        config = HFConfig.from_dict({**raw, "rope_parameters": settings if base[0] == "L" else nested})
        return config.rope, config.rope_local

    plain = {"rope_type": rope_type, "rope_theta": 5000.0, **ROPES[rope_type]}
    before = parse(plain)
    for key in (*plain, "partial_rotary_factor", "alpha", "mrope_section", "type"):
        for value in OTHERS:
            try:
                after = parse({**plain, key: value})
            except ValueError:
                continue
            same = value is None or plain.get(key) == value or (rope_type, key) in INERT or (key, value) in ONE
            assert after != before or same, f"{key} = {value!r} is passed over"


READERS = {
    "lora/peft_helper.py": "adapter_config.json, FileKeys",
    "model_loader/safetensors_reader.py": "the header, all of it",
    "transformers_utils/file_keys.py": "the gate",
    "transformers_utils/sentence_transformers.py": "FileKeys",
    "transformers_utils/config.py": "config.json, KeyTable",
    "transformers_utils/generation_config.py": "FileKeys",
    "transformers_utils/configs/medusa.py": "FileKeys",
    "transformers_utils/configs/eagle.py": "config.json, KeyTable",
    "transformers_utils/processors/clip.py": "FileKeys",
    "tokenizers/tokenizer_files.py": "FileKeys",
    "entrypoints/chat_utils.py": "a template that stands alone in its file",
    "layers/quantization/resolve.py": "quantization_config",
    "spec_decode/utils.py": "model_type alone, to find the reader",
    "distributed/kv_transfer/kv_connector/nixl/metadata.py": "what another engine of ours says",
    "distributed/kv_transfer/kv_connector/nixl/utils.py": "what another engine of ours says",
}


def test_every_reader_of_a_checkpoints_json_is_known() -> None:
    """A new one stands behind the gate, and has a table and a row here."""
    root, found = Path(mini_vllm.__file__).parent, set()
    outside = ("tests", "entrypoints", "benchmarks", "tool_parsers", "structured_output", "engine", "kernels", "tools")
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        if (name.split("/")[0] in outside and name != "entrypoints/chat_utils.py") or "json" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in (
                "load_json", "load_json_object", "load_json_if_there", "load", "loads",
            ) and getattr(getattr(node.func, "value", None), "id", "json") == "json":  # fmt: skip
                found.add(name)
    assert found - {"utils/json_files.py"} <= set(READERS), "give it a FileKeys and a row in READERS"
    assert json

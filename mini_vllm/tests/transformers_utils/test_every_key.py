"""Every key of every file that is read from outside, changed in every way: used, harmless, or refused. Silent: none.

A value counts as used when somebody other than the gate asks for the key, or when what the reader returns is another.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import mini_vllm
from mini_vllm.tests.transformers_utils import every_key
from mini_vllm.tests.transformers_utils.every_key import CONFIGS, GATES, ROPE_BASES, ROPES
from mini_vllm.transformers_utils.config import key_table, known_architectures
from mini_vllm.transformers_utils.config_keys import READ_BY_POOLERS
from mini_vllm.transformers_utils.config_kinds import ALWAYS_READ, KINDS
from mini_vllm.transformers_utils.file_keys import COUNT, FileKeys


def silent(found):
    return {which: what for which, what in found.items() if what.startswith("silent")}


@pytest.mark.parametrize("name", GATES)
def test_no_key_of_a_file_is_passed_over(name: str) -> None:
    found = every_key.mutate_gate(*GATES[name])
    assert not silent(found)
    assert "refused" in found.values()


@pytest.mark.parametrize("architecture", sorted(set(known_architectures()) & {
    *CONFIGS, "LlamaModel", "Qwen3Model", "LlamaForSequenceClassification", "Qwen2Model",
}))  # fmt: skip
def test_no_key_of_a_config_is_passed_over(architecture: str) -> None:
    found = every_key.mutate_config(architecture)
    assert not silent(found)
    assert Counter(found.values())["refused"] > len(found) // 3


def test_every_key_that_is_read_has_a_kind() -> None:
    read = {key for name in known_architectures() for key in (*key_table(name).used, *key_table(name).own)}
    assert not sorted((read | READ_BY_POOLERS | ALWAYS_READ) - set(KINDS))


@pytest.mark.parametrize("base", ROPE_BASES)
@pytest.mark.parametrize("rope_type", ROPES)
def test_no_key_of_rotary_settings_is_passed_over(base: str, rope_type: str) -> None:
    assert not silent(every_key.mutate_rope(base, rope_type))


def test_no_key_of_a_safetensors_header_is_passed_over(tmp_path: Path) -> None:
    found = every_key.mutate_header(tmp_path)
    assert not silent(found)
    assert found["dtype", "F64"] == found["something_new", "None"] == "refused" and found["dtype", "I32"] == "used"


def test_a_reader_that_passes_over_a_key_is_seen() -> None:
    """What the table counts as silent, by a gate that has a hole."""

    class Deaf(FileKeys):
        def read(self, raw, where="", error=ValueError):
            return {key: raw[key] for key in self.used if key in raw and key != "size"}

    found = every_key.mutate_gate(Deaf("file.json", used={"size": COUNT, "other": COUNT}), {})
    assert found["size", "3"] == "silent" and found["other", "3"] == "used"
    assert found["something_new", "3"] == "silent"


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
    "distributed/arrivals.py": "what another rank of ours says; each word is looked at in `Arrivals._refusal`",
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

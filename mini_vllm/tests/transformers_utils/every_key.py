"""Every key of every file that is read from outside, with every value of `OTHERS`: what becomes of each.

`python -m mini_vllm.tests.transformers_utils.every_key` prints the table: a row a format, its keys by class, and of
all changes how many were used, harmless, refused. Silent ones are those that no reader asked for; there is none.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from mini_vllm.layers.pooler.activations import SENTENCE_TRANSFORMERS
from mini_vllm.layers.quantization import checkpoint_keys as quantized
from mini_vllm.layers.quantization.grouped import Int4Config
from mini_vllm.layers.quantization.int8 import Int8Config
from mini_vllm.layers.quantization.nf4 import Nf4Config
from mini_vllm.lora.peft_helper import KEYS as ADAPTER
from mini_vllm.model_loader.safetensors_reader import INDEX, Checkpoint
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
from mini_vllm.transformers_utils.config_kinds import ALWAYS_READ
from mini_vllm.transformers_utils.configs import llava, medusa, qwen2_vl
from mini_vllm.transformers_utils.file_keys import FileKeys
from mini_vllm.transformers_utils.processors import clip
from mini_vllm.transformers_utils.processors import qwen2_vl as qwen2_vl_images

OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    3,
    -1,
    0.5,
    1e30,
    "",
    "x",
    "mean",
    [],
    [1],
    ["x"],
    {},
    {"x": 1},
    float("nan"),
)


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


def mutate_gate(keys: FileKeys, plain: dict[str, Any]) -> dict[tuple[str, str], str]:
    """(key, value) -> "refused", "used", "harmless" or "silent: …", for all keys and two that nobody knows."""
    before, found = keys.read(plain), {}
    for key in (*keys.used, *keys.fixed, *keys.harmless, "something_new", "pooling_mode_"):
        for value in OTHERS:
            if plain.get(key) != value:
                found[key, str(value)] = _of_gate(keys, plain, before, key, value)
    return found


def _of_gate(keys: FileKeys, plain: dict[str, Any], before: dict[str, Any], key: str, value: Any) -> str:
    try:
        after = keys.read({**plain, key: value})
    except ValueError as error:
        return "refused" if key in str(error) else f"silent: refused without its name, as {str(error)!r}"
    if value is None or key in keys.harmless:
        return "harmless"
    if after != before:
        return "used"
    return "harmless" if key in keys.fixed and keys.fixed[key].allows(value) else "silent"


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


def mutate_config(architecture: str) -> dict[tuple[str, str], str]:
    """As `mutate_gate`, of `config.json`."""
    raw = config_of(architecture)
    return {(key, str(value)): outcome(raw, key, value) for key in keys_of(architecture) for value in OTHERS}


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
ROPE_BASES = ("LlamaForCausalLM", "ModernBertModel", "Gemma3ForCausalLM")


def mutate_rope(base: str, rope_type: str) -> dict[tuple[str, str], str]:
    """As `mutate_gate`, of rotary settings, in a config that has them once or by kind of layer."""
    raw = {key: value for key, value in config_of(base).items() if not key.startswith("rope_")}

    def parse(settings: dict[str, Any]) -> tuple[Any, Any]:
        nested = {"full_attention": settings, "sliding_attention": {"rope_type": "default"}}
        config = HFConfig.from_dict({**raw, "rope_parameters": settings if base[0] == "L" else nested})
        return config.rope, config.rope_local

    plain = {"rope_type": rope_type, "rope_theta": 5000.0, **ROPES[rope_type]}
    before, found = parse(plain), {}
    for key in (*plain, "partial_rotary_factor", "alpha", "mrope_section", "type"):
        for value in OTHERS:
            same = value is None or plain.get(key) == value or (rope_type, key) in INERT or (key, value) in ONE
            try:
                found[key, str(value)] = (
                    "used" if parse({**plain, key: value}) != before else "harmless" if same else "silent"
                )
            except ValueError:
                found[key, str(value)] = "refused"
    return found


def mutate_header(folder: Path) -> dict[tuple[str, str], str]:
    """As `mutate_gate`, of the entry of a tensor in the header of a safetensors file, and of its notes."""
    plain: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    found = {}
    for key in (*plain, "something_new", "__metadata__"):
        for value in (*OTHERS, "F16", "I32", "F64", [8], [1, 2], [0, 4], [4, 12], {"format": "pt"}):
            entry = plain if key == "__metadata__" else {**plain, key: value}
            header = {"a": entry, **({"__metadata__": value} if key == "__metadata__" else {})}
            text = json.dumps(header).encode()
            file = folder / "model.safetensors"
            file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
            try:
                with Checkpoint(folder) as checkpoint:
                    info = checkpoint.files[file.name].tensors["a"]
                same = (info.dtype, list(info.shape)) == ("F32", [2])
                found[key, str(value)] = "harmless" if key == "__metadata__" else "silent" if same else "used"
            except ValueError:
                found[key, str(value)] = "refused"
    return found


def table() -> list[tuple[str, int, int, int, Counter[str]]]:
    """Rows: a format, how many of its keys are used, fixed, harmless, and what became of all changes."""
    rows = []
    for name, (keys, plain) in GATES.items():
        found = mutate_gate(keys, plain)
        rows.append((name, len(keys.used), len(keys.fixed), len(keys.harmless), _counted(found)))
    with tempfile.TemporaryDirectory() as folder:
        rows.append(("a safetensors header", 3, 0, 1, _counted(mutate_header(Path(folder)))))
    for architecture in sorted(set(known_architectures()) & set(CONFIGS)):
        table, found = key_table(architecture), mutate_config(architecture)
        used = len({*table.used, *table.own, *READ_BY_POOLERS, *ALWAYS_READ})
        rows.append((f"config.json, {architecture}", used, len(table.fixed), len({*table.ignorable, *IGNORABLE}),
                     _counted(found)))  # fmt: skip
    for base in ROPE_BASES:
        for rope_type in ROPES:
            known = len(ROPES[rope_type]) + 3
            rows.append((f"rotary {rope_type}, {base}", known, 0, 0, _counted(mutate_rope(base, rope_type))))
    return rows


def _counted(found: dict[tuple[str, str], str]) -> Counter[str]:
    return Counter(what.partition(":")[0] for what in found.values())


def main() -> None:
    """Print the table, and the sums."""
    sums = Counter[str]()
    kinds = ("used", "harmless", "refused", "silent")
    print("| format | keys used | fixed | harmless | " + " | ".join(f"changes {kind}" for kind in kinds) + " |")
    print("|---|" + "---|" * 7)
    for name, used, fixed, harmless, found in table():
        sums += found
        cells = (name, used, fixed, harmless, *(found[kind] for kind in kinds))
        print("| " + " | ".join(map(str, cells)) + " |")
    print("| all | | | | " + " | ".join(str(sums[kind]) for kind in kinds) + " |")


if __name__ == "__main__":
    main()

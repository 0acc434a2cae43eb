"""Names: what a tensor of an adapter's file belongs to. Upstream twin: `vllm/lora/utils.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mini_vllm.layers.linear import LinearBase
from mini_vllm.layers.quantization.base_config import shard_names
from mini_vllm.layers.vocab_parallel_embedding import VocabParallelEmbedding

SUPPORTED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "out_proj", "fc1", "fc2")
"""Projections that get buffers. Upstream has wrappers for embeddings, output embeddings and experts too; adapters of
those are refused by name here (`lora_model.py`)."""
_PREFIX = "base_model.model."


def parse_fine_tuned_lora_name(name: str) -> tuple[str, bool]:
    """Name of a tensor -> the projection's name in the base checkpoint, and whether it is `lora_a`.

    >>> parse_fine_tuned_lora_name("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight")
    ('model.layers.0.self_attn.q_proj', True)

    Raises:
        ValueError: it is no tensor of an adapter.

    Upstream: upstream/vllm/lora/utils.py:155 — `parse_fine_tuned_lora_name`.
    """
    parts = name.removeprefix(_PREFIX).split(".")
    if parts[-1] == "weight" and len(parts) > 2 and parts[-2] in ("lora_A", "lora_B"):
        return ".".join(parts[:-2]), parts[-2] == "lora_A"
    if "lora_embedding" in name or "base_layer" in parts:  # PEFT saves whole matrices of the vocabulary beside theirs
        raise ValueError(f"{name!r} belongs to an adapter of an embedding or an output matrix: those are not served")
    raise ValueError(f"{name!r} is no tensor of a LoRA adapter: its name must end in lora_A.weight or lora_B.weight")


def supports_lora(layer: object, target_modules: Iterable[str] | None = None) -> bool:
    """Whether a layer of a model gets buffers."""
    if not isinstance(layer, LinearBase):
        return False
    name = layer.prefix.rpartition(".")[2]
    return name in SUPPORTED and (target_modules is None or name in target_modules)


def projection_names(layer: LinearBase) -> list[str]:
    """What the checkpoint, and so PEFT, calls the projections of a layer: Phi-3 has q, k and v in one.

    Upstream: upstream/vllm/lora/utils.py:358 — `process_packed_modules_mapping`.
    """
    return [layer.prefix] if layer.is_one_tensor else shard_names(layer.prefix)


def module_names(layers: Iterable[Any]) -> set[str]:
    """Projections, embeddings and the output matrix. Experts are parameters without a module of their own."""
    found = {"lm_head"}
    for layer in layers:
        if isinstance(layer, LinearBase):
            found.update(projection_names(layer))
        elif isinstance(layer, VocabParallelEmbedding):
            found.add(layer.prefix)
    return {name for name in found if ".experts" not in name}

"""`mini-vllm info MODEL`: what a checkpoint is, and how much KV cache it needs. Reads no weights."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from mini_vllm.entrypoints.cli import common as c

KV_TYPES = {"float32": ("auto", 4), "float64": ("auto", 8), "float16 (vLLM)": ("auto", 2), "int8": ("int8", 1),
            "fp8": ("fp8", 1)}  # fmt: skip
"""Row of the table -> `kv_cache_dtype`, and bytes of a number under "auto"."""


@c.reports_errors
def info(
    model: Annotated[str | None, typer.Argument(help="Folder or hub name.", show_default=c.DEFAULT_MODEL)] = None,
    kv_memory: Annotated[str, typer.Option("--kv-memory", help="Memory of the KV cache.")] = "1GiB",
    block_size: Annotated[int, typer.Option("--block-size", help="Tokens per block.", min=1)] = 16,
    attention_backend: c.AttentionBackend = None,
    quantization: c.Quantization = None,
    kv_cache_dtype: c.KVCacheDtype = None,
    explain_backend: Annotated[
        bool, typer.Option("--explain", help="Which attention backend it gets, and why (phase 04).")
    ] = False,
    debug: c.Debug = False,
) -> None:
    """What a checkpoint is: its shape, the bytes of KV cache that a token takes, how many tokens fit."""
    from mini_vllm.attention.backend import AttentionSelectorConfig
    from mini_vllm.attention.selector import explain
    from mini_vllm.kv_cache_interface import get_kv_quant_mode
    from mini_vllm.model_loader.hub import get_checkpoint_folder
    from mini_vllm.platforms import DEFAULT_DEVICE, default_device
    from mini_vllm.plugins import PLATFORM_PLUGINS_GROUP, brought_by, load_general_plugins
    from mini_vllm.transformers_utils.config import HFConfig

    name = c.find_model(model)
    if name is None:
        raise ValueError("the toy model has no checkpoint: it has no weights and keeps no KV.")
    memory = c.parse_bytes(kv_memory)
    assert memory is not None
    folder = get_checkpoint_folder(name)
    load_general_plugins()  # one of them may know the model
    config = HFConfig.from_folder(folder)
    console = c.out()
    in_memory = memory_of_weights(str(folder), config, quantization)
    weights = count_weights(str(folder))
    console.print(Text(in_words(c.short_path(folder), (in_memory or weights)[0], config)))
    console.print(architecture_table(c.short_path(folder), weights, config, in_memory))
    console.print(kv_table(config, memory, block_size))
    if (device := default_device()) != DEFAULT_DEVICE:
        console.print(Text(f"platform {device} (from {brought_by(PLATFORM_PLUGINS_GROUP, device)}, outside)"))
    get_kv_quant_mode(kv_cache_dtype or "auto")
    if explain_backend or attention_backend:
        cfg = AttentionSelectorConfig(config.head_dim, kv_cache_dtype=kv_cache_dtype or "auto", block_size=block_size)
        console.print(Text(str(explain(cfg, attention_backend))))


def in_words(name: str, parameters: int, config: Any) -> str:
    """The tables below in two sentences, for who reads them for the first time."""
    return (
        f"{name} is a language model of {parameters:,} numbers in {config.num_hidden_layers} layers. It knows "
        f"{config.vocab_size:,} tokens (pieces of text) and takes up to {config.max_model_len:,} of them at a time; "
        "what it keeps of each one is its KV cache. Phase 00 explains the first table, phase 02 the second."
    )


def count_weights(folder: str) -> tuple[int, int, dict[str, int]]:
    """(parameters, bytes on disk, bytes per stored type), from the files' headers alone."""
    from mini_vllm.model_loader.safetensors_reader import STORED, Checkpoint

    parameters = 0
    by_dtype: dict[str, int] = {}
    with Checkpoint(folder) as checkpoint:
        for file in checkpoint.files.values():
            for tensor in file.tensors.values():
                count = math.prod(tensor.shape)
                parameters += count
                size = np.dtype(STORED.get(tensor.dtype, "u1")).itemsize
                by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + count * size
    return parameters, sum(by_dtype.values()), by_dtype


def memory_of_weights(folder: str, config: Any, quantization: str | None) -> tuple[int, int, str] | None:
    """(parameters, bytes in memory, format) of a model with quantized weights; None: floats."""
    from mini_vllm.layers.quantization.resolve import resolve_quantization
    from mini_vllm.models.registry import get_model_class

    quant_config = resolve_quantization(folder, config.quantization_config, quantization)
    if quant_config is None:
        return None
    model = get_model_class(config.architecture)(config, "float32", quant_config)  # arrays that nobody touches
    return model.num_parameters, model.weight_nbytes, quant_config.get_name()


def architecture_table(
    title: str, weights: tuple[int, int, dict[str, int]], config: Any, in_memory: tuple[int, int, str] | None = None
) -> Table:
    """Shape of the model. weights: see `count_weights`. in_memory: see `memory_of_weights`."""
    parameters, size, by_dtype = weights
    parameters, held, form = in_memory or (parameters, parameters * 4, "float32")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    kind = "MHA" if heads == kv_heads else "MQA" if kv_heads == 1 else f"GQA, {heads // kv_heads} queries per KV head"
    rows = {
        "architecture": config.architecture,
        "parameters": f"{parameters:,} ({parameters / 1e6:.1f} M)",
        "weights on disk": f"{c.format_bytes(size)} ({', '.join(sorted(by_dtype))})",
        "weights in memory": f"{c.format_bytes(held)} ({form})",
        "computed in": "float32"
        + (f"; config.json says {config.dtype}" if config.dtype not in (None, "float32") else ""),
        "layers": config.num_hidden_layers,
        "hidden, intermediate": f"{config.hidden_size}, {config.intermediate_size}",
        "attention heads": f"{heads} × {config.head_dim}, {kv_heads} KV heads ({kind})",
        "vocabulary": f"{config.vocab_size:,}{' (tied embeddings)' if config.tie_word_embeddings else ''}",
        "context": f"{config.max_model_len:,} tokens",
        "sliding window": config.sliding_window or "none",
        "end tokens": ", ".join(map(str, config.eos_token_ids)) or "none",
    }
    if config.moe:
        rows["experts"] = f"{config.moe.num_experts}, of which each token gets {config.moe.top_k}"
        rows["hidden, intermediate"] = f"{config.hidden_size}, {config.moe.intermediate_size} of each expert"
    if config.media is not None:
        rows["media"] = config.media.summary
    table = Table("", "value", title=title, show_header=False)
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def kv_table(config: Any, memory: int, block_size: int) -> Table:
    """KV bytes per token = 2 × layers × KV heads × head size × bytes a number, and what fits into `memory`.

    int8 adds a float32 scale for each head of a token. One block is the null block and holds nothing. A sequence of
    full context takes ceil(context / block_size) blocks.
    """
    from mini_vllm.kv_cache_interface import kv_bytes_per_token

    heads = config.num_hidden_layers * config.num_key_value_heads
    title = f"KV cache: {c.format_bytes(memory)}, blocks of {block_size} tokens"
    full = f"sequences of {config.max_model_len}"
    table = Table("type", "bytes per token", "blocks", "tokens", full, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, (kv_cache_dtype, itemsize) in KV_TYPES.items():
        per_token = kv_bytes_per_token(heads, config.head_dim, kv_cache_dtype, itemsize)
        blocks = memory // (per_token * block_size)
        usable = max(blocks - 1, 0)
        sequences = usable / math.ceil(config.max_model_len / block_size)
        row = (f"{per_token:,}", f"{blocks:,}", f"{usable * block_size:,}", f"{sequences:.1f}")
        table.add_row(name, *row)
    return table

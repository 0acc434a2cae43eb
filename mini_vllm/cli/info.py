"""`mini-vllm info MODEL`: what a checkpoint is, and how much KV cache it needs. Reads no weights."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer
from rich.table import Table

from mini_vllm.cli import common as c

DTYPE_BYTES = {"float32": 4, "float64": 8, "float16 (vLLM)": 2, "fp8 (vLLM)": 1}


@c.reports_errors
def info(
    model: Annotated[str | None, typer.Argument(help="Folder or hub name.", show_default=c.DEFAULT_MODEL)] = None,
    kv_memory: Annotated[str, typer.Option("--kv-memory", help="Memory of the KV cache.")] = "1GiB",
    block_size: Annotated[int, typer.Option("--block-size", help="Tokens per block.", min=1)] = 16,
    debug: c.Debug = False,
) -> None:
    """Architecture, parameters, bytes per token of KV cache, and how many tokens fit."""
    from mini_vllm.models.config import HFConfig
    from mini_vllm.models.hub import get_checkpoint_folder

    name = c.find_model(model)
    if name is None:
        raise ValueError("the toy model has no checkpoint: it has no weights and keeps no KV.")
    memory = c.parse_bytes(kv_memory)
    assert memory is not None
    folder = get_checkpoint_folder(name)
    config = HFConfig.from_folder(folder)
    console = c.out()
    console.print(architecture_table(c.short_path(folder), count_weights(str(folder)), config))
    console.print(kv_table(config, memory, block_size))


def count_weights(folder: str) -> tuple[int, int, dict[str, int]]:
    """(parameters, bytes on disk, bytes per stored type), from the files' headers alone."""
    from mini_vllm.models.safetensors_reader import DTYPES, Checkpoint

    parameters = 0
    by_dtype: dict[str, int] = {}
    with Checkpoint(folder) as checkpoint:
        for file in checkpoint.files.values():
            for tensor in file.tensors.values():
                count = math.prod(tensor.shape)
                parameters += count
                size = {"F64": 8, "F32": 4}.get(tensor.dtype, 2 if tensor.dtype in DTYPES else 1)
                by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + count * size
    return parameters, sum(by_dtype.values()), by_dtype


def architecture_table(title: str, weights: tuple[int, int, dict[str, int]], config: Any) -> Table:
    """Shape of the model. weights: see `count_weights`."""
    parameters, size, by_dtype = weights
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    kind = "MHA" if heads == kv_heads else "MQA" if kv_heads == 1 else f"GQA, {heads // kv_heads} queries per KV head"
    rows = {
        "architecture": config.architecture,
        "parameters": f"{parameters:,} ({parameters / 1e6:.1f} M)",
        "weights on disk": f"{c.format_bytes(size)} ({', '.join(sorted(by_dtype))})",
        "weights in memory": f"{c.format_bytes(parameters * 4)} (float32)",
        "layers": config.num_hidden_layers,
        "hidden, intermediate": f"{config.hidden_size}, {config.intermediate_size}",
        "attention heads": f"{heads} × {config.head_dim}, {kv_heads} KV heads ({kind})",
        "vocabulary": f"{config.vocab_size:,}{' (tied embeddings)' if config.tie_word_embeddings else ''}",
        "context": f"{config.max_model_len:,} tokens",
        "sliding window": config.sliding_window or "none",
        "end tokens": ", ".join(map(str, config.eos_token_ids)) or "none",
    }
    table = Table("", "value", title=title, show_header=False)
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def kv_table(config: Any, memory: int, block_size: int) -> Table:
    """KV bytes per token = 2 × layers × KV heads × head size × bytes a number, and what fits into `memory`.

    One block is the null block and holds nothing. A sequence of full context takes ceil(context / block_size) blocks.
    """
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    title = f"KV cache: {c.format_bytes(memory)}, blocks of {block_size} tokens"
    full = f"sequences of {config.max_model_len}"
    table = Table("type", "bytes per token", "blocks", "tokens", full, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for dtype, size in DTYPE_BYTES.items():
        blocks = memory // (numbers * size * block_size)
        usable = max(blocks - 1, 0)
        sequences = usable / math.ceil(config.max_model_len / block_size)
        row = (f"{numbers * size:,}", f"{blocks:,}", f"{usable * block_size:,}", f"{sequences:.1f}")
        table.add_row(dtype, *row)
    return table

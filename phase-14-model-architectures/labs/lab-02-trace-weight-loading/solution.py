"""Lab 14-02: what real vLLM does with each tensor of a checkpoint, and what it does not notice.

A `config` has `num_attention_heads`, `num_key_value_heads`, `head_dim`, `hidden_size`, `intermediate_size` and
`vocab_size`. A `run` is one of the captures of `real_run.py`:

    tensors      name -> shape, of the checkpoint
    parameters   name -> shape, of the model; {} where nothing was watched
    trace        in order of time: {"tensor", "tensor_shape", "parameter", "rows": [first, last], "equal"}: this tensor
                 filled these rows, and `equal` says whether they are the tensor's first rows, number by number
    error        what the engine said, or None where it started; texts: its answers then
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any


def place_of(name: str, config: Mapping[str, int]) -> tuple[str, int, int]:
    """(parameter, first row, row after the last) that a tensor of a Llama checkpoint fills on one GPU."""
    front, _, end = name.rpartition(".")
    front, _, projection = front.rpartition(".")
    heads, kv_heads, dim = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    inner = config["intermediate_size"]
    q, kv = heads * dim, kv_heads * dim
    stacked = {
        "q_proj": ("qkv_proj", 0, q),
        "k_proj": ("qkv_proj", q, q + kv),
        "v_proj": ("qkv_proj", q + kv, q + 2 * kv),
        "gate_proj": ("gate_up_proj", 0, inner),
        "up_proj": ("gate_up_proj", inner, 2 * inner),
    }
    if projection in stacked:
        fused, first, last = stacked[projection]
        return f"{front}.{fused}.{end}", first, last
    is_table = projection in ("embed_tokens", "lm_head")
    return name, 0, config["vocab_size"] if is_table else config["hidden_size"]


def rank_rows(part: str, config: Mapping[str, int], tp_size: int, tp_rank: int) -> slice:
    """The rows of the checkpoint's q_proj, k_proj or v_proj (`part` "q", "k" or "v") that a rank reads.

    Query heads are shared out evenly. So are KV heads; where there are more ranks than KV heads, several neighbours
    read the same one.

    Raises:
        ValueError: "tp_size must divide num_attention_heads (32), got 5"; "tp_size must be a divisor or a multiple of
            num_key_value_heads (6), got 4"; "tp_rank must be from 0 to 3, got 4".
    """
    heads, kv_heads, dim = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    if tp_size < 1 or heads % tp_size:
        raise ValueError(f"tp_size must divide num_attention_heads ({heads}), got {tp_size}")
    if kv_heads % tp_size and tp_size % kv_heads:
        raise ValueError(f"tp_size must be a divisor or a multiple of num_key_value_heads ({kv_heads}), got {tp_size}")
    if not 0 <= tp_rank < tp_size:
        raise ValueError(f"tp_rank must be from 0 to {tp_size - 1}, got {tp_rank}")
    if part == "q":
        rows = heads // tp_size * dim
        return slice(tp_rank * rows, (tp_rank + 1) * rows)
    replicas = max(1, tp_size // kv_heads)
    rows = max(1, kv_heads // tp_size) * dim
    return slice(tp_rank // replicas * rows, (tp_rank // replicas + 1) * rows)


def fused_rows(config: Mapping[str, int], tp_size: int) -> int:
    """Rows of `qkv_proj.weight` on each of `tp_size` ranks."""
    parts = (rank_rows(part, config, tp_size, 0) for part in "qkv")
    return sum(rows.stop - rows.start for rows in parts)


def audit(run: Mapping[str, Any]) -> list[str]:
    """What is wrong with a load, by what was seen; nothing where all is right, in whatever order the tensors came.

    One sentence each, sorted, none twice; a run that stopped with an error is judged by what it did until then:
        "unfilled: PARAMETER 0:256"     a run of rows that no tensor filled
        "unread: TENSOR"                it filled nothing
        "cut: TENSOR 256 -> 128"        it has 256 rows, and filled 128
        "other numbers: TENSOR"         the rows do not hold what the tensor begins with
        "twice: PARAMETER 128:192"      a run of rows that more than one tensor filled

    How you go about it is your decision; a model may have a billion rows.
    """
    found: set[str] = set()
    seen: dict[str, list[list[int]]] = {}
    for row in run["trace"]:
        first, last = row["rows"]
        seen.setdefault(row["parameter"], []).append([first, last])
        if row["tensor_shape"][0] != last - first:
            found.add(f"cut: {row['tensor']} {row['tensor_shape'][0]} -> {last - first}")
        if not row["equal"]:
            found.add(f"other numbers: {row['tensor']}")
    for tensor in set(run["tensors"]) - {row["tensor"] for row in run["trace"]}:
        found.add(f"unread: {tensor}")
    for name, shape in run["parameters"].items():
        for word, first, last in _faults(seen.get(name, []), shape[0]):
            found.add(f"{word}: {name} {first}:{last}")
    return sorted(found)


def _faults(runs: list[list[int]], size: int) -> list[tuple[str, int, int]]:
    """Rows that none, and rows that several of the runs hold, as (word, first, last)."""
    edges = sorted({0, size, *(edge for each in runs for edge in each)})
    found: list[tuple[str, int, int]] = []
    for first, last in pairwise(edges):
        times = sum(a <= first and last <= b for a, b in runs)
        word = {0: "unfilled", 1: ""}.get(times, "twice")
        if word and found and found[-1][0] == word and found[-1][2] == first:
            found[-1] = (word, found[-1][1], last)
        elif word:
            found.append((word, first, last))
    return found


def verdict(run: Mapping[str, Any], whole: Mapping[str, Any]) -> tuple[str, int]:
    """("loud", 0) where the engine refused; else ("right" where it gives the answers of the run `whole`, "silent" where
    it does not, how many of the answers differ)."""
    if run["error"] is not None:
        return "loud", 0
    differ = sum(mine != theirs for mine, theirs in zip(run["texts"], whole["texts"], strict=True))
    return ("silent" if differ else "right"), differ

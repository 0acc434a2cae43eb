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
from typing import Any


def place_of(name: str, config: Mapping[str, int]) -> tuple[str, int, int]:
    """(parameter, first row, row after the last) that a tensor of a Llama checkpoint fills on one GPU."""
    raise NotImplementedError("the parameter and the rows that this tensor fills")


def rank_rows(part: str, config: Mapping[str, int], tp_size: int, tp_rank: int) -> slice:
    """The rows of the checkpoint's q_proj, k_proj or v_proj (`part` "q", "k" or "v") that a rank reads.

    Query heads are shared out evenly. So are KV heads; where there are more ranks than KV heads, several neighbours
    read the same one.

    Raises:
        ValueError: "tp_size must divide num_attention_heads (32), got 5"; "tp_size must be a divisor or a multiple of
            num_key_value_heads (6), got 4"; "tp_rank must be from 0 to 3, got 4".
    """
    raise NotImplementedError("the rows of q, k or v that this rank reads")


def fused_rows(config: Mapping[str, int], tp_size: int) -> int:
    """Rows of `qkv_proj.weight` on each of `tp_size` ranks."""
    raise NotImplementedError("the rows of the fused parameter on each rank")


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
    raise NotImplementedError("a sentence for each thing that is wrong with this load")


def verdict(run: Mapping[str, Any], whole: Mapping[str, Any]) -> tuple[str, int]:
    """("loud", 0) where the engine refused; else ("right" where it gives the answers of the run `whole`, "silent" where
    it does not, how many of the answers differ)."""
    raise NotImplementedError("what the engine noticed, and how many answers differ")

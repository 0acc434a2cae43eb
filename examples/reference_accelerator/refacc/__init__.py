"""A reference accelerator for `mini_vllm`: it computes in float64, and counts its bytes and its operations.

The two functions are what the entry points in pyproject.toml name. Every process of an engine imports this file, so it
imports nothing.
"""

from __future__ import annotations

import os

DEFAULT_GIB = 4.0


def gib() -> float:
    """GiB of memory of each device: REFACC_GIB. Raises ValueError for what is no such number."""
    text = os.environ.get("REFACC_GIB", str(DEFAULT_GIB))
    try:
        size = float(text)
    except ValueError:
        size = -1.0
    if not 0 <= size < float("inf"):
        raise ValueError(f"REFACC_GIB must be a number of GiB, 0 for no device, got {text!r}")
    return size


def register() -> str | None:
    """The platform's class, by name; None where there is no device, which is where it has no memory."""
    return "refacc.platform.RefAccPlatform" if gib() else None


def compiled_forms() -> dict[str, dict[str, str]]:
    """Which program computes which model on the device."""
    program = "refacc.program.LlamaProgram"
    models = ("LlamaForCausalLM", "MistralForCausalLM")
    return {"refacc": {f"mini_vllm.models.llama.{name}": program for name in models}}

"""Result files that JSON can hold, and the form that PyTorch's benchmark boards read.

Upstream twin: `vllm/benchmarks/lib/utils.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def clear_inf(value: Any) -> Any:
    """The same value with infinite floats as the text "inf", which JSON has no number for; keys that are no text,
    number or None become text.

    Upstream: upstream/vllm/benchmarks/lib/utils.py:94 — `InfEncoder`.
    """
    if isinstance(value, dict):
        return {k if isinstance(k, str | int | float | bool | None) else str(k): clear_inf(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clear_inf(each) for each in value]
    return "inf" if isinstance(value, float) and math.isinf(value) else value


def write_to_json(filename: str | Path, records: Any) -> None:
    """Write `records` as JSON; what JSON cannot hold is named by its type.

    Upstream: upstream/vllm/benchmarks/lib/utils.py:113 — `write_to_json`.
    """
    text = json.dumps(clear_inf(records), default=lambda o: f"<{type(o).__name__} is not JSON serializable>")
    Path(filename).write_text(text, encoding="utf-8")


def convert_to_pytorch_benchmark_format(
    args: argparse.Namespace, metrics: dict[str, list[Any]], extra_info: dict[str, Any]
) -> list[dict[str, Any]]:
    """One record a metric; [] unless the variable SAVE_TO_PYTORCH_BENCHMARK_FORMAT is set.

    metrics: name -> values. extra_info: what else the reader of a board should know.
    Raises TypeError for values that are no list.
    Upstream: upstream/vllm/benchmarks/lib/utils.py:38 — `convert_to_pytorch_benchmark_format`, which also says whether
    torch.compile was on.
    """
    if not os.environ.get("SAVE_TO_PYTORCH_BENCHMARK_FORMAT"):
        return []
    for name, values in metrics.items():
        if not isinstance(values, list):
            raise TypeError(f"benchmark_values for metric '{name}' must be a list, but got {type(values).__name__}")
    given = dict(vars(args))
    if not given.get("tensor_parallel_size") and "tensor_parallel_size" in extra_info:
        given["tensor_parallel_size"] = extra_info["tensor_parallel_size"]
    return [
        {
            "benchmark": {"name": "mini_vllm benchmark", "extra_info": {"args": given}},
            "model": {"name": getattr(args, "model", None)},
            "metric": {"name": name, "benchmark_values": values, "extra_info": extra_info},
        }
        for name, values in metrics.items()
    ]


def save_to_pytorch_benchmark_format(
    args: argparse.Namespace, metrics: dict[str, list[Any]], extra_info: dict[str, Any], beside: str | Path
) -> None:
    """Write the records to `NAME.pytorch.json` next to the result file `beside`; nothing where there are none.

    Upstream: upstream/vllm/benchmarks/serve.py:1168 — `save_to_pytorch_benchmark_format`.
    """
    records = convert_to_pytorch_benchmark_format(args, metrics, extra_info)
    if records:
        write_to_json(f"{os.path.splitext(beside)[0]}.pytorch.json", records)


def key_values(pairs: list[str] | None, what: str) -> dict[str, str]:
    """["a=1", "b=2"] -> {"a": "1", "b": "2"}. Raises ValueError naming the option `what`."""
    found = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{what} must be KEY=VALUE, got {pair!r}")
        found[name.strip()] = value.strip()
    return found


@contextmanager
def progress_bar(what: str, total: int, disable: bool = False) -> Iterator[Callable[[], Any]]:
    """A bar on stderr while the block runs, on a terminal only; what it gives is called once for each thing done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=disable or not console.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)

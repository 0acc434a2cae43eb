"""Ask the captured verdicts of vLLM's own selector: which backend objected when, and who stood before whom. Given.

    python ask.py TRITON_ATTN head_size      which of its reasons came up, by head size and GPU
    python ask.py FLASH_ATTN has_sink        columns: head_size dtype kv_cache_dtype block_size use_mla has_sink
    python ask.py --order                    the candidates as a refusal lists them, for each GPU

A cell counts: "3/9" means that the reason came up in 3 of 9 configurations with this value on this GPU.
"""

from __future__ import annotations

import collections
import json
import lzma
import sys
from pathlib import Path

REAL = json.loads(lzma.decompress((Path(__file__).resolve().parent / "captured" / "selector.json.xz").read_bytes()))
COLUMNS = ("capability", "head_size", "dtype", "kv_cache_dtype", "block_size", "use_mla", "has_sink")
GPUS = list(REAL["fa_version"])


def table(backend: str, column: str) -> str:
    """One block for each reason that the backend ever gave: values of the column down, GPUs across."""
    at, lines = COLUMNS.index(column), []
    asked: dict[tuple[str, str], int] = collections.Counter()
    found: dict[str, dict[tuple[str, str], int]] = collections.defaultdict(collections.Counter)
    for row in (row for row in REAL["rows"] if backend in row[8]):
        cell = str(row[at]), row[0]
        asked[cell] += 1
        for number in row[8][backend]:
            found[REAL["reasons"][number]][cell] += 1
    for reason, counts in found.items():
        lines += ["", f"{backend}: {reason}", f"{column:>16}" + "".join(f"{gpu:>9}" for gpu in GPUS)]
        for value in dict.fromkeys(value for value, _ in asked):
            cells = (f"{counts[value, gpu]}/{asked[value, gpu]}" for gpu in GPUS)
            lines.append(f"{value:>16}" + "".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines) or f"{backend} never objected"


def order() -> str:
    """Where nobody could be taken, the real selector lists all candidates in the order in which it asked them."""
    refused = {(row[0], row[5]): list(row[8]) for row in REAL["rows"] if row[7] is None}
    return "\n".join(f"{gpu:>5} {'MLA' if mla else '   '}  {', '.join(names)}" for (gpu, mla), names in refused.items())


if __name__ == "__main__":
    backends = {name for row in REAL["rows"] for name in row[8]}
    if sys.argv[1:] == ["--order"]:
        print(order())
    elif len(sys.argv) == 3 and sys.argv[1] in backends and sys.argv[2] in COLUMNS:
        print(table(*sys.argv[1:]))
    else:
        raise SystemExit(f"{__doc__}\nbackends: {', '.join(sorted(backends))}")

"""Prints what `gpu_run.py` found, as the tables of the README. Given material.

python phase-10-distributed-inference/labs/lab-02-two-way-tp/table.py
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from statistics import median
from typing import Any

CAPTURE = Path(__file__).resolve().parent / "capture.json.xz"


def starts(arms: dict[str, Any]) -> list[str]:
    """One line an engine: what its workers loaded, what is left for the cache, how long its steps take."""
    rows = ["arm            a worker loaded   blocks    tokens    step at 1   step at 64   prefill of 2,047"]
    for name in ("opt-1", "opt-2", "tight-1", "tight-2", "llama-1", "llama-2", "llama-2-nccl", "llama-pp"):
        if "found" not in arms.get(name, {}):
            continue
        found, log = arms[name]["found"], arms[name]["log"]
        loaded = [line.split("took ")[1].split(" GiB")[0] for line in log if "Model loading took" in line]
        steps = found.get("decode_ms", {})
        one, many = (f"{steps[batch]['median']:.2f} ms" if batch in steps else "" for batch in ("1", "64"))
        prefill = f"{found['prefill_2047_ms']:.1f} ms" if "prefill_2047_ms" in found else ""
        tokens = found["num_blocks"] * found["block_size"]
        gib = f"{max(map(float, loaded)):.2f} GiB" if loaded else ""
        rows.append(f"{name:14} {gib:>15} {found['num_blocks']:8,} {tokens:9,} {one:>12} {many:>12} {prefill:>12}")
    return [row.rstrip() for row in rows]


def throughput(arms: dict[str, Any]) -> list[str]:
    """The same requests on one engine of two workers, and on two engines of one: tokens a second, the median of the
    repeats, the first left out. Two engines are done when both are."""
    if any("found" not in arms.get(name, {}) for name in ("together", "replicas")):
        return []
    rows = []
    for words, name in (("one engine, two workers", "together"), ("two engines, one each", "replicas")):
        found = arms[name]["found"]
        each = [one["throughput"] for one in (found if isinstance(found, list) else [found])]
        tokens = sum(one["requests"] * one["tokens"] for one in each)
        rates = sorted(
            tokens / max(seconds) for seconds in list(zip(*(one["seconds"] for one in each), strict=True))[1:]
        )
        rows.append(f"{words:24} {median(rates):8,.0f} tokens/s ({rates[0]:,.0f} to {rates[-1]:,.0f})")
    return rows


def wires(arms: dict[str, Any]) -> list[str]:
    """Microseconds of an all-reduce, and the bytes a second that this is: size / time, what two ranks send each."""
    if "found" not in arms.get("wires", {}):
        return []
    rows = ["      bytes        us       GB/s"]
    return rows + [
        f"{row['bytes']:11,} {row['us']:9.1f} {row['bytes'] / row['us'] / 1e3:10.1f}" for row in arms["wires"]["found"]
    ]


def same_words(arms: dict[str, Any]) -> list[str]:
    """pocket's answers on one GPU and on two: where they part, and how close the choice was there."""
    if any("found" not in arms.get(name, {}) for name in ("pocket-1", "pocket-2")):
        return []
    rows = []
    for one, two in zip(*(arms[name]["found"]["answers"] for name in ("pocket-1", "pocket-2")), strict=True):
        pairs = list(zip(one["token_ids"], two["token_ids"], strict=True))
        at = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
        said = "the same" if at is None else f"part at token {at}, margin {one['margins'][at]}"
        rows.append(f"{one['question']:30} {said}")
    return rows


def main() -> None:
    if not CAPTURE.is_file():
        print("no capture.json.xz here: gpu_run.py makes it, on a machine with two GPUs")
        return
    capture = json.loads(lzma.decompress(CAPTURE.read_bytes()))
    parts = [part(capture["arms"]) for part in (starts, throughput, same_words, wires)]
    print("\n\n".join("\n".join(part) for part in parts if part))


if __name__ == "__main__":
    main()

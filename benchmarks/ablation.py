"""The map of techniques: which number each of them moves, by which flag, and how much worse pocket is without it.

    python -m benchmarks.ablation              # about ten minutes on two cores
    python -m benchmarks.ablation --quick      # a minute or two, nothing written

Every row is one engine with everything on and one with a single technique off, served the same requests in turns. The
metric is named before the run: a technique that is worth much on one number is worth nothing on another. Where an arm
computes other tokens by design (quantized weights, for one), the row says so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import RESULTS, limit_threads, machine, save, table  # noqa: E402
from benchmarks.simulator import Workload  # noqa: E402

Arm = dict[str, Any]
"""Engine arguments."""


@dataclass(frozen=True)
class Seen:
    """What one arm did: how it served, and its engine's totals."""

    served: Any
    engine: Any
    tokens_before: int


def tokens_per_s(seen: Seen) -> float:
    """Output tokens a second."""
    return float(seen.served.metrics().output_throughput)


def mean_ttft(seen: Seen) -> float:
    """ms."""
    return float(seen.served.metrics().times["ttft"].mean)


def p99_itl(seen: Seen) -> float:
    """ms."""
    return float(seen.served.metrics().times["itl"].percentiles[1][1])


def tpot(seen: Seen) -> float:
    """ms, mean."""
    return float(seen.served.metrics().times["tpot"].mean)


def computed(seen: Seen) -> float:
    """Tokens that went through the model."""
    return float(seen.engine.stats.num_scheduled_tokens - seen.tokens_before)


def steps(seen: Seen) -> float:
    """Steps of the engine."""
    return float(len(seen.served.steps))


def kv_tokens(seen: Seen) -> float:
    """Tokens that the pool holds."""
    return float((seen.engine.core_client.ready.num_gpu_blocks - 1) * seen.engine.config.block_size)


def weight_bytes(seen: Seen) -> float:
    """MiB that the layers' weights take."""
    return float(seen.engine.model.weight_nbytes) / 2**20


def launches(seen: Seen) -> float:
    """Kernel launches a step, simulated; kernel by kernel where there are no graphs."""
    stats = seen.engine.stats.cudagraph
    return float(stats.launches / max(stats.num_steps, 1))


@dataclass(frozen=True)
class Technique:
    """One row of the map.

    Attributes:
        flag: as a command line has it. off: the setting without it. base: what both arms have besides.
        metric, unit, higher: the number that it is for, and whether more of it is better.
        other_tokens: the arms' answers may differ.
    """

    name: str
    phase: int
    flag: str
    off: Arm
    workload: Workload
    metric: Callable[[Seen], float]
    unit: str
    higher: bool = False
    base: Arm = field(default_factory=dict)
    other_tokens: bool = False


BATCH = Workload("16 at once", 16, 0, (24, 48), (24, 48))
SHARED = Workload("16 behind one prefix of 384", 16, 8, (16, 48), (8, 16), shared=384)
MIXED = Workload("talk, and documents among it", 24, 8, (16, 700), (24, 48))
ALONE = Workload("one after the other", 8, 1, (32, 64), (32, 48))
REPEATS = Workload("answers that repeat", 6, 0, (16, 24), (64, 96))
POOL: Arm = {"kv_cache_memory_bytes": 32 << 20}
GRAPHS: Arm = {"cudagraph_mode": "FULL_AND_PIECEWISE"}
TECHNIQUES = [
    Technique("continuous batching", 3, "--max-num-seqs", {"max_num_seqs": 1}, BATCH, tokens_per_s, "tokens/s", True),
    Technique("one step for all", 3, "--max-num-seqs", {"max_num_seqs": 1}, BATCH, steps, "steps"),
    Technique("prefix caching", 2, "--enable-prefix-caching", {"enable_prefix_caching": False}, SHARED, mean_ttft,
              "ms to the first token"),
    Technique("prefix caching (work)", 2, "--enable-prefix-caching", {"enable_prefix_caching": False}, SHARED, computed,
              "tokens computed"),
    Technique("chunked prefill", 3, "--max-num-batched-tokens", {"max_num_batched_tokens": 2048}, MIXED, p99_itl,
              "ms between tokens, p99", base={"max_num_batched_tokens": 96}),
    Technique("compiled form", 5, "--enforce-eager", {"enforce_eager": True}, BATCH, tokens_per_s, "tokens/s", True),
    Technique("attention that gathers", 4, "--attention-backend", {"attention_backend": "paged_online"}, BATCH,
              tokens_per_s, "tokens/s", True),
    Technique("graphs (simulated)", 5, "--cudagraph-mode", {"cudagraph_capture_sizes": [1]}, BATCH, launches,
              "launches a step", base=GRAPHS),
    Technique("int8 weights", 6, "--quantization int8", {"quantization": None}, ALONE, weight_bytes, "MiB of weights",
              base={"quantization": "int8"}, other_tokens=True),
    Technique("int8 KV cache", 6, "--kv-cache-dtype int8", {"kv_cache_dtype": "auto"}, ALONE, kv_tokens,
              "tokens in the pool", True, base={"kv_cache_dtype": "int8", **POOL}, other_tokens=True),
    Technique("drafts (ngram)", 8, "--speculative-config", {"speculative_config": None}, REPEATS, steps, "steps",
              base={"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4,
                                           "prompt_lookup_min": 2}}),
    Technique("drafts (ngram), time", 8, "--speculative-config", {"speculative_config": None}, REPEATS, tpot,
              "ms a token", base={"speculative_config": {"method": "ngram", "num_speculative_tokens": 4,
                                                         "prompt_lookup_max": 4, "prompt_lookup_min": 2}}),
]  # fmt: skip


def measure(model: str, technique: Technique, repeats: int, clock: str, scale: float) -> dict[str, Any]:
    """Both arms of a row, in turns; medians. Raises ValueError where they give different tokens and should not."""
    from mini_vllm import LLMEngine, replay

    arms = {"with": technique.base, "without": {**technique.base, **technique.off}}
    engines = {}
    for name, settings in arms.items():
        given = {key: value for key, value in settings.items() if value is not None}
        given.setdefault("num_blocks", None if "kv_cache_memory_bytes" in given else 1024)
        engines[name] = LLMEngine(model, **{key: value for key, value in given.items() if value is not None})
    workload = Workload(**{**vars(technique.workload), "count": max(3, round(technique.workload.count * scale))})
    values: dict[str, list[float]] = {name: [] for name in arms}
    for repeat in range(repeats + 1):  # the first does not count
        requests, answers = workload.requests(repeat), []
        for name, engine in engines.items():
            before = engine.stats.num_scheduled_tokens
            served = replay(engine, requests, clock)
            answers.append([output.tokens for output in served.outputs])
            if repeat:
                values[name].append(technique.metric(Seen(served, engine, before)))
        if answers[0] != answers[1] and not technique.other_tokens:
            raise ValueError(f"{technique.name}: the arms gave different tokens: an ablation compares equal work")
    having, missing = (statistics.median(values[name]) for name in ("with", "without"))
    gain = having / missing if technique.higher else missing / having
    return {
        "technique": technique.name, "phase": technique.phase, "flag": technique.flag, "metric": technique.unit,
        "workload": workload.name, "with": having, "without": missing, "gain": gain, "values": values,
        "other_tokens": technique.other_tokens,
    }  # fmt: skip


def picture(found: Sequence[dict[str, Any]]) -> Any:
    """The map: technique, arrow with its factor, metric; the arrow's bar is as long as the logarithm of the factor."""
    import math

    from mini_vllm.utils.svg import DECODE, GREY, LOST, Svg

    row, top = 34, 74
    svg = Svg(900, top + row * len(found) + 30, "Technique, what it moves, how much")
    svg.text(20, 28, "What each technique moves on pocket, and how many times worse it is without it", size=16)
    for x, words in (
        (20, "technique"),
        (250, "flag"),
        (470, "times better with it"),
        (700, "the number that it moves"),
    ):
        svg.text(x, 56, words, fill=GREY, size=12)
    most = max(abs(math.log(each["gain"])) for each in found) or 1.0
    for i, each in enumerate(found):
        y, length = top + row * i, 170 * abs(math.log(each["gain"])) / most
        svg.text(20, y + 14, each["technique"])
        svg.text(250, y + 14, each["flag"], fill=GREY, size=11, font="ui-monospace, Menlo, monospace")
        colour = DECODE if each["gain"] >= 1 else LOST
        svg.box(470, y + 1, max(length, 2), 18, colour)
        svg.text(476 + length, y + 15, f"{each['gain']:.2f} ×", size=12)
        svg.text(700, y + 14, each["metric"], size=12)
    return svg


def report(found: Sequence[dict[str, Any]], facts: dict[str, Any], clock: str, repeats: int) -> str:
    """The table."""
    rows = [
        [each["technique"], f"{each['phase']:02d}", f"`{each['flag']}`", each["workload"], each["metric"],
         each["with"], each["without"], f"{each['gain']:.2f} ×" + (" *" if each["other_tokens"] else "")]
        for each in found
    ]  # fmt: skip
    header = ["technique", "phase", "flag", "served", "the number it moves", "with", "without", "times better"]
    return (
        f"# Technique, metric, flag\n\n{facts}\n\nPocket, {clock} time, medians of {repeats} repeats in turns; "
        f"everything else stays on. * the arms give other tokens.\n\n{table(header, rows)}\n\n"
        "Below 1 a technique costs something on that number, on this machine."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """All rows, `results/ablation.json`, `.md` and `.svg`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models" / "pocket"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: where others compute, too")
    parser.add_argument("--only", help="techniques whose names contain this")
    parser.add_argument("--quick", action="store_true", help="few requests, one repeat, nothing written")
    args = parser.parse_args(argv)
    os.environ.update(limit_threads(args.threads, {}))
    chosen = [each for each in TECHNIQUES if not args.only or args.only in each.name]
    if not chosen:
        parser.error(f"no technique has {args.only!r} in its name")
    repeats, scale = (1, 0.25) if args.quick else (args.repeats, 1.0)
    facts = machine()
    found = [measure(args.model, each, repeats, args.clock, scale) for each in chosen]
    result = {"machine": facts, "clock": args.clock, "repeats": repeats, "threads": args.threads, "rows": found}
    keep = not args.quick and not args.only
    save("ablation", result, report(found, facts, args.clock, repeats), keep=keep)
    if keep:
        (RESULTS / "ablation.svg").write_text(str(picture(found)), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Prefill and decode apart, beside one engine and two: steady decodes while long prompts come, on the same cores.

    python -m benchmarks.disagg                 # eight minutes on two idle cores
    python -m benchmarks.disagg --quick         # two arms, a minute, nothing written

Some clients stream short requests one after the other, all the time. Long prompts with few tokens to generate arrive
at a fixed mean rate. What an arm is judged by: the gaps between the tokens of the steady streams, the time to the
first token of the long prompts, and goodput: the requests a second that kept to both limits of `--slo`.

Every arm has the same cores. One engine has one thread, or two; two engines behind the proxy have one each, and both
compute prompts; of a pair each engine has one. Chunked prefill is tuned where it counts: each size of `--chunks` is an
arm of its own. Arms take turns; each starts its servers anew and is asked a little before it counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import checkpoint, limit_threads, machine, save, table  # noqa: E402
from benchmarks.load_client import READER, Outcome, request_of, stream  # noqa: E402
from benchmarks.serving import Server, free_port  # noqa: E402

COMMAND = [sys.executable, "-m", "mini_vllm.entrypoints.cli.main"]
PATIENCE_S = 120.0
SHOWN = ("long_ttft_p50", "long_ttft_p99", "itl_p50", "itl_p99", "itl_max", "steady_tokens", "goodput")
HIGHER = ("steady_tokens", "goodput")


@dataclass(frozen=True)
class Arm:
    """Engines: how many compute prompts only, how many do everything else. chunk: tokens of a step, at most."""

    num_prefill: int
    num_decode: int
    chunk: int
    threads: int

    @property
    def name(self) -> str:
        """As in the table."""
        if self.num_prefill:
            return f"{self.num_prefill}P{self.num_decode}D"
        count = f"one engine, threads: {self.threads}" if self.num_decode == 1 else f"{self.num_decode} engines"
        return f"{count}, chunks of {self.chunk}"


def arms(args: argparse.Namespace) -> list[Arm]:
    """All that are measured."""
    whole = args.max_model_len
    found = [Arm(0, 1, chunk, threads) for threads in {1: 0, args.cores: 0} for chunk in args.chunks]
    found += [Arm(0, args.cores, chunk, 1) for chunk in args.chunks]
    return found + [Arm(p, d, whole, 1) for p, d in args.ratios]


class Running:
    """An arm's processes: `with Running(arm, folder, args) as running:`, and `address` is where to ask."""

    def __init__(self, arm: Arm, folder: Path, args: argparse.Namespace) -> None:
        self.arm, self.folder, self.args, self._stack = arm, folder, args, ExitStack()

    def __enter__(self) -> Running:
        try:
            prefill = [self._engine("kv_producer") for _ in range(self.arm.num_prefill)]
            decode = [self._engine("kv_consumer") for _ in range(self.arm.num_decode)]
            url = decode[0]
            if prefill or len(decode) > 1:
                words = [
                    "disagg-proxy", *(["--prefill", *prefill] if prefill else []), "--decode", *decode, "--routing",
                    "least_in_flight", "--min-prompt-chars", "1000", "--disable-uvicorn-access-log",
                ]  # fmt: skip
                url = self._start("proxy", words, 1)
        except BaseException:
            self._stack.close()
            raise
        host, port = url.removeprefix("http://").split(":")
        self.address = host, int(port)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _engine(self, role: str) -> str:
        words = [
            "serve", str(self.folder), "--served-model-name", "m", "--disable-uvicorn-access-log", "--max-model-len",
            str(self.args.max_model_len), "--max-num-batched-tokens", str(self.arm.chunk),
        ]  # fmt: skip
        if self.arm.num_prefill:
            transfer = {"kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": "recompute"}
            transfer["kv_connector_extra_config"] = {"backends": [self.args.backend]}  # type: ignore[assignment]
            words += ["--kv-transfer-config", json.dumps(transfer)]
        return self._start(role, words, self.arm.threads)

    def _start(self, name: str, words: list[str], threads: int) -> str:
        command = [*COMMAND, *words, "--host", "127.0.0.1", "--port", str(free_port())]
        env = limit_threads(threads, dict(os.environ)) | {"VLLM_NIXL_SIDE_CHANNEL_PORT": "0", "PYTHONPATH": str(ROOT)}
        server = Server(name, command, env, self.args.start)
        self._stack.callback(server.close)
        return server.process.address


async def load(
    address: tuple[str, int], args: argparse.Namespace, seed: int, seconds: float
) -> dict[str, list[Outcome]]:
    """All answers of so many seconds: "steady" and "long"."""
    chance, begun = random.Random(seed), time.perf_counter()
    found: dict[str, list[Outcome]] = {"steady": [], "long": []}

    async def ask(kind: str, length: int, max_tokens: int) -> None:
        prompt = [chance.randrange(3, 4000) for _ in range(length)]
        wire = request_of("m", prompt, max_tokens)
        found[kind].append(await stream(READER, address, wire, 0, 0.0, PATIENCE_S))

    async def steady() -> None:
        while time.perf_counter() < begun + seconds:
            await ask("steady", args.short_len, args.short_out)

    async def long() -> None:
        asked, at = [], 0.0
        while (at := at + chance.expovariate(args.rate)) < seconds:
            await asyncio.sleep(max(0.0, begun + at - time.perf_counter()))
            asked.append(asyncio.ensure_future(ask("long", args.long_len, args.long_out)))
        await asyncio.gather(*asked)

    await asyncio.gather(long(), *(steady() for _ in range(args.streams)))
    return found


def numbers(found: dict[str, list[Outcome]], seconds: float, slo: tuple[float, float]) -> dict[str, float]:
    """Milliseconds, tokens and requests a second. Raises OSError where an answer was none."""
    everyone = [*found["steady"], *found["long"]]
    wrong = [each for each in everyone if each.error or each.status != 200 or not each.ended]
    if wrong:
        raise OSError(
            f"{len(wrong)} of {len(everyone)} requests failed, the first with {wrong[0].error or wrong[0].status}"
        )
    gaps = [1e3 * gap for each in found["steady"] for gap in each.gaps]
    ttft = [1e3 * each.ttft for each in found["long"]]
    good = sum(is_good(each, slo) for each in everyone)
    values = {
        "long_ttft_p50": np.percentile(ttft, 50), "long_ttft_p99": np.percentile(ttft, 99),
        "itl_p50": np.percentile(gaps, 50), "itl_p99": np.percentile(gaps, 99), "itl_max": max(gaps),
        "steady_tokens": sum(len(each.tokens) for each in found["steady"]) / seconds, "goodput": good / seconds,
        "requests": len(everyone) / seconds,
    }  # fmt: skip
    return {name: float(value) for name, value in values.items()}


def is_good(outcome: Outcome, slo: tuple[float, float]) -> bool:
    """Whether the first token came within slo[0] ms, and 95 of 100 gaps were at most slo[1] ms."""
    return 1e3 * outcome.ttft <= slo[0] and 1e3 * float(np.percentile(outcome.gaps, 95)) <= slo[1]


def measure(args: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, float]]]:
    """By arm: its turns. Nothing begins after `--minutes`."""
    found: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in arms(args)}
    first = time.monotonic()
    for turn in range(args.turns):
        for arm in arms(args)[:: 1 if turn % 2 == 0 else -1]:
            if time.monotonic() - first > args.minutes * 60:
                return {name: turns for name, turns in found.items() if turns}
            with Running(arm, folder, args) as running:
                asyncio.run(load(running.address, args, 1000 + turn, args.warm_up))
                began = time.perf_counter()
                outcomes = asyncio.run(load(running.address, args, turn, args.seconds))
                row = numbers(outcomes, time.perf_counter() - began, tuple(args.slo))
            found[arm.name].append(row)
            print(f"turn {turn + 1}, {arm.name}: " + ", ".join(f"{name} {row[name]:.1f}" for name in SHOWN),
                  file=sys.stderr, flush=True)  # fmt: skip
    return found


def middle(turns: Sequence[dict[str, float]], name: str) -> float:
    """The median over the turns."""
    return statistics.median(turn[name] for turn in turns)


def verdict(found: dict[str, list[dict[str, float]]]) -> str:
    """The best of the arms without a pair beside the best pair, by what each is best at."""
    lines, sentences = [], {
        "itl_p99": "gap between tokens, p99, ms", "long_ttft_p50": "first token of a long prompt, p50, ms",
        "goodput": "good requests a second",
    }  # fmt: skip
    for name, said in sentences.items():
        best = max if name in HIGHER else min
        pick = {
            is_pair: best(
                (arm for arm in found if arm.endswith("D") is is_pair), key=lambda arm: middle(found[arm], name)
            )
            for is_pair in (False, True)
            if any(arm.endswith("D") is is_pair for arm in found)
        }
        lines.append(f"- {said}: " + "; ".join(f"{arm} {middle(found[arm], name):.1f}" for arm in pick.values()))
    return "\n".join(lines)


def report(found: dict[str, list[dict[str, float]]], facts: dict[str, Any], args: argparse.Namespace) -> str:
    """A row for each arm, and what is best."""
    header = ["arm", "first token of long prompts, p50, ms", "p99", "gap between steady tokens, p50, ms", "p99",
              "longest", "steady tokens/s", "good requests/s"]  # fmt: skip
    counts = sorted({len(turns) for turns in found.values()})
    num_turns = " to ".join(map(str, counts[:: max(1, len(counts) - 1)]))
    rows = [[arm, *(middle(turns, name) for name in SHOWN)] for arm, turns in found.items()]
    return (
        f"# Prefill and decode apart\n\n{facts}\n\n{args.shape}, {args.cores} cores for engines, proxy and client. "
        f"{args.streams} steady streams ({args.short_len} tokens in, {args.short_out} out, one after the other) "
        f"while prompts of {args.long_len} tokens ({args.long_out} out) arrive, {args.rate:g} a second in the mean. "
        f"{num_turns} turns of {args.seconds:g} s, medians. Keys and values travel by {args.backend}. A request is "
        f"good with its first token within {args.slo[0]:g} ms and 95 of 100 gaps within {args.slo[1]:g} ms.\n\n"
        f"{table(header, rows)}\n\nThe best without a pair, and the best pair:\n\n{verdict(found)}"
    )


def ratio(text: str) -> tuple[int, int]:
    """ "2:1" -> (2, 1). Raises ValueError."""
    p, _, d = text.partition(":")
    if not (p.isdecimal() and d.isdecimal() and int(p) and int(d)):
        raise ValueError(f"--ratios must be P:D with at least one of each, got {text!r}")
    return int(p), int(d)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="pocket")
    parser.add_argument("--chunks", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--ratios", type=ratio, nargs="+", default=[(1, 1), (2, 1), (1, 2)])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10, help="nothing is begun after so many")
    parser.add_argument("--seconds", type=float, default=6, help="of arrivals in a turn")
    parser.add_argument("--warm-up", type=float, default=1.0)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--short-len", type=int, default=32)
    parser.add_argument("--short-out", type=int, default=96)
    parser.add_argument("--long-len", type=int, default=1000)
    parser.add_argument("--long-out", type=int, default=8)
    parser.add_argument("--rate", type=float, default=0.7, help="long prompts a second")
    parser.add_argument("--slo", type=float, nargs=2, default=[500.0, 20.0], metavar=("TTFT_MS", "GAP_MS"))
    parser.add_argument("--backend", default="tcp", choices=("tcp", "shm"))
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--start", type=float, default=120, help="seconds that a server may take to start")
    parser.add_argument("--quick", action="store_true", help="two arms, one short turn, nothing written")
    args = parser.parse_args(argv)
    if args.quick:
        args.chunks, args.ratios, args.turns, args.warm_up = [256], [(1, 1)], 1, 0.5
        args.seconds = min(args.seconds, 3.0)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """All arms; `results/disagg.json` and `.md`."""
    args = parse(argv)
    facts = machine()
    folder, origin = checkpoint(args.shape, Path("/nowhere"))
    found = measure(args, folder)
    result = {"machine": facts, "weights": origin, "settings": vars(args), "arms": found}
    save("disagg", result, report(found, facts, args), keep=not args.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())

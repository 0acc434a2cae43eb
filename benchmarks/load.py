"""A thousand streams at once, and half an hour near capacity: is any answer lost, doubled or garbled?

    python -m benchmarks.load              # about forty minutes: the burst, then 30 minutes at 90 % of capacity
    python -m benchmarks.load --quick      # a minute, nothing written

Clients of four kinds (`load_client.py`): readers, slow readers, those who leave in the middle, and those who send
nonsense. Every stream is compared token by token with what the same prompt gives offline; both run batch-invariant, so
that neighbours change no bit. Afterwards the server must be as before: nothing runs, nothing waits, no block is held,
and it takes no more memory than after the burst. Every refusal must be a refusal (400 to 499), and nobody may hang.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import load_client as client  # noqa: E402
from benchmarks.common import limit_threads, machine, make_prompts, save, table  # noqa: E402
from benchmarks.load_client import LEAVER, MALFORMED, SHARES, Outcome  # noqa: E402

VOCAB = 4096
MODEL = "load"


def offline_tokens(model: str, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[list[int]]:
    """What each prompt gives without a server."""
    from mini_vllm import LLM, SamplingParams

    llm = LLM(model, max_num_seqs=64, num_blocks=4096)
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False) for n in lengths]
    outputs = llm.generate([{"prompt_token_ids": list(p)} for p in prompts], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


class Pool:
    """Prompts, how long their answers are, and what these must be."""

    def __init__(self, model: str, count: int, output: tuple[int, int]) -> None:
        chance = random.Random(0)
        self.prompts = make_prompts(count, 24, VOCAB, 1)
        self.lengths = [chance.randint(*output) for _ in range(count)]
        self.expected = offline_tokens(model, self.prompts, self.lengths)
        self.wires = [client.request_of(MODEL, p, n) for p, n in zip(self.prompts, self.lengths, strict=True)]
        self.nonsense = client.malformed_requests(MODEL)

    async def one(self, number: int, kind: str, address: tuple[str, int], args: argparse.Namespace) -> Outcome:
        """Send one client, and judge it."""
        if kind == MALFORMED:
            name, wire = self.nonsense[number % len(self.nonsense)]
            outcome, expected = await client.malformed(address, name, wire, args.timeout), []
        else:
            at = number % len(self.wires)
            expected = self.expected[at]
            outcome = await client.stream(kind, address, self.wires[at], number, args.pause, args.timeout)
        outcome.verdict = client.judge(outcome, expected)
        return outcome


def kinds(count: int, seed: int) -> list[str]:
    """So many clients by their shares, in random order."""
    chance = random.Random(seed)
    return chance.choices(list(SHARES), list(SHARES.values()), k=count)


async def burst(pool: Pool, address: tuple[str, int], args: argparse.Namespace) -> tuple[list[Outcome], float]:
    """All at once; how long it took."""
    start = time.perf_counter()
    found = await asyncio.gather(*(pool.one(i, kind, address, args) for i, kind in enumerate(kinds(args.streams, 1))))
    return list(found), time.perf_counter() - start


async def sustained(
    pool: Pool, address: tuple[str, int], args: argparse.Namespace, rate: float
) -> tuple[list[Outcome], float]:
    """Arrivals of a Poisson process at `rate` a second for `args.minutes`."""
    chance, start, tasks = random.Random(2), time.perf_counter(), []
    count = max(1, round(rate * 60 * args.minutes))
    at = 0.0
    for i, kind in enumerate(kinds(count, 3)):
        at += chance.expovariate(rate)
        await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
        tasks.append(asyncio.create_task(pool.one(args.streams + i, kind, address, args)))
    return list(await asyncio.gather(*tasks)), time.perf_counter() - start


class Server:
    """`mini-vllm serve` in a process of its own."""

    def __init__(self, args: argparse.Namespace) -> None:
        from benchmarks.serving import free_port

        self.port = free_port()
        command = [
            sys.executable, "-m", "mini_vllm.entrypoints.cli.main", "serve", args.model, "--host", "127.0.0.1",
            "--port", str(self.port), "--served-model-name", MODEL, "--max-num-seqs", "64",
            "--num-blocks", str(args.blocks),
            "--disable-uvicorn-access-log",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._wait(args.timeout)

    def _wait(self, timeout: float) -> None:
        start = time.monotonic()
        while True:
            try:
                return self._get("/health") and None
            except OSError:
                if self.process.poll() is not None or time.monotonic() - start > timeout:
                    self.close()
                    said = (self.process.stderr.read() if self.process.stderr else "").strip().splitlines()[-1:]
                    raise OSError(f"the server did not start: {said}") from None
                time.sleep(0.2)

    def _get(self, route: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{route}", timeout=300) as response:
            return str(response.read().decode())

    def state(self, patience: float = 120.0) -> dict[str, float]:
        """What runs, waits, and is held, once it has come to rest or `patience` seconds have passed; and its memory."""
        from mini_vllm.metrics.text_format import MetricsText

        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        end = time.monotonic() + patience
        while True:
            text = MetricsText.parse(self._get("/metrics"))
            found = {name: text.total(f"vllm:{name}") or 0.0 for name in names}
            if not any(found.values()) or time.monotonic() > end:
                return found | {"resident_mib": self.memory()}
            time.sleep(0.2)

    def memory(self) -> float:
        """MiB that the server and its children hold; 0 where the system does not tell."""
        parents: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                parents.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(stat.parent.name))
        pending, total = [self.process.pid], 0.0
        while pending:
            pid = pending.pop()
            pending += parents.get(pid, [])
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                total += sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))
        return total

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()


def summary(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Counts by kind, what was wrong, and the waits of those who read at full speed."""
    readers = [each for each in outcomes if each.kind == client.READER and not each.verdict]
    ttft, gaps = [each.ttft * 1000 for each in readers], [gap * 1000 for each in readers for gap in each.gaps]

    def ranks(values: Sequence[float]) -> list[float]:
        if len(values) < 2:
            return [*values, *values][:2]
        return [statistics.median(values), statistics.quantiles(values, n=100)[98]]

    wrong = Counter(each.verdict for each in outcomes if each.verdict)
    return {
        "seconds": seconds, "clients": len(outcomes), "kinds": dict(Counter(each.kind for each in outcomes)),
        "wrong": dict(wrong), "tokens": sum(len(each.tokens) for each in outcomes),
        "statuses": dict(Counter(str(each.status) for each in outcomes if each.kind == MALFORMED)),
        "left_early": sum(each.kind == LEAVER and not each.ended for each in outcomes),
        "ttft_ms": ranks(ttft), "gap_ms": ranks(gaps),
    }  # fmt: skip


async def serve_all(args: argparse.Namespace, pool: Pool, server: Server) -> dict[str, Any]:
    """Both stages, and the server's state after each."""
    address = ("127.0.0.1", server.port)
    found: dict[str, Any] = {"before": server.state()}
    outcomes, seconds = await burst(pool, address, args)
    found["burst"], found["after burst"] = summary(outcomes, seconds), server.state()
    whole = sum(each.kind != MALFORMED for each in outcomes)
    rate = args.share * whole / seconds / (1 - SHARES[MALFORMED])
    found["rate"] = rate
    if args.minutes:
        outcomes, seconds = await sustained(pool, address, args, rate)
        found["sustained"], found["after"] = summary(outcomes, seconds), server.state()
    return found


def faults(found: dict[str, Any]) -> list[str]:
    """What is not as it must be; [] is the goal."""
    out = []
    for stage, after in (("burst", "after burst"), ("sustained", "after")):
        if stage not in found:
            continue
        out += [f"{stage}: {count} x {what}" for what, count in found[stage]["wrong"].items()]
        held = {name: value for name, value in found[after].items() if name != "resident_mib" and value}
        out += [f"after {stage}: {name} is {value:g}" for name, value in held.items()]
    if "after" in found:
        grown = found["after"]["resident_mib"] - found["after burst"]["resident_mib"]
        if grown > 0.1 * found["after burst"]["resident_mib"]:
            out.append(f"memory grew by {grown:.0f} MiB in the sustained stage")
    return out


def report(found: dict[str, Any], facts: dict[str, Any]) -> str:
    """The stages in columns, and the faults."""
    stages = [stage for stage in ("burst", "sustained") if stage in found]
    names = ("clients", "seconds", "tokens", "left_early")
    rows = [[name.replace("_", " "), *(found[stage][name] for stage in stages)] for name in names]
    for name in ("ttft_ms", "gap_ms"):
        rows.append([f"{name[:-3]} p50 / p99, ms", *(" / ".join(f"{v:,.0f}" for v in found[s][name]) for s in stages)])
    rows.append(["kinds", *(json.dumps(found[stage]["kinds"]) for stage in stages)])
    rows.append(["statuses of nonsense", *(json.dumps(found[stage]["statuses"]) for stage in stages)])
    after = {"burst": "after burst", "sustained": "after"}
    rows.append(["memory afterwards, MiB", *(found[after[stage]]["resident_mib"] for stage in stages)])
    wrong = faults(found)
    said = "\n".join(f"- {fault}" for fault in wrong) or "No stream was lost, doubled or garbled; nothing is held."
    before = found["before"]["resident_mib"]
    return (
        f"# A server under load\n\n{facts}\n\nPocket, batch-invariant; memory before: {before:.0f} MiB; arrivals of "
        f"the second stage: {found['rate']:.1f} a second.\n\n{table(['', *stages], rows)}\n\n{said}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, load, `results/load.json` and `.md`; 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models" / "pocket"))
    parser.add_argument("--streams", type=int, default=1000, help="clients of the burst")
    parser.add_argument("--minutes", type=float, default=30, help="of the second stage; 0: none")
    parser.add_argument("--share", type=float, default=0.9, help="of the capacity that the burst shows")
    parser.add_argument("--prompts", type=int, default=500, help="different prompts")
    parser.add_argument("--output", type=int, nargs=2, default=(16, 64), help="tokens of an answer, from and to")
    parser.add_argument("--pause", type=float, default=0.05, help="mean seconds between a slow reader's reads")
    parser.add_argument("--blocks", type=int, default=512, help="of the KV cache: so few that the burst touches all")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds after which a client hangs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="40 clients, a few seconds, nothing written")
    args = parser.parse_args(argv)
    if args.quick:
        args.streams, args.minutes, args.prompts, args.output, args.blocks = 40, 0.1, 12, (8, 16), 64
    os.environ.update(limit_threads(args.threads, {}))
    os.environ["VLLM_BATCH_INVARIANT"] = "1"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    facts, pool = machine(), Pool(args.model, args.prompts, tuple(args.output))
    server = Server(args)
    try:
        found = asyncio.run(serve_all(args, pool, server))
    finally:
        server.close()
    save("load", {"machine": facts, **found, "faults": faults(found)}, report(found, facts), keep=not args.quick)
    return 1 if faults(found) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Our server beside real vLLM's: one client, rates from 1 a second to saturation, in turns.

    python -m benchmarks.serving --vllm-python .venv-vllm/bin/python       # an hour on two cores
    python -m benchmarks.serving --quick                                   # ours alone, a minute, nothing written

Both servers run all the time, each idle while the other is asked, so that both see the same machine in each minute. A
turn asks one of them at one rate; there are five turns a rate. The client is `mini_vllm/benchmarks/serve.py` in a
process of its own; its share of the processors is written beside each row, because it takes from the server's. The
real server is the CPU build, compiled unless `--eager`. Goal: no median below 0.97 of the real server's, ahead at most
rates.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import checkpoint, limit_threads, machine, save, table  # noqa: E402

NAMES = ("request_throughput", "output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms",
         "client_cpu_seconds", "duration", "failed")  # fmt: skip
HIGHER = ("request_throughput", "output_throughput")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def server_commands(args: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    """By name: what starts each server; the real one only where its Python is there."""
    common = ["--host", "127.0.0.1", "--served-model-name", "m", "--max-model-len", str(args.max_model_len),
              "--max-num-seqs", str(args.max_num_seqs), "--max-num-batched-tokens", "2048"]  # fmt: skip
    ours = [sys.executable, "-m", "mini_vllm.entrypoints.cli.main", "serve", str(folder), *common]
    found = {"mini_vllm": [*ours, "--disable-uvicorn-access-log", "--port", str(free_port())]}
    if args.vllm_python and Path(args.vllm_python).is_file():
        real = [args.vllm_python, "-m", "vllm.entrypoints.cli.main", "serve", str(folder), *common, "--dtype",
                "float32", "--disable-uvicorn-access-log", "--port", str(free_port())]  # fmt: skip
        found["vllm"] = [*real, "--enforce-eager"] if args.eager else real
    return found


def environment(threads: int, eager: bool) -> dict[str, str]:
    """Of both servers and of the client."""
    found = limit_threads(threads, dict(os.environ))
    found |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_LOGGING_LEVEL": "WARNING",
              "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": str(ROOT)}  # fmt: skip
    return found | ({"TORCHDYNAMO_DISABLE": "1"} if eager else {})


class Server:
    """A server process, ready when it has been made. Raises OSError, TimeoutError."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], timeout: float) -> None:
        from mini_vllm.benchmarks.sweep.server import ServerProcess

        self.name = name
        before = dict(os.environ)
        os.environ.update(env)
        try:
            self.process = ServerProcess(command)
            self.process.__enter__()
        finally:
            os.environ.clear()
            os.environ.update(before)
        try:
            self.process.wait_until_ready(timeout)
        except BaseException:
            self.close()
            raise

    def ask(self, rate: float, args: argparse.Namespace, seed: int) -> dict[str, Any]:
        """One run of the client against this server; its result file. Raises OSError where the client fails."""
        with tempfile.TemporaryDirectory() as folder:
            count = max(args.least, min(args.most, round(rate * args.seconds))) if rate != float("inf") else args.most
            command = [
                sys.executable, "-m", "mini_vllm.entrypoints.cli.main", "bench", "serve", "--base-url",
                self.process.address, "--model", str(args.tokenizer), "--served-model-name", "m", "--num-prompts",
                str(count), "--request-rate", str(rate), "--seed", str(seed), "--random-input-len",
                str(args.input_len), "--random-output-len", str(args.output_len), "--random-range-ratio", "0.3",
                "--temperature", "0", "--num-warmups", "2", "--percentile-metrics", "ttft,tpot,itl,e2el",
                "--metric-percentiles", "50,99", "--save-result", "--result-dir", folder, "--result-filename", "r.json",
            ]  # fmt: skip
            env = environment(1, False)
            done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
            if done.returncode:
                raise OSError(f"the client failed: {(done.stderr.strip() or done.stdout.strip())[-300:]}")
            found: dict[str, Any] = json.loads((Path(folder) / "r.json").read_text(encoding="utf-8"))
        self.process.after_bench()
        return {name: found[name] for name in NAMES}

    def close(self) -> None:
        """End it."""
        self.process.__exit__()


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """rate -> server -> its turns."""
    servers: list[Server] = []
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    try:
        for name, command in server_commands(args, folder).items():
            servers.append(Server(name, command, environment(args.threads, args.eager and name == "vllm"), args.start))
        for rate in args.rates:
            turns: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
            for turn in range(args.turns):
                ordered = servers if turn % 2 == 0 else servers[::-1]
                for server in ordered:
                    turns[server.name].append(server.ask(rate, args, seed=turn))
            found[f"{rate:g}"] = turns
            print(line(f"{rate:g}", turns), file=sys.stderr, flush=True)
    finally:
        for server in servers:
            server.close()
    return found


def line(rate: str, turns: dict[str, list[dict[str, Any]]]) -> str:
    """One rate in a line, while it runs."""
    words = [f"{name} {middle(of, 'output_throughput'):.0f} tok/s" for name, of in turns.items()]
    return f"rate {rate}: " + ", ".join(words)


def middle(turns: Sequence[dict[str, Any]], name: str) -> float:
    """The median over the turns."""
    return statistics.median(turn[name] for turn in turns)


def ratios(turns: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Ours over theirs, above 1 where ours is better: the median of the ratios turn by turn. {} without the other."""
    if "vllm" not in turns:
        return {}
    found = {}
    for name in ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms"):
        pairs = [(a[name], b[name]) for a, b in zip(turns["mini_vllm"], turns["vllm"], strict=True)]
        found[name] = statistics.median(a / b if name in HIGHER else b / a for a, b in pairs if a and b)
    return found


def report(found: dict[str, Any], facts: dict[str, Any], args: argparse.Namespace) -> str:
    """A row for each rate and server, and a row of ratios."""
    shown = ("request_throughput", "output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_itl_ms", "p99_itl_ms")
    rows: list[list[Any]] = []
    for rate, turns in found.items():
        for name, of in turns.items():
            share = statistics.median(turn["client_cpu_seconds"] / turn["duration"] for turn in of)
            failed = sum(turn["failed"] for turn in of)
            rows.append([rate, name, *(middle(of, each) for each in shown), f"{share:.0%}", failed])
        if found_ratios := ratios(turns):
            cells = [f"{found_ratios[each]:.2f} ×" if each in found_ratios else None for each in shown]
            rows.append(["", "mini over vllm", *cells, None, None])
    header = ["rate", "server", "requests/s", "tokens/s", "TTFT p50, ms", "p99", "ITL p50, ms", "p99", "client's CPU",
              "failed"]  # fmt: skip
    return (
        f"# Two servers, one client\n\n{facts}\n\n{args.shape}, about {args.input_len} tokens in, {args.output_len} "
        f"out (± 30 %), greedy, {args.turns} turns a rate in alternation, medians. A ratio is above 1 where ours is "
        f"better. Real vLLM {'eager' if args.eager else 'compiled'}.\n\n{table(header, rows)}"
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="pocket", help="pocket, or qwen2.5-0.5b with random weights")
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 2, 4, 8, 12, 16, 24, float("inf")])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20, help="of arrivals at a rate, where there is no bound")
    parser.add_argument("--least", type=int, default=16, help="requests of a run, at least")
    parser.add_argument("--most", type=int, default=200, help="at most")
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=512)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--start", type=float, default=600, help="seconds that a server may take to start")
    parser.add_argument("--vllm-python", default=str(ROOT / ".venv-vllm" / "bin" / "python"))
    parser.add_argument("--eager", action="store_true", help="real vLLM without compiled code")
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()) / "mini-vllm-serving")
    parser.add_argument("--quick", action="store_true", help="ours alone, two rates, one turn, nothing written")
    args = parser.parse_args(argv)
    if args.quick:
        args.rates, args.turns, args.seconds, args.least, args.most, args.vllm_python = [4, 1e9], 1, 2, 4, 8, ""
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Both servers at all rates; `results/serving-SHAPE.json` and `.md`."""
    args = parse(argv)
    facts = machine()
    args.workdir.mkdir(exist_ok=True)
    folder, origin = checkpoint(args.shape, args.workdir)
    args.tokenizer = ROOT / "models" / "pocket"  # of random prompts, and of a shape that has none of its own
    for file in args.tokenizer.glob("*token*.json"):
        if not (folder / file.name).exists():
            shutil.copy(file, folder)
    found = measure(args, folder)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    settings |= {"rates": [f"{rate:g}" for rate in args.rates], "vllm_python": Path(args.vllm_python or ".").is_file()}
    del settings["tokenizer"], settings["workdir"]
    result = {"machine": facts, "weights": origin, "settings": settings, "rates": found}
    result["ratios"] = {rate: ratios(turns) for rate, turns in found.items()}
    save(f"serving-{args.shape}", result, report(found, facts, args), keep=not args.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())

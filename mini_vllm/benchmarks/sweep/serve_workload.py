"""`mini-vllm bench sweep`: one server after the other, at rising load, until it bends. Where is the knee?

    for each setting of the server: start it; one request at a time, all at once, and what lies between; end it

Upstream twin: `vllm/benchmarks/sweep/serve_workload.py`, with the options of `serve.py` beside it. Ours goes one level
past saturation, finds the knee and draws it; and it can sweep a server that runs already.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shlex
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from mini_vllm.benchmarks.sweep.param_sweep import ParameterSweep, ParameterSweepItem
from mini_vllm.benchmarks.sweep.plot import Row, draw, knee, rows_of
from mini_vllm.benchmarks.sweep.server import ServerProcess

VARIABLES = ("request_rate", "max_concurrency")


def add_cli_args(parser: argparse.ArgumentParser) -> None:
    """Upstream: upstream/vllm/benchmarks/sweep/serve_workload.py:279 — "workload options"; `--knee-factor` is ours."""
    parser.add_argument("--serve-cmd", default="", help="Starts the server; unset: it runs already.")
    parser.add_argument("--bench-cmd", default="mini-vllm bench serve", help="The client, with its options.")
    parser.add_argument("--after-bench-cmd", default="", help="After each run, in place of an emptied cache.")
    parser.add_argument("--show-stdout", action="store_true", help="Show what server and client write.")
    parser.add_argument("--server-ready-timeout", type=float, default=300, help="Seconds.")
    parser.add_argument("--serve-params", help="JSON file: settings of the server, a list or by name.")
    parser.add_argument("--bench-params", help="JSON file: settings of the client.")
    parser.add_argument("-o", "--output-dir", default="results", help="The folder of all experiments.")
    parser.add_argument("-e", "--experiment-name", help="The folder of this one; by default its time.")
    parser.add_argument("--num-runs", type=int, default=3, help="Runs at each load.")
    parser.add_argument("--dry-run", action="store_true", help="Only say what would be run.")
    parser.add_argument("--resume", action="store_true", help="Run only what has no result yet.")
    parser.add_argument("--workload-var", choices=VARIABLES, default="request_rate", help="What rises.")
    parser.add_argument("--workload-iters", type=int, default=10, help="Levels, the lowest and the highest included.")
    parser.add_argument("--knee-factor", type=float, default=3.0, help="p99 TTFT over that of the lowest load.")


class Sweep:
    """One sweep: where its results are, and what has been found.

    Raises ValueError for options that do not go together.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        if args.workload_iters < 2 or args.num_runs < 1:
            raise ValueError(
                f"workload_iters must be at least 2 and num_runs at least 1, got {args.workload_iters}, {args.num_runs}"
            )
        if not args.knee_factor > 1:
            raise ValueError(f"knee_factor must be above 1, got {args.knee_factor}")
        if args.resume and not args.experiment_name:
            raise ValueError("--resume needs the --experiment-name of what is to be resumed")
        self.args, self.variable = args, args.workload_var
        self.bench_cmd, self.serve_cmd = shlex.split(args.bench_cmd), shlex.split(args.serve_cmd)
        self.serve_params = ParameterSweep.read_json(args.serve_params)
        self.bench_params = ParameterSweep.read_json(args.bench_params)
        if not self.serve_cmd and self.serve_params != ParameterSweep.read_json(None):
            raise ValueError("--serve-params needs --serve-cmd: a server that runs already cannot be set")
        if any(each.has_param(self.variable) for each in self.bench_params):
            raise ValueError(
                f"You should not override `{self.variable}` in `bench_params` since it is supposed to be explored "
                "automatically."
            )
        name = args.experiment_name or datetime.now().strftime("%Y%m%d_%H%M%S")
        self.folder = Path(args.output_dir) / name
        if self.folder.exists() and not args.resume and not args.dry_run:
            raise ValueError(f"{self.folder} is there already: choose another --experiment-name, or --resume")

    def run(self) -> list[dict[str, Any]]:
        """All runs; `summary.csv`, and for each setting `knee.json` and `knee.svg`. [] for a dry run."""
        found: list[dict[str, Any]] = []
        for serve in self.serve_params:
            command = serve.apply_to_cmd(self.serve_cmd) if self.serve_cmd else []
            if self.args.dry_run:
                print(f"serve: {shlex.join(command) or '(a server that runs already)'}")
                for bench in self.bench_params:
                    self._bench(None, serve, bench | {"max_concurrency": 1}, 1.0)
                continue
            with self._server(command) as server:
                server.wait_until_ready(self.args.server_ready_timeout)
                for bench in self.bench_params:
                    runs = self._explore(server, serve, bench)
                    self._report(runs, serve, bench)
                    found += runs
        if found:
            self._write_summary(found)
        return found

    def _server(self, command: list[str]) -> ServerProcess:
        address = None if command else _base_url(self.bench_cmd)
        return ServerProcess(command, shlex.split(self.args.after_bench_cmd), self.args.show_stdout, address)

    def _explore(
        self, server: ServerProcess, serve: ParameterSweepItem, bench: ParameterSweepItem
    ) -> list[dict[str, Any]]:
        """One request at a time gives the lowest load, all at once the highest; then what lies between, and a quarter
        more than the highest.
        """
        serial = self._level(server, serve, bench | {"max_concurrency": 1}, None)
        batch = self._level(server, serve, bench, None)
        low, high = (mean(self._sustained(run) for run in runs) for runs in (serial, batch))
        levels = np.linspace(low, max(high, low), self.args.workload_iters)
        if self.variable == "max_concurrency":
            levels = np.unique(np.maximum(np.round(levels), 1))
        found = []
        for level in [*levels.tolist(), *([1.25 * high] if self.variable == "request_rate" else [])]:
            found += self._level(server, serve, bench, float(f"{level:.4g}"))
        return found

    def _sustained(self, run: dict[str, Any]) -> float:
        """Requests a second, or by Little's law requests at a time."""
        rate = float(run["request_throughput"])
        return rate if self.variable == "request_rate" else max(1.0, rate * float(run["mean_e2el_ms"]) / 1000)

    def _level(
        self, server: ServerProcess, serve: ParameterSweepItem, bench: ParameterSweepItem, load: float | None
    ) -> list[dict[str, Any]]:
        return [
            run for _ in range(self.args.num_runs) if (run := self._bench(server, serve, bench, load, _)) is not None
        ]

    def _bench(
        self,
        server: ServerProcess | None,
        serve: ParameterSweepItem,
        bench: ParameterSweepItem,
        load: float | None,
        number: int = 0,
    ) -> dict[str, Any] | None:
        """One run of the client; its result, that of an earlier sweep where it is there, None for a dry run."""
        whole = bench if load is None else bench | {self.variable: int(load) if load == int(load) else load}
        path = self._setting_folder(serve, bench) / f"{whole.as_text('-') or 'all-at-once'}-run{number}.json"
        command = [*whole.apply_to_cmd(self.bench_cmd), "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result",
                   "--result-dir", str(path.parent), "--result-filename", path.name]  # fmt: skip
        if server is None:
            print(f"bench: {shlex.join(command)}")
            return None
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            server.run_subcommand(command)
            server.after_bench()
        result = json.loads(path.read_text(encoding="utf-8"))
        return {**result, **serve, **whole, "run_number": number}

    def _setting_folder(self, serve: ParameterSweepItem, bench: ParameterSweepItem) -> Path:
        plain = ParameterSweepItem({key: value for key, value in bench.items() if key != "max_concurrency"})
        parts = [f"SERVE-{serve.name}" if serve else "", f"BENCH-{plain.name}" if plain else ""]
        return self.folder / ("-".join(part for part in parts if part).replace("/", "_") or "default")

    def _report(self, runs: list[dict[str, Any]], serve: ParameterSweepItem, bench: ParameterSweepItem) -> None:
        rows = rows_of(runs, self.variable)
        at = knee(rows, self.args.knee_factor)
        folder = self._setting_folder(serve, bench)
        settings = {"serve": dict(serve), "bench": dict(bench), "variable": self.variable}
        record = {**settings, "knee": at, "knee_factor": self.args.knee_factor, "rows": [vars(row) for row in rows]}
        (folder / "knee.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        title = serve.name or bench.name or "served over offered"
        (folder / "knee.svg").write_text(draw(rows, at, title, self.variable), encoding="utf-8")
        print(table(rows, at, self.variable))
        print(f"knee of {folder.name}: {self.variable} {at:g}   ({folder / 'knee.svg'})")

    def _write_summary(self, found: list[dict[str, Any]]) -> None:
        names = list(dict.fromkeys(name for run in found for name in run))
        with (self.folder / "summary.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(found)


def table(rows: list[Row], at: float, variable: str) -> str:
    """The levels in columns; an arrow at the knee."""
    lines = [f"{variable:>16} {'served/s':>9} {'tokens/s':>9} {'p99 TTFT ms':>12} {'p99 ITL ms':>11}"]
    for row in rows:
        mark = "  <- knee" if math.isclose(row.load, at) else ""
        numbers = f"{row.rate:9.2f} {row.output_throughput:9.1f} {row.p99_ttft_ms:12.1f} {row.p99_itl_ms:11.1f}"
        lines.append(f"{row.load:16.3g} {numbers}{mark}")
    return "\n".join(lines)


def _base_url(bench_cmd: list[str]) -> str:
    """Where the client says that the server is."""
    given = dict(pairwise(bench_cmd))
    port = given.get("--port", "8000")
    return given.get("--base-url", f"http://{given.get('--host', '127.0.0.1')}:{port}").rstrip("/")


def main(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Raises ValueError, OSError."""
    return Sweep(args).run()

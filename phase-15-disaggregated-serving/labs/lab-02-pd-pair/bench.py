"""What gpu_run.py and cpu_run.py share: engines in processes of their own, a load for them, and what became of it.

An engine answers on a socket: a line of JSON is a question, each step of the engine answers with a line. The clients
are here, and so is the router: a *route* is a function that takes a prompt to one engine or to two.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

PORTS = {"P": 18101, "D": 18202}
STARTED = time.monotonic()
NUMBERS = itertools.count(1)
Answer = dict
Route = Callable[[int, list[int], int, Answer], Awaitable[Answer]]
KEEP = re.compile(
    r"Creating v1 connector|P2pNcclEngine init|ncclCommInitRank Success|[Hh]ybrid kv cache|GPU KV cache size"
    r"|Maximum concurrency|Model loading took|throughput:|does not match|Out Of (?:Memory|Threshold)|\bERROR\b"
    r"|Error:|Traceback|init engine|FlashAttention|Asynchronous scheduling|KV Transfer metrics"
)


@dataclass(frozen=True)
class Load:
    """`streams` clients who ask again as soon as they have their answer, and every `every_s` seconds `burst` documents.

    prompt, output: tokens of a stream's question and answer. long, long_output: of a document's.
    """

    streams: int
    prompt: int
    output: int
    long: int
    long_output: int
    burst: int
    every_s: float
    vocab_size: int

    def prompt_of(self, kind: str, number: int) -> list[int]:
        """Random tokens, the same for a kind and number."""
        rng = random.Random(f"{kind}-{number}")
        length = self.prompt if kind == "stream" else self.long
        return [rng.randrange(10, self.vocab_size - 10) for _ in range(length)]


# ---- engines --------------------------------------------------------------------------------------------------------


async def serve(port: int, facts: Callable[[], dict], generate: Callable[[dict], AsyncIterator[dict]]) -> None:
    """The engine's side of the socket: `generate` answers a question, `facts` one without a prompt."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(row: dict) -> None:
            writer.write((json.dumps(row) + "\n").encode())

        with contextlib.suppress(ConnectionError):
            try:
                question = json.loads(await reader.readline())
                if "prompt" not in question:
                    say({"pid": os.getpid(), **facts()})
                    return
                async for row in generate(question):
                    say(row)
                    await writer.drain()
            except ConnectionError:
                raise
            except Exception as error:
                say({"error": f"{type(error).__name__}: {error}"[:300]})
            finally:
                writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port, limit=1 << 20)
    async with server:
        await server.serve_forever()


class Engine:
    """A process of `script` with `--engine ROLE PORT OPTIONS` that runs `serve`; `index` 0 or 1 is its card or core."""

    def __init__(self, script: Path, name: str, index: int, role: str, folder: Path, options: dict, env: dict) -> None:
        self.name, self.port = name, PORTS["D" if index else "P"]
        self.log, self.trace = folder / f"{name}.log", folder / f"{name}.trace"
        self.trace.touch()
        command = [sys.executable, str(script), "--out", str(folder), "--engine", role, str(self.port)]
        environment = {**os.environ, **env, "PD_ROLE": role, "PD_TRACE": str(self.trace)}
        with self.log.open("a") as file:
            self.job = subprocess.Popen(
                [*command, json.dumps(options)], stdout=file, stderr=file, env=environment, cwd=script.parent,
                start_new_session=True,
            )  # fmt: skip

    async def ready(self, timeout: float = 150) -> dict:
        """What it says of itself. Raises RuntimeError with the end of its log."""
        limit = time.monotonic() + timeout
        while time.monotonic() < limit and self.job.poll() is None:
            with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
                facts = await asyncio.wait_for(self.facts(), 5)
                if facts.pop("pid") == self.job.pid:  # and not one that an earlier run left behind
                    return facts
            await asyncio.sleep(0.5)
        text = self.log.read_text(errors="replace")[-2500:]
        raise RuntimeError(f"{self.name} does not answer (exit {self.job.poll()}):\n{text}")

    async def facts(self) -> dict:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"{}\n")
        line = await reader.readline()
        writer.close()
        return json.loads(line)

    def kill(self) -> None:
        """It and the processes that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.job.pid, signal.SIGKILL)
        self.job.wait()


@contextlib.asynccontextmanager
async def engines(capture: Capture, name: str, made: list[Engine]) -> AsyncIterator[list[Engine]]:
    """These, when all of them answer; killed in the end."""
    try:
        capture.data["engines"][name] = await asyncio.gather(*(engine.ready() for engine in made))
        yield made
    finally:
        for engine in made:
            engine.kill()
        capture.keep(made)


async def ask(
    port: int, name: str, prompt: list[int], max_tokens: int, seen: list | None = None, **more: object
) -> Answer:
    """Stream one answer. "times" has the moment, of `time.perf_counter()`, at which each token was here; `seen` gets
    them as they come."""
    answer: Answer = {"times": [] if seen is None else seen, "tokens": [], "error": None}
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        question = {"id": name, "prompt": prompt, "max_tokens": max_tokens, **more}
        writer.write((json.dumps(question) + "\n").encode())
        while True:
            line = await reader.readline()
            row = json.loads(line) if line else {"error": "the stream broke off"}
            if "error" in row:
                answer["error"] = row["error"]
                break
            answer["times"] += [time.perf_counter()] * len(row["t"])
            answer["tokens"] += row["t"]
            answer["kv"] = row.get("kv")
            if row["end"]:
                break
        writer.close()
    except OSError as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    return answer


def to_plain(count: int) -> Route:
    """To engines that do both, in turns."""

    async def route(place: int, prompt: list[int], max_tokens: int, note: Answer) -> Answer:
        port = PORTS["D" if place % count else "P"]
        return await ask(port, f"r{next(NUMBERS):06d}", prompt, max_tokens, note.setdefault("times", []))

    return route


# ---- a load, and what became of it ----------------------------------------------------------------------------------


async def run_load(route: Route, load: Load, seconds: float, bursts: bool = True) -> list[dict]:
    """The load for so long; then whatever is under way ends. A row for each request, times since the beginning."""
    rows: list[dict] = []
    began = time.perf_counter()

    async def one(kind: str, place: int, key: int, wanted: int) -> None:
        note: Answer = {}
        row = {"kind": kind, "key": key, "start": time.perf_counter() - began}
        rows.append(row)
        try:
            found = await asyncio.wait_for(route(place, load.prompt_of(kind, key), wanted, note), seconds + 20)
        except (asyncio.TimeoutError, TimeoutError):
            found = {"times": note.get("times", []), "tokens": [], "error": "no end"}
        row["error"], row["tokens"] = found["error"], found["tokens"]
        row["times"] = [round(moment - began, 5) for moment in found["times"]]
        if "p_done" in note:
            row |= {"p_done": round(note["p_done"] - began, 5), "p_token": note["p_token"]}
        if found["error"]:
            await asyncio.sleep(0.2)

    async def stream(index: int) -> None:
        await asyncio.sleep(0.02 * index)
        for turn in itertools.count():
            if time.perf_counter() - began >= seconds:
                break
            await one("stream", index, 1000 * index + turn, load.output)

    jobs = [asyncio.create_task(stream(index)) for index in range(load.streams)]
    for number in itertools.count(step=load.burst):
        await asyncio.sleep(max(0.0, 1.0 + number // load.burst * load.every_s - (time.perf_counter() - began)))
        if time.perf_counter() - began >= seconds:
            break
        if bursts:
            jobs += [asyncio.create_task(one("long", i, number + i, load.long_output)) for i in range(load.burst)]
    await asyncio.wait(jobs, timeout=seconds + 30)
    for job in jobs:
        job.cancel()
    return rows


def quantile(values: list[float], share: float) -> float | None:
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def summary(rows: list[dict], seconds: float) -> dict:
    """Milliseconds of the requests that ended, and tokens a second while the load lasted, its first second left out."""
    found: dict = {"errors": [row["error"] for row in rows if row.get("error")][:5]}
    gaps: list[float] = []
    for kind in ("stream", "long"):
        good = [row for row in rows if row["kind"] == kind and row.get("times") and not row["error"]]
        first = [1e3 * (row["times"][0] - row["start"]) for row in good]
        found[kind] = {"ended": len(good), "ttft_ms": {f"p{q}": quantile(first, q / 100) for q in (50, 90, 99)}}
        toll = [1e3 * (row["times"][0] - row["p_done"]) for row in good if "p_done" in row]
        if toll:
            found[kind]["p_done_to_first_ms"] = {f"p{q}": quantile(toll, q / 100) for q in (50, 90, 99)}
            same = [row["tokens"][:1] == row["p_token"] for row in good]
            found[kind]["first_token_as_p_says"] = [sum(same), len(same)]
        if kind == "stream":
            for row in good:
                pairs = itertools.pairwise(row["times"])
                gaps += [1e3 * (after - before) for before, after in pairs if 1.0 < after < seconds]
    found["itl_ms"] = {f"p{q}": quantile(gaps, q / 100) for q in (50, 90, 95, 99, 99.9)} | {"max": max(gaps, default=0)}
    found["num_itl"] = len(gaps)
    count = sum(1.0 < moment < seconds for row in rows for moment in row.get("times", []))
    found["tokens_per_s"] = round(count / (seconds - 1.0), 1)
    return found


async def measure(route: Route, load: Load, seconds: float) -> tuple[dict, list[dict]]:
    """(summary, rows), after three seconds that do not count: first connections and first shapes are slow."""
    await run_load(route, load, 3.0)
    rows = await run_load(route, load, seconds)
    return summary(rows, seconds), rows


class Capture:
    """capture.json in `folder`, written after each arm; no arm begins after `limit` seconds."""

    def __init__(self, folder: Path, limit: float, load: Load, **more: object) -> None:
        self.folder, self.limit = folder, limit
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        self.data: dict = {"about": {**about(), "load": asdict(load), **more}, "engines": {}, "arms": {}, "logs": {}}

    def save(self) -> None:
        self.data["took_s"] = round(time.monotonic() - STARTED)
        (self.folder / "capture.json").write_text(json.dumps(self.data, indent=1))

    async def arm(self, name: str, job: Callable[[], Awaitable], timeout: float) -> None:
        """Run one arm; what it found, or why it failed. Its rows go to raw-NAME.json."""
        rows = None
        try:
            if time.monotonic() - STARTED > self.limit:
                raise RuntimeError("no time left")
            found = await asyncio.wait_for(job(), timeout)
            found, rows = found if isinstance(found, tuple) else (found, None)
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"[:3000]}
        self.data["arms"][name] = found
        if rows is not None:
            (self.folder / f"raw-{name}.json").write_text(json.dumps(rows))
        self.save()
        print(f"{time.monotonic() - STARTED:6.0f} s  {name}:", json.dumps(found)[:700], flush=True)

    def keep(self, made: list[Engine]) -> None:
        """Lines of their logs, and what they wrote of transfers."""
        for engine in made:
            text = re.sub(r"\x1b\[[0-9;]*m", "", engine.log.read_text(errors="replace"))
            lines = [re.sub(r"/\S*/model\b", "MODEL", line)[:260] for line in text.splitlines() if KEEP.search(line)]
            self.data["logs"][engine.name] = lines[:80]
            if trace := engine.trace.read_text().splitlines():
                self.data.setdefault("transfers", {})[engine.name] = [json.loads(line) for line in trace]
        self.save()


def about() -> dict:
    """Machine and versions, for the provenance."""

    def run(*command: str) -> list[str]:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).strip().splitlines()
        except OSError as error:
            return [f"{command[0]}: {error}"]

    code = "import platform as p;n=['vllm','torch','transformers','numpy'];import importlib.metadata as m;v={};"
    code += "exec('for k in n:\\n try: v[k]=m.version(k)\\n except Exception: pass');v['python']=p.python_version();"
    code += "import json;print(json.dumps(v))"
    return {
        "machine": run("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"),
        "topology": run("nvidia-smi", "topo", "-m")[:3], "cores": os.cpu_count(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": json.loads((run(sys.executable, "-c", code) or ["{}"])[-1]),
    }  # fmt: skip

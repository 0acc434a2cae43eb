"""Measures a prefill engine and a decode engine of real vLLM against engines that do both, on two GPUs of one host.

    python gpu_run.py --out FOLDER [--seconds 20] [--limit 480]

Needs vLLM 0.22.1 on two GPUs that reach each other through NCCL. Nothing is downloaded: the model has the shape of
Llama-3-8B, and random weights that every engine makes from the same seeds. Engines are `AsyncLLM`s in processes of
their own, which answer over a socket; the router is a function here. What an arm found goes into FOLDER/capture.json at
once, all its times into FOLDER/raw-ARM.json, and the lines of the engines' logs into capture.json too. An arm that
fails leaves {"failed": why}, and the others go on; after `limit` seconds no further arm begins.

Rounds (each starts two engines, one a GPU)
    pair         P prefills, D decodes, keys and values go over P2pNcclConnector
    whole        two engines that do both, 8,192 tokens a step: arms `one` (the first of them alone) and `two`
    chunked      the same with 512 tokens a step: `one-512` and `two-512`
    drills       a pair again: keys and values that never come, P killed and started again, D killed

Load, the same for each arm: 16 streams (64 tokens of prompt, 400 of output, the next one as soon as one ends), and
every half second two prompts of 2,031 tokens, which want 32 tokens.
"""

import argparse
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
from collections.abc import Awaitable, Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "INFO", "VLLM_HOST_IP": "127.0.0.1", "PYTHONUNBUFFERED": "1",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1", "VLLM_USE_V2_MODEL_RUNNER": "0",
}  # fmt: skip
KEEP = re.compile(
    r"Creating v1 connector|P2pNcclEngine init|ncclCommInitRank Success|[Hh]ybrid kv cache|GPU KV cache size"
    r"|Maximum concurrency|Model loading took|throughput:|does not match|Out Of (?:Memory|Threshold)|\bERROR\b"
    r"|Error:|Traceback|init engine|FlashAttention|async scheduling|Asynchronous scheduling"
)
STREAMS, PROMPT, OUTPUT = 16, 64, 400
LONG, LONG_OUTPUT, BURST, EVERY_S = 2031, 32, 2, 0.5
LAYERS = LLAMA["num_hidden_layers"]
PORTS, KV_PORTS = {"P": 18101, "D": 18202}, {"P": 21001, "D": 22001}
STARTED = time.monotonic()
NUMBERS = itertools.count(1)
Answer = dict


# ---- one engine, in a process of its own ----------------------------------------------------------------------------


def patch_vllm() -> None:
    """What the measurement changes in vLLM: dummy weights with which keys and values matter, and times of transfers.

    vLLM's dummy weights lie within 0.001 of 0, the same for all layers: attention then adds nothing that anybody would
    miss. Here each has the scale that keeps the size of its input, and a seed of its own; norms are 1.
    """
    try:
        import msgpack  # noqa: F401  (P2pNcclEngine wants it)
    except ImportError:
        import types

        import msgspec

        shim = types.ModuleType("msgpack")
        shim.dumps = lambda data: msgspec.msgpack.encode(data, enc_hook=list)
        shim.loads = msgspec.msgpack.decode
        sys.modules["msgpack"] = shim
    import torch
    from vllm.model_executor.model_loader import weight_utils

    number = [0]

    @torch.no_grad()
    def scaled(param, low=-1e-3, high=1e-3, seed=1234):
        if not torch.is_floating_point(param):
            return
        number[0] += 1
        if param.ndim < 2:
            param.fill_(1.0)
            return
        generator = torch.Generator(device=param.device)
        generator.manual_seed(seed + number[0])
        bound = (3.0 / param.shape[-1]) ** 0.5
        param.uniform_(-bound, bound, generator=generator)

    weight_utils.initialize_single_dummy_weight = scaled
    if os.environ["PD_ROLE"] in ("P", "D"):
        time_transfers(Path(os.environ["PD_TRACE"]))


def time_transfers(path: Path) -> None:
    """Write a line for each request whose keys and values were sent, and for each step that waited for some."""
    from vllm.distributed.kv_transfer.kv_connector.v1.p2p import p2p_nccl_connector, p2p_nccl_engine

    sent: dict[str, list] = {}
    send, load = p2p_nccl_engine.P2pNcclEngine.send_sync, p2p_nccl_connector.P2pNcclConnector.start_load_kv

    def note(**row) -> None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def timed_send(self, item):
        began = time.perf_counter()
        done = send(self, item)
        row = sent.setdefault(item.tensor_id.split("#")[0], [0, 0, began, 0.0])
        row[0] += 1
        row[1] += item.tensor.numel() * item.tensor.element_size()
        row[3] += time.perf_counter() - began
        if row[0] == LAYERS:
            request = item.tensor_id.split("#")[0]
            tensors, size, first, busy = sent.pop(request)
            whole = time.perf_counter() - first
            note(what="sent", id=request[-12:], tensors=tensors, bytes=size, busy_s=busy, first_to_last_s=whole)
        return done

    def timed_load(self, forward_context, **kwargs):
        began = time.perf_counter()
        load(self, forward_context, **kwargs)
        if not self.is_producer and self._get_connector_metadata().requests:
            requests = [(one.request_id[-12:], one.num_tokens) for one in self._get_connector_metadata().requests]
            note(what="loaded", requests=requests, host_s=time.perf_counter() - began)

    p2p_nccl_engine.P2pNcclEngine.send_sync = timed_send
    p2p_nccl_connector.P2pNcclConnector.start_load_kv = timed_load


if os.environ.get("PD_ROLE"):  # in the engine's processes, whether forked or spawned
    patch_vllm()


def options_of(role: str, budget: int, send_type: str, plain: bool) -> dict:
    """Keyword arguments of the engine. `plain`: without graphs and without scheduling ahead, the second try."""
    options = {
        "load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 4096, "max_num_seqs": 64,
        "block_size": 16, "enable_prefix_caching": False, "gpu_memory_utilization": 0.6, "dtype": "bfloat16",
        "max_num_batched_tokens": budget, "seed": 0, "disable_log_stats": False,
        "compilation_config": {
            "mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, *range(8, 65, 8)],
        },
    }  # fmt: skip
    if plain:
        options |= {"enforce_eager": True, "async_scheduling": False}
        del options["compilation_config"]
    if role in ("P", "D"):
        from vllm.config import KVTransferConfig

        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="P2pNcclConnector", kv_role="kv_producer" if role == "P" else "kv_consumer",
            kv_port=KV_PORTS[role], kv_buffer_size=1e8 if role == "P" else 8e9,
            kv_connector_extra_config={"send_type": send_type, "nccl_num_channels": "16", "mem_pool_size_gb": 1},
        )  # fmt: skip
    return options


async def engine_main(role: str, port: int, options: dict) -> None:
    """One engine behind a socket. A line of JSON is a question; each step answers with a line."""
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    began = time.perf_counter()
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**options))
    config = engine.vllm_config
    facts = {
        "pid": os.getpid(), "start_s": round(time.perf_counter() - began, 1), "num_blocks": config.cache_config.num_gpu_blocks,
        "block_size": config.cache_config.block_size, "async_scheduling": config.scheduler_config.async_scheduling,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "enforce_eager": config.model_config.enforce_eager,
    }  # fmt: skip

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(**row) -> None:
            writer.write((json.dumps(row) + "\n").encode())

        try:
            ask = json.loads(await reader.readline())
            if "prompt" not in ask:
                say(**facts)
                return
            params = SamplingParams(
                temperature=0.0, max_tokens=ask["max_tokens"], ignore_eos=True, detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )  # fmt: skip
            async for output in engine.generate({"prompt_token_ids": ask["prompt"]}, params, ask["id"]):
                say(t=list(output.outputs[0].token_ids), end=output.finished)
                await writer.drain()
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}"[:300])
        finally:
            with contextlib.suppress(Exception):
                await writer.drain()
                writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port, limit=1 << 20)
    print(f"{role} serves", flush=True)
    async with server:
        while True:
            await asyncio.sleep(2)
            await engine.do_log_stats()


# ---- two engines, and a router --------------------------------------------------------------------------------------


class Engine:
    """A process with an engine in it."""

    script = Path(__file__).resolve()

    def __init__(self, name: str, gpu: int, role: str, folder: Path, *options: object) -> None:
        self.name, self.port = name, PORTS["D" if gpu else "P"]
        self.log, self.trace = folder / f"{name}.log", folder / f"{name}.trace"
        self.given = gpu, role, folder, options
        self.begin()

    def begin(self) -> None:
        gpu, role, folder, options = self.given
        self.trace.touch()
        command = [sys.executable, str(self.script), "--out", str(folder), "--engine", role]
        with self.log.open("a") as file:
            self.job = subprocess.Popen(
                [*command, str(self.port), json.dumps(options)],
                stdout=file, stderr=file, env=self.surroundings(gpu, role), cwd=HERE, start_new_session=True,
            )  # fmt: skip

    def surroundings(self, gpu: int, role: str) -> dict:
        mine = {"CUDA_VISIBLE_DEVICES": visible(gpu), "PD_ROLE": role, "PD_TRACE": str(self.trace)}
        return {**os.environ, **ENVIRONMENT, **mine}

    async def ready(self, timeout: float) -> dict:
        limit = time.monotonic() + timeout
        while time.monotonic() < limit:
            if self.job.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.job.returncode}:\n{tail(self.log)}")
            with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
                facts = await asyncio.wait_for(self._facts(), 5)
                if facts.pop("pid") == self.job.pid:  # and not one that an earlier run left behind
                    return facts
            await asyncio.sleep(0.5)
        raise RuntimeError(f"{self.name} was not there after {timeout:.0f} s:\n{tail(self.log)}")

    async def _facts(self) -> dict:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"{}\n")
        line = await reader.readline()
        writer.close()
        return json.loads(line)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.job.pid, signal.SIGKILL)
        self.job.wait()

    def lines(self) -> list[str]:
        text = re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text(errors="replace"))
        found = [line for line in text.splitlines() if KEEP.search(line)]
        return [re.sub(r"/\S*/model\b", "MODEL", line)[:260] for line in found][:80]

    def transfers(self) -> list[dict]:
        return [json.loads(line) for line in self.trace.read_text().splitlines()]


def visible(gpu: int) -> str:
    mine = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    return mine[gpu] if gpu < len(mine) else str(gpu)


def tail(log: Path, size: int = 2500) -> str:
    return log.read_text(errors="replace")[-size:]


async def ask(
    port: int, name: str, prompt: list[int], max_tokens: int, seen: list | None = None, **more: object
) -> Answer:
    """Stream one answer. Times are `time.perf_counter()` of each line; `seen` gets them as they come."""
    answer: Answer = {"times": [] if seen is None else seen, "tokens": [], "error": None}
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        writer.write((json.dumps({"id": name, "prompt": prompt, "max_tokens": max_tokens, **more}) + "\n").encode())
        while True:
            line = await reader.readline()
            if not line:
                answer["error"] = "the stream broke off"
                break
            row = json.loads(line)
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


def pair_id(number: int) -> str:
    """P2pNcclConnector finds the other side in the request's name."""
    p, d = (f"127.0.0.1:{KV_PORTS[role]}" for role in "PD")
    return f"___prefill_addr_{p}___decode_addr_{d}_{number:06d}"


Route = Callable[[int, list[int], int, Answer], Awaitable[Answer]]


async def to_pair(place: int, prompt: list[int], max_tokens: int, note: Answer) -> Answer:
    """Prompt to P for one token, then to D for all of them. Both get the same name."""
    name = pair_id(next(NUMBERS))
    first = await ask(PORTS["P"], name, prompt, 1)
    note["p_done"] = time.perf_counter()
    note["p_token"] = first["tokens"][:1]
    if first["error"]:
        return {**first, "error": f"P: {first['error']}"}
    return await ask(PORTS["D"], name, prompt, max_tokens, note.setdefault("times", []))


def to_plain(count: int) -> Route:
    async def route(place: int, prompt: list[int], max_tokens: int, note: Answer) -> Answer:
        port = PORTS["D" if place % count else "P"]
        return await ask(port, f"r{next(NUMBERS):06d}", prompt, max_tokens, note.setdefault("times", []))

    return route


def prompt_of(kind: str, number: int, length: int) -> list[int]:
    rng = random.Random(f"{kind}-{number}")
    return [rng.randrange(10, LLAMA["vocab_size"] - 10) for _ in range(length)]


# ---- load, and what became of it ------------------------------------------------------------------------------------


async def load(route: Route, seconds: float, streams: int = STREAMS, bursts: bool = True) -> list[dict]:
    """Streams and bursts for so long; then whatever is under way ends. A row for each request."""
    rows: list[dict] = []
    began = time.perf_counter()

    async def one(kind: str, place: int, key: int, length: int, wanted: int) -> None:
        note: Answer = {}
        row = {"kind": kind, "key": key, "start": time.perf_counter() - began}
        rows.append(row)
        try:
            found = await asyncio.wait_for(route(place, prompt_of(kind, key, length), wanted, note), seconds + 20)
        except (asyncio.TimeoutError, TimeoutError):
            found = {"times": note.get("times", []), "tokens": [], "error": "no end"}
        row["error"], row["tokens"] = found["error"], found["tokens"]
        row["times"] = [round(moment - began, 5) for moment in found["times"]]
        if "p_done" in note:
            row |= {"p_done": round(note["p_done"] - began, 5), "p_token": note["p_token"]}

    async def stream(index: int) -> None:
        await asyncio.sleep(0.02 * index)
        turn = 0
        while time.perf_counter() - began < seconds:
            await one("stream", index, 1000 * index + turn, PROMPT, OUTPUT)
            turn += 1
            if rows[-1].get("error"):
                await asyncio.sleep(0.2)

    jobs = [asyncio.create_task(stream(index)) for index in range(streams)]
    number = 0
    while bursts and time.perf_counter() - began < seconds:
        wait = 1.0 + number // BURST * EVERY_S - (time.perf_counter() - began)
        await asyncio.sleep(max(0.0, wait))
        jobs += [asyncio.create_task(one("long", i, number + i, LONG, LONG_OUTPUT)) for i in range(BURST)]
        number += BURST
    if not bursts:
        await asyncio.sleep(max(0.0, seconds - (time.perf_counter() - began)))
    await asyncio.wait(jobs, timeout=seconds + 30)
    for job in jobs:
        job.cancel()
    return rows


def quantile(values: list[float], share: float) -> float | None:
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def summary(rows: list[dict], seconds: float) -> dict:
    """Milliseconds of the requests that ended, and tokens a second while the load lasted."""
    found: dict = {"errors": [row["error"] for row in rows if row.get("error")][:5]}
    gaps = []
    for kind in ("stream", "long"):
        good = [row for row in rows if row["kind"] == kind and row.get("times") and not row["error"]]
        first = [1e3 * (row["times"][0] - row["start"]) for row in good]
        found[kind] = {"ended": len(good), "ttft_ms": {f"p{q}": quantile(first, q / 100) for q in (50, 90, 99)}}
        toll = [1e3 * (row["times"][0] - row["p_done"]) for row in good if "p_done" in row]
        if toll:
            found[kind]["p_done_to_first_ms"] = {f"p{q}": quantile(toll, q / 100) for q in (50, 90, 99)}
            same = [row["tokens"][:1] == row["p_token"] for row in good]
            found[kind]["first_token_as_p_says"] = [sum(same), len(same)]
        found[kind]["distinct_first_tokens"] = len({tuple(row["tokens"][:1]) for row in good})
        if kind == "stream":
            for row in good:
                pairs = itertools.pairwise(row["times"])
                gaps += [1e3 * (after - before) for before, after in pairs if 1.0 < after < seconds]
    found["itl_ms"] = {f"p{q}": quantile(gaps, q / 100) for q in (50, 90, 95, 99, 99.9)} | {"max": max(gaps, default=0)}
    found["num_itl"] = len(gaps)
    count = sum(1.0 < moment < seconds for row in rows for moment in row.get("times", []))
    found["tokens_per_s"] = round(count / (seconds - 1.0), 1)
    return found


async def measure(route: Route, seconds: float) -> tuple[dict, list[dict]]:
    await load(route, 3.0)  # the first transfer makes a communicator, the first shapes are slow
    rows = await load(route, seconds)
    return summary(rows, seconds), rows


# ---- drills ---------------------------------------------------------------------------------------------------------


def silence(rows: list[dict], after: float, until: float) -> dict:
    """Tokens that the streams got between two moments, and the longest time without any."""
    moments = sorted(m for row in rows for m in row.get("times", []) if after <= m <= until)
    edges = [after, *moments, until]
    longest = max(b - a for a, b in itertools.pairwise(edges))
    return {"tokens": len(moments), "longest_silence_s": round(longest, 3), "of_s": round(until - after, 2)}


async def drill_missing() -> dict:
    """D is asked for a request whose keys and values nobody has sent; six seconds later P is asked for it."""
    began = time.perf_counter()
    job = asyncio.create_task(load(to_pair, 14.0, streams=4, bursts=False))
    await asyncio.sleep(3)
    name, prompt = pair_id(900001), prompt_of("missing", 0, LONG)
    moment = time.perf_counter() - began
    orphan = asyncio.create_task(ask(PORTS["D"], name, prompt, 8))
    await asyncio.sleep(6)
    sent = time.perf_counter() - began
    late = asyncio.create_task(ask(PORTS["P"], name, prompt, 1))
    rows = await asyncio.wait_for(job, 60)
    done, _ = await asyncio.wait({orphan, late}, timeout=5)
    found = {
        "streams_before": silence(rows, 1.0, moment), "streams_while_it_waits": silence(rows, moment, sent),
        "streams_after_p_sent": silence(rows, sent + 1.0, sent + 4.0),
        "orphan": orphan.result()["error"] or len(orphan.result()["tokens"]) if orphan in done else "no answer",
        "p": late.result()["error"] or "answered" if late in done else "no answer",
    }  # fmt: skip
    for task in (orphan, late):
        task.cancel()
    return found


async def drill_kill_p(p: Engine) -> dict:
    """P dies while D's streams run; a new one is started under the same address."""
    began = time.perf_counter()
    job = asyncio.create_task(load(to_pair, 8.0, streams=4, bursts=False))
    await asyncio.sleep(4)
    p.kill()
    killed = time.perf_counter() - began
    refused = await asyncio.wait_for(to_pair(0, prompt_of("dead", 0, LONG), 8, {}), 20)
    rows = await asyncio.wait_for(job, 60)
    running = [row for row in rows if row["start"] < killed]
    found = {
        "refused": refused["error"], "streams_until": silence(rows, 1.0, killed),
        "streams_after": silence(running, killed, killed + 1.0),
        "running_then": [sum(not row.get("error") for row in running), len(running)],
    }  # fmt: skip
    p.begin()
    await p.ready(90)
    note: Answer = {}
    again = await asyncio.wait_for(to_pair(0, prompt_of("dead", 1, LONG), 8, note), 30)
    found["after_restart"] = again["error"] or {
        "tokens": len(again["tokens"]), "first_token_as_p_says": again["tokens"][:1] == note["p_token"]
    }  # fmt: skip
    return found


async def drill_kill_d(d: Engine) -> dict:
    """D dies while its streams run; then P is asked twice."""
    job = asyncio.create_task(load(to_pair, 6.0, streams=4, bursts=False))
    await asyncio.sleep(3)
    d.kill()
    answers = []
    for number in (900020, 900021):
        began = time.perf_counter()
        try:
            answer = await asyncio.wait_for(ask(PORTS["P"], pair_id(number), prompt_of("d", number, LONG), 1), 8)
            said = answer["error"] or "answered"
        except (asyncio.TimeoutError, TimeoutError):
            said = "no answer in 8 s"
        answers.append([said, round(time.perf_counter() - began, 3)])
    rows = await asyncio.wait_for(job, 60)
    return {"clients": sorted({str(row.get("error")) for row in rows if row["start"] < 3}), "p_afterwards": answers}


# ---- rounds ---------------------------------------------------------------------------------------------------------


class Capture:
    """capture.json, written after each arm."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit
        self.data: dict = {"about": about(), "engines": {}, "arms": {}, "logs": {}}

    def save(self) -> None:
        text = json.dumps(self.data, indent=1)
        (self.folder / "capture.json").write_text(text)

    async def arm(self, name: str, job: Callable[[], Awaitable], timeout: float) -> bool:
        """Run one arm; False where it failed."""
        began, rows = time.monotonic(), None
        if began - STARTED > self.limit:
            self.data["arms"][name] = {"failed": "no time left"}
        else:
            try:
                found = await asyncio.wait_for(job(), timeout)
                found, rows = found if isinstance(found, tuple) else (found, None)
                self.data["arms"][name] = found
            except Exception as error:
                self.data["arms"][name] = {"failed": f"{type(error).__name__}: {error}"[:3000]}
        if rows is not None:
            (self.folder / f"raw-{name}.json").write_text(json.dumps(rows))
        self.save()
        print(f"{time.monotonic() - STARTED:6.0f} s  {name}:", json.dumps(self.data["arms"][name])[:700], flush=True)
        return "failed" not in self.data["arms"][name]

    def keep(self, engines: list[Engine], round_name: str) -> None:
        for engine in engines:
            self.data["logs"][f"{round_name}-{engine.name}"] = engine.lines()
            if engine.transfers():
                self.data.setdefault("transfers", {})[f"{round_name}-{engine.name}"] = engine.transfers()
        self.save()


@contextlib.asynccontextmanager
async def engines(capture: Capture, name: str, roles: tuple[str, str], budget: int, send: str, plain: bool):
    """Two engines, one a GPU, killed in the end."""
    folder = capture.folder / "logs"
    folder.mkdir(exist_ok=True)
    both = [Engine(f"{name}-{i}", i, role, folder, budget, send, plain) for i, role in enumerate(roles)]
    try:
        facts = await asyncio.gather(*(engine.ready(150) for engine in both))
        capture.data["engines"][name] = facts
        yield both
    finally:
        for engine in both:
            engine.kill()
        capture.keep(both, name)


async def check_pair() -> dict:
    """A first request, which makes the communicator, and a second one."""
    found = {}
    for number, length in ((800000, PROMPT), (800001, LONG)):
        note: Answer = {}
        began = time.perf_counter()
        answer = await asyncio.wait_for(to_pair(0, prompt_of("check", number, length), 8, note), 60)
        if answer["error"]:
            raise RuntimeError(answer["error"])
        same = answer["tokens"][:1] == note["p_token"]
        found[str(length)] = {"s": round(time.perf_counter() - began, 3), "first_token_as_p_says": same}
    return found


async def round_pair(capture: Capture, seconds: float) -> None:
    for send, plain in (("PUT_ASYNC", False), ("PUT_ASYNC", True), ("GET", True)):
        name = f"pair-{send}{'-plain' if plain else ''}"
        try:
            async with engines(capture, name, ("P", "D"), 8192, send, plain):
                if not await capture.arm(f"check-{name}", check_pair, 130):
                    continue
                capture.data["pair"] = name, send, plain
                if await capture.arm("pair", lambda: measure(to_pair, seconds), 120):
                    return
        except Exception as error:
            capture.data["arms"][f"start-{name}"] = {"failed": f"{type(error).__name__}: {error}"[:3000]}
            capture.save()
            print(f"start-{name}: {error}"[:1500], flush=True)


async def round_drills(capture: Capture) -> None:
    if "pair" not in capture.data or time.monotonic() - STARTED > capture.limit:
        return
    _, send, plain = capture.data["pair"]
    try:
        async with engines(capture, "drills", ("P", "D"), 8192, send, plain) as (p, d):
            if await capture.arm("check-drills", check_pair, 130):
                await capture.arm("drill-missing", drill_missing, 80)
                await capture.arm("drill-kill-p", lambda: drill_kill_p(p), 120)
                await capture.arm("drill-kill-d", lambda: drill_kill_d(d), 80)
    except Exception as error:
        capture.data["arms"]["start-drills"] = {"failed": f"{type(error).__name__}: {error}"[:3000]}
        capture.save()


async def round_plain(capture: Capture, name: str, suffix: str, budget: int, seconds: float) -> None:
    try:
        async with engines(capture, name, ("A", "B"), budget, "", capture.data.get("pair", [False])[-1]):
            await capture.arm(f"one{suffix}", lambda: measure(to_plain(1), seconds), 120)
            await capture.arm(f"two{suffix}", lambda: measure(to_plain(2), seconds), 120)
    except Exception as error:
        capture.data["arms"][f"start-{name}"] = {"failed": f"{type(error).__name__}: {error}"[:3000]}
        capture.save()
        print(f"start-{name}: {error}"[:1500], flush=True)


def about() -> dict:
    """Machine and versions, for the provenance."""

    def run(*command: str) -> list[str]:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).strip().splitlines()
        except Exception as error:
            return [f"{command[0]}: {error}"]

    code = "import vllm, torch, transformers as t, platform as p;"
    code += "print(vllm.__version__, torch.__version__, t.__version__, p.python_version())"
    said = (run(sys.executable, "-c", code) or [""])[-1]
    return {
        "machine": run("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"),
        "topology": run("nvidia-smi", "topo", "-m")[:3], "cores": os.cpu_count(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": dict(zip(("vllm", "torch", "transformers", "python"), said.split(), strict=False)),
        "command": "gpu_run.py --out FOLDER", "environment": ENVIRONMENT, "shape": LLAMA,
        "load": {
            "streams": STREAMS, "prompt": PROMPT, "output": OUTPUT, "long": LONG, "long_output": LONG_OUTPUT,
            "burst": BURST, "every_s": EVERY_S,
        },
    }  # fmt: skip


async def run_all(folder: Path, seconds: float, limit: float) -> None:
    capture = Capture(folder, limit)
    capture.save()
    await round_pair(capture, seconds)
    await round_plain(capture, "whole", "", 8192, seconds)
    await round_plain(capture, "chunked", "-512", 512, seconds)
    await round_drills(capture)
    capture.data["took_s"] = round(time.monotonic() - STARTED)
    capture.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="folder; default: $OUT")
    parser.add_argument("--seconds", type=float, default=20.0, help="of load in each arm")
    parser.add_argument("--limit", type=float, default=400.0, help="no arm begins after so many seconds")
    parser.add_argument("--engine", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.out is None:
        parser.error("--out, or OUT in the environment")
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    if args.engine:
        role, port, given = args.engine
        model = folder.parent / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(LLAMA))
        options = {"model": str(model), **options_of(role, *json.loads(given))}
        asyncio.run(engine_main(role, int(port), options))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the engines are ended, too
    asyncio.run(run_all(folder, args.seconds, args.limit))


if __name__ == "__main__":  # vLLM starts processes of its own, which import this file again
    main()

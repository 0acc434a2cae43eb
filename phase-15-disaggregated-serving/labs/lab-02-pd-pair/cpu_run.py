"""The measurement of gpu_run.py on two cores of a CPU: our engine, models/pocket, point-to-point over TCP.

    python cpu_run.py --out FOLDER [--seconds 20]

Each engine has a process and a core of its own, which takes the place of a card. Arms, capture.json and raw-ARM.json
are as in gpu_run.py; the load is smaller (see LOAD). The drills differ, because this connector can say that a load has
failed: P is killed between its answer and D's read, once with each `kv_load_failure_policy`; and D is killed in the
middle of a stream, after which P's blocks come back when their lease ends.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT), str(HERE)]

import gpu_run as pd  # noqa: E402

LOAD = {"STREAMS": 4, "PROMPT": 16, "OUTPUT": 120, "LONG": 1000, "LONG_OUTPUT": 16, "BURST": 1, "EVERY_S": 1.5}
SIDE_CHANNEL = {"P": 15600, "D": 15601}
LEASE_S = 4
vars(pd).update(LOAD)
pd.LLAMA["vocab_size"] = 4096


async def engine_main(role: str, port: int, budget: int, policy: str) -> None:
    """One engine of ours behind a socket, as `gpu_run.engine_main`."""
    from mini_vllm import SamplingParams
    from mini_vllm.engine.async_llm import AsyncLLM
    from mini_vllm.sampling_params import RequestOutputKind

    options: dict = {
        "max_num_batched_tokens": budget, "max_num_seqs": 16, "num_blocks": 1200, "enable_prefix_caching": False,
    }  # fmt: skip
    if role in "PD":
        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(SIDE_CHANNEL[role])
        options["kv_transfer_config"] = {
            "kv_connector": "NixlConnector", "kv_role": "kv_producer" if role == "P" else "kv_consumer",
            "kv_load_failure_policy": policy, "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
        }  # fmt: skip
    began = time.perf_counter()
    engine = AsyncLLM(str(ROOT / "models" / "pocket"), **options)
    facts = {"pid": os.getpid(), "start_s": round(time.perf_counter() - began, 1), **options}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(**row) -> None:
            writer.write((json.dumps(row) + "\n").encode())

        try:
            ask = json.loads(await reader.readline())
            if "prompt" not in ask:
                say(**facts, usage=engine.engine_core.kv_cache_manager.usage)
                return
            extra = {"kv_transfer_params": ask["kv"]} if ask.get("kv") else None
            params = SamplingParams(
                temperature=0.0, max_tokens=ask["max_tokens"], ignore_eos=True, detokenize=False, extra_args=extra,
                output_kind=RequestOutputKind.DELTA,
            )  # fmt: skip
            async for output in engine.generate({"prompt_token_ids": ask["prompt"]}, params, ask["id"]):
                one = output.outputs[0]
                if one.finish_reason == "error":
                    say(error=f"finish reason error: {one.stop_reason}"[:300])
                    break
                say(t=list(one.token_ids), end=output.finished, kv=output.kv_transfer_params)
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
        await server.serve_forever()


class Engine(pd.Engine):
    """As there, on a core."""

    script = Path(__file__).resolve()

    def surroundings(self, core: int, role: str) -> dict:
        return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PD_CORE": str(core)}

    async def usage(self) -> float:
        return (await self._facts())["usage"]


async def to_pair(place: int, prompt: list[int], max_tokens: int, note: dict) -> dict:
    """P for one token, and what it says about where the keys and values are to D, with the prompt."""
    number = next(pd.NUMBERS)
    wanted = {"do_remote_decode": True, "do_remote_prefill": False}
    first = await pd.ask(pd.PORTS["P"], f"p{number}", prompt, 1, kv=wanted)
    note |= {"p_done": time.perf_counter(), "p_token": first["tokens"][:1]}
    if first["error"]:
        return {**first, "error": f"P: {first['error']}"}
    if "hold" in note:
        note["hold"]()
    return await pd.ask(pd.PORTS["D"], f"d{number}", prompt, max_tokens, note.setdefault("times", []), kv=first["kv"])


async def drill_kill_p(p: Engine) -> dict:
    """P has answered, and dies before D has read."""
    job = asyncio.create_task(pd.load(to_pair, 5.0, streams=2, bursts=False))
    await asyncio.sleep(2.5)
    began = time.perf_counter()
    prompt = pd.prompt_of("dead", 0, pd.LONG)
    answer = await asyncio.wait_for(to_pair(0, prompt, 8, {"hold": p.kill}), 60)
    took = round(time.perf_counter() - began, 2)
    rows = await asyncio.wait_for(job, 60)
    return {
        "answer": answer["error"] or f"{len(answer['tokens'])} tokens", "took_s": took,
        "streams": [sum(not row["error"] for row in rows if row["start"] < 2), sum(row["start"] < 2 for row in rows)],
    }  # fmt: skip


async def drill_kill_d(p: Engine, d: Engine) -> dict:
    """D dies in the middle of a stream; another request has been computed at P and is never read."""
    job = asyncio.create_task(pd.load(to_pair, 4.0, streams=2, bursts=False))
    await asyncio.sleep(2.0)
    d.kill()
    prompt = pd.prompt_of("left", 0, pd.LONG)
    await pd.ask(pd.PORTS["P"], "left", prompt, 1, kv={"do_remote_decode": True, "do_remote_prefill": False})
    began, held = time.perf_counter(), await p.usage()
    usages = []
    while time.perf_counter() - began < 4 * LEASE_S:
        usages.append([round(time.perf_counter() - began, 2), round(await p.usage(), 4)])
        if not usages[-1][1]:
            break
        with contextlib.suppress(Exception):  # leases are looked at in steps
            await asyncio.wait_for(pd.ask(pd.PORTS["P"], f"tick{len(usages)}", [7, 8, 9], 1), 10)
        await asyncio.sleep(0.25)
    rows = await asyncio.wait_for(job, 60)
    said = sorted({str(row["error"]) for row in rows if row["start"] < 2})
    return {"clients": said, "held": round(held, 4), "free_after_s": usages[-1][0], "usage": usages[-1][1]}


@contextlib.asynccontextmanager
async def engines(capture: pd.Capture, name: str, roles: str, budget: int, policy: str = "fail"):
    folder = capture.folder / "logs"
    folder.mkdir(exist_ok=True)
    both = [Engine(f"{name}-{role}-{i}", i, role, folder, budget, policy) for i, role in enumerate(roles)]
    try:
        capture.data["engines"][name] = await asyncio.gather(*(engine.ready(120) for engine in both))
        yield both
    finally:
        for engine in both:
            engine.kill()
        capture.keep(both, name)


async def run_all(folder: Path, seconds: float) -> None:
    capture = pd.Capture(folder, 3600)
    capture.data["about"] |= {"command": "cpu_run.py --out FOLDER", "environment": {}, "load": LOAD, "shape": "pocket"}
    async with engines(capture, "pair", "PD", 2048):
        await capture.arm("pair", lambda: pd.measure(to_pair, seconds), 200)
    for suffix, budget in (("", 2048), ("-128", 128)):
        async with engines(capture, f"whole{suffix}", "AB", budget):
            for name, count in (("one", 1), ("two", 2)):
                await capture.arm(f"{name}{suffix}", lambda n=count: pd.measure(pd.to_plain(n), seconds), 200)
    for policy in ("fail", "recompute"):
        async with engines(capture, f"drill-{policy}", "PD", 2048, policy) as (p, _):
            await pd.load(to_pair, 1.0)
            await capture.arm(f"drill-kill-p-{policy}", lambda p=p: drill_kill_p(p), 120)
    async with engines(capture, "drill-d", "PD", 2048) as (p, d):
        await pd.load(to_pair, 1.0)
        await capture.arm("drill-kill-d", lambda: drill_kill_d(p, d), 120)
    capture.data["took_s"] = round(time.monotonic() - pd.STARTED)
    capture.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--engine", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        role, port, given = args.engine
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["PD_CORE"]) % len(cores)]})
        asyncio.run(engine_main(role, int(port), *json.loads(given)))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asyncio.run(run_all(args.out, args.seconds))


if __name__ == "__main__":
    main()

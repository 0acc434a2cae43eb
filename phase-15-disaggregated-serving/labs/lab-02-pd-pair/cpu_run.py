"""The measurement of gpu_run.py on two cores of a CPU: our engine, models/pocket, point-to-point over TCP.

    python cpu_run.py --out FOLDER [--seconds 12]

Each engine has a process and a core of its own, which takes the place of a card; the load is smaller. Arms: `pair`,
`one`, `two` (2,048 tokens a step), `one-128`, `two-128`. And three drills, because this connector notices that a load
has failed: P is killed between its answer and D's read, once with each `kv_load_failure_policy`; and D is killed in the
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
from collections.abc import AsyncIterator
from pathlib import Path

SCRIPT = Path(__file__).resolve()
ROOT = SCRIPT.parents[3]
sys.path.insert(0, str(ROOT))

from bench import NUMBERS, PORTS, Answer, Capture, Engine, Load, ask, engines, measure, run_load, serve, to_plain  # noqa: E402

LOAD = Load(4, 16, 120, 1000, 16, 1, 1.5, 4096)
SIDE_CHANNEL = {"P": "15600", "D": "15601"}
LEASE_S = 4
FOR_D = {"do_remote_decode": True, "do_remote_prefill": False}


async def engine_main(role: str, port: int, core: int, budget: int, policy: str) -> None:
    """One engine of ours behind a socket, on one core."""
    from mini_vllm import SamplingParams
    from mini_vllm.engine.async_llm import AsyncLLM
    from mini_vllm.sampling_params import RequestOutputKind

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})
    options: dict = {
        "max_num_batched_tokens": budget, "max_num_seqs": 16, "num_blocks": 1200, "enable_prefix_caching": False,
    }  # fmt: skip
    if role in "PD":
        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = SIDE_CHANNEL[role]
        options["kv_transfer_config"] = {
            "kv_connector": "NixlConnector", "kv_role": "kv_producer" if role == "P" else "kv_consumer",
            "kv_load_failure_policy": policy, "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
        }  # fmt: skip
    engine = AsyncLLM(str(ROOT / "models" / "pocket"), **options)

    def facts() -> dict:
        return {**options, "usage": engine.engine_core.kv_cache_manager.usage}

    async def generate(question: dict) -> AsyncIterator[dict]:
        params = SamplingParams(
            temperature=0.0, max_tokens=question["max_tokens"], ignore_eos=True, detokenize=False,
            extra_args={"kv_transfer_params": question["kv"]} if question.get("kv") else None,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        async for output in engine.generate({"prompt_token_ids": question["prompt"]}, params, question["id"]):
            one = output.outputs[0]
            if one.finish_reason == "error":
                yield {"error": f"finish reason error: {one.stop_reason}"}
                return
            yield {"t": list(one.token_ids), "end": output.finished, "kv": output.kv_transfer_params}

    await serve(port, facts, generate)


async def to_pair(place: int, prompt: list[int], max_tokens: int, note: Answer) -> Answer:
    """P for one token; what it says about the whereabouts of keys and values goes to D, with the prompt."""
    number = next(NUMBERS)
    first = await ask(PORTS["P"], f"p{number}", prompt, 1, kv=FOR_D)
    note |= {"p_done": time.perf_counter(), "p_token": first["tokens"][:1]}
    if first["error"]:
        return {**first, "error": f"P: {first['error']}"}
    if "between" in note:
        note["between"]()
    return await ask(PORTS["D"], f"d{number}", prompt, max_tokens, note.setdefault("times", []), kv=first["kv"])


async def drill_kill_p(p: Engine) -> dict:
    """P has answered, and dies before D has read."""
    job = asyncio.create_task(run_load(to_pair, LOAD, 5.0, bursts=False))
    await asyncio.sleep(2.5)
    began = time.perf_counter()
    answer = await asyncio.wait_for(to_pair(0, LOAD.prompt_of("dead", 0), 8, {"between": p.kill}), 60)
    took = round(time.perf_counter() - began, 2)
    rows = [row for row in await asyncio.wait_for(job, 90) if row["start"] < 2]
    said = answer["error"] or f"{len(answer['tokens'])} tokens"
    return {"answer": said, "took_s": took, "streams_unharmed": [sum(not row["error"] for row in rows), len(rows)]}


async def drill_kill_d(p: Engine, d: Engine) -> dict:
    """D dies in the middle of a stream; another request has been computed at P and is never read."""
    job = asyncio.create_task(run_load(to_pair, LOAD, 3.0, bursts=False))
    await asyncio.sleep(2.0)
    d.kill()
    await asyncio.wait_for(job, 60)
    rows = job.result()
    await ask(PORTS["P"], "left", LOAD.prompt_of("left", 0), 1, kv=FOR_D)
    began, held, usage = time.perf_counter(), (await p.facts())["usage"], 1.0
    while usage and time.perf_counter() - began < 6 * LEASE_S:
        await asyncio.sleep(0.2)
        await ask(PORTS["P"], f"tick{next(NUMBERS)}", [7, 8, 9], 1)  # leases are looked at in steps
        usage = (await p.facts())["usage"]
    said = sorted({str(row["error"]) for row in rows if row["start"] < 2})
    after = round(time.perf_counter() - began, 2)
    return {"clients": said, "held": round(held, 4), "usage": usage, "free_after_s": after, "lease_s": LEASE_S}


def two(folder: Path, name: str, roles: str, budget: int = 2048, policy: str = "fail") -> list[Engine]:
    """Two engines, one a core."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return [
        Engine(
            SCRIPT, f"{name}-{index}", index, role, folder / "logs",
            {"core": index, "budget": budget, "policy": policy}, threads,
        )
        for index, role in enumerate(roles)
    ]  # fmt: skip


async def run_all(folder: Path, seconds: float) -> None:
    capture = Capture(folder, 3600, LOAD, command="cpu_run.py --out FOLDER", environment={})
    async with engines(capture, "pair", two(folder, "pair", "PD")):
        await capture.arm("pair", lambda: measure(to_pair, LOAD, seconds), 200)
    for suffix, budget in (("", 2048), ("-128", 128)):
        async with engines(capture, f"both{suffix}", two(folder, f"both{suffix}", "AB", budget)):
            for name, count in (("one", 1), ("two", 2)):
                route = to_plain(count)
                await capture.arm(f"{name}{suffix}", lambda route=route: measure(route, LOAD, seconds), 200)
    for policy in ("fail", "recompute"):
        name = f"drill-kill-p-{policy}"
        async with engines(capture, name, two(folder, name, "PD", policy=policy)) as (p, _):
            await run_load(to_pair, LOAD, 1.0)
            await capture.arm(name, lambda p=p: drill_kill_p(p), 120)
    async with engines(capture, "drill-kill-d", two(folder, "drill-kill-d", "PD")) as (p, d):
        await run_load(to_pair, LOAD, 1.0)
        await capture.arm("drill-kill-d", lambda: drill_kill_d(p, d), 120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=12.0, help="of load in each arm")
    parser.add_argument("--engine", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        role, port, given = args.engine
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(engine_main(role, int(port), **json.loads(given)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the engines are ended, too
    asyncio.run(run_all(args.out.resolve(), args.seconds))


if __name__ == "__main__":
    main()

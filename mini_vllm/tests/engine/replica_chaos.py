"""Random faults of replicas under load: is any answer lost, doubled or changed, does anything hang?

    python -m mini_vllm.tests.engine.replica_chaos --faults 100 --seed 1

Each round starts three replicas of pocket, real processes, and clients that ask without end. Meanwhile, at random:

    kill      SIGKILL to a replica that lives; the last one is left alone
    stop      SIGSTOP, and SIGCONT some tenths of a second later
    leave     a client goes away in the middle of its stream
    abort     a request is aborted by its id
    reset     the prefix caches of all replicas are emptied
    health    the engine is asked how it is
    scale     with --scale: from then on there are 2 to 4 replicas; those that leave have half a second at most

Every stream that its client does not leave must give the very tokens that one core gives in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from mini_vllm import LLM, AsyncLLM, SamplingParams

POCKET = Path(__file__).resolve().parents[3] / "models" / "pocket"
FAULTS = ("kill", "kill", "stop", "leave", "abort", "reset", "health")
QUESTIONS = [
    "What is a KV block?", "What is a token?", "What is chunked prefill?", "Tell me a story.", "What is a scheduler?",
    "What is speculative decoding?", "What is a block table?", "What is preemption?",
]  # fmt: skip
REPLICAS, CLIENTS, FAULTS_A_ROUND = 3, 10, 6
GIVEN_UP = "replicas died while this request was in them"
SETTINGS: dict[str, Any] = {"num_blocks": 256, "dtype": "float64"}


def parameters(at: int) -> SamplingParams:
    """Greedy ones, and ones whose draws follow a seed."""
    more: dict[str, Any] = {"temperature": 1.0, "seed": at, "top_p": 0.9} if at % 3 == 2 else {"temperature": 0.0}
    return SamplingParams(max_tokens=20 + 7 * (at % 5), ignore_eos=True, **more)


def expected() -> list[list[int]]:
    """The tokens of each question, of one core in this process."""
    llm = LLM(str(POCKET), **SETTINGS)
    return [
        list(llm.generate(question, parameters(at), use_tqdm=False)[0].outputs[0].token_ids)
        for at, question in enumerate(QUESTIONS)
    ]


class Round:
    """One engine, its clients, and what befalls them."""

    def __init__(self, llm: AsyncLLM, right: list[list[int]], seed: int, kinds: tuple[str, ...] = FAULTS) -> None:
        self.llm, self.right, self.chance, self.kinds = llm, right, random.Random(seed), kinds
        self.scaling: asyncio.Task[None] | None = None
        self.found: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.over = False
        self.running: set[str] = set()
        self.killed: set[int] = set()  # processes; the client hears of it a moment later
        self.to_leave = 0

    async def client(self, name: int) -> None:
        """Ask again and again until the round is over."""
        count = 0
        while not self.over:
            count, at = count + 1, self.chance.randrange(len(QUESTIONS))
            await self.ask(f"{name}-{count}", at)

    async def ask(self, request_id: str, at: int) -> None:
        """A stream, and what became of it."""
        self.running.add(request_id)
        tokens: list[int] = []
        last: Any = None
        async for last in self.llm.generate(QUESTIONS[at], parameters(at), request_id):
            seen = list(last.outputs[0].token_ids)
            if seen[: len(tokens)] != tokens:
                self.wrong.append(f"{request_id}: what was given has changed")
            tokens = seen
            if self.to_leave and 3 < len(tokens) < 10:
                self.to_leave -= 1
                self.found["left"] += 1
                break
        else:
            self.look(request_id, at, tokens, last)
        self.running.discard(request_id)

    def look(self, request_id: str, at: int, tokens: list[int], last: Any) -> None:
        """An ended stream: is it whole?"""
        reason = last.outputs[0].finish_reason
        if reason == "length" and tokens == self.right[at]:
            self.found["whole"] += 1
        elif reason == "abort" and tokens == self.right[at][: len(tokens)]:
            self.found["aborted"] += 1
        elif reason == "error" and str(last.outputs[0].stop_reason).endswith(GIVEN_UP):
            self.found["given up"] += 1
        else:
            self.wrong.append(f"{request_id}: {reason}, {last.outputs[0].stop_reason}: {tokens} for {self.right[at]}")

    async def fault(self, kind: str) -> bool:
        """Something happens; False: it cannot, here."""
        client = self.llm.core_client
        if kind in ("kill", "stop"):
            pids = {rank: client.core_engines[rank].manager.pid for rank in client.alive}
            alive = [rank for rank, pid in pids.items() if pid not in self.killed]
            if kind == "kill" and len(set(alive) - client.leaving) == 1:
                return False
            pid = pids[self.chance.choice(alive)]
            if kind == "kill":
                self.killed.add(pid)
                os.kill(pid, signal.SIGKILL)
                return True
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(self.chance.uniform(0.1, 0.8))
            with contextlib.suppress(ProcessLookupError):  # it was to leave, and was ended
                os.kill(pid, signal.SIGCONT)
        elif kind == "leave":
            self.to_leave += 1
        elif kind == "abort" and self.running:
            await self.llm.abort(self.chance.choice(sorted(self.running)))
        elif kind == "reset":
            await self.llm.reset_prefix_cache()
        elif kind == "health":
            await self.llm.check_health()
        elif kind == "scale":
            if self.scaling is not None and not self.scaling.done():
                return False
            size = self.chance.randint(2, 4)
            self.scaling = asyncio.create_task(self.llm.scale_elastic_ep(size, self.chance.uniform(0, 0.5)))
        return True

    async def run(self, faults: int) -> Counter[str]:
        """So many faults, and then a last question of each client. Returns the faults by kind."""
        done: Counter[str] = Counter()
        clients = [asyncio.create_task(self.client(name)) for name in range(CLIENTS)]
        while sum(done.values()) < faults:
            await asyncio.sleep(self.chance.uniform(0.0, 0.6))
            kind = self.chance.choice(self.kinds)
            done[kind] += await self.fault(kind)
        self.over = True
        await asyncio.gather(*clients)
        if self.scaling is not None:
            await self.scaling
        await asyncio.gather(*[self.ask(f"last-{at}", at) for at in range(len(QUESTIONS))])
        return done


async def play(
    right: list[list[int]], seed: int, faults: int, patience: float, kinds: tuple[str, ...] = FAULTS
) -> tuple[Counter[str], Round]:
    """A round with fresh replicas. Raises TimeoutError where it hangs."""
    llm = AsyncLLM(str(POCKET), enable_multiprocessing=True, data_parallel_size=REPLICAS, **SETTINGS)
    try:
        round_ = Round(llm, right, seed, kinds)
        return await asyncio.wait_for(round_.run(faults), patience), round_
    finally:
        llm.shutdown()


def main(argv: list[str] | None = None) -> int:
    """Rounds until so many faults have happened; a table of what they were and what became of the streams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patience", type=float, default=300.0, help="seconds that a round may take")
    parser.add_argument("--scale", action="store_true", help="replicas come and go, too")
    args = parser.parse_args(argv)
    kinds = FAULTS + ("scale",) * (2 * args.scale)
    right, all_done, found, wrong, seed = expected(), Counter[str](), Counter[str](), list[str](), args.seed
    while sum(all_done.values()) < args.faults:
        faults = min(FAULTS_A_ROUND, args.faults - sum(all_done.values()))
        done, round_ = asyncio.run(play(right, seed, faults, args.patience, kinds))
        all_done, found, wrong, seed = all_done + done, found + round_.found, wrong + round_.wrong, seed + 1
        print(f"seed {seed - 1}: {dict(done)}; streams {dict(round_.found)}; wrong {len(round_.wrong)}", flush=True)
    print(f"{sum(all_done.values())} faults {dict(all_done)}; streams {dict(found)}; wrong {len(wrong)}")
    print("\n".join(wrong[:20]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

"""What a long prompt costs those who decode beside it, and what a pair costs instead, in processor time.

    python -m benchmarks.interference           # two minutes, also where others compute
    python -m benchmarks.interference --quick   # half a minute, nothing written

Four requests decode; then a long prompt comes. On one engine its chunks share their steps, and each step is a gap
between two tokens of the four. Of a pair the prefill engine computes the prompt; the decode engine's steps go on, and
carry the read of keys and values. Every step is timed by the processor, with one thread, so that other programs do not
count. What it says holds where each engine has a core for itself. The read's time is that of both sides, because both
engines are in this process; HTTP and the proxy are not in it: `disagg.py` has them, and needs an idle machine.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import checkpoint, limit_threads, machine, save, table  # noqa: E402

STEADY, SHORT = 4, 32


class Engine:
    """An engine whose steps are timed. kv_role: of one side of a pair; None: it does everything."""

    def __init__(self, folder: Path, chunk: int, kv_role: str | None, seed: int) -> None:
        from mini_vllm import LLM

        transfer = None if kv_role is None else {"kv_connector": "NixlConnector", "kv_role": kv_role}
        self.llm = LLM(str(folder), max_num_batched_tokens=chunk, max_model_len=2048, kv_transfer_config=transfer)
        self.engine, self._chance = self.llm.llm_engine, random.Random(seed)

    def prompt(self, length: int) -> list[int]:
        """Random ids."""
        return [self._chance.randrange(3, 4000) for _ in range(length)]

    def add(self, name: str, prompt: list[int], max_tokens: int, kv_transfer_params: Any = None) -> None:
        """Queue a greedy request of so many tokens."""
        from mini_vllm import SamplingParams

        extra = None if kv_transfer_params is None else {"kv_transfer_params": kv_transfer_params}
        params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, extra_args=extra)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, params)

    def step(self) -> tuple[float, list[Any]]:
        """Milliseconds of the processor, and the outputs."""
        began = time.process_time()
        outputs = self.engine.step()
        return 1e3 * (time.process_time() - began), outputs

    def until(self, name: str) -> tuple[list[float], Any]:
        """Steps up to the first output of a request: their times, and that output."""
        times = []
        while True:
            spent, outputs = self.step()
            times.append(spent)
            for output in outputs:
                if output.request_id == name:
                    return times, output

    def decode(self, steps: int) -> float:
        """Let four requests decode; the median of their steps behind the first ones."""
        for i in range(STEADY):
            self.add(f"steady-{i}", self.prompt(SHORT), 1500)
        times = [self.step()[0] for _ in range(steps + 5)]
        return statistics.median(times[5:])

    def close(self) -> None:
        """End it."""
        self.engine.shutdown()


def one_engine(folder: Path, chunk: int, length: int, seed: int) -> dict[str, float]:
    """A long prompt beside four that decode."""
    engine = Engine(folder, chunk, None, seed)
    alone = engine.decode(30)
    engine.add("long", engine.prompt(length), 1)
    times, _ = engine.until("long")
    engine.close()
    return {"alone": alone, "gap": statistics.median(times), "longest": max(times), "first_token": sum(times)}


def a_pair(folder: Path, length: int, seed: int) -> dict[str, float]:
    """The same prompt, computed elsewhere."""
    p, d = Engine(folder, 2048, "kv_producer", seed), Engine(folder, 2048, "kv_consumer", seed)
    p.add("warm", p.prompt(length), 1)
    p.until("warm")
    alone, prompt = d.decode(30), p.prompt(length)
    p.add("long", prompt, 1, {"do_remote_decode": True, "do_remote_prefill": False})
    prefill, output = p.until("long")
    d.add("long", prompt, 1, output.kv_transfer_params)
    times, _ = d.until("long")
    p.close()
    d.close()
    return {"alone": alone, "gap": statistics.median(times), "longest": max(times),
            "first_token": sum(prefill) + sum(times), "prefill": sum(prefill)}  # fmt: skip


def measure(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """By arm: medians over the turns."""
    found: dict[str, list[dict[str, float]]] = {}
    for turn in range(args.turns):
        for chunk in args.chunks:
            found.setdefault(f"one engine, chunks of {chunk}", []).append(one_engine(folder, chunk, args.length, turn))
        found.setdefault("a pair", []).append(a_pair(folder, args.length, turn))
    return {
        arm: {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
        for arm, turns in found.items()
    }


def report(found: dict[str, dict[str, float]], facts: dict[str, Any], args: argparse.Namespace) -> str:
    """A row for each arm."""
    header = ["arm", "decode step alone, ms", "gap while the prompt comes, median, ms", "longest, ms",
              "first token of the long prompt, ms"]  # fmt: skip
    rows = [[arm, *(row[name] for name in ("alone", "gap", "longest", "first_token"))] for arm, row in found.items()]
    return (
        f"# A long prompt beside decodes\n\n{facts}\n\npocket; four requests decode, a prompt of {args.length} tokens "
        f"comes. Processor time of one thread, medians of {args.turns} turns. The pair's first token is the prefill on "
        f"P ({found['a pair']['prefill']:.0f} ms) and the steps of D until it is there, with both sides of the read "
        f"(tcp).\n\n{table(header, rows)}"
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, nargs="+", default=[32, 64, 128, 256, 512, 2048])
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two chunks, one turn, nothing written")
    args = parser.parse_args(argv)
    if args.quick:
        args.chunks, args.turns = [128, 2048], 1
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """All arms; `results/interference.json` and `.md`."""
    args = parse(argv)
    if os.environ.get("OMP_NUM_THREADS") != "1":  # before numpy is loaded
        words = [sys.executable, "-m", "benchmarks.interference", *(sys.argv[1:] if argv is None else argv)]
        os.execve(sys.executable, words, limit_threads(1, dict(os.environ)))
    os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = "0"
    facts = machine()
    folder, origin = checkpoint("pocket", Path("/nowhere"))
    found = measure(args, folder)
    result = {"machine": facts, "weights": origin, "settings": vars(args), "arms": found}
    save("interference", result, report(found, facts, args), keep=not args.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())

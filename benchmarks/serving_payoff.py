"""What sharing steps buys a server: `python benchmarks/serving_payoff.py` (half a minute).

The two servers of lab 16-05 in front of pocket: one that answers one connection after the other, and one whose engine
belongs to one thread that everybody hands requests to. Eight clients come at the same moment, each wants 100 tokens,
drawn greedily. Then one client streams a long answer, and in its middle a second one asks for four tokens: how many
steps pass before her first? Counted are steps of the engine and processor time of the process, since neighbours on the
machine only add to wall time; the least of the repeats. The connections are the lab's pipes in memory, so no network is
in it. Writes results/serving_payoff.{json,md}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # so that processor time is work, not waiting
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import machine, save, table  # noqa: E402
from course.labs import load  # noqa: E402

LAB = ROOT / "phase-16-serving-apis-and-parsers" / "labs" / "lab-05-a-server-in-130-lines"
CLIENTS, TOKENS, LONG, REPEATS = 8, 100, 200, 3


class Counted:
    """An engine that counts its steps."""

    def __init__(self) -> None:
        from mini_vllm import LLMEngine

        self.inner, self.steps = LLMEngine(str(ROOT / "models" / "pocket")), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self) -> Any:
        """One step of the engine."""
        self.steps += 1
        return self.inner.step()


def ask(listener: Any, tokens: int, stream: bool = False, who: str = "fox") -> Any:
    """A client, and her request on its way."""
    prompt = f"<|user|>\nTell me a story about a {who} and a violin.<|end|>\n<|assistant|>\n"
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream}
    client = listener.connect().ask(body)
    client.patience = 120.0
    return client


def measure(kind: str) -> dict[str, float]:
    """Steps and processor time of eight clients, and steps that a second client waits for."""
    lab, wire = load(LAB / "solution.py"), load(LAB / "wire.py")
    engine, listener = Counted(), wire.Listener()
    server = getattr(lab, kind)(engine, listener)
    ask(listener, 8).response()
    steps, start = engine.steps, time.process_time()
    clients = [ask(listener, TOKENS, who=f"fox number {number}") for number in range(CLIENTS)]
    answers = [json.loads(client.response()[1]) for client in clients]
    row = {"steps": engine.steps - steps, "cpu_s": time.process_time() - start}
    row["ended"] = sum(answer["choices"][0]["finish_reason"] is not None for answer in answers)
    first = ask(listener, LONG, stream=True)
    while first.seen.count(b"data: ") < 8:
        first.seen += first.down.take()
    before = engine.steps
    second = ask(listener, 4, stream=True, who="robot")
    if kind == "serve_blocking":
        first.response()
    second.read_until(b"data: ")
    row["second_waits"] = engine.steps - before
    first.leave()
    server.close()
    return row


def main() -> None:
    arms = {}
    for kind in ("serve_blocking", "serve"):
        rows = [measure(kind) for _ in range(REPEATS)]
        arms[kind] = {key: min(row[key] for row in rows) for key in rows[0]}
        print(kind, arms[kind])
    result = {"machine": machine(), "clients": CLIENTS, "tokens": TOKENS, "long": LONG, "arms": arms}
    text = table(
        ["server", "steps", "processor seconds", "steps the second client waits"],
        [[kind, row["steps"], f"{row['cpu_s']:.2f}", row["second_waits"]] for kind, row in arms.items()],
    )
    note = f"{CLIENTS} clients at once, {TOKENS} tokens each, pocket; least of {REPEATS}. Other work ran beside it."
    save(
        "serving_payoff", json.loads(json.dumps(result)), f"# What sharing steps buys\n\n{note}\n\n{text}\n", keep=True
    )


if __name__ == "__main__":
    main()

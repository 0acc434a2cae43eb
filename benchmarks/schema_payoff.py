"""What a schema buys on pocket, and what a token then costs: `python benchmarks/schema_payoff.py` (a minute).

The sixty questions of lab 12-02, of three kinds, to this course's engine: free, under the schema, and under the schema
without arbitrary whitespace. Counted are answers that a parser takes and that conform, those among them that ended by
themselves, and those that hold the values asked for. Then what a token costs under the schema: the whole engine, and
in it what the grammar takes (rows made, rows applied, tokens accepted). CPU time of one thread, the least of fifteen
runs, since neighbours on the machine only add; and the first run, which makes each mask for the first time. Writes
results/schema_payoff.{json,md}.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import machine, save, table  # noqa: E402
from course.labs import load  # noqa: E402

LAB = ROOT / "phase-12-structured-outputs" / "labs" / "lab-02-json-schema-constrained"
ARMS = {"free": None, "schema": False, "compact": True}
SEATS = (1, 8, 32)


def engine(compact: bool = False) -> Any:
    """Pocket, with room for 32."""
    from mini_vllm import LLM

    return LLM(
        str(ROOT / "models" / "pocket"), max_num_seqs=32, structured_outputs_config={"disable_any_whitespace": compact}
    )


def answers(arm: str) -> dict[str, Any]:
    """The sixty questions in one arm: counts by kind."""
    from mini_vllm import SamplingParams
    from mini_vllm.structured_outputs_params import StructuredOutputsParams

    run, judge, compact = load(LAB / "real_run.py"), load(LAB / "solution.py"), ARMS[arm]
    form = None if compact is None else StructuredOutputsParams(json=run.SCHEMA)
    asked = run.questions()
    params = [
        SamplingParams(temperature=0.8, seed=i, max_tokens=run.MAX_TOKENS, structured_outputs=form)
        for i in range(len(asked))
    ]
    chats = [[{"role": "user", "content": row["question"]}] for row in asked]
    outputs = [each.outputs[0] for each in engine(bool(compact)).chat(chats, params, use_tqdm=False)]
    rows = [{**row, "text": o.text, "finish_reason": o.finish_reason} for row, o in zip(asked, outputs, strict=True)]
    tables = judge.tabulate(rows)
    return {
        "valid": {kind: row["valid"] for kind, row in tables.items()},
        "ended": judge.guarantee(rows),
        "right": judge.right_values(rows),
        "tokens": sum(len(o.token_ids) for o in outputs),
    }


class Clock:
    """CPU seconds of this thread inside of some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Any) -> Any:
        """The same function, with its time added up."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - start

        return timed


def costs(repeats: int) -> list[dict[str, Any]]:
    """Microseconds a token under a schema: the whole engine, and in it the three places where a grammar is at work."""
    from mini_vllm import SamplingParams
    from mini_vllm.structured_outputs_params import StructuredOutputsParams
    from mini_vllm.worker import model_runner

    llm, clock, found = engine(), Clock(), []
    form = StructuredOutputsParams(json=load(LAB / "real_run.py").SCHEMA)
    params = SamplingParams(temperature=0.0, max_tokens=40, structured_outputs=form)
    llm.generate("Hello", params, use_tqdm=False)  # compiles, and makes the manager
    scheduler = llm.llm_engine.scheduler
    scheduler.get_grammar_bitmask = clock.around(scheduler.get_grammar_bitmask)
    manager = scheduler.structured_output_manager
    manager.advance = clock.around(manager.advance)
    model_runner.apply_grammar_bitmask = clock.around(model_runner.apply_grammar_bitmask)
    for seats in SEATS:
        whole, part = [], []
        for _ in range(repeats):
            clock.seconds, start = 0.0, time.thread_time()
            outputs = llm.generate([f"Write JSON number {n}." for n in range(seats)], params, use_tqdm=False)
            tokens = sum(len(o.outputs[0].token_ids) for o in outputs)
            whole.append(1e6 * (time.thread_time() - start) / tokens)
            part.append(1e6 * clock.seconds / tokens)
        row = {"seats": seats, "engine_us": min(whole[1:]), "grammar_us": min(part[1:]), "first_us": part[0]}
        found.append(row)
    return found


def main() -> None:
    """See the head of this file."""
    facts = machine()
    arms, cost = {arm: answers(arm) for arm in ARMS}, costs(repeats=15)
    rows = [
        [
            arm,
            *(row["valid"].values()),
            sum(row["valid"].values()),
            "{} of {}".format(*row["ended"]),
            "{} of {}".format(*row["right"]),
        ]
        for arm, row in arms.items()
    ]
    kinds = list(next(iter(arms.values()))["valid"])
    text = table(["arm", *kinds, "valid of 60", "of those that ended", "right values"], rows)
    prices = [
        [
            row["seats"], f"{row['engine_us']:.0f}", f"{row['grammar_us']:.1f}",
            f"{100 * row['grammar_us'] / row['engine_us']:.1f}", f"{row['first_us']:.1f}",
        ]
        for row in cost
    ]  # fmt: skip
    heads = ["requests at once", "engine, µs a token", "of these the grammar's", "share, %", "the grammar's, first run"]
    text += "\n\n" + table(heads, prices)
    load_average = ", ".join(f"{value:.1f}" for value in facts["load_average_at_start"])
    note = f"{facts['processor']}, Python {facts['python']}; load average {load_average}. CPU time of one thread."
    result = {"machine": facts, "arms": arms, "costs": cost}
    save("schema_payoff", json.loads(json.dumps(result)), f"# What a schema buys\n\n{note}\n\n{text}\n", keep=True)


if __name__ == "__main__":
    main()

"""What jump-forward saves on pocket: `python benchmarks/jump_forward.py` (two minutes).

Two sets of requests for JSON, greedy: the forty of lab 12-04, of a form that pocket was trained on (three fields, two
an enum), and the schemas of the engine's own tests, most of them strange to it. Each set with masks alone and with
jumps, in turns, 1, 8 or 32 at once. Counted are steps, computed tokens and written ones, and how many answers are the
same, token for token and as text. Times are CPU time of one thread, the least of the repeats, since neighbours on the
machine only add. Writes results/jump_forward.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import machine, save, table  # noqa: E402
from course.labs import load  # noqa: E402

LAB = ROOT / "phase-12-structured-outputs" / "labs" / "lab-04-jump-forward"
SEATS = (1, 8, 32)
ARMS = {"masks": False, "jumps": True}


def engine(jump_forward: bool, dtype: str = "float32") -> Any:
    """Pocket, with room for 32; no prefix cache, which would answer the second repeat."""
    from mini_vllm import LLM

    settings = {"jump_forward": jump_forward, "disable_any_whitespace": True}
    return LLM(
        str(ROOT / "models" / "pocket"), max_num_seqs=32, enable_prefix_caching=False, dtype=dtype,
        structured_outputs_config=settings,
    )  # fmt: skip


def known_requests() -> tuple[list[str], list[Any], list[str]]:
    """Prompts, schemas and right answers of lab 12-04."""
    given = load(LAB / "given.py")
    asked = given.requests()
    prompts = [f"<|user|>\n{question}<|end|>\n<|assistant|>\n" for question, _ in asked]
    return prompts, [json.loads(given.SCHEMA)] * len(asked), [answer for _, answer in asked]


def strange_requests() -> tuple[list[str], list[Any], list[str]]:
    """The same prompt for every schema; nobody knows a right answer."""
    from mini_vllm.tests.structured_output.random_schemas import HARD

    schemas = [schema for schema in HARD if isinstance(schema, dict)]
    return ["Answer in JSON."] * len(schemas), schemas, []


def answer(llm: Any, prompts: list[str], schemas: list[Any], seats: int) -> tuple[list[Any], dict[str, float]]:
    """Answers, `seats` requests at once, and what they cost."""
    from mini_vllm import SamplingParams
    from mini_vllm.structured_outputs_params import StructuredOutputsParams

    params = [
        SamplingParams(temperature=0.0, max_tokens=60, structured_outputs=StructuredOutputsParams(json=schema))
        for schema in schemas
    ]
    before, start, outputs = counted(llm), time.thread_time(), []
    for at in range(0, len(prompts), seats):
        outputs += llm.generate(prompts[at : at + seats], params[at : at + seats], use_tqdm=False)
    seconds, after = time.thread_time() - start, counted(llm)
    made = [each.outputs[0] for each in outputs]
    return made, {
        "ms": 1e3 * seconds / len(prompts),
        "steps": after[0] - before[0],
        "rows": after[1] - before[1],
        "tokens": sum(len(each.token_ids) for each in made),
    }


def counted(llm: Any) -> tuple[int, int]:
    """Steps and computed tokens so far."""
    stats = llm.llm_engine.stats
    return stats.num_steps, stats.num_scheduled_tokens


def speed(repeats: int) -> list[dict[str, Any]]:
    """The known requests: arms in turns, the least time of each."""
    prompts, schemas, right = known_requests()
    engines, found = {arm: engine(jumps) for arm, jumps in ARMS.items()}, []
    for llm in engines.values():
        answer(llm, prompts, schemas, 32)  # masks are made, once
    for seats in SEATS:
        best: dict[str, dict[str, Any]] = {}
        for _ in range(repeats):
            for arm, llm in engines.items():
                made, row = answer(llm, prompts, schemas, seats)
                row["right"] = sum(each.text == wanted for each, wanted in zip(made, right, strict=True))
                if arm not in best or row["ms"] < best[arm]["ms"]:
                    best[arm] = row
        found += [{"seats": seats, "arm": arm, **row} for arm, row in best.items()]
    return found


def sameness() -> list[dict[str, Any]]:
    """Both sets in float64: answers that are the same in both arms."""
    found = []
    for name, (prompts, schemas, _) in (("known", known_requests()), ("strange", strange_requests())):
        arms = {arm: answer(engine(jumps, "float64"), prompts, schemas, 32) for arm, jumps in ARMS.items()}
        (masks, cost), (jumps, less) = arms["masks"], arms["jumps"]
        pairs = list(zip(masks, jumps, strict=True))
        found.append(
            {
                "set": name, "requests": len(prompts),
                "same_tokens": sum(a.token_ids == b.token_ids for a, b in pairs),
                "same_text": sum(a.text == b.text for a, b in pairs),
                "ended": [sum(each.finish_reason == "stop" for each in made) for made in (masks, jumps)],
                "tokens": [cost["tokens"], less["tokens"]], "rows": [cost["rows"], less["rows"]],
            }
        )  # fmt: skip
    return found


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one repeat; writes nothing")
    args = parser.parse_args()
    facts, times, same = machine(), speed(1 if args.quick else args.repeats), sameness()
    by = {(row["seats"], row["arm"]): row for row in times}
    rows = [
        [seats, arm, by[seats, arm]["steps"], by[seats, arm]["rows"], by[seats, arm]["tokens"],
         f"{by[seats, arm]['ms']:.1f}", f"{by[seats, 'masks']['ms'] / by[seats, arm]['ms']:.2f}",
         f"{by[seats, arm]['right']} of 40"]
        for seats in SEATS for arm in ARMS
    ]  # fmt: skip
    heads = ["at once", "arm", "steps", "rows", "tokens", "ms a request", "times as fast", "right"]
    text = table(heads, rows)
    counts = [
        [row["set"], row["requests"], row["same_tokens"], row["same_text"], *row["ended"], *row["tokens"]]
        for row in same
    ]
    heads = [
        "requests",
        "of them",
        "same tokens",
        "same text",
        "ended, masks",
        "ended, jumps",
        "tokens, masks",
        "jumps",
    ]
    text += "\n\n" + table(heads, counts)
    load_average = ", ".join(f"{value:.1f}" for value in facts["load_average_at_start"])
    note = f"{facts['processor']}, Python {facts['python']}; load average {load_average}. CPU time of one thread."
    result = {"machine": facts, "speed": times, "sameness": same}
    save("jump_forward", result, f"# What jump-forward saves\n\n{note}\n\n{text}\n", keep=not args.quick)


if __name__ == "__main__":
    main()

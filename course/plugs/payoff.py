"""What a part is good for: pocket answers with it. `course watch` starts ``python -m course.plugs.payoff 00-03`` when
the lab passes, a process of its own: the learner's code runs in it."""

import sys
from typing import Any

from rich.console import Console

from course.labs import tomllib
from course.loop.learner import out
from course.plugs.milestone import time_limit
from course.plugs.milestone_checks import POCKET
from course.plugs.parts import TABLE, assemble, find_parts
from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.parts import PartError
from mini_vllm.entrypoints.cli.stream import StreamWriter, stream_answer
from mini_vllm.structured_outputs_params import StructuredOutputsParams

PAYOFFS: dict[str, dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["payoff"]
SECONDS = 30.0


def payoff(lab: str, console: Console, impl: str = "starter") -> bool:
    """Streams an answer with the lab's parts in the engine, and says how often they were called; whether it ended."""
    found = [part for part in find_parts(f"{lab},{impl}") if part.state == "lab"]
    if not found:
        console.print(f"Nothing of lab {lab} is in the engine yet: course watch {lab}")
        return False
    row, writer = PAYOFFS[lab], StreamWriter(console)
    form = StructuredOutputsParams(json=row["json"]) if "json" in row else None
    params = SamplingParams(max_tokens=200, temperature=row.get("temperature", 0.0), seed=1, structured_outputs=form)
    console.print(f"\n[bold]{row['says']}[/]\n[cyan]› {row['ask']}[/]")
    try:
        with time_limit(SECONDS):
            glue = found[0].glue if "picture" in row else None
            llm = LLM(
                glue.POCKET_VL if glue else POCKET, with_labs=assemble(found, quiet=True), **row.get("engine", {})
            )
            prompt = glue.show(row, console) if glue else llm.render_chat([{"role": "user", "content": row["ask"]}])
            answer = stream_answer(llm.llm_engine, prompt, params, writer.write, "payoff")
        wrong = answer.stop_reason if answer.finish_reason == "error" else ""
    except (PartError, TimeoutError, ValueError) as error:
        wrong = str(error)
    writer.close()
    if wrong:
        console.print(f"\n{wrong}\nMore: course milestone {lab}", markup=False)
        return False
    calls = sum(part.watch.num_calls for part in found)
    more = row.get("more", f"Talk to it: mini-vllm chat --with-labs={lab}")
    console.print(f"\n{answer.num_tokens} tokens, {calls} calls of your code. {more}")
    return True


if __name__ == "__main__":
    payoff(sys.argv[1], out)

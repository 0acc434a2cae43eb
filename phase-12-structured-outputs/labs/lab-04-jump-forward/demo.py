"""Your jumps at work: `python demo.py [NUMBER]` (LAB_IMPL=solution for the reference).

It asks pocket one of the forty questions and shows the tokens of the answer: dim where they were written down, bright
where the model was asked. Then it answers once more and writes forced text down at once, as `measure.py` does it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402

DIM, BRIGHT, PLAIN = "\033[2m", "\033[1;33m", "\033[0m"


def shown(given: Any, lab: Any, question: str, jump: Any) -> tuple[str, int, str]:
    """(tokens in two shades, forward passes, the text)."""
    served, prompt, kept = given.pocket(), given.pocket_prompt(question), lab.jump
    chosen: list[int] = []
    real = served.forward

    def forward(ids: Any, start: int) -> Any:
        chosen.append(start + len(ids) - len(prompt))  # where the next token stands
        return real(ids, start)

    served.forward, lab.jump = forward, jump
    try:
        result = lab.generate(served, prompt, given.Grammar("JSON", given.SCHEMA), 60)
    finally:
        lab.jump = kept
    words = [served.tokens.tokens[each].decode() for each in result.ids]
    shades = [f"{BRIGHT if at in chosen else DIM}{word}{PLAIN}" for at, word in enumerate(words)]
    return "·".join(shades), len(served.rows), result.text.decode()


def main() -> None:
    given, measure = load(HERE / "given.py"), load(HERE / "measure.py")
    lab = load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")
    question, answer = given.requests()[int(sys.argv[1]) if len(sys.argv) > 1 else 1]
    print(question)
    ways = (("masks alone", measure.masks), ("your jumps", lab.jump), ("all at once", measure.append))
    for name, jump in ways:
        text, passes, plain = shown(given, lab, question, jump)
        print(f"{name:12} {passes:3} passes  {text}  {'' if plain == answer else 'WRONG'}")


if __name__ == "__main__":
    main()

"""Makes docs/corridor.md: ``python docs/corridor_page.py`` sends a prompt through the engine and writes down, in the
order of their first call, the functions that it enters, with their source; and in docs/engine.md the table of what a
reader of each phase can pass by, from docs/corridor.toml and the tables of that page.

A test makes both again and compares.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from course.labs import tomllib

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mini_vllm"
TARGET, ENGINE, DATA = ROOT / "docs/corridor.md", ROOT / "docs/engine.md", ROOT / "docs/corridor.toml"
BEGIN, END = "<!-- made by docs/corridor_page.py -->", "<!-- end of what is made -->"
LIMIT = 2_500
PROMPT = "A KV block is a fixed number of slots, and a request has a table of them."
TRACE = f"""
import sys, threading
from pathlib import Path
import mini_vllm
from mini_vllm import LLM, SamplingParams

package, entered = str(Path(mini_vllm.__file__).parent), {{}}

def enter(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(package):
        entered[code.co_filename[len(package) + 1 :], code.co_firstlineno] = None

llm, params = LLM(sys.argv[1], enforce_eager=True), SamplingParams(temperature=0.0, max_tokens=8)
threading.setprofile(enter)
sys.setprofile(enter)
llm.generate({PROMPT!r}, params, use_tqdm=False)
sys.setprofile(None)
for place in entered:
    print(*place)
"""
HEAD = """# The corridor, read aloud

Every function that one prompt enters, in the order of the first call, with its source. The command is

    LLM("models/pocket", enforce_eager=True).generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=8))

and the prompt is "{prompt}"
The sections are the rows of [engine.md](engine.md#the-corridor), which says where vLLM has the same. The line with `#`
under a function's head is the first of its docstring. What a function calls that is not here, the prompt did not enter.
{count} functions of {files} files, {lines:,} lines: `docs/corridor_page.py` makes this page from a trace.
"""


@dataclass(frozen=True)
class Entered:
    """A function: its file below mini_vllm/, its lines, and the class around it with the line that opens it."""

    file: str
    first: int
    last: int
    owner: str


@cache
def functions(file: str) -> dict[int, Entered]:
    """The functions of a file that stand in a module or a class, by the first line, decorators included."""
    found: dict[int, Entered] = {}

    def walk(body: list[ast.stmt], owner: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{owner}.{node.name}" if owner else node.name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                found[first] = Entered(file, first, node.end_lineno or first, owner)
            elif isinstance(node, ast.If):
                walk(node.body, owner)

    walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body, "")
    return found


def trace() -> list[Entered]:
    """What the prompt enters; functions inside functions come with those around them."""
    command = [sys.executable, "-c", TRACE, str(ROOT / "models/pocket")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    places = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    known = [functions(file).get(int(line)) for file, line in places]
    return [entered for entered in known if entered is not None]


def rows() -> dict[str, tuple[str, str]]:
    """Of each file of the corridor: number and sentence of its row in engine.md."""
    found: dict[str, tuple[str, str]] = {}
    for line in ENGINE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].isdigit():
            for file in re.findall(r"\]\(\.\./mini_vllm/(.+?\.py)\)", cells[2]):
                found.setdefault(file, (cells[0], cells[1]))
    return found


def body(entered: Entered) -> str:
    """The source, without docstring: the page is read beside the file, which has it."""
    lines = (PACKAGE / entered.file).read_text(encoding="utf-8").splitlines()
    text = textwrap.dedent("\n".join(lines[entered.first - 1 : entered.last])).splitlines()
    node = ast.parse("\n".join(text)).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        doc = re.split(r"[ (]*[Uu]pstream[:/]", first.value.value.strip().splitlines()[0])[0]
        mark = " " * (len(text[first.lineno - 1]) - len(text[first.lineno - 1].lstrip()))
        text[first.lineno - 1 : first.end_lineno] = [f"{mark}# {doc}"] if doc else []
    return "\n".join(text)


def section(entered: list[Entered]) -> Iterator[str]:
    """One fence: the sources in the order of the first call, and a line wherever the file or the class changes."""
    links = dict.fromkeys(f"[{one.file}](../mini_vllm/{one.file})" for one in entered)
    yield ", ".join(link.replace("[engine/__init__", r"[engine/\_\_init\_\_") for link in links) + "\n"
    yield "<!-- no-run: it stands in these files, and runs there -->\n```python"
    before: tuple[str, str] | None = None
    for one in entered:
        if before is not None:
            yield ""
        if (one.file, one.owner) != before:
            yield f"# {one.file}" + (f", {one.owner}" if one.owner else "")
        yield body(one)
        before = one.file, one.owner
    yield "```\n"


def page() -> str:
    """docs/corridor.md as it should be."""
    row_of = rows()
    sections: dict[tuple[str, str], list[Entered]] = {}
    for one in trace():
        sections.setdefault(row_of[one.file], []).append(one)
    parts = []
    for (number, sentence), entered in sorted(sections.items(), key=lambda item: int(item[0][0])):
        parts += [f"## {number}. {sentence}\n", *section(entered)]
    text = "\n".join(parts)
    count = sum(len(entered) for entered in sections.values())
    files = len({one.file for entered in sections.values() for one in entered})
    lines = text.count("\n") + HEAD.count("\n") + 1
    return HEAD.format(prompt=PROMPT, count=count, files=files, lines=lines) + "\n" + text


def _listing(numbers: list[int]) -> str:
    """[1, 2, 3, 5] -> "1 to 3 and 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words: list[str] = []
    for run in runs:
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(number) for number in run]
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]


def rooms_of(text: str) -> dict[str, list[str]]:
    """The places of the rooms that each phase enters, from the last column of the table of rooms."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 5 or not cells[0].startswith("["):
            continue
        numbers = [int(number) for number in re.findall(r"\d+", cells[4])]
        phases = range(numbers[0], numbers[1] + 1) if " to " in cells[4] else numbers
        for phase in phases:
            found.setdefault(f"{phase:02}", []).extend(re.findall(r"\[(.+?)\]\(", cells[0]))
    return found


def phases_table(text: str) -> str:
    """What a reader of each phase can pass by; text: engine.md."""
    walked: dict[str, list[int]] = tomllib.loads(DATA.read_text(encoding="utf-8"))["rows"]
    rooms, last = rooms_of(text), max(int(number) for number, _ in rows().values())
    last = max(last, *(max(numbers) for numbers in walked.values()))
    lines = ["| Phase | Stop at | Pass by |", "|---|---|---|"]
    for phase, numbers in sorted(walked.items()):
        places = ", ".join(f"`{place}`" for place in dict.fromkeys(rooms.get(phase, ())))
        rest = [number for number in range(1, last + 1) if number not in numbers]
        stop = f"row{'s' * (len(numbers) > 1)} {_listing(numbers)}{'; ' * bool(places)}{places}"
        lines.append(f"| {phase} | {stop} | rows {_listing(rest)}, and every other room |")
    return "\n".join(lines)


def engine_page() -> str:
    """docs/engine.md with the table as it should be."""
    text = ENGINE.read_text(encoding="utf-8")
    before, after = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:before] + "\n" + phases_table(text) + "\n" + text[after:]


if __name__ == "__main__":
    ENGINE.write_text(engine_page(), encoding="utf-8")
    TARGET.write_text(page(), encoding="utf-8")

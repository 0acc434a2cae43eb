"""`docs/engine.md`, "The corridor": the files that it lists are those that a prompt enters, no more and no fewer."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mini_vllm.tests.helpers import POCKET

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "engine.md"
LIMIT = 7_850
TRACE = """
import sys, threading
from pathlib import Path
import mini_vllm
from mini_vllm import LLM, SamplingParams

package, entered = Path(mini_vllm.__file__).parent, set()

def enter(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        entered.add(frame.f_code.co_filename)

llm = LLM(sys.argv[1], enforce_eager=True)
threading.setprofile(enter)
sys.setprofile(enter)
llm.generate("What is a KV block?", SamplingParams(temperature=0.0, max_tokens=8), use_tqdm=False)
sys.setprofile(None)
print(*sorted(Path(f).relative_to(package).as_posix() for f in entered if Path(f).is_relative_to(package)))
"""


def section() -> str:
    return re.search(r"^## The corridor\n(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]


def listed() -> set[str]:
    rows = "\n".join(line for line in section().splitlines() if re.match(r"\| \d", line))
    return set(re.findall(r"\]\(\.\./mini_vllm/(.+?\.py)\)", rows))


@pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
def test_the_page_lists_the_files_that_a_prompt_enters():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-c", TRACE, str(POCKET)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert listed() == set(done.stdout.split())


def code_lines(text: str) -> int:
    """Lines that are no docstring, comment or space between."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in prose for number, line in lines)


def test_the_page_says_how_long_the_corridor_is():
    texts = [(ROOT / "mini_vllm" / name).read_text(encoding="utf-8") for name in listed()]
    lines, code = sum(text.count("\n") for text in texts), sum(map(code_lines, texts))
    said = re.search(r"about ([\d,]+) lines, about ([\d,]+) of them code", section())
    for count, number in zip((lines, code), said.groups(), strict=True):
        assert abs(count - int(number.replace(",", ""))) <= 100, f"the corridor has {lines} lines, {code} of code"
    assert lines < LIMIT, f"the corridor has {lines} lines: whoever wants to read the engine has to read them all"

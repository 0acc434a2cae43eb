"""`docs/parity.md`: the tests that it names are there, and it lists every hostile input.

`python -m mini_vllm.tests.test_parity_page` writes that list.
"""

import ast
import re
from pathlib import Path

import pytest

from mini_vllm.tests.hostile_input import CALLS, ENGINES, FOLDERS, TEMPLATES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "parity.md"
TESTS = re.findall(r"`T/(\S+?\.py)(?:::(\w+))?`", PAGE.read_text(encoding="utf-8"))
KINDS = {"A checkpoint's files": FOLDERS, "A chat template": TEMPLATES, "Arguments of `LLM`": ENGINES, "Calls": CALLS}


def listed() -> str:
    """The page's list: a kind of input, and what is refused."""
    rows = (f"| {kind} | {'; '.join(case[0].replace('|', ' ') for case in cases)} |" for kind, cases in KINDS.items())
    return "\n".join(["| Kind | Refused |", "|---|---|", *rows])


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_a_test_that_the_page_names_is_there(file, name):
    tree = ast.parse((ROOT / "mini_vllm" / "tests" / file).read_text(encoding="utf-8"))
    assert not name or name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_names_a_test():
    section = PAGE.read_text(encoding="utf-8").partition("## Taken or refused")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| Asked")]
    assert len(rows) > 25 and all(row.count("`T/") == 1 and row.count("upstream/") == 1 for row in rows)


def test_the_page_lists_every_hostile_input():
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition("<!-- hostile -->\n")[2].partition("\n<!-- /hostile -->")[0] == listed()


if __name__ == "__main__":
    before, mark, rest = PAGE.read_text(encoding="utf-8").partition("<!-- hostile -->\n")
    PAGE.write_text(before + mark + listed() + "\n<!-- /hostile -->" + rest.partition("<!-- /hostile -->")[2])

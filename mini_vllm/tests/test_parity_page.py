"""`docs/parity.md`: the tests that it names are there, and it lists every hostile input and every name of vLLM that is
not here.

`python -m mini_vllm.tests.test_parity_page` writes these lists.
"""

import ast
import re
from pathlib import Path

import pytest

import mini_vllm
from mini_vllm.engine import arg_refusals, missing_names
from mini_vllm.tests.hostile_input import CALLS, ENGINES, FOLDERS, TEMPLATES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "parity.md"
TESTS = re.findall(r"`T/(\S+?\.py)(?:::(\w+))?`", PAGE.read_text(encoding="utf-8"))
KINDS = {"A checkpoint's files": FOLDERS, "A chat template": TEMPLATES, "Arguments of `LLM`": ENGINES, "Calls": CALLS}


def listed() -> str:
    """The page's list: a kind of input, and what is refused."""
    rows = (f"| {kind} | {'; '.join(case[0].replace('|', ' ') for case in cases)} |" for kind, cases in KINDS.items())
    return "\n".join(["| Kind | Refused |", "|---|---|", *rows])


def _rows(head: str, cells: dict[str, list[str]]) -> list[str]:
    """A table of what is used instead, with the names that have the same answer in one row."""
    code = (
        f"| {', '.join(f'`{name}`' for name in names)} | {said} |".replace("\n", " ") for said, names in cells.items()
    )
    return [f"| {head} | Instead |", "|---|---|", *code]


def names() -> str:
    """The page's list of what is not here, from the tables by which the engine answers."""
    arguments: dict[str, list[str]] = {}
    for name, (sentence, default) in arg_refusals.REFUSED.items():
        arguments.setdefault(sentence, []).append(f"{name}={default}" if default else name)
    methods: dict[str, list[str]] = {}
    for name, sentence in missing_names.MISSING.items():
        methods.setdefault(sentence, []).append(name)
    of_methods = {said: [name] for name, said in missing_names.ARGUMENTS.items()}
    package = {said.removeprefix(": "): [name] for name, said in mini_vllm._REFUSED.items()}
    harmless: dict[str, list[str]] = {}
    for name, (kind, why) in arg_refusals.WITHOUT_EFFECT.items():
        harmless.setdefault(f"{kind.said}: {why}", []).append(name)
    tables = [
        _rows("Engine argument; its default is taken", arguments),
        ["| Engine argument | Taken, because it changes nothing |", *_rows("", harmless)[1:]],
        _rows("Method or attribute of an engine", methods),
        _rows("Argument of a method", of_methods),
        _rows("Name of the package", package),
    ]
    return "\n\n".join("\n".join(table) for table in tables)


LISTS = {"hostile": listed, "names": names}


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_a_test_that_the_page_names_is_there(file, name):
    tree = ast.parse((ROOT / "mini_vllm" / "tests" / file).read_text(encoding="utf-8"))
    assert not name or name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_names_a_test():
    section = PAGE.read_text(encoding="utf-8").partition("## Not here")[0]
    rows = [
        line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| What you look for")
    ]
    assert len(rows) > 25 and all(row.count("`T/") == 1 and row.count("upstream/") == 1 for row in rows)


@pytest.mark.parametrize("mark", LISTS)
def test_a_list_of_the_page_is_what_the_engine_says(mark):
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(f"<!-- {mark} -->\n")[2].partition(f"\n<!-- /{mark} -->")[0] == LISTS[mark]()


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    for mark, made in LISTS.items():
        before, begin, rest = page.partition(f"<!-- {mark} -->\n")
        page = f"{before}{begin}{made()}\n<!-- /{mark} -->" + rest.partition(f"<!-- /{mark} -->")[2]
    PAGE.write_text(page, encoding="utf-8")

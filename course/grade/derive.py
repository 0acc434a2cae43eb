"""Which words the course itself says, for the grader's language: ``python -m course.grade.derive`` writes
``course/words.toml`` anew.

Read are the starter, the solution and the README of every lab, and the right files in other styles by which the grader
is tested. Of a name that is asked of an object, the list takes what a built-in type, an array or an object of an
allowed module has; of a module, what it shows. ``never`` of ``language.toml`` takes words out again."""

import ast
import builtins
import importlib
import re
import textwrap
from collections.abc import Iterable, Iterator

from course.grade.faults import File
from course.grade.language import SAID, TABLE, Language, names_of
from course.labs import all_labs

HEAD = "# Made by `python -m course.grade.derive` from the labs and the honest files of the tests; do not edit.\n"


def texts() -> Iterator[str]:
    """Everything that is read."""
    from course.tests.honest import ways
    from course.tests.styles import ARRAYS, MORE

    for lab in all_labs():
        yield from ((lab.folder / name).read_text(encoding="utf-8") for name in ("starter.py", "solution.py"))
        readme = (lab.folder / "README.md").read_text(encoding="utf-8")
        yield from re.findall(r"^```python[^\n]*\n(.*?)^```", readme, re.S | re.M)
        yield from (text for text, _ in ways(lab).values())
    plain, arrays = (next(lab for lab in all_labs() if lab.number == number) for number in ("00-02", "00-03"))
    yield from (style(arrays if name in ARRAYS else plain) for name, style in MORE.items())


def said(sources: Iterable[str]) -> tuple[set[str], set[str]]:
    """(names asked of objects, dotted names of modules) in texts that parse."""
    asked, dotted = set[str](), set[str]()
    for source in sources:
        try:
            file = File(ast.parse(source), Language(), set())
        except SyntaxError:  # a README shows a part of a file
            continue
        attributes = {n.attr for n in file.nodes if isinstance(n, ast.Attribute) and not file.dotted(n)}
        asked |= attributes - file.declared  # what its own classes have is asked of these
        dotted |= {name for name in map(file.dotted, file.nodes) if "." in name}
        imports = [n for n in file.nodes if isinstance(n, ast.ImportFrom) and not n.level]
        dotted |= {f"{n.module}.{alias.name}" for n in imports for alias in n.names}
    return asked, dotted


def of_objects(rows: dict[str, set[str]]) -> set[str]:
    """Public attributes of the built-in types, and of the types that modules show (module -> names); errors aside."""
    kinds = [value for name, value in vars(builtins).items() if isinstance(value, type) and name[0] != "_"]
    for name, words in rows.items():
        if name.partition(".")[0] not in ("mini_vllm", "torch", "triton"):  # not everywhere installed
            module = importlib.import_module(name)
            shown = names_of(name, " ".join({*words, *TABLE["more"].get(name, {}).values()}))
            kinds += [kind for each in shown if isinstance(kind := getattr(module, each, None), type)]
    plain = [kind for kind in kinds if not issubclass(kind, BaseException)]
    return {name for kind in plain for name in dir(kind) if not name.startswith("_")}


def derived() -> dict[str, str]:
    """Row -> words: ``attributes``, and one row for each module that the language names."""
    asked, dotted = said(texts())
    never = {word for words in TABLE["never"].values() for word in words.split()}
    modules = [*TABLE["every"].split(), *TABLE["some"].split()]
    rows: dict[str, set[str]] = {name: set() for name in modules}
    for module, _, word in [name.rpartition(".") for name in dotted - never - {*modules}]:
        whole = "*" in TABLE["more"].get(module, {}).values() or module == "mini_vllm"  # its rows say it all
        if module in rows and not whole and word[0] != "_":
            rows[module].add(word)
    found = {"attributes": (asked & of_objects(rows)) - never, **rows}
    return {name: " ".join(sorted(words)) for name, words in found.items() if words}


def written(rows: dict[str, str]) -> str:
    """The file."""
    lines = []
    for name, words in rows.items():
        filled = textwrap.fill(words, 116, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
        lines.append(f'"{name}" = """\n{filled}\n"""\n')
    return HEAD + "".join(lines)


if __name__ == "__main__":
    SAID.write_text(written(derived()), encoding="utf-8")

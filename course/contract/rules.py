"""The lab contract: starter and solution in step, starters red for the right reason, imports, ``match=``."""

import ast
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from course.contract import zygote
from course.contract.warm import environment
from course.grade.language import imported
from course.labs import ROOT, LabError, functions, lab_of, stub_message
from course.loop.hints import read_hints
from course.pages.markdown import Problem


def parse_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def public(tree: ast.AST, prefix: str = "") -> dict[str, tuple[str, int]]:
    """Public names of a file -> (what must agree, line): signatures, docstrings, bases, decorators, fields."""
    found: dict[str, tuple[str, int]] = {}
    for node in getattr(tree, "body", []):
        for name, text in _facts(node):
            setter = ".setter" if f"\n{name}.setter\n" in text else ""
            if not name.startswith("_") or name.startswith("__"):
                found[prefix + name + setter] = (text, node.lineno)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found |= public(node, f"{prefix}{node.name}.")
    return found


def _facts(node: ast.stmt) -> Iterator[tuple[str, str]]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
        returns = ast.unparse(node.returns) if node.returns else ""
        head = [kind, ast.unparse(node.args), returns, *map(ast.unparse, node.decorator_list)]
        yield node.name, "\n".join([*head, ast.get_docstring(node) or ""])
    elif isinstance(node, ast.ClassDef):
        head = [*map(ast.unparse, node.bases), *map(ast.unparse, node.keywords), *map(ast.unparse, node.decorator_list)]
        yield node.name, "\n".join(["class", *head, ast.get_docstring(node) or ""])
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, ast.unparse(node)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, ast.unparse(node.value)


def check_signatures(folder: Path) -> Iterator[Problem]:
    """Starter and solution offer the same public names with the same signatures and docstrings."""
    starter, solution = (public(parse_file(folder / f"{name}.py")) for name in ("starter", "solution"))
    path = folder / "starter.py"
    yield from (Problem(path, 1, f"lacks {name}, which solution.py has") for name in solution if name not in starter)
    for name, (text, line) in starter.items():
        if name not in solution:
            yield Problem(path, line, f"has {name}, which solution.py lacks")
        elif solution[name][0] != text:
            text = _difference(text, solution[name][0])
            yield Problem(path, line, f"{name} is not as in solution.py: {text}")


def _difference(mine: str, theirs: str) -> str:
    for a, b in zip_longest(mine.splitlines(), theirs.splitlines(), fillvalue="nothing"):
        if a != b:
            return f"{a.strip()!r} here, {b.strip()!r} there"
    return "white space"


def check_stubs(folder: Path) -> Iterator[Problem]:
    """A starter's function is provided (the solution's own) or raises NotImplementedError with one sentence."""
    solution = dict(functions(parse_file(folder / "solution.py")))
    for name, node in solution.items():
        if stub_message(node) is not None:
            yield Problem(folder / "solution.py", node.lineno, f"{name} is not written")
    path, stubs = folder / "starter.py", 0
    for name, node in functions(parse_file(path)):
        message = stub_message(node)
        if message is None:
            if name in solution and ast.dump(node) != ast.dump(solution[name]):
                yield Problem(path, node.lineno, f"{name} is neither a stub nor what solution.py has")
            continue
        stubs += 1
        if "\n" in message or len(message.split()) < 3:
            yield Problem(path, node.lineno, f"the stub of {name} must say what to do, in one sentence")
    if not stubs:
        yield Problem(path, 1, "nothing is left to write")


def learner_functions(folder: Path) -> set[str]:
    """Functions of ``solution.py`` that a learner writes: stubs in ``starter.py``, or only in ``solution.py``."""
    starter = dict(functions(parse_file(folder / "starter.py")))
    names = [name for name, _ in functions(parse_file(folder / "solution.py"))]
    return {name for name in names if name not in starter or stub_message(starter[name]) is not None}


def check_imports(folder: Path) -> Iterator[Problem]:
    """Starter and solution import the standard library and what ``labs.toml`` allows, and nothing by ``*``."""
    lab = lab_of(folder)
    assert lab is not None
    for name in ("starter.py", "solution.py"):
        nodes = [n for n in ast.walk(parse_file(folder / name)) if isinstance(n, (ast.Import, ast.ImportFrom))]
        for node, module in [(each, module) for each in nodes for module in imported(each)]:
            allowed = any(module == a or module.startswith(f"{a}.") for a in lab.allowed_imports)
            if any(alias.name == "*" for alias in node.names):
                yield Problem(folder / name, node.lineno, f"import by * from {module}")
            elif not allowed and module.split(".")[0] not in sys.stdlib_module_names:
                names = ", ".join(lab.allowed_imports) or "nothing"
                text = f"imports {module}; labs.toml allows {names} besides the standard library"
                yield Problem(folder / name, node.lineno, text)


def check_raises(folder: Path) -> Iterator[Problem]:
    """Every ``pytest.raises`` has ``match=``: a stub's error is a RuntimeError and must not satisfy it."""
    for node in ast.walk(parse_file(folder / "test_lab.py")):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("pytest.raises", "raises"):
            continue
        if not any(keyword.arg == "match" for keyword in node.keywords):
            yield Problem(folder / "test_lab.py", node.lineno, "pytest.raises without match=")


def check_hints(folder: Path) -> list[Problem]:
    """The tests that a README's hints name are there."""
    readme, named = folder / "README.md", set[str]()
    with contextlib.suppress(LabError):  # no hints at all: the shape of the folder is another check's
        named = {test for hint in read_hints(readme) for test in hint.tests}
    unknown = sorted(named - {name for name, _ in functions(parse_file(folder / "test_lab.py"))}) if named else []
    return [Problem(readme, 1, f"a hint names {name}, which is no test of the lab") for name in unknown]


def check_lab(folder: Path) -> list[Problem]:
    """All checks that read a lab without running it."""
    missing = [n for n in ("starter.py", "solution.py", "test_lab.py") if not (folder / n).is_file()]
    if missing:
        return [Problem(folder / name, 1, "missing") for name in missing]
    checks = (check_signatures, check_stubs, check_imports, check_raises, check_hints)
    return [problem for check in checks for problem in check(folder)]


def run_labs(folders: Sequence[Path], impl: str, root: Path = ROOT) -> dict[str, list[dict]]:
    """Runs the labs under ``folders`` in one go: lab key -> its tests (see ``outcomes.TestOutcome``)."""
    with tempfile.TemporaryDirectory() as temp:
        report = Path(temp, "report.json")
        env = environment(LAB_IMPL=impl, COURSE_REPORT=str(report))
        args = ["-q", "--tb=native", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
        args += ["-m", "not gpu and not real_vllm", *map(str, folders)]
        done = zygote.python("pytest", args, root, env)
        rows = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
    if not rows:
        raise LabError(f"no lab ran:\n{(done.stdout + done.stderr)[-2000:]}")
    return rows


def check_starters(folders: Sequence[Path], root: Path = ROOT) -> list[Problem]:
    """Every test that uses ``impl`` fails on the starter with a stub's error, the ``provided`` ones pass."""
    problems = []
    try:
        rows = run_labs(folders, "starter", root)
    except LabError as error:
        return [Problem(folder, 1, str(error)) for folder in folders[:1]]
    for key, tests in rows.items():
        phase, lab = key.split("/")
        path = root / phase / "labs" / lab / "test_lab.py"
        if not any(test["learner"] for test in tests):
            problems.append(Problem(path, 1, "no test uses the fixture impl"))
        problems += _starter_faults(path, tests)
    return problems


def _starter_faults(path: Path, tests: Sequence[dict]) -> Iterator[Problem]:
    """One problem for all tests of a lab that share a fault, at the first of them: one wrong line may fail them all."""
    faults: dict[str, list[str]] = {}
    for test in tests:
        if fault := _starter_fault(test):
            faults.setdefault(fault, []).append(test["nodeid"].split("::", 1)[1])
    lines = {name: node.lineno for name, node in functions(parse_file(path))} if faults else {}
    for fault, names in faults.items():
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield Problem(path, lines.get(names[0].split("[")[0], 1), fault + listed)


def _starter_fault(test: dict) -> str:
    """What is wrong with a test's outcome on the starter, up to the test's name; "" where it is as it should be."""
    if test["outcome"] == "skipped":
        return ""
    if not test["learner"]:
        return "" if test["outcome"] == "passed" else f"fails without learner code ({test['message']}): "
    if test["outcome"] == "passed":
        return "passes on the starter (make it touch the learner's code, or mark it @pytest.mark.provided): "
    return "" if test["stub"] is not None else f"red for the wrong reason ({test['message']}), not for a stub: "

"""The tests of a lab as they are sent to a fork, each for one run: a code whose end says a number that the server has
drawn for it. A test counts as passed if it has come to its end. One that has passed is sent a second time with an end
that fails: a fork that tells it as passed has forged its results."""

import ast
import base64
import marshal
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.assertion.rewrite import rewrite_asserts


@dataclass(frozen=True)
class Twin:
    """The lab's own test ``index`` once more, with an end that no answer passes."""

    index: int


_ENDS = tuple(f"{word} {secrets.token_hex(8)}" for word in ("one", "other", "proof"))


class _Ends(ast.NodeTransformer):
    """Where a test ends, two texts are compared and a third is given back; they are put in when it is ordered."""

    inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if not self.inside and node.name.startswith("test"):
            self.inside = True
            node.body = [self.visit(one) for one in [*node.body, ast.Return()]]
            self.inside = False
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        one, other, proof = map(ast.Constant, _ENDS)
        same: list[ast.stmt] = [ast.Assert(ast.Compare(one, [ast.Eq()], [other])), ast.Return(proof)]
        return ast.If(ast.Constant(1), same, []) if self.inside else node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node


def endings(items: Sequence[Any], config: pytest.Config) -> list[CodeType | None]:
    """The code of each test with such an end; None for what is no plain function of its file."""
    files = {path: _of_file(path, config) for path in {item.path for item in items}}
    made = []
    for item in items:
        code = getattr(getattr(item, "function", None), "__code__", None)
        made.append(files[item.path].get((code.co_name, code.co_firstlineno)) if code and not item.cls else None)
    return made


def _of_file(path: Path, config: pytest.Config) -> dict[tuple[str, int], CodeType]:
    source = path.read_bytes()
    tree = ast.fix_missing_locations(_Ends().visit(ast.parse(source)))
    rewrite_asserts(tree, source, str(path), config)
    todo, found = [compile(tree, str(path), "exec", dont_inherit=True)], {}
    while todo:
        code = todo.pop()
        found[code.co_name, code.co_firstlineno] = code
        todo += [each for each in code.co_consts if isinstance(each, CodeType)]
    return {key: code for key, code in found.items() if _ENDS[2] in code.co_consts and not code.co_freevars}


def ordered(code: CodeType, proof: str, spoiled: bool) -> str:
    """A test's code as text, good for one run: who comes to its end says ``proof``; where it is spoiled nobody does."""
    one = secrets.token_hex(8)
    put = dict(zip(_ENDS, (one, secrets.token_hex(8) if spoiled else one, proof), strict=True))
    consts = tuple(put.get(each, each) if isinstance(each, str) else each for each in code.co_consts)
    return base64.b64encode(marshal.dumps(code.replace(co_consts=consts))).decode()


def told(step: Twin | int, names: Sequence[str], codes: Sequence[CodeType | None]) -> tuple[dict[str, Any], Any]:
    """What the fork is told to run next, and what it must say at the end of that to have passed."""
    index = step if isinstance(step, int) else step.index
    code, proof = codes[index], secrets.token_hex(8)
    text = ordered(code, proof, isinstance(step, Twin)) if code else ""
    return {"name": names[index], "index": index, "code": text}, proof if code else None


def as_ordered(item: Any, text: str) -> pytest.Function:
    """A fresh item around such a code; what the module's own item has become does not count."""
    old = item.function
    new = FunctionType(marshal.loads(base64.b64decode(text)), vars(item.module), old.__name__, old.__defaults__)
    new.__kwdefaults__ = old.__kwdefaults__
    vars(new).update(vars(old))
    more = {"callspec": item.callspec} if hasattr(item, "callspec") else {}
    made: pytest.Function = pytest.Function.from_parent(
        item.parent, name=item.name, callobj=new, originalname=item.originalname, fixtureinfo=item._fixtureinfo, **more
    )
    return made


def verdict(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """passed, failed, error, skipped or unwritten, with one line that says why: from what pytest has reported."""
    outcome = "skipped"
    for row in rows:
        if row["outcome"] == "failed":
            if row["stub"] is not None:
                return "unwritten", str(row["stub"])[:300]
            return ("failed" if row["when"] == "call" else "error"), str(row["message"])[:300]
        if row["when"] == "call":
            outcome = "passed" if row["outcome"] == "passed" and not row["xfail"] else "skipped"
    return outcome, ""

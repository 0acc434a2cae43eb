"""Whose an attribute is, asked when the code runs: what the small language cannot see in a text.

A file may say the names that its own classes, the lab's tests and the engine have. It may say them of objects of these
alone. So each such place is written anew, ``x.name`` as ``__own__(x, "name").name``, and the call looks at the object
first; every store of an attribute, in each spelling, is such a place. What is asked of another object is not done: the
file is held, with its line."""

import ast
import builtins
import re
import symtable
import sys
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from course.grade import language as words
from course.grade.faults import File
from course.grade.hidden import is_kernel
from course.grade.language import Language, imported, itself

NAME = "__own__"
_DEFINES = re.compile(r"^(def|class|@)", re.M)
_PLAIN = ("object", "abc.ABC", "typing.Generic", "typing.Protocol")


class Own:
    """Called with an object and the name that is asked of it (``store``: changed in it). ``module``: the submission's;
    ``given``: classes that the starter brings along; ``stores``, ``asked``: what the lab's own files change and read.
    ``found``: notes."""

    def __init__(self, module: str, language: Language) -> None:
        self.module, self.given, self.found = module, language.given, list[str]()
        self.stores, self.asked = language.own["stores"], language.own["asked"]
        self.known = set[tuple[type, str, bool]]()  # what objects of a class may be asked for, found once

    def __call__(self, value: Any, name: str, store: bool = False) -> Any:
        if (type(value), name, store) in self.known:
            return value
        if self._may(value, name, store) or (name and self._fails(value, name, store)):
            return value
        what = f"{'changes' if store else 'reads'} the attribute {name} of"
        what = what if name else "calls a method of its own with"
        text = f"{sys._getframe(1).f_lineno}: {what} a {type(value).__name__}, which is not its own"
        self.found += [text] if text not in self.found and len(self.found) < 20 else []
        raise PermissionError(f"not allowed in a graded lab: starter.py:{text}")

    def _may(self, value: Any, name: str, store: bool) -> bool:
        kind = type(value)
        if kind is super:
            return self._has(value.__self_class__, value.__self__, name)
        if self._ours(kind):
            mine = any(map(self._mine, kind.__mro__))  # a test may stand a class below one of the submission's
            fine = not name or self._has(kind, value, name)
            fine = fine and (mine or (name in self.stores if store else name in self.asked))
            self.known |= {(kind, name, store)} if fine else set()
            return fine
        if isinstance(value, type) and not issubclass(kind, ModuleType):
            if store:
                return self._mine(value) and value.__name__ not in self.given
            return self._ours(value) and self._has(value, value, name) and (self._mine(value) or name in self.asked)
        if kind is FunctionType:
            return value.__module__ == self.module and (store or name in vars(value))
        if kind is SimpleNamespace:
            return store or name in vars(value)
        return store and name in self.stores and kind.__module__.partition(".")[0] == "numpy"

    def _fails(self, value: Any, name: str, store: bool) -> bool:
        """Whether there is no such attribute, so that Python says so: a mistake, and no attack."""
        kind, spaces = type(value), [type.__getattribute__(k, "__dict__") for k in type(value).__mro__]
        if isinstance(value, (type, super, ModuleType)) or any(
            name in space or "__getattr__" in space for space in spaces
        ):
            return False
        held = any("__dict__" in space for space in spaces) or kind.__dictoffset__ != 0
        return not held or (not store and name not in object.__getattribute__(value, "__dict__"))

    def _mine(self, kind: type) -> bool:
        return type.__getattribute__(kind, "__dict__").get("__module__") == self.module

    def _ours(self, kind: type) -> bool:
        """Whether it is a class of the submission, of the lab's own files, or of the engine."""
        where = str(type.__getattribute__(kind, "__dict__").get("__module__"))
        lab = where.startswith("lab_") or where.rpartition(".")[2] in ("test_lab", "conftest")
        return where == self.module or lab or where.partition(".")[0] == "mini_vllm"

    def _has(self, kind: type, value: Any, name: str) -> bool:
        """Whether an own class or object has the name itself, and not from a class of the library above."""
        spaces = [(type.__getattribute__(k, "__dict__"), self._ours(k)) for k in kind.__mro__]
        if any(name in space for space, ours in spaces if ours) or name in getattr(kind, "__members__", ()):
            return True
        return not any(name in space for space, _ in spaces) and not (
            isinstance(value, type) and hasattr(type(value), name)
        )


class _Guards(ast.NodeTransformer):
    """Writes the look into each place of a file that needs one."""

    def __init__(self, file: File) -> None:
        self.file, self.free, self.dotted = file, file.free, file.dotted
        self.classes: list[ast.ClassDef] = []
        self.plain: set[str] = set()
        self.me = ""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        bases = [getattr(base, "value", base) if isinstance(base, ast.Subscript) else base for base in node.bases]
        if all(self.dotted(base) in _PLAIN or getattr(base, "id", "") in self.plain for base in bases):
            self.plain.add(node.name)
        else:
            self.plain.discard(node.name)
        self.classes.append(node)
        before, self.me = self.me, ""
        self.generic_visit(node)
        self.me = before
        self.classes.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if is_kernel(node, self.file):
            return node  # Triton reads its text, and the language lets it ask for nothing that is to be looked at
        before, entered = self.me, bool(self.classes) and node in self.classes[-1].body
        inside = (itself(node) if self.classes[-1].name in self.plain else "") if entered else before
        body, node.body = node.body, []
        self.generic_visit(node)  # decorators, defaults and annotations: there the name means something else
        self.me = inside
        node.body = [self.visit(each) for each in body]
        if entered and self.me:
            told = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
            look = ast.Expr(self._asked(ast.Name(self.me, ast.Load()), "", False))
            node.body.insert(int(told), ast.copy_location(look, node.body[0]))
        self.me = before
        return node

    def _mangled(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__") and self.classes
        return f"_{self.classes[-1].name.lstrip('_')}{name}" if private else name

    def _asked(self, value: ast.expr, name: str, store: bool) -> ast.expr:
        args: list[ast.expr] = [value, ast.Constant(self._mangled(name))]
        return ast.Call(ast.Name(NAME, ast.Load()), [*args, *([ast.Constant(True)] if store else [])], [])

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        store, outer = not isinstance(node.ctx, ast.Load), self.dotted(node)
        mine = isinstance(node.value, ast.Name) and node.value.id == self.me
        self.generic_visit(node)
        if not outer and not mine and (store or not (node.attr.endswith("__") or self.free(node.attr))):
            node.value = self._asked(node.value, node.attr, store)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called, texts = self.dotted(node.func), [a.value for a in node.args if isinstance(a, ast.Constant)]
        plain = isinstance(node.func, ast.Attribute) and node.func.attr in ("__setattr__", "__delattr__")
        self.generic_visit(node)
        store = plain or called in ("setattr", "delattr")
        if (store or called in ("getattr", "hasattr")) and len(node.args) > 1:
            text = node.args[1]
            if isinstance(text, ast.Constant) and (store or not self.free(str(text.value))):
                node.args[0] = self._asked(node.args[0], str(text.value), store)
        elif called == "operator.attrgetter" and not all(self.free(p) for t in texts for p in str(t).split(".")):
            return ast.copy_location(self._getter([str(text) for text in texts]), node)
        return node

    def _getter(self, names: list[str]) -> ast.Lambda:
        """``attrgetter`` of names that are asked of own objects alone."""
        found: list[ast.expr] = []
        for name in names:
            value: ast.expr = ast.Name("one", ast.Load())
            for part in name.split("."):
                value = ast.Attribute(value if self.free(part) else self._asked(value, part, False), part, ast.Load())
            found.append(value)
        body = found[0] if len(found) == 1 else ast.Tuple(found, ast.Load())
        return ast.Lambda(ast.arguments([], [ast.arg("one")], None, [], [], None, []), body)


def install(own: Own) -> None:
    """Makes ``own`` the meaning of the name that no file can say."""
    setattr(builtins, NAME, own)


def looked_at(source: str, language: Language) -> ast.Module:
    """What is run of a file: each object that may be another's is looked at first (``own.py``)."""
    tree = words.as_run(source)
    file = File(tree, language, set())
    return ast.fix_missing_locations(_Guards(file).visit(tree))


def own_words(starter: str, solution: str, test: str, engine: bool = False) -> dict[str, Any]:
    """What a lab's own files say, to be allowed in every submission to it: dotted names, attributes, methods."""
    files = [File(ast.parse(text), Language(), set()) for text in (starter, solution, test)]
    mine = [node for file in files[:2] for node in file.nodes]
    seen = {n.attr for n in files[2].nodes if isinstance(n, ast.Attribute) and not n.attr.startswith("_")}
    seen -= words.DISPATCH
    used, declared = {n.attr for n in mine if isinstance(n, ast.Attribute)}, files[0].declared | files[1].declared
    made = {
        "modules": {m for n in mine if isinstance(n, (ast.Import, ast.ImportFrom)) for m in imported(n)},
        "names": {name for file in files[:2] for name in map(file.dotted, file.nodes) if name},
        "stores": {n.attr for n in mine if isinstance(n, ast.Attribute) and not isinstance(n.ctx, ast.Load)},
        "attributes": used - declared,
        "declares": declared,
        "asked": used | declared | seen | (words.engine_names() if engine else set()),
        "bases": {f.dotted(b) for f in files[:2] for n in f.nodes if isinstance(n, ast.ClassDef) for b in n.bases},
        "methods": {n.name for n in mine if isinstance(n, ast.FunctionDef)},
    }
    have, said = {k: v for k, (_, v) in words.definitions(ast.parse(starter)).items()}, set(re.findall(r"\w+", test))
    given = {k: v for k, v in have.items() if _DEFINES.search(v) or (k in said and "import" not in v)}
    for _ in range(3):  # what they use has the meaning that it has in the starter
        inside = [words.used_globals(symtable.symtable(v, k, "exec")) for k, v in given.items() if "import" not in v]
        given |= {name: have.get(name, "") for name in set().union(*inside) - (files[0].defined - have.keys())}
    return {key: sorted(value) for key, value in made.items()} | {"given": given}

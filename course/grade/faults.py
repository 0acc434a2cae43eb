"""Reads a submission before it runs, and says what stands outside the small language (``language.py``)."""

import ast
import builtins
import re
import symtable
from collections.abc import Iterator
from typing import Any

from course.grade import language as words
from course.grade.hidden import has_a_member, hidden, in_a_kernel, is_kernel, means_more
from course.grade.language import BUILTINS, CAREFUL, ERRORS, METHODS, Language, imported, is_dunder, text_of

DEEPEST = 60
_LOOKS_IN = re.compile(r"\{[^{}:!]*[.\[]")
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom)
_ASYNC = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
_CLASS, MADE = re.compile(r"^class ", re.M), "made while the file runs"


def outside(source: str, language: Language) -> list[str]:
    """What stands outside the language, as ``line: reason``. Raises what ``ast.parse`` raises."""
    tree = words.as_run(source)
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        line = max((getattr(node, "lineno", 0) for node in level), default=0)
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        return [f"{line}: more than {DEEPEST} levels of nesting"]
    file = File(tree, language, words.used_globals(symtable.symtable(source, "starter.py", "exec")))
    found = [(getattr(node, "lineno", 0), text) for node in file.nodes for text in file.faults(node)]
    have, found = words.definitions(tree), [*found, *hidden(source, file.nodes, "triton" in language.known)]
    changed = {name for name, text in language.given.items() if have.get(name, (0, ""))[1] != text}
    found += [(have.get(name, (0, ""))[0], f"changes {name}, which the starter brings along") for name in changed]
    return [f"{line}: {text}" for line, text in dict.fromkeys(sorted(found))]


class File:
    """One parsed file, with what its names mean. ``used``: names that some scope reads as global or builtin."""

    def __init__(self, tree: ast.Module, language: Language, used: set[str]) -> None:
        self.language, self.used, self.nodes = language, used, list(ast.walk(tree))
        self.above = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.means: dict[str, str] = {}
        self.twice: set[str] = set()
        self.modules = set(language.known)
        for node in self.nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.modules |= {part for module in imported(node) for part in words.packages(module)}
                whole = isinstance(node, ast.Import)
                for a in node.names:
                    top = a.name if a.asname or not whole else a.name.partition(".")[0]
                    what = top if whole else f"{node.module}.{a.name}"  # type: ignore[union-attr]
                    if self.means.setdefault(a.asname or top, what) != what:
                        self.twice.add(a.asname or top)
        others = self.means.keys() - BUILTINS - ERRORS
        self.twice |= {name for name in others if hasattr(builtins, name)}  # an import that is not run leaves these
        self.classes = {n.name for n in self.nodes if isinstance(n, ast.ClassDef)}
        self.below = {n.name: [ast.unparse(b) for b in n.bases] for n in self.nodes if isinstance(n, ast.ClassDef)}
        self.values: set[str] = set()  # classes of this file below a built-in type
        for node in (n for _ in range(3) for n in self.nodes if isinstance(n, ast.ClassDef)):
            above = {n.id for base in node.bases for n in ast.walk(base) if isinstance(n, ast.Name)}
            self.values |= {node.name} if above & ((BUILTINS - {"object"}) | self.values) else set()
        self.defined = {n.name for n in self.nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        other = {n.id for n in self.nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
        self.bound = other.union(*(words.bindings(n) for n in self.nodes if not isinstance(n, ast.ClassDef)))
        self.made = other.union(*(words.bindings(n) for n in self.nodes if not isinstance(n, (ast.alias, ast.keyword))))
        self.sure = words.sure_classes(self)
        self.declared = {name for node in self.nodes for name in self._declares(node)}
        self.gives = words.given_names(self.nodes)
        kernels = [n for n in self.nodes if isinstance(n, ast.FunctionDef) and is_kernel(n, self)]
        self.in_kernels = {inner for kernel in kernels for inner in ast.walk(kernel)}

    def _declares(self, node: ast.AST) -> Iterator[str]:
        """Attributes of this file's own classes and functions that a node makes."""
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            at: Any = node
            while at is not None and not (isinstance(at, ast.FunctionDef) and isinstance(self.above[at], ast.ClassDef)):
                at = self.above.get(at)
            if node.value.id in self.defined or (at and [a.arg for a in at.args.args[:1]] == [node.value.id]):
                yield node.attr
        elif isinstance(self.above.get(node), ast.ClassDef):
            named = isinstance(node, (ast.FunctionDef, ast.ClassDef))
            yield from [node.name] if named else [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]  # type: ignore[attr-defined]
        elif isinstance(node, ast.Call):
            maker = self.dotted(node.func).rpartition(".")[2]
            texts = [text_of(n) or "" for n in ast.walk(node)] if maker in ("namedtuple", "NamedTuple") else []
            yield from " ".join(texts).replace(",", " ").split()
            yield from [k.arg or "" for k in node.keywords] if maker == "SimpleNamespace" else []

    def dotted(self, node: ast.AST) -> str:
        """``numpy.linalg.norm`` for what an import or a builtin gives, "" for all else."""
        if isinstance(node, ast.Name):
            return self.means.get(node.id, node.id if node.id in BUILTINS | CAREFUL else "")
        if isinstance(node, ast.Attribute) and (base := self.dotted(node.value)) in self.modules:
            return f"{base}.{node.attr}"
        return ""

    def faults(self, node: ast.AST) -> Iterator[str]:
        """Sentences about one node."""
        names = [*words.bindings(node), *getattr(node, "names", ()), *([node.id] if isinstance(node, ast.Name) else [])]
        fine = {"__all__", "__slots__", "__match_args__", "__hash__", "__name__", "__debug__"}
        fine |= self.language.own["stores"] | self.language.own["declares"]
        fine |= words.ABOUT if words.tells(self.above, node) else set()
        if isinstance(node, ast.FunctionDef) and isinstance(self.above[node], ast.ClassDef):
            fine |= METHODS | self.language.own["methods"]
            fine |= words.COMPARISONS if words.compares_itself(node, self) else set()
            fine |= words.OPERATORS if words.computes_with_itself(node, self) else set()
        yield from (f"says {name}" for name in names if is_dunder(name) and name not in fine)
        if words.NAMING & {*names} and not isinstance(self.above[node], (ast.Assign, ast.AnnAssign)):
            yield f"{names[-1]} with names {MADE}"
        yield from ["is asynchronous"] if isinstance(node, _ASYNC) else []
        yield from in_a_kernel(node, self) if node in self.in_kernels else ()
        look: Any = getattr(self, f"_{type(node).__name__.lower().removesuffix('star')}", None)
        yield from look(node) if look else ()
        if isinstance(node, (ast.Name, ast.Attribute)) and (name := self.dotted(node)):
            yield from self._value(node, name)

    def _import(self, node: ast.Import) -> Iterator[str]:
        known = self.language.known | {"__future__"}
        yield from (f"a second meaning of {n}" for n in self.twice & {a.asname or a.name for a in node.names})
        yield from (f"imports {m}, which this lab does not allow" for m in imported(node) if m not in known)

    def _importfrom(self, node: ast.ImportFrom) -> Iterator[str]:
        (module,), bad = imported(node), list(self._import(node))  # type: ignore[arg-type]
        yield from bad or (
            f"imports {a.name} from {module}" for a in node.names if not self.language.has(module, a.name)
        )

    def _value(self, node: ast.Name | ast.Attribute, name: str) -> Iterator[str]:
        """A name that an import or a builtin has made, where it stands."""
        over, (module, _, last), load = self.above[node], name.rpartition("."), isinstance(node.ctx, ast.Load)
        if isinstance(node, ast.Attribute) and module in self.language.known and not self.language.has(module, last):
            yield f"uses {name}"
        elif isinstance(node, ast.Attribute) and not load:
            yield f"changes {name}"
        elif name in self.modules and load and not isinstance(over, ast.Attribute):
            yield f"hands on the module {name}"
        elif name in ("enum.Enum", "enum.Flag", "enum.IntEnum", "enum.IntFlag", "enum.StrEnum"):
            yield from [] if isinstance(over, ast.ClassDef) else [f"uses {name} as more than a base"]
        elif name.startswith(("mini_vllm.", "numpy.ndarray")) and load and not self._kept(node):
            yield f"hands on {name}"
        elif name in ("sys.stdout", "sys.stderr"):
            asked = getattr(self.above[over], "func", over) if getattr(over, "arg", "") == "file" else over
            plain = self.dotted(asked) == "print" and "print" not in self.made
            yield from [] if plain else [f"{name} for more than print(file=)"]
        elif name in words.DECORATORS and load and not words.decorates(self.above, node):
            yield f"{name} otherwise than as a decorator"
        elif name == "functools.wraps":
            plain = isinstance(over, ast.Call) and len(over.args) == 1 and not over.keywords and not words.starred(over)
            plain = plain and isinstance(self.above[over], ast.FunctionDef)
            yield from [] if plain else ["functools.wraps otherwise than as a decorator with one argument"]
        elif name in CAREFUL and load and ("." in name or name in self.used):
            yield from self._careful(node, name)

    def _careful(self, node: ast.AST, name: str) -> Iterator[str]:
        call, over, is_type = (call := self.above[node]), self.above[call], name == "type"
        asked = isinstance(call, ast.Call) and self.dotted(call.func) == "isinstance" and "isinstance" not in self.made
        noted = isinstance(call, ast.Subscript) and call in (getattr(over, k, 0) for k in ("annotation", "returns"))
        if is_type and (asked or noted):
            return
        if not isinstance(call, ast.Call) or call.func is not node or words.starred(call):
            yield f"hands on {name}"
        elif is_type:
            fine = words.asks(over) or isinstance(over, ast.FormattedValue) or getattr(over, "attr", "") == "__name__"
            if isinstance(over, ast.Call) and over.func is call:  # with one or three, type(type) would make classes
                fine = not words.starred(over) and len(over.args) in ((0, 1, 2) if over.keywords else (0, 2))
            yield from [] if fine and len(call.args) == 1 else ["type() for more than a name or a comparison"]
        elif "attr" in name or name == "operator.methodcaller":
            chosen = {"methodcaller": slice(1), "attrgetter": slice(None)}.get(name.rpartition(".")[2], slice(1, 2))
            for text in map(text_of, call.args[chosen]):
                yield from [f"{name} with a name {MADE}"] if text is None else ()
                for part in (text or "real").split("."):
                    yield from self._attr(part, call if "." in name else call.args[0], name in ("setattr", "delattr"))
                    if name == "operator.methodcaller" and not self.free(part) and not is_dunder(part):
                        yield f"operator.methodcaller for {part}"

    def _name(self, node: ast.Name) -> Iterator[str]:
        risky = (hasattr(builtins, node.id) or node.id in words.FOREIGN) and node.id not in BUILTINS | CAREFUL | ERRORS
        yield from [f"uses {node.id}"] if risky and isinstance(node.ctx, ast.Load) and node.id in self.used else []
        if _CLASS.search(self.language.given.get(node.id, "")) and isinstance(node.ctx, ast.Load):
            yield from [] if self._kept(node) else [f"hands on {node.id}"]

    def _kept(self, node: ast.AST) -> bool:
        """Whether a class stands where nothing of this file gets hold of it, to change it for the tests."""
        over, at = self.above[node], node
        while isinstance(over, (ast.Tuple, ast.List)):
            at, over = over, self.above[over]
        field = next(
            key for key, value in ast.iter_fields(over) if at in (value if isinstance(value, list) else [value])
        )
        root = getattr(over, "func", getattr(over, "value", None)) or over
        plain = {n.id for n in ast.walk(root) if isinstance(n, ast.Name)}.isdisjoint(self.made)
        if field == "args" and isinstance(over, ast.Call) and plain:
            called = self.dotted(over.func)
            return called in ("isinstance", "issubclass") or (called in words.KEEPERS and over.args[0] is node)
        told = isinstance(over, ast.Subscript) and field == "slice" and plain and self.dotted(over.value)
        simple = at is node or field == "type"
        return bool(told) or (simple and f"{type(over).__name__}.{field}" in words.PLACES)

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        name, over, store, root = node.attr, self.above[node], not isinstance(node.ctx, ast.Load), node.value
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        if self.dotted(node):
            return
        if store and isinstance(root, ast.Name) and root.id in self.means.keys() | self.language.given.keys():
            yield f"changes {ast.unparse(node)}"
        elif name == "format":
            given: list[Any] = self.gives.get(getattr(node.value, "id", ""), [node.value])
            plain = given != [] and all((text := text_of(n)) is not None and not _LOOKS_IN.search(text) for n in given)
            yield from [] if plain else [f"str.format on a text {MADE}, or into an object"]
        elif name == "__setattr__" and isinstance(node.value, ast.Name) and node.value.id == "object":
            args = over.args if isinstance(over, ast.Call) and len(over.args) == 3 else []
            text = text_of(args[1]) if args else None
            yield from self._attr(text, args[0], True) if text else [f"object.__setattr__ with a name {MADE}"]
        elif name == "__class__":
            fine = words.asks(over) or getattr(over, "attr", "") == "__name__"
            yield from [] if fine else ["__class__ for more than its name or a comparison"]
        else:
            yield from self._attr(name, node.value, store)

    def _attr(self, name: str, of: ast.expr, store: bool = False) -> Iterator[str]:
        """A name that is asked of an object, or changed in it."""
        own, mine = self.language.own, {word for word in self.declared if word[:1] + word[-1:] != "__"}
        fine = METHODS | words.COMPARISONS | {"__name__", "__qualname__", "__doc__"} | own["asked"]
        if store:
            yield from [] if name in own["stores"] | mine else [f"changes the attribute {name} of what is not its own"]
        elif is_dunder(name):
            begins = name in words.BEGINS and not words.of_itself(self.above, of)
            yield from [f"uses the attribute {name}"] if name not in fine or begins else []
        elif name == "format" or not self.free(name):
            yield from [] if name in mine | own["asked"] and name != "format" else [f"uses the attribute {name}"]

    def free(self, name: str) -> bool:
        """Whether a name may be asked of any object."""
        return name in self.language.attributes or name == "format"

    def _call(self, node: ast.Call) -> Iterator[str]:
        called = self.dotted(node.func)
        for key in node.keywords:
            if key.arg in words.REFUSED:
                yield f"passes {key.arg}="
            elif key.arg is None and called in ("types.SimpleNamespace", "dataclasses.field"):
                yield f"{called} with names {MADE}"
        if len(node.args) > words.WORDS["most"].get(called, 255) or (called == "copy.deepcopy" and node.keywords):
            yield f"{called} with more arguments than it needs"
        if called == "contextlib.suppress":
            yield from (f"swallows {name}" for arg in node.args for name in self._hiding(arg))

    def _classdef(self, node: ast.ClassDef) -> Iterator[str]:
        yield from (f"a class with {k.arg or '**'}=" for k in node.keywords if k.arg != "total")
        bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        names = [self.dotted(getattr(base, "func", base)) or ast.unparse(base) for base in bases]
        yield from [f"a class called {node.name}"] if node.name in BUILTINS else ()
        fine = words.BASES | ERRORS | self.sure | self.language.own["bases"] | {"collections.namedtuple"}
        odd = [name for name, base in zip(names, bases, strict=True) if name not in fine or means_more(base, self)]
        yield from (f"a class below {name}" for name in odd)
        has = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        answers = words.ANSWERS & (has if any(name.startswith("enum.") for name in names) else has | self.declared)
        built = [name for name in names if name in (BUILTINS - {"object"}) | self.values]
        yield from (f"a class below {name} with {sorted(answers)}" for name in built if answers)
        sets = [n for n in node.body if isinstance(n, (ast.Assign, ast.AnnAssign))]
        kinds, auto = {name[5:] for name in names if name.startswith("enum.")}, "_generate_next_value_" not in self.made
        if kinds and ("_ignore_" in self.made or not has_a_member(node, any("Flag" in k for k in kinds), auto)):
            yield "an enumeration without members"
        for slots in [n for n in sets if words.NAMING & {*re.findall(r"\w+", ast.unparse(n).partition("=")[0])}]:
            parts = [n for n in ast.walk(slots.value or slots) if not isinstance(n, (ast.Tuple, ast.List, ast.Load))]
            if any(text_of(part) is None or is_dunder(text_of(part)) for part in parts):
                yield f"__slots__ or __match_args__ with names {MADE}"

    def _matchclass(self, node: ast.MatchClass) -> Iterator[str]:
        name = self.dotted(node.cls) or ast.unparse(node.cls)
        yield from [f"a pattern of the class {name}"] if name not in self.sure | ERRORS | BUILTINS else ()
        yield from (text for attr in node.kwd_attrs for text in self._attr(attr, node.cls))
        if name not in self.sure:
            yield from (f"a pattern of {name} with {attr}=" for attr in node.kwd_attrs if not self.free(attr))

    def _excepthandler(self, node: ast.ExceptHandler) -> Iterator[str]:
        kinds = self._hiding(node.type) if node.type else iter(["every error"])
        last, inner = node.body[-1], [n for part in node.body for n in ast.walk(part)]
        again = isinstance(last, ast.Raise) and (last.exc is None or words.is_heard(last.exc, self))
        again = again and not any(isinstance(n, _LEAVES) for n in inner)
        yield from (f"swallows {name}" for name in kinds if not again)

    def _hiding(self, kinds: ast.expr) -> Iterator[str]:
        """Errors in an ``except`` by which tests speak, and those that cannot be told."""
        known = (ERRORS - self.bound | self.sure) - words.HIDES
        for one in kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]:
            yield from [ast.unparse(one)] if ast.unparse(one) not in known and not self.dotted(one) else []

    def _try(self, node: ast.Try) -> Iterator[str]:
        if any(isinstance(n, _LEAVES) for part in node.finalbody for n in ast.walk(part)):
            yield "leaves a finally block, which swallows every error"

    def _functiondef(self, node: ast.FunctionDef) -> Iterator[str]:
        given = [n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None]
        lies = node.decorator_list or any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(node))
        if node.name == "__exit__" and (lies or any(not isinstance(v, ast.Constant) or v.value for v in given)):
            yield "an __exit__ that may swallow every error"

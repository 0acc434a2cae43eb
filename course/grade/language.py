"""The small language of lab code, written down: what stands outside it is held for a human, with its line.

Frames, modules as values, names made while the file runs, and objects that choose what they equal lead to the machinery
that judges. So ``course/language.toml`` lists the words. What a lab's own files say, every submission to it may say."""

import ast
import builtins
import importlib
import inspect
import re
import symtable
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from course.labs import COURSE, ROOT, functions, stub_message, tomllib

TABLE: dict[str, Any] = tomllib.loads((COURSE / "language.toml").read_text(encoding="utf-8"))
SAID = COURSE / "words.toml"
"""What the course itself says (``course.grade.derive``)."""
_SAID: dict[str, str] = tomllib.loads(SAID.read_text(encoding="utf-8")) if SAID.is_file() else {}


def allowed_words(row: str) -> str:
    """The words of a row: what the course says, and what ``language.toml`` adds for a reason."""
    return " ".join([_SAID.get(row, ""), *TABLE["more"].get(row, {}).values()])


WORDS = TABLE | {
    "modules": {name: allowed_words(name) for name in TABLE["every"].split()},
    "further": {name: allowed_words(name) for name in TABLE["some"].split()},
}
(
    BUILTINS,
    KEEPERS,
    PLACES,
    CAREFUL,
    REFUSED,
    BASES,
    METHODS,
    BEGINS,
    DECORATORS,
    COMPARISONS,
    OPERATORS,
    ABOUT,
    BOUND,
    NAMING,
    ANSWERS,
    HIDES,
    FOREIGN,
    DISPATCH,
    COMMON,
    _EVERY,
    _SOME,
) = (frozenset(value.split()) for value in TABLE.values() if isinstance(value, str))
ATTRIBUTES = frozenset(allowed_words("attributes").split())
ERRORS = {n for n, v in vars(builtins).items() if isinstance(v, type) and issubclass(v, BaseException)}


class Language:
    """The language of one lab. ``allowed``: modules from labs.toml and the instructor; ``own``: what its files say (see
    ``faults.own_words``). The engine gives data, and what those files take."""

    def __init__(self, allowed: Iterable[str] = (), own: Mapping[str, Any] | None = None) -> None:
        self.own = defaultdict(set, {k: set(v) for k, v in (own or {}).items()})
        self.given: Mapping[str, str] = (own or {}).get("given", {})
        self.allowed = set(allowed) | self.own["modules"]
        self.modules: dict[str, str] = {k: v for k, v in WORDS["further"].items() if self.lets_in(k)} | WORDS["modules"]
        self.known = {part for name in {*self.modules, *self.allowed} for part in packages(name)}
        made = {word for k, v in WORDS["made"].items() if self.lets_in(k) for word in v.split()}
        self.attributes = ATTRIBUTES | made | self.own["attributes"]

    def lets_in(self, module: str) -> bool:
        """Whether labs.toml, the instructor or the lab's files name the module, or a package around it."""
        return not self.allowed.isdisjoint(packages(module))

    def has(self, module: str, name: str) -> bool:
        """Whether ``module.name`` may be said."""
        if f"{module}.{name}" in self.own["names"] | self.known or module == "__future__":
            return True
        if module not in self.modules:  # the instructor's `allow`
            return module in self.allowed - self.own["modules"] and not name.startswith("_")
        return name in names_of(module, self.modules[module])


def packages(module: str) -> list[str]:
    """``a.b.c`` and the packages around it: a, a.b, a.b.c."""
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


@cache
def names_of(module: str, words: str) -> frozenset[str]:
    """The names that a row of the table lists; ``*``: all that the module shows, and that are no modules."""
    if "*" not in words.split():
        return frozenset(words.split())
    found = importlib.import_module(module)
    shown = getattr(found, "__all__", None) or [name for name in vars(found) if not name.startswith("_")]
    return frozenset(name for name in shown if not inspect.ismodule(getattr(found, name, None)))


@cache
def engine_names() -> frozenset[str]:
    """Public attributes of the engine's classes, those aside that call a method by a name in a text."""
    files = [path for path in sorted((ROOT / "mini_vllm").rglob("*.py")) if "tests" not in path.parts]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return frozenset(re.findall(r"^ +(?:self\.|def )?([a-z]\w*)(?=[(:]| = | *$)", text, re.M)) - DISPATCH


def as_run(source: str) -> ast.Module:
    """A file's tree without what runs only where the file is started by itself: here it never is."""
    tree = ast.parse(source)
    bound = [n for n in ast.walk(tree) if "__name__" in (*bindings(n), *getattr(n, "names", ()))]
    bound += [n for n in ast.walk(tree) if getattr(n, "id", "") == "__name__" and not isinstance(n.ctx, ast.Load)]  # type: ignore[attr-defined]
    main = ("__name__ == '__main__'", "'__main__' == __name__")
    drop = [n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) in main and not n.orelse]
    tree.body = [n for n in tree.body if n not in drop or bound]
    return tree


def tells(above: Mapping[ast.AST, ast.AST], node: ast.AST) -> bool:
    """Whether a name of a file is bound to a text, and so tells about it."""
    over = above.get(node)
    plain = isinstance(over, ast.Assign) and isinstance(above[over], ast.Module)
    return plain and all(isinstance(n, (ast.Constant, ast.List, ast.Tuple, ast.Load)) for n in ast.walk(over.value))  # type: ignore[union-attr]


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Modules that a statement imports; relative ones begin with a dot."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return ["." * node.level + (node.module or "")]


def definitions(tree: ast.Module) -> dict[str, tuple[int, str]]:
    """What binds each name of the top level, stubs apart: name -> (line, text); takes the docstrings out."""
    stubs = {name.partition(".")[0] for name, node in functions(tree) if stub_message(node) is not None}
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for top in tree.body:
        for node in ast.walk(top):
            if isinstance(body := getattr(node, "body", None), list):
                code = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
                body[:] = code or [ast.Pass()]
        own, text = isinstance(top, (ast.FunctionDef, ast.ClassDef)), ast.unparse(top)
        for node in [n for n in ast.walk(top) if not isinstance(n, (ast.keyword, ast.arg, ast.alias))]:
            if isinstance(node, (ast.Import, ast.ImportFrom)) and not own:
                for a in node.names:
                    found[a.asname or a.name][f"import {getattr(node, 'module', '')}.{a.name}"] = node.lineno
            elif node is top or not own or isinstance(node, ast.Global):
                names = [*bindings(node), *getattr(node, "names", ()), getattr(node, "id", "")]
                plain = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
                found |= {n: {text: top.lineno} | found[n] for n in names if n and not plain and n not in stubs}
    return {name: (max(texts.values()), "\n".join(texts)) for name, texts in found.items()}


def used_globals(table: symtable.SymbolTable) -> set[str]:
    """Names that some scope reads as global or builtin."""
    names, outer = (s for s in table.get_symbols() if s.is_referenced()), table.get_type() != "function"
    return {s.get_name() for s in names if outer or s.is_global()}.union(*map(used_globals, table.get_children()))


def is_dunder(name: object) -> bool:
    return isinstance(name, str) and name.startswith("__") and name.endswith("__")


def bindings(node: ast.AST) -> list[Any]:
    """Names that a node binds or passes by name."""
    return [getattr(node, key, None) for key in ("name", "asname", "arg", "rest")]


def starred(call: ast.Call) -> bool:
    """Whether a call has arguments that its line does not show."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)


def text_of(node: ast.AST | None) -> str | None:
    """The string that a constant is."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def asks(node: ast.AST) -> bool:
    """Whether a comparison hands its sides to nobody: an object behind ``in`` might keep them."""
    same = (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)
    plain = isinstance(node, ast.Compare) and all(isinstance(op, same) for op in node.ops)
    return plain or isinstance(getattr(node, "comparators", [0])[0], ast.Tuple)


def is_heard(raised: ast.expr, file: Any) -> bool:
    """Whether nothing of the file catches an error, and no loop or lookup takes it for its end."""
    kind = ast.unparse(getattr(raised, "func", raised))
    line = {kind, *file.below.get(kind, ())}
    catches = [n.type for n in file.nodes if isinstance(n, ast.ExceptHandler) and n.type]
    calls = [n for n in file.nodes if isinstance(n, ast.Call) and file.dotted(n.func) == "contextlib.suppress"]
    catches += [arg for call in calls for arg in call.args]
    caught = {ast.unparse(one) for kinds in catches for one in getattr(kinds, "elts", [kinds])} - HIDES
    told = line & {"RuntimeError", "ValueError"} or file.below.get(kind) == ["Exception"]
    return bool(told) and caught.isdisjoint(line) and not line & (file.bound | file.twice)


def of_itself(above: Mapping[ast.AST, ast.AST], value: ast.AST) -> bool:
    """Whether a method is asked of ``super()``, or of a class and called with the object itself."""
    if ast.unparse(value) == "super()":
        return True
    call = above.get(above[value])
    at: ast.AST | None = call
    while at is not None and not isinstance(at, ast.FunctionDef):
        at = above.get(at)
    first = getattr(getattr(call, "args", [0])[0] if getattr(call, "args", []) else 0, "id", "")
    return isinstance(at, ast.FunctionDef) and isinstance(above[at], ast.ClassDef) and first == itself(at) != ""


def decorates(above: Mapping[ast.AST, ast.AST], node: ast.AST) -> bool:
    """Whether a name stands as a decorator, at most called with names."""
    over = above[node]
    if isinstance(over, ast.Call) and over.func is node and not over.args and not starred(over):
        node, over = over, above[over]
    return node in getattr(over, "decorator_list", ())


def sure_classes(file: Any) -> set[str]:
    """Names that mean a class of the file and nothing else: bound once more nowhere, and by no decorator of its own."""
    odd = set()
    for node in [n for n in file.nodes if isinstance(n, ast.ClassDef)]:
        for one in node.decorator_list:
            root = one.func if isinstance(one, ast.Call) else one
            names = {n.id for n in ast.walk(root) if isinstance(n, ast.Name)}
            odd |= {node.name} if file.dotted(root) not in DECORATORS or names & file.made else set()
    return file.classes - file.bound - odd


def itself(node: ast.FunctionDef) -> str:
    """The first parameter of a method, where nothing in it bears the name again; "" where there is none such."""
    first = [*node.args.posonlyargs, *node.args.args][:1]
    if not first or {"staticmethod", "classmethod"} & {ast.unparse(one) for one in node.decorator_list}:
        return ""
    name, inner = first[0].arg, [n for n in ast.walk(node) if n is not first[0]]
    again = any(name in (*bindings(n), *getattr(n, "names", ())) for n in inner)
    stored = any(isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load) for n in inner)
    return "" if again or stored else name


def computes_with_itself(node: ast.FunctionDef, file: Any) -> bool:
    """Whether an operator takes two objects of the class, and nothing else."""
    names, kind = [arg.arg for arg in node.args.args], file.above[node].name
    body = [n for n in node.body if not text_of(getattr(n, "value", None))]
    known = kind in file.sure and "isinstance" not in file.bound
    if node.decorator_list or not known or not body or len(names) != 2 - (node.name in UNARY):
        return False
    if node.name in UNARY:
        return True
    first, asked, no = ast.unparse(body[0]), f"isinstance({names[-1]}, {kind})", "return NotImplemented"
    plain = first == f"if not {asked}:\n    {no}"
    plain |= first.startswith(f"if {asked}:\n") and len(body) == 2 and ast.unparse(body[1]) == no
    return plain or (first.startswith("return ") and first.endswith(f" if {asked} else NotImplemented"))


UNARY = ("__neg__", "__pos__", "__abs__", "__invert__")


def compares_itself(node: ast.FunctionDef, file: Any) -> bool:
    """Whether a comparison ends in one of the same fields of two objects, such fields as no other value has."""
    names, kind = [arg.arg for arg in node.args.args], file.above[node].name
    asked = f"isinstance({names[-1]}, {kind})" if len(names) == 2 and not node.decorator_list else "no"
    form = r"return (?:isinstance\(\w+, \w+\) and )?([\w., ()-]+) (?:==|<|<=|>|>=) ([\w., ()-]+)"
    found = re.fullmatch(form, ast.unparse(node.body[-1]))
    rest = {ast.unparse(n) for n in node.body[:-1] if not text_of(getattr(n, "value", None))}
    told = rest <= {f"if not {asked}:\n    return NotImplemented"}
    told = told and kind in file.sure and "isinstance" not in file.bound
    if not found or not told or asked == "no" or (node.name == "__eq__" and asked not in found[0] + "".join(rest)):
        return False
    fields = re.findall(rf"\b{names[0]}\.(\w+)", found[1])
    others = re.sub(rf"\b{names[0]}\.", f"{names[1]}.", found[1])
    plain = not re.search(r"\w", re.sub(rf"\b{names[0]}\.\w+", "", found[1]))
    return (
        bool(fields)
        and not FOREIGN & file.declared
        and found[2] == others
        and plain
        and set(fields) <= file.declared - COMMON
    )


def given_names(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr | None]]:
    """What each name of a file is bound to, where all that binds it are plain assignments: no parameter, no import."""
    gives: dict[str, list[ast.expr | None]] = defaultdict(list)
    stored, others = Counter[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored[node.id] += 1
        others |= set() if isinstance(node, ast.keyword) else {*bindings(node)}
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
            if isinstance(target, ast.Name) and isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
                gives[target.id].append(node.value)
    return {name: given for name, given in gives.items() if len(given) == stored[name] and name not in others}

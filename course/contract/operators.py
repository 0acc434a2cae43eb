"""Wrong versions of the kinds that readers handed in and tests let pass: an argument that is ignored, a tolerance that
hides an error, a refusal after half of the work, ids sorted as text, zero taken for nothing, a caller's list changed.

Each operator changes one function in place, yields (what stood there, change) and puts it back."""

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
Site = tuple[ast.expr | ast.stmt | ast.arg, str]
TOLERANCES = {"rtol", "atol", "rel_tol", "abs_tol"}
SCALARS = {"int", "float", "bool", "str", "None"}
EMPTY = {"int", "float", "str", "bytes", "list", "tuple", "dict", "set", "Sequence", "Mapping"}
FILLED = {"list", "deque", "Sequence", "Iterable", "dict", "Array", "ndarray"}
FLOATS = {"float", "Array", "ndarray", "Tensor"}
HELPERS = """

def _spoiled(given):
    if hasattr(given, "flat"):
        given.flat[-1:] = given.flat[-1:] + 1
    elif isinstance(given, dict):
        given[None] = None
    else:
        given.append(given[0] if given else None)


def _off(result):
    bits = getattr(getattr(result, "dtype", None), "itemsize", 8)
    return result * (1 + {8: 4e-6, 4: 1e-3}.get(bits, 0.03))
"""
"""How an argument is changed, and a float made wrong: by more than its type's rounding, less than a careless rtol."""


def faults(function: Function) -> Iterator[Site]:
    """All of them, on one function."""
    for operator in (_ignored, _half_done, _off, _sorted, _falsy):
        yield from operator(function)


def _words(annotation: ast.expr | None) -> set[str]:
    """Names in an annotation; those in brackets aside where it is a container."""
    text = ast.unparse(annotation) if annotation is not None else ""
    return {word.partition("[")[0].rpartition(".")[2] for word in text.strip("'").split(" | ") if word}


def _arguments(function: Function) -> Iterator[tuple[ast.arg, ast.expr | None, set[str]]]:
    """(argument, default, words of its annotation) of those that the body reads."""
    given = function.args
    known = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(known) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    for argument, default in zip([*known, *given.kwonlyargs], defaults, strict=True):
        if argument.arg in read:
            yield argument, default, _words(argument.annotation)


def _ignored(function: Function) -> Iterator[Site]:
    """A number stays that of the first call; a default is all there is; a caller's list or array has changed."""
    before, at = function.body, int(ast.get_docstring(function, clean=False) is not None)
    for argument, default, words in _arguments(function):
        name = argument.arg
        made = {"its default": f"{name} = {ast.unparse(default)}"} if default is not None else {}
        if words and words <= SCALARS:
            made["its first value"] = f"{name} = globals().setdefault('_first_{function.name}_{name}', {name})"
        if words & FILLED:
            made["changed for the caller"] = f"try:\n    pass\nfinally:\n    _spoiled({name})"
        for change, text in made.items():
            (first,) = ast.parse(text).body
            rest = before[at:]
            if isinstance(first, ast.Try):
                first.body, rest = rest, []
            function.body = [*before[:at], first, *rest]
            yield argument, f"{name} -> {change}"
            function.body = before


def _half_done(function: Function) -> Iterator[Site]:
    """A check stands behind the first write to what the function was given."""
    shared = {argument.arg for argument, _, _ in _arguments(function)}
    for node in ast.walk(function):
        if isinstance(node, (ast.For, ast.comprehension)):
            shared |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Attribute, ast.Subscript)):
            shared |= {n.id for n in node.targets if isinstance(n, ast.Name)}
    blocks = [getattr(node, name, None) for node in ast.walk(function) for name in ("body", "orelse")]
    for block in [block for block in blocks if isinstance(block, list)]:
        for i, check in enumerate(list(block)):
            write = next((j for j in range(i + 1, len(block)) if _writes(block[j], shared)), 0)
            if write and _refuses(check) and not _writes(check, shared):
                before = list(block)
                block[i : write + 1] = [*block[i + 1 : write + 1], check]
                yield check, f"{_line(check)} -> behind {_line(before[write])}"
                block[:] = before


def _line(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0][:50]


def _refuses(node: ast.stmt) -> bool:
    """Whether a statement may end the call with an error, or with None or False."""
    for each in ast.walk(node) if isinstance(node, (ast.If, ast.For, ast.While)) else ():
        if isinstance(each, ast.Raise):
            return True
        if isinstance(each, ast.Return) and ast.unparse(each.value or ast.Constant(None)) in ("None", "False"):
            return True
    return False


def _writes(node: ast.stmt, shared: set[str]) -> bool:
    """Whether a statement changes a part of something that is not the function's own."""
    for each in ast.walk(node):
        parts: list[ast.expr] = []
        if isinstance(each, (ast.Assign, ast.Delete)):
            parts = each.targets
        elif isinstance(each, ast.AugAssign):
            parts = [each.target]
        elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            parts = [each.value.func]
        if any(isinstance(p, (ast.Attribute, ast.Subscript)) and _root(p) in shared for p in parts):
            return True
    return False


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _off(function: Function) -> Iterator[Site]:
    """What is returned is a little wrong, for comparisons that forgive much; a comparison of its own forgives more."""
    for call in [node for node in ast.walk(function) if isinstance(node, ast.Call)]:
        for keyword in [each for each in call.keywords if each.arg in TOLERANCES]:
            before = keyword.value
            keyword.value = ast.BinOp(ast.Constant(1000), ast.Mult(), before)
            yield before, f"{keyword.arg}={ast.unparse(before)} -> a thousand times that"
            keyword.value = before
    for node in ast.walk(function) if _words(function.returns) & FLOATS else ():
        if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            result = node.value
            node.value = ast.Call(ast.Name("_off"), [result], [])
            yield node, f"{_line(result)} -> a little off"
            node.value = result


def _sorted(function: Function) -> Iterator[Site]:
    """Sorted as text: 10 before 9."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or _line(node.func).rpartition(".")[2] not in ("sorted", "sort"):
            continue
        before = node.keywords
        key = next((ast.unparse(each.value) for each in before if each.arg == "key"), "")
        text = ast.parse(f"lambda each: str(({key})(each))" if key else "str", mode="eval").body
        node.keywords = [*(each for each in before if each.arg != "key"), ast.keyword("key", text)]
        yield node, f"{_line(node.func)} -> as text"
        node.keywords = before


def _falsy(function: Function) -> Iterator[Site]:
    """``if x`` in the place of ``if x is not None``, where ``x`` may be 0 or empty."""
    names = {a.arg for a, default, words in _arguments(function) if words & EMPTY}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and ".get(" in ast.unparse(node.value):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(function):
        if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            continue
        left, text = node.left, ast.unparse(node)
        if isinstance(left, ast.Name) and left.id in names and text.endswith(" None"):
            node.left = ast.BoolOp(ast.Or(), [left, ast.Constant(None)])
            yield node, f"{text} -> {'not ' if isinstance(node.ops[0], ast.Is) else ''}{left.id}"
            node.left = left

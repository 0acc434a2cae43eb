"""Names of a file that stand for mini_vllm or a former module of it, and where it is sure that they do."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from mini_vllm.moved import ROOT_NAME, Moves

Scope = tuple[ast.AST, ...]  # the functions and classes around a node, from outside
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass
class Alias:
    """A name of a module, what binds it, and what of it is elsewhere now: names in the text, their imports."""

    former: str
    now: str
    statements: list[ast.stmt] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)


class Aliases(dict[str, Alias]):
    """All of a file, by name. ``taken`` are the names that it uses for anything else than an attribute."""

    def __init__(self, tree: ast.Module, moves: Moves) -> None:
        super().__init__()
        self._around: dict[int, Scope] = {}
        self._doubtful: set[str] = set()
        self.taken: set[str] = set()
        for node, around in _scoped(tree):
            self._around[id(node)] = around
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._take(node, moves)
            self._doubtful.update(_bound(node))
            self.taken.update([node.id] if isinstance(node, ast.Name) else _bound(node))

    def _take(self, node: ast.Import | ast.ImportFrom, moves: Moves) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.taken.add(name)
            module = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
            if isinstance(node, ast.Import) and (alias.name == ROOT_NAME or (name == ROOT_NAME and not alias.asname)):
                made = Alias(ROOT_NAME, ROOT_NAME)
            elif not getattr(node, "level", 0) and any(f"{each}.".startswith(f"{module}.") for each in moves.modules):
                made = Alias(module, moves.present(module))
            else:
                self._doubtful.add(name)
                continue
            if self.setdefault(name, made).former != made.former:
                self._doubtful.add(name)
            self[name].statements.append(node)

    def is_sure(self, name: str, node: ast.expr) -> bool:
        """Whether only imports of the module bind ``name`` in the file, one of them in a scope around ``node``."""
        if {name, "*"} & self._doubtful:
            return False
        here = self._around[id(node)]
        scopes = (self._around[id(each)] for each in self[name].statements)
        return any(
            here[: len(around)] == around and not any(isinstance(each, ast.ClassDef) for each in around[-1:])
            for around in scopes
        )


def chain(node: ast.expr) -> str:
    """``a.b.c`` of names joined by dots, else ""."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _scoped(tree: ast.Module) -> Iterator[tuple[ast.AST, Scope]]:
    """Every node with the scopes around it; without recursion, whose depth a long sum would exceed."""
    todo: list[tuple[ast.AST, Scope]] = [(tree, ())]
    while todo:
        node, around = todo.pop()
        yield node, around
        inner = (*around, node) if isinstance(node, SCOPES) else around
        todo += ((child, inner) for child in ast.iter_child_nodes(node))


def _bound(node: ast.AST) -> list[str]:
    """Names that a node binds or gives another scope by itself, imports aside."""
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return node.names
    named = () if isinstance(node, (ast.alias, ast.keyword)) else ("name", "arg", "rest")  # patterns have a rest
    return [name for each in named if isinstance(name := getattr(node, each, None), str)]

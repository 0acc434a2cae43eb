"""Which submissions look alike: fingerprints of token runs (as MOSS has them), rare ones counting for more.

What every honest submission shares is taken out first: what the starter brought, and what stands in the course's own
solution. All labs count together, as a short one has few ways to be right. Comments, layout, docstrings, the order of
functions and the names that a learner chose do not count. Parsing and tokens are the standard library's."""

import ast
import builtins
import io
import keyword
import math
import re
import tokenize
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from course.grade.intake import Submission
from course.labs import Lab

GRAM, MIN_PRINTS, PAIRS = 10, 40, 60
REFERENCE = "the course's solution"
_SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT)
_KEPT = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"self", "np"}
Prints = frozenset[tuple[str, int]]
"""Fingerprints with the lab to which they belong."""


@dataclass(frozen=True)
class Pair:
    """Two submissions (``second`` may be the course's solution). ``share``: the weight of what both have of the smaller
    one's own code in all labs, 0 to 1; ``prints``: how many runs of tokens that is; ``labs``: where it is as much."""

    first: str
    second: str
    share: float
    prints: int
    labs: tuple[str, ...]


class _Normal(ast.NodeTransformer):
    """No docstring; what a file assigns or takes as an argument is called ``name``, and so is a function or class of
    its own: only what is ``given`` keeps its name, attributes among it."""

    def __init__(self, tree: ast.AST, given: Set[str]) -> None:
        nodes = list(ast.walk(tree))
        stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.own = stored | {n.arg for n in nodes if isinstance(n, ast.arg)}
        self.given = given | _KEPT

    def _name(self, name: str) -> str:
        return name if name in self.given and (name not in self.own or name == "self") else "name"

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.Name):
            node.id = self._name(node.id)
        elif isinstance(node, ast.arg):
            node.arg = self._name(node.arg)
        elif isinstance(node, ast.Attribute):
            node.attr = node.attr if node.attr in self.given else "name"
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            node.name = node.name if node.name in self.given else "name"
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) >> 64:
            node.value = 0
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
        return node


def stream(source: bytes, given: Set[str] = frozenset()) -> list[str]:
    """The normalised tokens of a file that parses, by function; ``given``: names that the learner did not choose."""
    text = source.decode("utf-8", errors="replace").lstrip("\ufeff").replace("\0", " ")
    try:
        tree = _Normal(ast.parse(text), given).visit(ast.parse(text))
        text = "\n".join(map(ast.unparse, tree.body))
        tokens = [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in _SILENT]
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError, MemoryError):
        parts = re.split(r"^(?=\S)", text, flags=re.M)
        return [token for part in parts[1:] for token in stream(part.encode(), given)] if len(parts) > 2 else []
    return ["text" if token.type == tokenize.STRING else token.string for token in tokens]


def prints(tokens: Sequence[str]) -> frozenset[int]:
    """A fingerprint of every run of ``GRAM`` tokens that stands in one function (the order of functions is free)."""
    starts = [0, *(i for i, token in enumerate(tokens) if token in ("def", "class")), len(tokens)]
    parts = [tokens[start:end] for start, end in pairwise(starts)]
    runs = [part[i : i + GRAM] for part in parts for i in range(len(part) - GRAM + 1)]
    return frozenset(zlib.crc32(" ".join(run).encode()) for run in runs)


def similar(
    submissions: Sequence[Submission], labs: Mapping[Lab, tuple[bytes, bytes]], least: float = 0.9
) -> list[Pair]:
    """Pairs of submissions whose own work is alike by at least ``least``, the most alike first; then those that are
    alike to the course's solution by as much. ``labs``: each lab's starter and solution. What takes part has at least
    ``MIN_PRINTS`` runs of tokens of its own."""
    whole: dict[str, Prints] = {s.name: frozenset() for s in submissions}
    model: Prints = frozenset()
    for lab, (starter, solution) in labs.items():
        given = names_in(starter)
        known = prints(stream(starter, given))
        model |= {(lab.key, value) for value in prints(stream(solution, given)) - known}
        for one in submissions:
            if lab.key in one.files:
                own = prints(stream(one.files[lab.key], given)) - known
                whole[one.name] |= {(lab.key, value) for value in own}
    found = [_against(name, REFERENCE, own, model, {}, least) for name, own in whole.items()]
    rest = {name: own - model for name, own in whole.items() if len(own - model) >= MIN_PRINTS}
    spread = Counter(value for own in rest.values() for value in own)
    weights = {value: math.log(2 * (1 + len(rest)) / (1 + count)) for value, count in spread.items()}
    found += [_against(a, b, rest[a], rest[b], weights, least) for a, b in combinations(sorted(rest), 2)]
    found = [pair for pair in found if pair.share >= least and pair.prints >= MIN_PRINTS]
    found.sort(key=lambda pair: (pair.second == REFERENCE, -pair.share, pair.first, pair.second))
    return found[:PAIRS]


def names_in(source: bytes) -> frozenset[str]:
    """Every name in a starter: functions, classes, arguments, attributes."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", source.decode(errors="replace")))


def _against(first: str, second: str, one: Prints, other: Prints, weights: Mapping[Any, float], least: float) -> Pair:
    def share(a: Prints, b: Prints) -> float:
        smaller = weight(a) if second == REFERENCE else min(weight(a), weight(b))
        return round(weight(a & b) / smaller, 3) if smaller else 0.0

    def weight(values: Prints) -> float:
        return math.fsum(weights.get(value, 1.0) for value in values)

    total, labs = share(one, other), []
    for key in sorted({lab for lab, _ in one & other}) if total >= least else ():
        parts = [frozenset(p for p in whole if p[0] == key) for whole in (one, other)]
        labs += [key] if share(parts[0], parts[1]) >= least else []
    return Pair(first, second, total, len(one & other), tuple(labs))

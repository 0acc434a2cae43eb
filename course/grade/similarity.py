"""Which submissions look alike: token streams with names made equal, compared by fingerprints, then by ``difflib``.

Comments, layout, docstrings and the names that a learner chose do not count; what the starter already had does not
count either. A high value asks for a look by a person; for a lab of ten lines it is worth nothing.
"""

from __future__ import annotations

import builtins
import difflib
import io
import keyword
import tokenize
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from course.grade.intake import Submission
from course.labs import Lab

GRAM, MIN_PRINTS, CANDIDATES = 8, 24, 40
_SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT)
_KEPT = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"self", "np"}


@dataclass(frozen=True)
class Pair:
    """Two submissions in one lab; ``share`` of the smaller one's own code that the other has too, 0 to 1."""

    first: str
    second: str
    lab: Lab
    share: float


def stream(source: bytes) -> list[str]:
    """The normalised tokens of a file; what does not tokenise ends there."""
    found: list[str] = []
    try:
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type in _SILENT:
                continue
            if token.type == tokenize.NAME:
                found.append(token.string if token.string in _KEPT else "name")
            elif token.type == tokenize.STRING:
                found.append("text")
            else:
                found.append(token.string)
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError):
        pass
    return found


def prints(tokens: Sequence[str]) -> list[int]:
    """A fingerprint of every run of ``GRAM`` tokens."""
    return [zlib.crc32(" ".join(tokens[i : i + GRAM]).encode()) for i in range(len(tokens) - GRAM + 1)]


def similar(submissions: Sequence[Submission], lab: Lab, starter: bytes, least: float = 0.8) -> list[Pair]:
    """Pairs of submissions whose work in ``lab`` is alike by at least ``least``, the most alike first."""
    known = set(prints(stream(starter)))
    streams = {s.name: stream(s.files[lab.key]) for s in submissions if lab.key in s.files}
    own = {name: [p for p in prints(tokens) if p not in known] for name, tokens in streams.items()}
    sets = {name: frozenset(values) for name, values in own.items() if len(values) >= MIN_PRINTS}
    spread = Counter(value for values in sets.values() for value in values)
    if len(sets) > 8:  # what most of the class wrote is the exercise, not a copy
        sets = {name: frozenset(v for v in values if spread[v] <= len(sets) // 2) for name, values in sets.items()}
        sets = {name: values for name, values in sets.items() if len(values) >= MIN_PRINTS // 2}
    rough = []
    for first, second in combinations(sorted(sets), 2):
        share = len(sets[first] & sets[second]) / min(len(sets[first]), len(sets[second]))
        if share >= least:
            rough.append(Pair(first, second, lab, share))
    rough.sort(key=lambda pair: (-pair.share, pair.first, pair.second))
    return [_exact(pair, own) for pair in rough[:CANDIDATES]]


def _exact(pair: Pair, own: dict[str, list[int]]) -> Pair:
    """The share in order: the blocks that ``difflib`` finds in both."""
    first, second = own[pair.first], own[pair.second]
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    return Pair(pair.first, pair.second, pair.lab, round(same / min(len(first), len(second)), 3))

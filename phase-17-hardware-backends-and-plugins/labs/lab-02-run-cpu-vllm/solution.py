"""Lab 17-02: a real backend, read from three sides.

What it says about itself (its class, in the pinned source), what it does to an engine (a capture of the configuration,
before and after), and what it can reach (its memory, in bytes and in bytes a second).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Overrides:
    """A platform's class against its base: names of methods and attributes. Given.

    answered: the base has the name, and this class gives an answer of its own. added: the base does not have it.
    inherited: the base's answer stands.
    """

    answered: frozenset[str]
    added: frozenset[str]
    inherited: frozenset[str]


def predicted_start() -> tuple[int, str]:
    """Your prediction, before any code runs, about two of the starts that the README describes.

    Returns:
        How many KV blocks the `rate` start in float32 has. And which share of the questions of the `questions` start is
        answered by the CPU's own class, and not by its base: "a fiftieth", "a half" or "nine tenths", whichever is
        nearest. Each question counts as often as it was asked.
    """
    return 1365, "a fiftieth"


def cpu_kv_blocks(space_gib: int, block_size: int, kv_bytes_per_token: int) -> int:
    """KV blocks in a budget of host memory.

    Args:
        space_gib: GiB, as VLLM_CPU_KVCACHE_SPACE says. block_size: tokens. kv_bytes_per_token: in all layers.

    Raises:
        ValueError: "space_gib must be at least 1, got 0", and so for the other two.
    """
    for name, value in (
        ("space_gib", space_gib), ("block_size", block_size), ("kv_bytes_per_token", kv_bytes_per_token),
    ):  # fmt: skip
        _at_least(name, value, 1)
    return (space_gib << 30) // (block_size * kv_bytes_per_token)


def decode_ceiling_tok_s(
    bandwidth_gb_s: float, weight_gb: float, batch: int = 1, kv_gb_per_request: float = 0.0
) -> float:
    """Output tokens a second that memory allows, whatever the processor: in a step of one token for each of `batch`
    requests all weights are read once, and each request's own keys and values.

    Args:
        bandwidth_gb_s, weight_gb, kv_gb_per_request: GB are 10**9 bytes.

    Raises:
        ValueError: "bandwidth_gb_s must be positive, got 0", and so for weight_gb; "batch must be at least 1, got 0";
            "kv_gb_per_request must be at least 0, got -1".
    """
    for name, value in (("bandwidth_gb_s", bandwidth_gb_s), ("weight_gb", weight_gb)):
        if value <= 0:
            raise ValueError(f"{name} must be positive, got {value}")
    _at_least("batch", batch, 1)
    _at_least("kv_gb_per_request", kv_gb_per_request, 0)
    return batch * bandwidth_gb_s / (weight_gb + batch * kv_gb_per_request)


def share_of_ceiling(measured_tok_s: float, ceiling_tok_s: float) -> float:
    """What was reached, of what can be reached.

    Raises:
        ValueError: "measured 60 tokens a second above the ceiling of 50: one of the two is wrong"; both as `:g` prints
            them.
    """
    if measured_tok_s > ceiling_tok_s:
        above = f"measured {measured_tok_s:g} tokens a second above the ceiling of {ceiling_tok_s:g}"
        raise ValueError(f"{above}: one of the two is wrong")
    return measured_tok_s / ceiling_tok_s


def overrides(source: str, class_name: str, base_source: str, base_name: str) -> Overrides:
    """What a class says that its base does not.

    Both are read, never run: the machine need not have what they import. A name counts where the body of the class
    itself binds or declares it: a method, a property, `x = 1`, `x = y = 1`, `x: int = 1`, `x: int`; no other statement,
    `x, y = 1, 2` among them, counts. A declaration without a value is no answer: in the class it counts as nothing, in
    the base it is a name like the others. What stands inside a method or in another class does not count.

    Args:
        source, base_source: Python files; the two may be the same text.

    Raises:
        ValueError: "no class 'CpuPlatform' in this source".
    """
    mine, base = _body(source, class_name), _body(base_source, base_name)
    said, known = _names(mine, declared=False), _names(base, declared=True)
    return Overrides(frozenset(said & known), frozenset(said - known), frozenset(known - said))


def asked_by_name(source: str, class_name: str) -> frozenset[str]:
    """Methods and properties whose answer depends on who the platform is: those that read `_enum` of `self` or `cls`,
    and those that use another such method or property of `self` or `cls`, over any number of steps.

    Raises:
        ValueError: "no class 'Platform' in this source".
    """
    reads: dict[str, set[str]] = {}
    for node in _body(source, class_name):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            reads[node.name] = {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute)
                and isinstance(each.value, ast.Name)
                and each.value.id in ("self", "cls")
            }
    found = {"_enum"}
    while more := {name for name, names in reads.items() if names & found} - found:
        found |= more
    return frozenset(found - {"_enum"})


def share_by_name(questions: Sequence[Mapping[str, Any]], by_name: frozenset[str]) -> float:
    """Of all questions that were asked, the share of those whose name is in `by_name`.

    Args:
        questions: rows of captured/questions.json; "asked" says how often.

    Raises:
        ValueError: "no question was asked".
    """
    total = sum(row["asked"] for row in questions)
    if total == 0:
        raise ValueError("no question was asked")
    return sum(row["asked"] for row in questions if row["question"] in by_name) / total


def rewritten(config: Sequence[Sequence[str]]) -> dict[str, dict[str, tuple[str, str]]]:
    """What the platform has changed, by the part of the engine that it concerns.

    Args:
        config: rows of captured/config.json, [name, before, after], where a name is "part.field" and the field may have
            dots of its own.

    Returns:
        part -> field -> (before, after), without rows whose two sides are equal.

    Raises:
        ValueError: "'seed' names no part"; "'cache_config.block_size' stands there twice".
    """
    found: dict[str, dict[str, tuple[str, str]]] = {}
    seen = set()
    for name, before, after in config:
        part, dot, field = name.partition(".")
        if not dot:
            raise ValueError(f"{name!r} names no part")
        if name in seen:
            raise ValueError(f"{name!r} stands there twice")
        seen.add(name)
        if before != after:
            found.setdefault(part, {})[field] = (before, after)
    return found


def _at_least(name: str, value: float, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _body(source: str, class_name: str) -> list[ast.stmt]:
    """The statements of a class of this file."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return node.body
    raise ValueError(f"no class {class_name!r} in this source")


def _names(body: list[ast.stmt], declared: bool) -> set[str]:
    """Names that these statements bind, and with `declared` those that they only annotate."""
    found = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and (node.value or declared):
            found.add(node.target.id)
    return found

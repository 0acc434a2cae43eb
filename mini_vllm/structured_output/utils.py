"""From rows of bits to masked logits, and from other ways to write a grammar to EBNF.

Upstream twin: `vllm/v1/structured_output/utils.py`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mini_vllm.core.sched.output import GrammarOutput

if TYPE_CHECKING:
    from mini_vllm.config.structured_outputs import StructuredOutputsConfig
    from mini_vllm.structured_output.backend_types import StructuredOutputBackend, TokenVocabulary

_COMMENT = re.compile(r"(#|//).*$")
_TEXT = re.compile(r"'([^']*)'")


def apply_grammar_bitmask(
    logits: np.ndarray, req_ids: Sequence[str], grammar_output: GrammarOutput, num_rows: Sequence[int] | None = None
) -> None:
    """Set the logits of tokens that a grammar forbids to minus infinity, in place.

    Args:
        logits: [R, vocab]. req_ids: whose row each of the R is; the rows of the bitmask may have another order, and
            requests without a grammar have none. num_rows: rows of each request, one for each draft and one more;
            None: one each.

    Upstream: upstream/vllm/v1/structured_output/utils.py:44 — `apply_grammar_bitmask`, which sorts the bitmask by the
    rows of the batch first, because its kernel takes them so.
    """
    counts = [1] * len(req_ids) if num_rows is None else num_rows
    starts = itertools.accumulate(counts, initial=0)
    rows_of = {req_id: range(start, start + n) for req_id, start, n in zip(req_ids, starts, counts, strict=False)}
    place = 0
    for req_id in grammar_output.structured_output_request_ids:
        rows = rows_of.get(req_id)
        if rows is None:  # a NaN in its logits: its bits are passed over (a step with drafts leaves no row out)
            place += 1
            continue
        for row in rows:
            words = grammar_output.grammar_bitmask[place]
            allowed = np.unpackbits(words.view(np.uint8), count=logits.shape[1], bitorder="little").view(bool)
            np.copyto(logits[row], -np.inf, where=~allowed)
            place += 1


def choice_as_grammar(choice: Sequence[str]) -> str:
    """One of these texts, as EBNF.

    Upstream: upstream/vllm/v1/structured_output/utils.py:451 — `choice_as_grammar`, which leaves line ends as they
    are: its grammar then cannot be read.
    """
    return "root ::= " + " | ".join(f'"{_escaped(each)}"' for each in choice)


def _escaped(text: str) -> str:
    text = re.sub(r'(["\\])', r"\\\1", text)
    return text.replace("\n", "\\n").replace("\r", "\\r")


def grammar_is_likely_lark(grammar_str: str) -> bool:
    """True for a text without `::=` in it (comments apart).

    Upstream: upstream/vllm/v1/structured_output/utils.py:289 — `grammar_is_likely_lark`.
    """
    lines = [_COMMENT.sub("", line).strip() for line in grammar_str.split("\n")]
    return any(lines) and not any("::=" in line for line in lines)


def convert_lark_to_ebnf(grammar_str: str) -> str:
    """The subset of Lark that upstream turns into EBNF: `name: a | b`, further lines with `| c`, texts in either
    quotes; the start is the rule `start`, or the first.

    Raises ValueError, as upstream, where quotes do not match or a rule is not defined.
    Upstream: upstream/vllm/v1/structured_output/utils.py:321 — `convert_lark_to_ebnf`.
    """
    rules: dict[str, list[str]] = {}
    name = ""
    for number, line in enumerate(grammar_str.split("\n"), 1):
        line = _COMMENT.sub("", line).strip()
        if not line:
            continue
        if line.startswith("|"):
            if not name:
                raise ValueError(f"line {number}: an alternative '|' without a rule before it")
            definition = line[1:]
        elif ":" in line:
            name, _, definition = line.partition(":")
            name = name.strip().strip("?")
            rules[name] = []
        else:
            continue
        if definition.count("'") % 2 or definition.count('"') % 2:
            raise ValueError(f"line {number}: quotes in rule {name!r} do not match")
        rules[name].append(_TEXT.sub(r'"\1"', definition).strip())
    if not rules:
        raise ValueError("No valid rules found in grammar")
    _check_references(rules)
    start = "start" if "start" in rules else next(iter(rules))
    return "\n".join([f"root ::= {start}", *(f"{name} ::= {' | '.join(parts)}" for name, parts in rules.items())])


def _check_references(rules: dict[str, list[str]]) -> None:
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]', "", " ".join(part for parts in rules.values() for part in parts))
    missing = set(re.findall(r"\b[a-zA-Z_][a-zA-Z0-9_]*\b", bare)) - rules.keys() - {"root"}
    if missing:
        raise ValueError(f"Referenced rules are not defined: {', '.join(sorted(missing))}")


def make_backend(config: StructuredOutputsConfig, vocabulary: TokenVocabulary) -> StructuredOutputBackend:
    """The backend that the configuration names. Raises ImportError where its library is not installed."""
    if config.resolved_backend == "xgrammar":
        from mini_vllm.structured_output.backend_xgrammar import XgrammarBackend

        return XgrammarBackend(config, vocabulary)
    if config.resolved_backend == "guidance":
        from mini_vllm.structured_output.backend_guidance import GuidanceBackend

        return GuidanceBackend(config, vocabulary)
    from mini_vllm.structured_output.backend_mini import MiniBackend

    return MiniBackend(config, vocabulary)

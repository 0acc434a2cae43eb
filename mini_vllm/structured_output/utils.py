"""From rows of bits to masked logits, and from other ways to write a grammar to EBNF.

Upstream twin: `vllm/v1/structured_output/utils.py`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mini_vllm.core.sched.output import GrammarOutput

if TYPE_CHECKING:
    from mini_vllm.config.structured_outputs import StructuredOutputsConfig
    from mini_vllm.structured_output.backend_types import StructuredOutputBackend, TokenVocabulary

_COMMENT = re.compile(r"(#|//).*$")
_LARK_TEXT = re.compile(r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')(?P<flags>i\b)?""")
_LARK_TOKEN = re.compile(rf"{_LARK_TEXT.pattern}|\[[^\]\"']*\]|//.*|#.*")
_LARK_CLASS = re.compile(r"\[[^\]\"'|]*\]")
_LARK_RULE = re.compile(r"[!?]{0,2}(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<more>\{[^}:]*\}|\.-?\d+)?\s*:(?!:)")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_LARK_REFUSED = {
    r"->": "the alias ->", r"/": "the regular expression /…/", r"\.\.": "the range ..", r"~": "the repetition ~",
    r'""i': "a flag behind a text", r"[A-Za-z_]\w*\s*\{\s*[^\d\s,]": "a template", r"%": "the statement %",
}  # fmt: skip


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
    """The subset of Lark that upstream turns into EBNF: `name: a | b`, further lines of a rule, texts in either quotes,
    `( ) * + ?`, and ours beside it: `[a]` for what may be left out. The start is the rule `start`, or the first.

    A bracket without quotes, bars and names of rules, as in `[a-z]`, is a class of characters, as upstream has it.

    Raises ValueError, as upstream, where quotes do not match or a rule is not defined; and by name for every other mark
    of Lark: `%ignore` and the other statements, `->`, `/…/`, `..`, `~`, flags behind a text, templates, priorities.
    Upstream: upstream/vllm/v1/structured_output/utils.py:321 — `convert_lark_to_ebnf`, which passes over lines that it
    cannot read, and hands `["b"]` on as a class of characters.
    """
    rules: dict[str, list[str]] = {}
    name = ""
    for number, raw in enumerate(grammar_str.split("\n"), 1):
        line = _without_comment(raw).strip()
        if not line:
            continue
        if line.startswith("%"):
            raise ValueError(f"line {number}: {line.split()[0]} of Lark is not supported")
        head = _LARK_RULE.match(line)
        if head is not None:
            name, definition = head["name"], line[head.end() :]
            if head["more"]:
                what = "templates" if head["more"].startswith("{") else "priorities"
                raise ValueError(f"line {number}: {what} of Lark ({head['more'].strip()}) are not supported")
            if name in rules:
                raise ValueError(f"line {number}: rule {name!r} is defined twice")
            rules[name] = []
        elif name and (line.startswith("|") or raw[0].isspace() or rules[name][-1].endswith(("|", "(", "["))):
            definition = line  # a rule goes on
        else:
            raise ValueError(f"line {number}: {line[:40]!r} is no rule of Lark, and goes on with none")
        rules[name].append(_lark_definition(definition, name, number))
    if not rules:
        raise ValueError("No valid rules found in grammar")
    bodies = {name: _optional_brackets(" ".join(parts), rules) for name, parts in rules.items()}
    _check_references(bodies)
    start = "start" if "start" in rules else next(iter(rules))
    return "\n".join([f"root ::= {start}", *(f"{name} ::= {body}" for name, body in bodies.items() if name != "root")])


def _without_comment(line: str) -> str:
    """A comment begins with # or //, outside of quotes."""
    found = _LARK_TOKEN.finditer(line)
    at = next((each.start() for each in found if each[0].startswith(("#", "//"))), len(line))
    return line[:at]


def _lark_definition(text: str, name: str, number: int) -> str:
    """One line of a rule with its texts in double quotes. Raises ValueError for a mark that is not kept."""
    bare = _LARK_TEXT.sub(lambda found: '""' + "i" * bool(found["flags"]), text)
    if bare.replace('""', "").count("'") or bare.replace('""', "").count('"'):
        raise ValueError(f"line {number}: quotes in rule {name!r} do not match")
    marks = _LARK_CLASS.sub("", bare)
    for mark, what in _LARK_REFUSED.items():
        if re.search(mark, marks):
            raise ValueError(f"line {number}: {what} of Lark in rule {name!r} is not supported")
    return _LARK_TEXT.sub(_double_quoted, text).strip()


def _double_quoted(found: re.Match[str]) -> str:
    if found["text"].startswith('"'):
        return found["text"]
    return '"' + re.sub(r'(?<!\\)"', r'\\"', found["text"][1:-1]).replace("\\'", "'") + '"'


def _optional_brackets(body: str, rules: Collection[str]) -> str:
    """`["b" | c]` may be left out: `("b" | c)?`. The innermost first."""
    texts = _LARK_TEXT.findall(body)
    bare = _LARK_TEXT.sub("\0", body)
    while found := next((each for each in _BRACKET.finditer(bare) if _is_optional(each[1], rules)), None):
        bare = f"{bare[: found.start()]}({found[1]})?{bare[found.end() :]}"
    parts = bare.split("\0")
    return parts[0] + "".join(text + part for (text, _), part in zip(texts, parts[1:], strict=True))


def _is_optional(inner: str, rules: Collection[str]) -> bool:
    return "\0" in inner or "|" in inner or "(" in inner or any(each in rules for each in inner.split())


def _check_references(rules: Mapping[str, str]) -> None:
    bare = re.sub(r'"(?:\\.|[^"\\])*"|\[[^\]]*\]', "", " ".join(rules.values()))
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

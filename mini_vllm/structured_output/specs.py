"""What a user wrote, as automata: one function for every kind, and the checks at the door.

Upstream checks in each backend (`validate_xgrammar_grammar` and the like), and has no such file.
"""

from __future__ import annotations

import functools
import json

from mini_vllm.structured_output.automata.ebnf import parse_ebnf
from mini_vllm.structured_output.automata.expression import GrammarError, choice, literal
from mini_vllm.structured_output.automata.grammar import CompiledGrammar, Grammar
from mini_vllm.structured_output.automata.json_schema import schema_grammar
from mini_vllm.structured_output.automata.regex_parser import parse_regex
from mini_vllm.structured_output.automata.structural_tag import structural_tag_grammar
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.structured_output.utils import convert_lark_to_ebnf, grammar_is_likely_lark

MAX_SPEC_CHARACTERS = 1 << 20


@functools.lru_cache(maxsize=64)
def compile_spec(request_type: StructuredOutputOptions, spec: str, any_whitespace: bool = True) -> CompiledGrammar:
    """The automata of a grammar, as yet without a vocabulary; front end and core in one process share them.

    Args:
        any_whitespace: JSON may have any whitespace between its parts; otherwise it has one form.

    Raises:
        GrammarError: it cannot be read, asks for what is not supported, or allows no text at all.
    """
    if len(spec) > MAX_SPEC_CHARACTERS:
        raise GrammarError(f"a grammar may have at most {MAX_SPEC_CHARACTERS} characters, got {len(spec)}")
    try:
        return grammar_of(request_type, spec, any_whitespace).compile()
    except RecursionError:
        raise GrammarError("the grammar has too many parts inside each other") from None


def grammar_of(request_type: StructuredOutputOptions, spec: str, any_whitespace: bool = True) -> Grammar:
    """The rules that `compile_spec` makes automata of."""
    if request_type is StructuredOutputOptions.REGEX:
        return Grammar({"root": parse_regex(spec)})
    if request_type is StructuredOutputOptions.CHOICE:
        return Grammar({"root": choice(literal(each) for each in json.loads(spec))})
    if request_type is StructuredOutputOptions.GRAMMAR:
        return parse_ebnf(convert_lark_to_ebnf(spec) if grammar_is_likely_lark(spec) else spec)
    if request_type is StructuredOutputOptions.STRUCTURAL_TAG:
        return structural_tag_grammar(spec, any_whitespace)
    if request_type is StructuredOutputOptions.JSON_OBJECT:
        return schema_grammar({"type": "object"}, any_whitespace)
    return schema_grammar(parse_json(spec), any_whitespace)


def parse_json(text: str) -> object:
    """Raises GrammarError for a text that is no JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise GrammarError(f"Invalid JSON grammar specification: {error}") from None

"""llguidance behind the same interface (extra `grammar`).

Upstream twin: `vllm/v1/structured_output/backend_guidance.py`.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
    TokenVocabulary,
)
from mini_vllm.structured_output.backend_xgrammar import require_grammar_library

_KINDS = {
    StructuredOutputOptions.REGEX: "regex",
    StructuredOutputOptions.GRAMMAR: "grammar",
    StructuredOutputOptions.CHOICE: "choice",
}


class GuidanceBackend(StructuredOutputBackend):
    """Upstream: upstream/vllm/v1/structured_output/backend_guidance.py:87 — `GuidanceBackend`."""

    def __init__(self, config: StructuredOutputsConfig, vocabulary: TokenVocabulary) -> None:
        super().__init__(config, vocabulary)
        self.llguidance = require_grammar_library("llguidance")
        wrapper = self.llguidance.TokenizerWrapper(_Tokenizer(vocabulary))
        self.ll_tokenizer = self.llguidance.LLTokenizer(wrapper)

    def compile_grammar(self, request_type: StructuredOutputOptions, grammar_spec: str) -> StructuredOutputGrammar:
        """See `StructuredOutputBackend`."""
        try:
            text = self._serialize(request_type, grammar_spec)
        except Exception as error:
            raise ValueError(f"llguidance: {error}") from None
        matcher = self.llguidance.LLMatcher(self.ll_tokenizer, text, log_level=0)
        if matcher.get_error():
            raise ValueError(f"llguidance: {matcher.get_error()}")
        return GuidanceGrammar(matcher, self.vocabulary.stop_token_ids)

    def _serialize(self, request_type: StructuredOutputOptions, spec: str) -> str:
        """Upstream: upstream/vllm/v1/structured_output/backend_guidance.py:219 — `serialize_guidance_grammar`."""
        if request_type in _KINDS:
            return self.llguidance.grammar_from(_KINDS[request_type], spec)
        if request_type is StructuredOutputOptions.STRUCTURAL_TAG:
            tag = json.loads(spec)
            tags = []
            for each in tag["structures"]:
                trigger = next(t for t in tag["triggers"] if each["begin"].startswith(t))
                schema = self._schema(each["schema"])
                made = self.llguidance.StructTag(trigger=trigger, begin=each["begin"], grammar=schema, end=each["end"])
                tags.append(made)
            return self.llguidance.StructTag.to_grammar(tags)
        return self._schema('{"type": "object"}' if request_type is StructuredOutputOptions.JSON_OBJECT else spec)

    def _schema(self, schema: Any) -> str:
        if self.config.disable_additional_properties:
            schema = closed(json.loads(schema) if isinstance(schema, str) else schema)
        defaults = {"whitespace_flexible": not self.config.disable_any_whitespace}
        return self.llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=defaults)


def closed(schema: Any) -> Any:
    """A copy in which every object with properties that does not say otherwise has no others.

    Upstream: upstream/vllm/v1/structured_output/backend_guidance.py:35 — `_walk_json_for_additional_properties`.
    """
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {key: closed(value) for key, value in schema.items()}
    if "additionalProperties" not in copy and ("properties" in copy or "patternProperties" in copy):
        copy["additionalProperties"] = False
    return copy


class GuidanceGrammar(StructuredOutputGrammar):
    """Upstream: upstream/vllm/v1/structured_output/backend_guidance.py:138 — `GuidanceGrammar`."""

    def __init__(self, ll_matcher: Any, stop_token_ids: list[int]) -> None:
        self.ll_matcher, self.stop_token_ids = ll_matcher, frozenset(stop_token_ids)
        self._fill = require_grammar_library("llguidance.numpy").fill_next_token_bitmask
        self.terminated, self.rollback_lag = False, 0

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """See `StructuredOutputGrammar`. The library may have stopped before the end of sequence is read; that token is
        then not one of its own."""
        if self.stop_token_ids.intersection(tokens):
            self.rollback_lag = int(self.ll_matcher.is_stopped() and not self.terminated)
            self.terminated = True
        return bool(self.ll_matcher.is_stopped() or self.ll_matcher.consume_tokens(tokens))

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """See `StructuredOutputGrammar`."""
        if not tokens or self.ll_matcher.is_stopped():
            return []
        return tokens[: self.ll_matcher.validate_tokens(tokens)]

    def rollback(self, num_tokens: int) -> None:
        """See `StructuredOutputGrammar`."""
        if num_tokens:
            self.ll_matcher.rollback(num_tokens - self.rollback_lag)
            self.terminated, self.rollback_lag = False, 0

    def fill_bitmask(self, bitmask: np.ndarray, batch_index: int) -> None:
        """See `StructuredOutputGrammar`."""
        self._fill(self.ll_matcher, bitmask, batch_index)

    def is_terminated(self) -> bool:
        """See `StructuredOutputGrammar`."""
        return self.terminated

    def reset(self) -> None:
        """See `StructuredOutputGrammar`."""
        self.ll_matcher.reset()
        self.terminated, self.rollback_lag = False, 0


class _Tokenizer:
    """What llguidance asks of a tokenizer: the bytes of its tokens. Texts are never encoded here but byte by byte."""

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        size = vocabulary.vocab_size
        self.tokens = [*vocabulary.tokens, *[b""] * (size - len(vocabulary.tokens))]
        self.eos_token_id, self.bos_token_id = vocabulary.stop_token_ids[0], None
        self.special_token_ids = [number for number, token in enumerate(self.tokens) if not token]
        self._of_byte = {token: number for number, token in enumerate(self.tokens) if len(token) == 1}

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [self._of_byte[bytes([byte])] for byte in data if bytes([byte]) in self._of_byte]

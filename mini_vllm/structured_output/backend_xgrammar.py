"""xgrammar behind the same interface (extra `grammar`). Upstream twin: `vllm/v1/structured_output/backend_xgrammar.py`.

The library gets the bytes of the tokens, as ours does, so that special tokens are no text; upstream lets it read the
tokenizer, and `<|end|>` may then stand in a string.
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
from mini_vllm.structured_output.utils import choice_as_grammar, convert_lark_to_ebnf, grammar_is_likely_lark

CACHE_BYTES = 512 << 20
"""Upstream's default of `VLLM_XGRAMMAR_CACHE_MB`."""


def require_grammar_library(name: str) -> Any:
    """Import xgrammar or llguidance. Raises ImportError that says which extra brings it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        message = f"the backend needs {name}: pip install 'mini-vllm-course[grammar]'"
        raise ImportError(message, name=name) from None


class XgrammarBackend(StructuredOutputBackend):
    """Upstream: upstream/vllm/v1/structured_output/backend_xgrammar.py:35 — `XgrammarBackend`."""

    def __init__(self, config: StructuredOutputsConfig, vocabulary: TokenVocabulary, max_rollback_tokens: int = 0):
        super().__init__(config, vocabulary)
        self.xgr = require_grammar_library("xgrammar")
        info = self.xgr.TokenizerInfo(
            vocabulary.tokens,
            vocab_type=self.xgr.VocabType.RAW,
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=vocabulary.stop_token_ids,
        )
        self.compiler = self.xgr.GrammarCompiler(info, max_threads=8, cache_enabled=True, cache_limit_bytes=CACHE_BYTES)
        self.max_rollback_tokens = max_rollback_tokens

    def compile_grammar(self, request_type: StructuredOutputOptions, grammar_spec: str) -> StructuredOutputGrammar:
        """See `StructuredOutputBackend`."""
        try:
            compiled = self._compile(request_type, grammar_spec)
        except RuntimeError as error:
            raise ValueError(f"xgrammar: {error}") from None
        return XgrammarGrammar(self.xgr.GrammarMatcher(compiled, max_rollback_tokens=self.max_rollback_tokens))

    def _compile(self, request_type: StructuredOutputOptions, spec: str) -> Any:
        any_whitespace = not self.config.disable_any_whitespace
        if request_type is StructuredOutputOptions.JSON:
            return self.compiler.compile_json_schema(spec, any_whitespace=any_whitespace)
        if request_type is StructuredOutputOptions.JSON_OBJECT:
            return self.compiler.compile_json_schema('{"type": "object"}', any_whitespace=any_whitespace)
        if request_type is StructuredOutputOptions.REGEX:
            return self.compiler.compile_regex(spec)
        if request_type is StructuredOutputOptions.CHOICE:
            return self.compiler.compile_grammar(choice_as_grammar(json.loads(spec)))
        if request_type is StructuredOutputOptions.GRAMMAR:
            return self.compiler.compile_grammar(convert_lark_to_ebnf(spec) if grammar_is_likely_lark(spec) else spec)
        tag = json.loads(spec)
        if "structures" not in tag:
            return self.compiler.compile_structural_tag(spec)
        items = [
            self.xgr.StructuralTagItem(begin=each["begin"], schema=json.dumps(each["schema"]), end=each["end"])
            for each in tag["structures"]
        ]
        return self.compiler.compile_structural_tag(items, tag["triggers"])


class XgrammarGrammar(StructuredOutputGrammar):
    """Upstream: upstream/vllm/v1/structured_output/backend_xgrammar.py:132 — `XgrammarGrammar`."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """See `StructuredOutputGrammar`; as upstream, the tokens before a wrong one stay accepted."""
        if self.matcher.is_terminated():
            return False
        return all(self.matcher.accept_token(token) for token in tokens)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """See `StructuredOutputGrammar`."""
        accepted = []
        for token in tokens:
            if not self.matcher.accept_token(token):
                break
            accepted.append(token)
        if accepted:
            self.matcher.rollback(len(accepted))
        return accepted

    def rollback(self, num_tokens: int) -> None:
        """See `StructuredOutputGrammar`."""
        if num_tokens:
            self.matcher.rollback(num_tokens)

    def fill_bitmask(self, bitmask: np.ndarray, batch_index: int) -> None:
        """See `StructuredOutputGrammar`."""
        bitmask[batch_index].fill(-1)  # left alone by the library where everything is allowed
        self.matcher.fill_next_token_bitmask(bitmask, batch_index)

    def is_terminated(self) -> bool:
        """See `StructuredOutputGrammar`."""
        return bool(self.matcher.is_terminated())

    def reset(self) -> None:
        """See `StructuredOutputGrammar`."""
        self.matcher.reset()

"""A request's grammar, while it is compiled and after. Upstream twin: `vllm/v1/structured_output/request.py`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from mini_vllm.structured_output.backend_types import (
    StructuredOutputGrammar,
    StructuredOutputKey,
    StructuredOutputOptions,
)

if TYPE_CHECKING:
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams
    from mini_vllm.structured_outputs_params import StructuredOutputsParams

T = TypeVar("T")
_PATIENCE = 1e-4  # seconds that a look at an unfinished grammar takes at most, as upstream


@dataclass
class StructuredOutputRequest:
    """What the scheduler keeps beside a request that has to obey a grammar.

    reasoning_ended, reasoner, reasoning_parser_kwargs: see `reasoning.py`. error: why the grammar cannot go on; the
    request ends with it.

    Upstream: upstream/vllm/v1/structured_output/request.py:22 — `StructuredOutputRequest`.
    """

    params: StructuredOutputsParams
    _grammar: Future[StructuredOutputGrammar] | StructuredOutputGrammar | None = None
    reasoning_ended: bool | None = None
    reasoner: Any = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    error: str | None = None

    @staticmethod
    def from_sampling_params(sampling_params: SamplingParams) -> StructuredOutputRequest | None:
        """None for a request without a grammar.

        Upstream: upstream/vllm/v1/structured_output/request.py:32 — `StructuredOutputRequest.from_sampling_params`.
        """
        params = sampling_params.structured_outputs
        return None if params is None or params.all_constraints_none() else StructuredOutputRequest(params)

    @property
    def is_grammar_ready(self) -> bool:
        """Whether compiling has come to its end, good or bad; waits for 0.1 ms at most."""
        if isinstance(self._grammar, Future):
            try:
                self._grammar = self._grammar.result(timeout=_PATIENCE)
            except FutureTimeoutError:
                return False
            except Exception as error:  # upstream lets it rise in the middle of `schedule`
                self.error, self._grammar = f"the grammar cannot be compiled: {error}", None
        return self._grammar is not None or self.error is not None

    @property
    def grammar(self) -> StructuredOutputGrammar | None:
        """The grammar, None while it is not there."""
        return self._grammar if self.is_grammar_ready and not isinstance(self._grammar, Future) else None

    @grammar.setter
    def grammar(self, grammar: Future[StructuredOutputGrammar] | StructuredOutputGrammar) -> None:
        self._grammar = grammar

    def attempt(
        self, step: Callable[[StructuredOutputGrammar], T], otherwise: T, fails: type[Exception] = Exception
    ) -> T:
        """A step of the grammar, which is there; `otherwise` where it `fails`: the request then ends with its error."""
        assert self.grammar is not None
        try:
            return step(self.grammar)
        except fails as failure:
            self.error = f"the grammar cannot go on: {failure}"
            return otherwise

    @functools.cached_property
    def structured_output_key(self) -> StructuredOutputKey:
        """What is compiled: equal keys are equal grammars."""
        return get_structured_output_key(self.params)


def get_structured_output_key(params: StructuredOutputsParams) -> StructuredOutputKey:
    """The one constraint that is set, as text.

    Upstream: upstream/vllm/v1/structured_output/request.py:77 — `get_structured_output_key`.
    """
    if params.json is not None:
        text = params.json if isinstance(params.json, str) else json.dumps(params.json)
        return StructuredOutputOptions.JSON, text
    if params.json_object:
        return StructuredOutputOptions.JSON_OBJECT, ""
    if params.regex is not None:
        return StructuredOutputOptions.REGEX, params.regex
    if params.choice is not None:
        return StructuredOutputOptions.CHOICE, json.dumps(params.choice)
    if params.grammar is not None:
        return StructuredOutputOptions.GRAMMAR, params.grammar
    if params.structural_tag is not None:
        return StructuredOutputOptions.STRUCTURAL_TAG, params.structural_tag
    raise ValueError("No valid structured output parameter found")


def catch_up(grammar: StructuredOutputGrammar, request: Request, reasoner: Any) -> None:
    """Let a new grammar go on by the tokens that its request brings along from another replica: by all of them, or by
    those behind the end of the thinking, of which `reasoner` knows.

    Raises:
        ValueError: it rejects them.
    """
    tokens, start = request.all_token_ids, request.num_prompt_tokens
    while reasoner is not None:
        if start == len(tokens):
            return  # it thinks
        start += 1
        if reasoner.is_reasoning_end_streaming(tokens[:start], tokens[start - 1 : start]):
            reasoner, request.structured_output_request.reasoning_ended = None, True  # type: ignore[union-attr]
    if not grammar.accept_tokens(request.request_id, tokens[start:]):
        raise ValueError(f"it rejected {tokens[start:]}, which it had accepted in another replica")

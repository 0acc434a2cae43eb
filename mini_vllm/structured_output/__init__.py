"""Outputs that obey a grammar. Upstream twin: `vllm/v1/structured_output/__init__.py`.

    add_request         a grammar is compiled in a thread; the request waits, others pass it by
    schedule            ready: the request is admitted as any other
    after the forward   a row of bits for each request that samples: which tokens may come next
    sample_tokens       the other logits become minus infinity
    update_from_output  the grammar goes on by the token that was sampled, and, where it is wanted, by all that is
                        forced behind it (`jump_forward.py`)

The manager stands beside the scheduler, and only finished rows go to the workers. Left out: filling rows in several
threads (upstream does for more than 128 requests; in Python they would wait for one another).
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.core.sched.output import GrammarOutput, SchedulerOutput
from mini_vllm.request import Request, RequestStatus
from mini_vllm.structured_output.automata.expression import GrammarError
from mini_vllm.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    TokenVocabulary,
)
from mini_vllm.structured_output.reasoning import ReasoningParser, load_reasoning_parser
from mini_vllm.structured_output.request import catch_up
from mini_vllm.structured_output.utils import make_backend as make_backend

if TYPE_CHECKING:
    from mini_vllm.structured_output.backend_mini import MiniGrammar
    from mini_vllm.structured_output.jump_forward import JumpForward

_NO_DRAFTS: dict[str, list[int]] = {}


class StructuredOutputManager:
    """All grammars of an engine.

    Args:
        config: which backend, and how.
        max_num_seqs: rows of the bitmask, times 1 + `num_speculative_tokens`.
        make_vocabulary: called once, with the first grammar. make_tokenizer: for a reasoning parser.
        make_jump_forward: makes what writes down what is forced; None: nobody does. All three are called when they are
            first needed: an engine that meets no grammar has paid for an empty object.

    Upstream: upstream/vllm/v1/structured_output/__init__.py:36 — `StructuredOutputManager`.
    """

    def __init__(
        self,
        config: StructuredOutputsConfig,
        max_num_seqs: int,
        make_vocabulary: Callable[[], TokenVocabulary],
        make_tokenizer: Callable[[], Any] = lambda: None,
        num_speculative_tokens: int = 0,
        make_jump_forward: Callable[[], JumpForward] | None = None,
    ) -> None:
        self.config, self.max_num_rows = config, max_num_seqs * (1 + num_speculative_tokens)
        self.num_speculative_tokens = num_speculative_tokens
        self.backend: StructuredOutputBackend | None = None
        self._make_vocabulary, self._make_tokenizer = make_vocabulary, make_tokenizer
        self._make_jump_forward = make_jump_forward
        self._grammar_bitmask: np.ndarray | None = None
        self.executor = ThreadPoolExecutor(max(1, ((os.cpu_count() or 1) + 1) // 2), "grammar")

    @functools.cached_property
    def reasoner_cls(self) -> type[ReasoningParser] | None:
        """Says where thinking ends; None: nobody thinks."""
        return load_reasoning_parser(self.config.reasoning_parser, self.config.reasoning_parser_plugin)

    @functools.cached_property
    def jump_forward(self) -> JumpForward | None:
        """Writes down what is forced; None: nobody does."""
        return None if self._make_jump_forward is None else self._make_jump_forward()

    def grammar_init(self, request: Request) -> None:
        """Start to compile the grammar of a request that has one; the scheduler asks when it is there.

        Upstream: upstream/vllm/v1/structured_output/__init__.py:115 — `StructuredOutputManager.grammar_init`.
        """
        if request.structured_output_request is None:
            return
        if self.backend is None:
            self.backend = make_backend(self.config, self._make_vocabulary())
        request.structured_output_request.grammar = self.executor.submit(self._create_grammar, request)

    def _create_grammar(self, request: Request) -> StructuredOutputGrammar:
        assert self.backend is not None and request.structured_output_request is not None
        grammar = self.backend.compile_grammar(*request.structured_output_request.structured_output_key)
        if request.output_token_ids:
            catch_up(grammar, request, None if self.should_fill_bitmask(request) else self._get_reasoner(request))
        return grammar

    def grammar_output(self, requests: dict[str, Request], output: SchedulerOutput) -> GrammarOutput | None:
        """The bitmask of a step, for those of its requests that have a grammar; None where there are none."""
        ids = [request_id for request_id in output.num_scheduled_tokens if self._fills_row(requests.get(request_id))]
        bitmask = self.grammar_bitmask(requests, ids, output.scheduled_spec_decode_tokens)
        return None if bitmask is None else GrammarOutput(ids, bitmask)

    @staticmethod
    def _fills_row(request: Request | None) -> bool:
        return request is not None and request.use_structured_output and not request.is_prefill_chunk

    def grammar_bitmask(
        self,
        requests: dict[str, Request],
        structured_output_request_ids: Sequence[str],
        scheduled_spec_decode_tokens: dict[str, list[int]] = _NO_DRAFTS,
    ) -> np.ndarray | None:
        """Rows of bits in the order of the ids; for a request with drafts one row for each, and one more.

        A grammar that fails, or that leaves no token, is remembered in its request, which ends with that error; its
        row allows everything meanwhile.

        Upstream: upstream/vllm/v1/structured_output/__init__.py:204 — `StructuredOutputManager.grammar_bitmask`.
        """
        if not structured_output_request_ids:
            return None
        if self._grammar_bitmask is None:
            assert self.backend is not None
            self._grammar_bitmask = self.backend.allocate_token_bitmask(self.max_num_rows)
        row = 0
        for req_id in structured_output_request_ids:
            request = requests[req_id]
            assert request.structured_output_request is not None
            grammar = request.structured_output_request.grammar
            if grammar is None:  # it could not be compiled, which ends the request after this step
                self._grammar_bitmask[row].fill(-1)
                row += 1
                continue
            apply = self.should_fill_bitmask(request)
            advanced = 0
            for token in itertools.chain(scheduled_spec_decode_tokens.get(req_id, ()), (-1,)):
                self._fill_row(request, grammar, row, apply, advanced > 0)
                apply = apply and token != -1  # -1 pads drafts that were found illegal
                if apply and not grammar.is_terminated():
                    accepted = request.structured_output_request.attempt(_accept(req_id, [token]), None)
                    assert accepted is not False, (token, req_id, scheduled_spec_decode_tokens)
                    apply = bool(accepted)  # None: it costs too much, and the request ends with that error
                    advanced += apply
                row += 1
            grammar.rollback(advanced)
        return self._grammar_bitmask[:row].copy()

    def _fill_row(
        self, request: Request, grammar: StructuredOutputGrammar, row: int, apply: bool, behind_draft: bool
    ) -> None:
        assert self._grammar_bitmask is not None and request.structured_output_request is not None
        words = self._grammar_bitmask[row]
        state = request.structured_output_request
        if not apply or grammar.is_terminated() or state.error is not None:
            words.fill(-1)
            return
        try:
            grammar.fill_bitmask(self._grammar_bitmask, row)
            error = "" if words.any() else "a dead end of the grammar: no token of the vocabulary can stand here"
        except Exception as failure:
            error = f"the grammar cannot go on: {failure}"
        if error:
            words.fill(-1)
            if not behind_draft:  # else it is an error only if the draft is accepted: what is sampled here is rejected
                state.error = error

    def legal_drafts(self, request: Request, token_ids: list[int]) -> list[int]:
        """The drafts up to the first that the request's grammar forbids; none where it fails, and ends the request."""
        state = request.structured_output_request
        assert state is not None and state.grammar is not None
        if state.error is not None or state.grammar.is_terminated():
            return []
        return state.attempt(lambda grammar: grammar.validate_tokens(token_ids), [])

    def advance(
        self, request: Request, new_token_ids: list[int], append: Callable[[Request, list[int]], list[int]]
    ) -> tuple[list[int], bool]:
        """Let the grammar of a request go on by its new tokens; they, and whether the request ends. It may end with an
        error, and then without them, or, under `ignore_eos`, because its grammar has ended (upstream samples one token
        more and calls it an error). Forced tokens join them: `append` gives them to the request, and the next step
        computes them with the last one that was sampled, in one chunk (upstream has no jumps, see `jump_forward.py`).

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1416 — "should_advance(request)".
        """
        error = self._accept_tokens(request, new_token_ids)
        if error is not None:  # its keys and values are those of its tokens, and may be found by others
            request.status, request.stop_reason = RequestStatus.FINISHED_ERROR, error
            return [], True
        if not request.is_finished() and (forced := self.forced_tokens(request)):
            new_token_ids = new_token_ids + append(request, forced)
        if not request.is_finished() and self.is_terminated(request):
            request.status = RequestStatus.FINISHED_STOPPED
        return new_token_ids, request.is_finished()

    def _accept_tokens(self, request: Request, token_ids: list[int]) -> str | None:
        """Go on by what was sampled. Returns why the request has to end with an error, None where all is well."""
        state = request.structured_output_request
        if state is None:
            return None
        if state.error is None and self.should_advance(request):
            assert state.grammar is not None
            if not state.attempt(_accept(request.request_id, token_ids), True):
                state.error = f"the grammar rejected tokens {token_ids}"
        return state.error

    def forced_tokens(self, request: Request) -> list[int]:
        """Tokens that have to follow the last one of a request; its grammar goes on by them. None while it thinks."""
        state = request.structured_output_request
        if self.jump_forward is None or state is None or not self.should_fill_bitmask(request):
            return []
        jump = self.jump_forward
        return state.attempt(lambda grammar: jump.advance(request, cast("MiniGrammar", grammar)), [], GrammarError)

    def is_terminated(self, request: Request) -> bool:
        """True where the end of sequence was accepted: nothing can follow, even with `ignore_eos`."""
        state = request.structured_output_request
        return state is not None and state.grammar is not None and state.grammar.is_terminated()

    def should_fill_bitmask(self, request: Request) -> bool:
        """False while the model thinks, where it may think freely.

        Upstream: upstream/vllm/v1/structured_output/__init__.py:302 — `StructuredOutputManager.should_fill_bitmask`.
        """
        reasoner = self._get_reasoner(request)
        if reasoner is None or self.config.enable_in_reasoning:
            return True
        state = request.structured_output_request
        assert state is not None
        if state.reasoning_ended is None:
            state.reasoning_ended = bool(reasoner.is_reasoning_end(request.prompt_token_ids))
        return state.reasoning_ended

    def should_advance(self, request: Request) -> bool:
        """Whether the grammar goes on by the tokens of this step. The tokens that end the thinking are not its own.

        Upstream: upstream/vllm/v1/structured_output/__init__.py:322 — `StructuredOutputManager.should_advance`.
        """
        if not request.use_structured_output:
            return False
        reasoner = self._get_reasoner(request)
        if reasoner is None or self.config.enable_in_reasoning:
            return True
        state = request.structured_output_request
        assert state is not None
        if state.reasoning_ended:
            return True
        start = request.num_computed_tokens - request.num_output_placeholders  # below 0 after a preemption in flight
        if reasoner.is_reasoning_end_streaming(request.all_token_ids, request.all_token_ids[start:]):
            state.reasoning_ended = True
        return False

    def drafts_of_thinking(self, request: Request, token_ids: list[int]) -> list[int]:
        """The drafts before the first that ends the thinking. So its end is the last token of a step, and what comes
        behind has its row of bits, as without drafts.

        Upstream takes such drafts: it looks for the end in the last token of a step alone, and what stands behind an
        end in the same step is free (upstream/vllm/v1/structured_output/__init__.py:346 — "delta_from").
        """
        reasoner, told = self._get_reasoner(request), request.all_token_ids
        if reasoner is None:
            return token_ids
        size = len(told)
        try:  # the drafts stand behind the request's own tokens only while the parser looks: a copy would cost them all
            for at, token_id in enumerate(token_ids):
                told.append(token_id)
                if reasoner.is_reasoning_end_streaming(told, [token_id]):
                    return token_ids[:at]
            return token_ids
        finally:
            del told[size:]

    def _get_reasoner(self, request: Request) -> Any:
        state = request.structured_output_request
        if state is None or self.reasoner_cls is None:
            return None
        if state.reasoner is None:
            state.reasoner = self.reasoner_cls(self._make_tokenizer(), **(state.reasoning_parser_kwargs or {}))
        return state.reasoner

    def clear_backend(self) -> None:
        """Forget what was compiled, and end the threads."""
        self.executor.shutdown(wait=False)
        if self.backend is not None:
            self.backend.destroy()


def _accept(request_id: str, token_ids: list[int]) -> Callable[[StructuredOutputGrammar], bool]:
    return lambda grammar: grammar.accept_tokens(request_id, token_ids)

"""First the thoughts, then the calls: two parsers behind one another. Upstream twin: `vllm/parser/abstract_parser.py`.

<think>I need the weather.</think>Let me look. <tool_call>{"name": "get_weather", ...}</tool_call>
└ the reasoning parser, until it says that the thinking has ended ┘└ the tool parser sees only what follows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mini_vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionRequest,
)
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.reasoning.abs_reasoning_parsers import ReasoningParser
from mini_vllm.tool_parsers.abstract_tool_parser import ToolParser
from mini_vllm.tool_parsers.streaming import (
    TextFilter,
    extract_named_tool_call_streaming,
    extract_required_tool_call_streaming,
    filter_delta_text,
)
from mini_vllm.tool_parsers.tool_schema import Tool
from mini_vllm.tool_parsers.utils import partial_tag_overlap


@dataclass
class StreamState:
    """Where a stream stands.

    previous_text, previous_token_ids: what the parser whose turn it is has seen.
    function_name_returned: of a forced call.
    late_text, late_token_ids: from a mark of thoughts on, whose text has not come for `late_for` steps.

    Upstream: upstream/vllm/parser/abstract_parser.py:52 — `StreamState`.
    """

    reasoning_ended: bool = False
    tool_call_text_started: bool = False
    prompt_reasoning_checked: bool = False
    previous_text: str = ""
    previous_token_ids: list[int] = field(default_factory=list)
    function_name_returned: bool = False
    late_text: str = ""
    late_token_ids: list[int] = field(default_factory=list)
    late_for: int = 0


@dataclass
class Step:
    """One step, as the parser whose turn it is sees it."""

    text: str
    token_ids: list[int]
    current_text: str
    current_token_ids: list[int]

    def seen(self, state: StreamState) -> tuple[str, str, str, Sequence[int], Sequence[int], Sequence[int]]:
        """The six arguments of every streaming parser."""
        before, ids_before = state.previous_text, state.previous_token_ids
        return before, self.current_text, self.text, ids_before, self.current_token_ids, self.token_ids


class Parser:
    """One parser for each choice of an answer (upstream/vllm/parser/abstract_parser.py:67 — `Parser`)."""

    reasoning_parser_cls: ClassVar[type[ReasoningParser] | None] = None
    tool_parser_cls: ClassVar[type[ToolParser] | None] = None

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None, **kwargs: Any) -> None:
        self.model_tokenizer = tokenizer
        thinks, calls = self.reasoning_parser_cls, self.tool_parser_cls
        self._reasoning_parser = None if thinks is None else thinks(tokenizer, **kwargs)
        self._tool_parser = None if calls is None else calls(tokenizer, tools)
        self._stream_state = StreamState()

    @property
    def reasoning_parser(self) -> ReasoningParser | None:
        """Of this stream, or None."""
        return self._reasoning_parser

    @property
    def tool_parser(self) -> ToolParser | None:
        """Of this stream, or None."""
        return self._tool_parser

    def parse_delta(
        self,
        delta_text: str,
        delta_token_ids: list[int],
        request: ChatCompletionRequest,
        prompt_token_ids: list[int] | None = None,
    ) -> DeltaMessage | None:
        """What one step lets the client know; None: nothing yet."""
        raise NotImplementedError


class DelegatingParser(Parser):
    """A reasoning parser, a tool parser, or both (upstream/vllm/parser/abstract_parser.py:329 — `DelegatingParser`).

    Left out: what upstream's has for the responses API.
    """

    def is_reasoning_end(self, input_ids: list[int]) -> bool:
        """As the reasoning parser says; False without one."""
        return self.reasoning_parser is not None and self.reasoning_parser.is_reasoning_end(input_ids)

    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """(thoughts, answer) of a whole output."""
        if self.reasoning_parser is None:
            return None, model_output
        return self.reasoning_parser.extract_reasoning(model_output, request)

    def adjust_request(self, request: ChatCompletionRequest) -> ChatCompletionRequest:
        """Called before generation."""
        for parser in (self.reasoning_parser, self.tool_parser):
            request = request if parser is None else parser.adjust_request(request)
        return request

    def parse_delta(
        self,
        delta_text: str,
        delta_token_ids: list[int],
        request: ChatCompletionRequest,
        prompt_token_ids: list[int] | None = None,
    ) -> DeltaMessage | None:
        """The step in which the thinking ends may carry thoughts and a call.

        Without `prompt_token_ids` nobody knows whether the thinking is over, and without a reasoning parser the text
        goes out as it is.

        Upstream: upstream/vllm/parser/abstract_parser.py:317 — `parse_delta`.
        """
        state = self._stream_state
        if not state.prompt_reasoning_checked and prompt_token_ids is not None:
            state.prompt_reasoning_checked = True
            parser = self.reasoning_parser
            state.reasoning_ended = parser is None or parser.ended_before(prompt_token_ids)
        delta_text, delta_token_ids = self.step_of(delta_text, delta_token_ids, request)
        ids_after = state.previous_token_ids + delta_token_ids
        step = Step(delta_text, delta_token_ids, state.previous_text + delta_text, ids_after)
        delta = None
        thinks = self.reasoning_parser is not None and not state.reasoning_ended
        if thinks:
            delta = self._think(step)
        if self.tool_parser is not None and state.reasoning_ended:
            delta = self._call(step, delta, request)
        elif delta is None and (self.reasoning_parser is None or state.reasoning_ended):
            delta = DeltaMessage(content=step.text)
        state.previous_text, state.previous_token_ids = step.current_text, step.current_token_ids
        return delta

    def step_of(self, text: str, token_ids: list[int], request: ChatCompletionRequest) -> tuple[str, list[int]]:
        """Text and ids that belong together, as far as the first mark of thoughts whose text is not there.

        Text that may become a stop string is held back, ids are not: a parser that asks ids would cut the text at a
        mark that has not come. Upstream's does: thoughts become the answer's, or the mark itself is sent.
        """
        state, parser = self._stream_state, self.reasoning_parser
        text, ids = state.late_text + text, state.late_token_ids + token_ids
        state.late_text, state.late_token_ids = "", []
        lag = max(map(len, [request.stop] if isinstance(request.stop, str) else request.stop or []), default=0) - 1
        if parser is None or state.reasoning_ended or lag < 1:
            return text, ids
        for mark in filter(None, (parser.reasoning_start_str, parser.reasoning_end_str)):
            token_id = parser.vocab.get(mark)
            if token_id not in ids or mark in text:
                continue
            state.late_for += 1
            if state.late_for > lag + len(mark):  # it is left out of the text
                break
            at, waits = ids.index(token_id), partial_tag_overlap(text, mark)
            state.late_text, state.late_token_ids = text[len(text) - waits :], ids[at:]
            return text[: len(text) - waits], ids[:at]
        state.late_for = 0
        return text, ids

    def _think(self, step: Step) -> DeltaMessage | None:
        """The reasoning parser's turn. If it ends here, the step that remains is the answer's part of it."""
        state, parser = self._stream_state, self.reasoning_parser
        assert parser is not None
        delta = parser.extract_reasoning_streaming(*step.seen(state))
        if parser.is_reasoning_end_streaming(step.current_token_ids, step.token_ids):
            state.reasoning_ended = True
            step.text = step.current_text = (delta.content if delta else None) or ""
            step.token_ids = step.current_token_ids = parser.extract_content_ids(step.token_ids)
        return delta

    def _call(self, step: Step, thoughts: DeltaMessage | None, request: ChatCompletionRequest) -> DeltaMessage | None:
        """The tool parser's turn; thoughts of the same step go along."""
        state = self._stream_state
        if not state.tool_call_text_started:
            state.tool_call_text_started = True
            state.previous_text, state.previous_token_ids = "", []
            step.text, step.token_ids = step.current_text, step.current_token_ids
        delta = self._calls_of(step, request)
        if thoughts and thoughts.reasoning:
            delta = delta or DeltaMessage()
            delta.reasoning = thoughts.reasoning
        return delta

    def text_filter(self, previous_text: str) -> TextFilter:
        """Of a forced call, for the step behind `previous_text`."""
        return filter_delta_text

    def _calls_of(self, step: Step, request: ChatCompletionRequest) -> DeltaMessage | None:
        """A forced call is plain JSON, since a grammar made it; all others are the tool parser's."""
        state, parser, choice = self._stream_state, self.tool_parser, request.tool_choice
        assert parser is not None
        delta: DeltaMessage | None
        if parser.supports_required_and_named and isinstance(choice, ChatCompletionNamedToolChoiceParam):
            delta = extract_named_tool_call_streaming(step.text, choice.function.name, state.function_name_returned)
            state.function_name_returned = True
            return delta
        if parser.supports_required_and_named and choice == "required":
            before, filter_text = state.previous_text, self.text_filter(state.previous_text)
            delta, state.function_name_returned = extract_required_tool_call_streaming(
                before, step.current_text, step.text, state.function_name_returned, filter_text
            )
            return delta
        state.function_name_returned = False
        return parser.extract_tool_calls_streaming(*step.seen(state), request)

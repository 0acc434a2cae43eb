"""What every tool parser is. Upstream twin: `vllm/tool_parsers/abstract_tool_parser.py`.

A model writes its calls as text, in the syntax that it was trained on. A parser finds them: in a whole answer
(`extract_tool_calls`), or step by step while the answer grows (`extract_tool_calls_streaming`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from mini_vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionNamedToolChoiceParam,
    ChatCompletionRequest,
)
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage, ExtractedToolCallInformation
from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.tool_parsers.tool_schema import NO_ARGUMENTS, Tool, get_json_schema_from_tools, is_function_tool
from mini_vllm.utils.parser_registry import ParserRegistry


class ToolParser:
    """One parser for each answer, since it remembers what it has sent.

    Args:
        tokenizer: has `get_vocab()`. tools: what the request offers.

    Attributes:
        supports_required_and_named: False where a forced call is not plain JSON for this model, so that the parser
            itself has to find it.
        prev_tool_call_arr: the calls as they were read in the last step.
        streamed_args_for_tool: of each call, the arguments that have been sent.
        current_tool_id: index of the call that is being read; -1 before the first.
        current_tool_name_sent: its name went out.

    Upstream: upstream/vllm/tool_parsers/abstract_tool_parser.py:43 — `ToolParser`.
    """

    supports_required_and_named: ClassVar[bool] = True
    keeps_special_tokens: ClassVar[bool] = False
    """The syntax uses tokens that detokenization would leave out."""

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] | None = None) -> None:
        self.model_tokenizer = tokenizer
        self.tools = [tool for tool in tools or () if is_function_tool(tool)]
        self.prev_tool_call_arr: list[dict[str, Any]] = []
        self.streamed_args_for_tool: list[str] = []
        self.current_tool_id = -1
        self.current_tool_name_sent = False

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Token texts to ids."""
        return self.model_tokenizer.get_vocab()

    def require_tokens(self, *tokens: str) -> list[int]:
        """Ids of tokens without which the syntax cannot be told from text.

        Raises ValueError without a tokenizer, RuntimeError where its vocabulary lacks one of them.
        """
        if not self.model_tokenizer:
            raise ValueError("The model tokenizer must be passed to the ToolParser constructor during construction.")
        missing = [token for token in tokens if token not in self.vocab]
        if missing:
            raise RuntimeError(f"{type(self).__name__} could not locate {', '.join(missing)} in the tokenizer!")
        return [self.vocab[token] for token in tokens]

    def forced_schema(self, request: ChatCompletionRequest) -> dict[str, Any] | None:
        """What a forced call must match; None where nothing is forced.

        A named function that states no parameters is called with an object. Upstream forces nothing there, and calls
        any text its arguments.
        """
        schema = get_json_schema_from_tools(request.tool_choice, request.tools)
        return schema or (NO_ARGUMENTS if isinstance(request.tool_choice, ChatCompletionNamedToolChoiceParam) else None)

    def adjust_request(self, request: ChatCompletionRequest) -> ChatCompletionRequest:
        """Called before generation: a forced call becomes a schema that the grammar enforces.

        The schema takes the place of the request's own `structured_outputs` and `response_format`. "auto" and "none"
        change nothing. Raises ValueError for a forced function that `tools` does not have. Left out: structural tags,
        which upstream makes for some models where an environment variable asks for them.
        """
        if not request.tools:
            return request
        schema = self.forced_schema(request)
        if schema is not None:
            request.structured_outputs = StructuredOutputsParams(json=schema)  # type: ignore[assignment]
            request.response_format = None
        if self.keeps_special_tokens and request.tool_choice != "none":
            request.skip_special_tokens = False
        return request

    def extract_tool_calls(self, model_output: str, request: ChatCompletionRequest) -> ExtractedToolCallInformation:
        """Calls and text of a whole answer. What cannot be parsed is text: a model's mistake is no error here."""
        raise NotImplementedError(f"{type(self).__name__} finds no calls in whole answers.")

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: ChatCompletionRequest,
    ) -> DeltaMessage | None:
        """What this step lets the client know; None: nothing yet. Always `previous + delta == current`."""
        raise NotImplementedError(f"{type(self).__name__} finds no calls in streams.")


def no_tool_calls(content: str | None) -> ExtractedToolCallInformation:
    """All of it is text."""
    return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=content)


class ToolParserManager(ParserRegistry):
    """The registered tool parsers (upstream/vllm/tool_parsers/abstract_tool_parser.py:192 — `ToolParserManager`)."""

    base, kind = ToolParser, "tool"
    parsers: ClassVar[dict[str, type]] = {}
    tool_parsers = parsers
    lazy_parsers: ClassVar[dict[str, tuple[str, str]]] = {}

    @classmethod
    def get_tool_parser(cls, name: str) -> type[ToolParser]:
        """The class called `name`. Raises KeyError."""
        return cls.lookup(name)

    @classmethod
    def import_tool_parser(cls, plugin_path: str) -> None:
        """`--tool-parser-plugin`: run a file that registers parsers. Raises ValueError."""
        cls.import_plugin(plugin_path)

"""The hook for tool and reasoning parsers: which are in use, and what they do to a request and its outputs.

Upstream: `upstream/vllm/parser/parser_manager.py` and `upstream/vllm/parser/abstract_parser.py`. The parsers themselves
stand in `mini_vllm/tool_parsers/` and `mini_vllm/reasoning/`.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.entrypoints.openai.engine.serving import ServingOptions


class Parsers:
    """The parsers that the command line names, or none.

    Raises TypeError for a name that is not registered.
    Upstream: upstream/vllm/parser/parser_manager.py:241 — `ParserManager.get_parser`.
    """

    def __init__(self, options: ServingOptions, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.enable_auto_tools = options.enable_auto_tools
        name = options.tool_parser if options.enable_auto_tools else None
        self.tool_parser: Any = None if name is None else _tool_parser(name)
        self.reasoning_parser: Any = (
            None if not options.reasoning_parser else _reasoning_parser(options.reasoning_parser)
        )

    def adjust_request(self, request: Any) -> None:
        """Let the parsers change a request: skip fewer special tokens, add a grammar."""
        if self.reasoning_parser is not None:
            parser = self.reasoning_parser(self.tokenizer)
            if hasattr(parser, "adjust_request"):
                parser.adjust_request(request=request)
        if self.tool_parser is not None and request.tool_choice != "none":
            self.tool_parser(self.tokenizer, request.tools).adjust_request(request=request)

    def stream_parser(self, request: Any) -> Any:
        """A new parser for one choice of a stream, or None where text goes out as it comes."""
        return None


def _tool_parser(name: str) -> Any:
    try:
        from mini_vllm.tool_parsers import ToolParserManager

        return ToolParserManager.get_tool_parser(name)
    except (ImportError, KeyError) as error:
        raise TypeError(
            f"Error: --enable-auto-tool-choice requires tool_parser:'{name}' which has not been registered"
        ) from error


def _reasoning_parser(name: str) -> Any:
    try:
        from mini_vllm.reasoning import ReasoningParserManager

        return ReasoningParserManager.get_reasoning_parser(name)
    except (ImportError, KeyError) as error:
        raise TypeError(f"reasoning_parser_name={name!r} has not been registered") from error

"""From the names on the command line to a parser. Upstream twin: `vllm/parser/parser_manager.py`.

`as_released`: a parser that does what vLLM 0.22.1's does where ours is mended (`as_released.py`, docs/parsers.md).
Left out: parsers of both at once, of which upstream has one.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.parser.abstract_parser import DelegatingParser, Parser
from mini_vllm.reasoning import ReasoningParser, ReasoningParserManager
from mini_vllm.tool_parsers import ToolParser, ToolParserManager


class ParserManager:
    """Upstream: upstream/vllm/parser/parser_manager.py:23 — `ParserManager`."""

    @classmethod
    def get_tool_parser(
        cls, tool_parser_name: str | None, enable_auto_tools: bool, as_released: bool = False
    ) -> type[ToolParser] | None:
        """None without a name, or where tools are not enabled. Raises TypeError for a name nobody registered."""
        if not enable_auto_tools or tool_parser_name is None:
            return None
        try:
            found = ToolParserManager.get_tool_parser(tool_parser_name)
        except Exception as error:
            raise TypeError(
                f"Error: --enable-auto-tool-choice requires tool_parser:'{tool_parser_name}' which has not been "
                f"registered: {error}"
            ) from error
        return _released().tool_parser_as_released(found) if as_released else found

    @classmethod
    def get_reasoning_parser(
        cls, reasoning_parser_name: str | None, as_released: bool = False
    ) -> type[ReasoningParser] | None:
        """None without a name. Raises TypeError for a name nobody registered."""
        if not reasoning_parser_name:
            return None
        try:
            found = ReasoningParserManager.get_reasoning_parser(reasoning_parser_name)
        except Exception as error:
            raise TypeError(f"{reasoning_parser_name=} has not been registered: {error}") from error
        return _released().reasoning_parser_as_released(found) if as_released else found

    @classmethod
    def get_parser(
        cls,
        tool_parser_name: str | None = None,
        reasoning_parser_name: str | None = None,
        enable_auto_tools: bool = False,
        as_released: bool = False,
    ) -> type[Parser] | None:
        """A class of both, or None where there is neither. Raises TypeError.

        Each call makes a class of its own; upstream writes into one, so that a second server in the same process
        changes the first one's.
        """
        reasoning = cls.get_reasoning_parser(reasoning_parser_name, as_released)
        tool = cls.get_tool_parser(tool_parser_name, enable_auto_tools, as_released)
        if reasoning is None and tool is None:
            return None
        members = {"reasoning_parser_cls": reasoning, "tool_parser_cls": tool}
        base = _released().DelegatingParserAsReleased if as_released else DelegatingParser
        return type("_WrappedParser", (base,), members)


def _released() -> Any:
    """Imported where it is asked for: it loads five parsers."""
    from mini_vllm.parser import as_released

    return as_released

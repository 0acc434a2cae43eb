"""Thoughts and calls, by one parser. Upstream twin: `vllm/parser/__init__.py`."""

from mini_vllm.parser.abstract_parser import DelegatingParser, Parser
from mini_vllm.parser.parser_manager import ParserManager

__all__ = ["DelegatingParser", "Parser", "ParserManager"]

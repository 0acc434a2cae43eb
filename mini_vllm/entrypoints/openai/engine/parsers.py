"""The parsers that the command line names, and what they do to a request and its outputs.

Upstream: `upstream/vllm/parser/parser_manager.py`, and what both generators of
`upstream/vllm/entrypoints/openai/chat_completion/serving.py` do with it.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.entrypoints.openai.engine.serving import ServingOptions
from mini_vllm.entrypoints.openai.flag_checks import fit
from mini_vllm.parser import Parser, ParserManager


class Parsers:
    """One tool parser, one reasoning parser, or none of them.

    options.parsers_as_released: as vLLM 0.22.1's, also where ours are mended.

    Raises TypeError for a name that is not registered, ValueError for a tokenizer without a parser's tokens.
    Upstream: upstream/vllm/parser/parser_manager.py:241 — `ParserManager.get_parser`.
    """

    def __init__(self, options: ServingOptions, tokenizer: Any) -> None:
        self.options, self.tokenizer = options, tokenizer
        self.enable_auto_tools = options.enable_auto_tools
        self.as_released = released = options.parsers_as_released
        self.tool_parser = ParserManager.get_tool_parser(options.tool_parser, options.enable_auto_tools, released)
        self.reasoning_parser = ParserManager.get_reasoning_parser(options.reasoning_parser, released)
        fit(self.tool_parser, self.reasoning_parser, tokenizer)

    def reasoning_of(self, request: Any) -> Any:
        """A reasoning parser for one answer, which knows what the request gave its template; None without one."""
        if self.reasoning_parser is None:
            return None
        return self.reasoning_parser(self.tokenizer, **self.reasoning_kwargs(request))

    def reasoning_kwargs(self, request: Any) -> dict[str, Any]:
        """The variables of the template: some models think only where they say so."""
        options = self.options
        params = request.build_chat_params(options.chat_template, options.chat_template_content_format)
        defaults = options.default_chat_template_kwargs
        return {"chat_template_kwargs": params.with_defaults(defaults).chat_template_kwargs}

    def about_reasoning(self, request: Any, prompt_token_ids: list[int]) -> dict[str, Any]:
        """For the engine, whose grammars wait for the end of the thinking: whether it is over, and how to tell.

        Thoughts that nobody wants are none: the grammar counts from the start.
        Upstream: upstream/vllm/entrypoints/openai/chat_completion/serving.py:337 — "reasoning_ended".
        """
        parser = self.reasoning_of(request)
        ended: Any = None if parser is None else parser.ended_before(prompt_token_ids)
        if not request.include_reasoning:
            ended = True
        kwargs = None if parser is None else self.reasoning_kwargs(request)
        return {"reasoning_ended": ended, "reasoning_parser_kwargs": kwargs}

    def about_raw_prompt(self, prompt_token_ids: list[int]) -> dict[str, Any]:
        """As `about_reasoning`, for a prompt that no template made: it thinks where the prompt has opened thoughts.

        Upstream's grammar waits for the end of thoughts that nobody began, and the answer is free.
        """
        if self.reasoning_parser is None or self.as_released:
            return {}
        parser = self.reasoning_parser(self.tokenizer)
        start = parser.vocab.get(parser.reasoning_start_str or "")
        thinks = start in prompt_token_ids and not parser.is_reasoning_end(prompt_token_ids)
        return {"reasoning_ended": not thinks}

    def adjust_request(self, request: Any) -> None:
        """Let the parsers change a request: skip fewer special tokens, add a grammar."""
        parser = self.reasoning_of(request)
        if parser is not None:
            parser.adjust_request(request)
        if self.tool_parser is not None and request.tool_choice != "none":
            self.tool_parser(self.tokenizer, request.tools).adjust_request(request)

    def stream_parser(self, request: Any) -> Parser | None:
        """A new parser for one choice of a stream, or None where text goes out as it comes.

        Upstream's stream looks for calls also where the request has no tools or says "none", while its whole answer
        does not; here both leave the text alone.
        """
        calls = self.as_released or (request.tools and request.tool_choice != "none")
        tool = self.options.tool_parser if calls else None
        chosen = ParserManager.get_parser(
            tool, self.options.reasoning_parser, self.enable_auto_tools, self.as_released
        )  # fmt: skip
        if chosen is None:
            return None
        return chosen(self.tokenizer, request.tools, **self.reasoning_kwargs(request))

"""Records the tool parsers and the reasoning parsers of the real vLLM v0.22.1 on the answers of `parser_cases.py`.

Run where the real release is installed (`course vllm`), from the root of the repository; no model is needed:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_parsers.py
"""

import importlib.metadata
import logging
import os
import platform
from functools import partial
from pathlib import Path
from xml.parsers.expat import EXPAT_VERSION

from mini_vllm.tests.golden.packed import write_packed
from mini_vllm.tests.golden.parser_cases import (
    BOTH,
    CHOICES,
    REASONING,
    REASONING_TEXTS,
    SYNTAXES,
    THINK,
    TOOLS,
    Words,
    both_texts,
    tool_texts,
)
from mini_vllm.tests.golden.parser_runs import both_run, reasoning_run, tool_run

OUT = Path(__file__).resolve().parent / "parsers.json.xz"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")


def record_tools():
    """{syntax: {parser: [run of each text]}}."""
    from vllm.tool_parsers import ToolParserManager

    runs = {}
    for syntax, (names, special, _) in SYNTAXES.items():
        runs[syntax] = {}
        for name in names:
            parser, tokenizer, asked = ToolParserManager.get_tool_parser(name), Words(special), request("auto")
            runs[syntax][name] = [
                tool_run(partial(parser, tokenizer, asked.tools), tokenizer, text, asked) for text in tool_texts(syntax)
            ]
    return runs


def record_reasoning():
    """[[run of each text] for each parser and its `chat_template_kwargs`]."""
    from vllm.reasoning import ReasoningParserManager

    runs = []
    for name, kwargs in REASONING:
        parser, tokenizer = ReasoningParserManager.get_reasoning_parser(name), Words(THINK)
        asked = request("none", chat_template_kwargs=kwargs)
        make = partial(parser, tokenizer, chat_template_kwargs=kwargs)
        runs.append([reasoning_run(make, tokenizer, text, asked) for text in REASONING_TEXTS])
    return runs


def record_both():
    """[[[run of each text] for each tool_choice] for each pair]."""
    from vllm.parser import ParserManager

    runs = []
    for tool, reasoning, prompt, syntax in BOTH:
        parser = ParserManager.get_parser(tool, reasoning, enable_auto_tools=True)
        tokenizer = Words(list(dict.fromkeys([*THINK, *SYNTAXES[syntax][1]])))
        prompt_ids = [tokenizer.id(token) for token in ["Hello", *prompt]]
        runs.append([])
        for choice in CHOICES:
            asked = request(choice)
            runs[-1].append(
                [
                    both_run(partial(parser, tokenizer, asked.tools), tokenizer, text, asked, prompt_ids)
                    for text in both_texts(syntax, choice)
                ]
            )
    return runs


def request(tool_choice, **more):
    """A chat request with `TOOLS`."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest(messages=[], model="m", tools=TOOLS, tool_choice=tool_choice, **more)


def main():
    """Everything, with what it was recorded by."""
    logging.disable(logging.CRITICAL)
    recorded = {
        "provenance": {
            "vllm": importlib.metadata.version("vllm"), "python": platform.python_version(),
            "partial-json-parser": importlib.metadata.version("partial-json-parser"),
            "ijson": importlib.metadata.version("ijson"), "expat": EXPAT_VERSION,
            "command": "python mini_vllm/tests/golden/record_parsers.py",
        },
        "tools": record_tools(), "reasoning": record_reasoning(), "both": record_both(),
    }  # fmt: skip
    print(f"{OUT.name}: {write_packed(OUT, recorded)} bytes")


if __name__ == "__main__":
    main()

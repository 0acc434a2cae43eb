"""DeepSeek V3.1. Upstream twin: `vllm/tool_parsers/deepseekv31_tool_parser.py`.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>
"""

from __future__ import annotations

import regex as re

from mini_vllm.tool_parsers.deepseekv3_tool_parser import DeepSeekV3ToolParser


class DeepSeekV31ToolParser(DeepSeekV3ToolParser):
    """As V3, with a shorter syntax; upstream writes the parser out again.

    Upstream: upstream/vllm/tool_parsers/deepseekv31_tool_parser.py:27 — `DeepSeekV31ToolParser`.
    """

    tool_call_regex = re.compile(
        r"<｜tool▁call▁begin｜>(?P<name>.*?)<｜tool▁sep｜>(?P<arguments>(?s:.*?))<｜tool▁call▁end｜>"
    )
    call_so_far_regex = re.compile(r"(?P<name>.*?)<｜tool▁sep｜>(?P<arguments>(?s:.*))")
    behind_arguments = ""

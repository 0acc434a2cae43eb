"""Seed OSS. Upstream twin: `vllm/reasoning/seedoss_reasoning_parser.py`."""

from mini_vllm.reasoning.basic_parsers import BaseThinkingReasoningParser


class SeedOSSReasoningParser(BaseThinkingReasoningParser):
    """Two tokens of its own (upstream/vllm/reasoning/seedoss_reasoning_parser.py:8 — `SeedOSSReasoningParser`)."""

    start_token, end_token = "<seed:think>", "</seed:think>"

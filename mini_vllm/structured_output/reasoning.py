"""Where thinking ends and the answer begins: what the gate asks, and how its class is found.

The parsers stand in `mini_vllm/reasoning/`, and need what the server needs; any other class with two of their methods
will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol


class ReasoningParser(Protocol):
    """Upstream: upstream/vllm/reasoning/abs_reasoning_parsers.py:26 — `ReasoningParser`."""

    def __init__(self, tokenizer: Any) -> None: ...

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """True where these tokens (a prompt) leave the thinking behind them."""

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Sequence[int]) -> bool:
        """True where the thinking ends in `delta_ids`, the last of `input_ids`."""


def load_reasoning_parser(name: str, plugin: str = "") -> type[ReasoningParser] | None:
    """A registered name such as "qwen3", or "module:Class"; None for "". `plugin`: a file that registers names.

    Raises ValueError where there is none, or it lacks one of the two methods.
    """
    if plugin:
        from mini_vllm.reasoning import ReasoningParserManager

        ReasoningParserManager.import_reasoning_parser(plugin)
    if not name:
        return None
    module, colon, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute) if colon else _registered(name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reasoning_parser={name!r} cannot be imported: {error}") from None
    methods = ("is_reasoning_end", "is_reasoning_end_streaming")
    if not isinstance(found, type) or not all(callable(getattr(found, each, None)) for each in methods):
        raise ValueError(
            f"reasoning_parser must be a registered name or 'module:Class' with {' and '.join(methods)}, got {name!r}"
        )
    return found


def _registered(name: str) -> type | None:
    from mini_vllm.reasoning import ReasoningParserManager

    names = ReasoningParserManager.list_registered()
    return ReasoningParserManager.get_reasoning_parser(name) if name in names else None

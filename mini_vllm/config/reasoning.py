"""Where a model's thinking begins and ends, in its own words. Upstream twin: `vllm/config/reasoning.py`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from mini_vllm.utils.checks import shown


@dataclass
class ReasoningConfig:
    """`LLM(reasoning_config={"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"})`: then requests may
    have a `thinking_token_budget`.

    reasoning_start_str, reasoning_end_str: the two marks. reasoning_parser: refused; upstream asks such a class for the
    marks where they are not given, and its classes come with the server.

    Attributes:
        reasoning_start_token_ids, reasoning_end_token_ids: the marks as tokens, None until `initialize_token_ids`.

    Upstream: upstream/vllm/config/reasoning.py:13 — `ReasoningConfig`.
    """

    reasoning_parser: str = ""
    reasoning_start_str: str = ""
    reasoning_end_str: str = ""
    reasoning_start_token_ids: list[int] | None = field(default=None, init=False)
    reasoning_end_token_ids: list[int] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.reasoning_parser:
            raise ValueError("reasoning_config: reasoning_parser is not here: give both reasoning_start_str and "
                             "reasoning_end_str")  # fmt: skip
        for name in ("reasoning_start_str", "reasoning_end_str"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ValueError(f"reasoning_config: {name} must be a text that is not empty, got {shown(value)}")

    @property
    def enabled(self) -> bool:
        """True once the marks are tokens."""
        return self.reasoning_start_token_ids is not None

    def initialize_token_ids(self, tokenizer: Any) -> None:
        """Write both marks as tokens. Raises ValueError without a tokenizer.

        Upstream: upstream/vllm/config/reasoning.py:62 — `ReasoningConfig.initialize_token_ids`.
        """
        if tokenizer is None:
            raise ValueError("reasoning_config needs a tokenizer, and this model has none")
        self.reasoning_start_token_ids = tokenizer.encode(self.reasoning_start_str, add_special_tokens=False)
        self.reasoning_end_token_ids = tokenizer.encode(self.reasoning_end_str, add_special_tokens=False)

    @classmethod
    def of(cls, value: ReasoningConfig | dict[str, Any] | None) -> ReasoningConfig | None:
        """From an engine argument: such an object, a dict of its fields, or None."""
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"reasoning_config must be a dict or a ReasoningConfig, got {shown(value)}")
        known = [each.name for each in fields(cls) if each.init]
        unknown = next((name for name in value if name not in known), None)
        if unknown is not None:
            raise ValueError(f"reasoning_config: unknown key {unknown!r}; allowed: {', '.join(known)}")
        return cls(**value)

"""How structured outputs are made. Upstream twin: `vllm/config/structured_outputs.py`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mini_vllm.utils.checks import shown

BACKENDS = ("auto", "mini", "xgrammar", "guidance")
_REFUSED = {
    "outlines": "its automata are those of 'mini', for regexes",
    "lm-format-enforcer": "it walks the vocabulary in Python at every token",
}


@dataclass
class StructuredOutputsConfig:
    """`LLM(structured_outputs_config={"backend": "mini", …})`.

    backend: "auto" is "mini", our own (there xgrammar, then guidance where xgrammar lacks a feature); "xgrammar" and
    "guidance" need the extra `grammar`. disable_any_whitespace: JSON in one form, with a space after a comma and a
    colon, as xgrammar writes it; otherwise any whitespace may stand between its parts. disable_additional_properties:
    of "guidance" alone, as there; ours adds no properties that nobody asked for.
    reasoning_parser: what tells where reasoning ends, a name of `mini_vllm/reasoning/` or "module:Class"; the grammar
    counts from there. reasoning_parser_plugin: a file that registers further names, run in the core's process.
    enable_in_reasoning: the grammar counts from the start all the same.
    jump_forward: ours, of "mini" alone: text that a grammar forces is written down without a pass for each token
    (`structured_output/jump_forward.py`); off unless asked for, since upstream has none.

    Upstream: upstream/vllm/config/structured_outputs.py:18 — `StructuredOutputsConfig`.
    """

    backend: str = "auto"
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    reasoning_parser: str = ""
    reasoning_parser_plugin: str = ""
    enable_in_reasoning: bool = False
    jump_forward: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.backend, str) and self.backend in _REFUSED:
            raise ValueError(f"structured outputs: backend {self.backend!r} is not here: {_REFUSED[self.backend]}")
        if self.backend not in BACKENDS:
            raise ValueError(f"structured outputs: backend must be one of {BACKENDS}, got {shown(self.backend)}")
        flags = "disable_any_whitespace", "disable_additional_properties", "enable_in_reasoning", "jump_forward"
        for name in flags:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"structured outputs: {name} must be True or False, got {shown(getattr(self, name))}")
        if self.reasoning_parser_plugin and not Path(self.reasoning_parser_plugin).is_file():
            raise ValueError(f"reasoning parser plugin {self.reasoning_parser_plugin!r} cannot be loaded: no such file")
        if self.disable_additional_properties and self.backend != "guidance":
            raise ValueError("disable_additional_properties is only supported for the guidance backend.")
        if self.jump_forward and self.resolved_backend != "mini":
            raise ValueError(f"structured outputs: jump_forward needs the backend 'mini', got {shown(self.backend)}")

    def check_engine(self, async_scheduling: bool, drafts: bool) -> None:
        """Raises ValueError where a setting does not go with these."""
        if self.jump_forward and (async_scheduling or drafts):
            why = (
                "the step after has begun when it is known what is forced: set async_scheduling=False"
                if async_scheduling
                else "drafts are made before it is known what is forced: leave out speculative_config"
            )
            raise ValueError(f"structured outputs: jump_forward is not here together with this, since {why}")

    @property
    def resolved_backend(self) -> str:
        """The backend that makes the masks."""
        return "mini" if self.backend == "auto" else self.backend

    @classmethod
    def of(cls, value: StructuredOutputsConfig | dict[str, Any] | None) -> StructuredOutputsConfig:
        """From an engine argument: such an object, a dict of its fields, or None."""
        if isinstance(value, cls):
            return value
        if value is not None and not isinstance(value, dict):
            raise ValueError(
                f"structured_outputs_config must be a dict or a StructuredOutputsConfig, got {shown(value)}"
            )
        known = [each.name for each in fields(cls)]
        unknown = next((name for name in value or {} if name not in known), None)
        if unknown is not None:
            raise ValueError(f"structured_outputs_config: unknown key {unknown!r}; allowed: {', '.join(known)}")
        return cls(**(value or {}))

"""What a request asks of its output's form, checked when it is made.

Upstream has it in `vllm/sampling_params.py`; `mini_vllm.sampling_params` gives it the same name there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.utils.checks import check_list, require

CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass
class StructuredOutputsParams:
    """Exactly one of the first five and `structural_tag` is set.

    json: a JSON schema, as a dict or as text. regex: the whole output matches it. choice: one of these texts.
    grammar: EBNF, or Lark, which is turned into EBNF. json_object: any JSON object. structural_tag: JSON text that says
    between which tags which schema holds; outside of them the text is free.

    disable_any_whitespace, disable_additional_properties, whitespace_pattern: upstream's backends pass over all three
    in a request. Here they are refused, so that nobody waits for their effect: the first two are settings of the
    engine (`structured_outputs_config`).

    Raises ValueError for none or several of them, and for values of another type.
    Upstream: upstream/vllm/sampling_params.py:41 — `StructuredOutputsParams`.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    _backend: str | None = field(default=None, init=False)
    """Set by the engine, never by the caller."""
    _backend_was_auto: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(
                "You can only use one kind of structured outputs constraint but multiple are specified: "
                f"{', '.join(given)}"
            )
        if not given:
            raise ValueError(
                "You must use one kind of structured outputs constraint but none are specified: one of "
                f"{', '.join(CONSTRAINTS)}"
            )
        ok = self.json is None or isinstance(self.json, str | Mapping | bool)
        require(ok, "structured_outputs.json", self.json, "a JSON schema, as a dict or as text")
        for name in ("regex", "grammar", "structural_tag", "whitespace_pattern"):
            value = getattr(self, name)
            require(value is None or isinstance(value, str), f"structured_outputs.{name}", value, "text")
        check_list("structured_outputs.choice", self.choice, str, "a list of strings")
        for name in ("json_object", "disable_any_whitespace", "disable_additional_properties"):
            value = getattr(self, name)
            ok = isinstance(value, bool) or (value is None and name == "json_object")
            require(ok, f"structured_outputs.{name}", value, "True or False")
        require(self.json_object is not False, "structured_outputs.json_object", False, "True or None")
        for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
            if getattr(self, name):
                raise ValueError(
                    f"structured_outputs.{name} has no effect in a request, as in vLLM; "
                    "structured_outputs_config has the settings of the engine"
                )

    def all_constraints_none(self) -> bool:
        """True where nothing is asked for.

        Upstream: upstream/vllm/sampling_params.py:82 — `StructuredOutputsParams.all_constraints_none`.
        """
        return all(getattr(self, name) is None for name in CONSTRAINTS)

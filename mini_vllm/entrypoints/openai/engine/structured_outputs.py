"""`structured_outputs` of a request's body, as `StructuredOutputsParams`.

Upstream's parameters are a pydantic class, which the body has as it is; ours need no library.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from mini_vllm.structured_outputs_params import CONSTRAINTS, StructuredOutputsParams


class StructuredOutputsBody(BaseModel):
    """The fields of `StructuredOutputsParams`; others are passed over."""

    model_config = ConfigDict(populate_by_name=True)

    json_: str | dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None


def _as_body(value: Any) -> Any:
    return {name: getattr(value, name) for name in CONSTRAINTS} if isinstance(value, StructuredOutputsParams) else value


def _as_params(body: StructuredOutputsBody) -> StructuredOutputsParams:
    return StructuredOutputsParams(**body.model_dump(by_alias=True))


StructuredOutputs = Annotated[StructuredOutputsBody, BeforeValidator(_as_body), AfterValidator(_as_params)]

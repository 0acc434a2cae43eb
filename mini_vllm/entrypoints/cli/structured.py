"""`mini-vllm generate --json-schema … | --regex … | --choice …`: the form that the text has to have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mini_vllm.utils.checks import naming

JsonSchema = Annotated[
    str | None, typer.Option("--json-schema", help="The text is JSON of this schema: a file, or the schema itself.")
]
Regex = Annotated[str | None, typer.Option("--regex", help="The text matches this regular expression, as a whole.")]
Choice = Annotated[list[str] | None, typer.Option("--choice", help="The text is one of these; give it several times.")]


def structured_outputs(json_schema: str | None, regex: str | None, choice: list[str] | None) -> Any:
    """`StructuredOutputsParams`, or None where no option was given. Raises ValueError for two of them."""
    from mini_vllm.structured_outputs_params import StructuredOutputsParams

    given = {"json": json_schema, "regex": regex, "choice": choice or None}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) > 1:
        raise ValueError("--json-schema, --regex and --choice exclude each other: give one.")
    if not given:
        return None
    if json_schema is not None:
        given["json"] = _schema_text(json_schema)
    return StructuredOutputsParams(**given)  # type: ignore[arg-type]


def _schema_text(value: str) -> str:
    """The schema itself begins with a brace; anything else is the name of a file. Raises ValueError, which names it."""
    if value.lstrip().startswith("{") or value.strip() in ("true", "false"):
        return value
    if not value.strip():
        raise ValueError("--json-schema is empty: give a schema, or the name of its file.")
    try:
        with naming("--json-schema", value):
            return Path(value).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"--json-schema {value}: not a text file in UTF-8 ({error}).") from None

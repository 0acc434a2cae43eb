"""The official JSON Schema Test Suite (draft 2020-12): what is compiled, and what each backend lets through.

    python -m mini_vllm.tests.structured_output.schema_suite              the table of docs/structured-outputs.md
    python -m mini_vllm.tests.structured_output.schema_suite pack FOLDER  pack a checkout of the suite anew

The pack is `golden/json-schema-suite.json.xz`: groups of tests that need no other document, and those of the formats
that are kept. The suite is Julian Berman's, under the MIT licence, whose text is in the pack.
"""

import functools
import importlib.metadata
import json
import sys
from pathlib import Path

from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.structured_output.automata.json_strings import FORMATS
from mini_vllm.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.utils import make_backend
from mini_vllm.tests.golden.packed import read_packed, write_packed
from mini_vllm.tests.structured_output.drive import byte_vocabulary

PACK = Path(__file__).parents[1] / "golden" / "json-schema-suite.json.xz"
FOREIGN = {"refRemote", "vocabulary", "dynamicRef", "unevaluatedItems", "unevaluatedProperties", "id", "anchor", "defs"}


def pack(folder: Path) -> None:
    """Write the pack. Files of remote documents, of vocabularies and of formats that nobody keeps are left out."""
    tests, groups = folder / "tests" / "draft2020-12", {}
    files = [path for path in sorted(tests.glob("*.json")) if path.stem not in FOREIGN]
    files += [tests / "optional" / "format" / f"{name}.json" for name in FORMATS]
    files += [tests / "optional" / "ecmascript-regex.json"]
    for path in files:
        rows = json.loads(path.read_text(encoding="utf-8"))
        groups[path.relative_to(tests).with_suffix("").as_posix()] = [
            [row["description"], row["schema"], [[test["data"], test["valid"]] for test in row["tests"]]]
            for row in rows
        ]
    write_packed(PACK, {"licence": (folder / "LICENSE").read_text(encoding="utf-8"), "groups": groups})


@functools.lru_cache(maxsize=1)
def groups() -> list[tuple[str, str, object, list[tuple[object, bool]]]]:
    """(file, description, schema, [(instance, whether it is valid)])."""
    found = read_packed(PACK)["groups"]
    return [(name, *row) for name, rows in found.items() for row in rows]


def accepts(backend: StructuredOutputBackend, grammar: StructuredOutputGrammar, instance: object) -> bool:
    """Whether the masks let the compact text of a value through, byte by byte, and its end."""
    text = json.dumps(instance, ensure_ascii=False, separators=(",", ":"))
    rows = backend.allocate_token_bitmask(1)
    grammar.reset()
    for token in [*text.encode("utf-8", "surrogatepass"), backend.vocabulary.stop_token_ids[0]]:
        grammar.fill_bitmask(rows, 0)
        if not rows[0, token // 32] >> (token % 32) & 1 or not grammar.accept_tokens("", [token]):
            return False
    return True


@functools.lru_cache
def judge(name: str) -> dict[str, object]:
    """What a backend makes of the suite. wrong: (file, description, instance) of invalid ones that it accepts."""
    backend = make_backend(StructuredOutputsConfig(backend=name), byte_vocabulary())
    found = {"compiled": 0, "valid": 0, "valid_taken": 0, "invalid": 0, "wrong": []}
    for file, description, schema, tests in groups():
        try:
            grammar = backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(schema))
        except Exception:
            continue
        found["compiled"] += 1
        for instance, valid in tests:
            taken = accepts(backend, grammar, instance)
            found["valid" if valid else "invalid"] += 1
            found["valid_taken"] += taken and valid
            if taken and not valid:
                found["wrong"].append((file, description, instance))
    return found


def table(names: tuple[str, ...] = ("mini", "xgrammar", "guidance")) -> str:
    """The rows of the page."""
    lines = [
        "| Backend | Schemas compiled | Invalid instances accepted | Valid instances accepted |",
        "|---|---|---|---|",
    ]
    versions = {"xgrammar": "xgrammar", "guidance": "llguidance"}
    for name in names:
        found, total = judge(name), len(groups())
        shown = f"{versions[name]} {importlib.metadata.version(versions[name])}" if name in versions else "ours"
        lines.append(
            f"| {shown} | {found['compiled']} of {total} ({found['compiled'] / total:.0%}) "
            f"| {len(found['wrong'])} of {found['invalid']} "
            f"| {found['valid_taken']} of {found['valid']} ({found['valid_taken'] / found['valid']:.0%}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["pack"]:
        pack(Path(sys.argv[2]))
    else:
        print(table())

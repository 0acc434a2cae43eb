"""Runs the pinned release's own tests of parsers against ours: `import vllm.X` gives them `mini_vllm.X`.

Run by hand from the repository root, with the extra `serve`; the pinned tree must be there (`course upstream`), the
release itself need not be installed:

    PYTHONPATH=. python mini_vllm/tests/golden/upstream_parser_tests.py

With `--theirs`, under the CPU build of the release, the same tests run against its own parsers: which of them need
more than the stub knows.

The test functions are upstream's (`tests/tool_parsers`, `tests/reasoning`, `tests/parser`). Their tokenizers come from
a hub; here a stub takes their place, which knows the special tokens of each model and splits all other text into
words. The result stands in `docs/upstream-tests.md`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import re
import sys
import types
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))
if "--theirs" in sys.argv:
    import vllm  # noqa: F401  # the installed one; below only `tests` comes from the pinned tree
sys.path.append(str(ROOT / "upstream"))

import pytest  # noqa: E402

from mini_vllm.entrypoints.openai.engine.protocol import FunctionCall, ToolCall  # noqa: E402
from mini_vllm.parser.abstract_parser import DelegatingParser  # noqa: E402
from mini_vllm.tests.golden.parser_cases import Words  # noqa: E402
from mini_vllm.tool_parsers import pythonic_calls, tool_schema  # noqa: E402

TOOLS = [
    "deepseekv31", "deepseekv3", "granite", "hermes", "internlm2", "jamba", "llama3_json", "mistral", "pythonic",
    "qwen3coder", "qwen3xml",
]  # fmt: skip
REASONING = [
    "base_thinking", "deepseekr1", "deepseekv3", "glm4_moe", "granite", "holo2", "nemotron_v3", "qwen3", "seedoss",
]  # fmt: skip
FILES = [
    *(f"tool_parsers/test_{name}_tool_parser.py" for name in TOOLS),
    "tool_parsers/test_utils.py",
    *(f"reasoning/test_{name}_reasoning_parser.py" for name in REASONING),
    "parser/test_streaming.py",
]
THINK = ["<think>", "</think>", "<seed:think>", "</seed:think>"]
CALLS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|im_end|>"]
DEEPSEEK = [f"<｜tool▁{name}｜>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")]
SPECIAL = {
    "mistral": ["[TOOL_CALLS]", "</s>"],
    "jamba": ["<tool_calls>", "</tool_calls>"],
    "llama": ["<|python_tag|>", "<|eot_id|>"],
    "granite": ["<|tool_call|>"],
    "deepseek": [*DEEPSEEK, *THINK],
}
"""By a part of the model's name; all others have `THINK` and `CALLS`."""


class StubTokenizer(Words):
    """Words and special tokens behind the methods of a tokenizer that the tests call."""

    all_special_ids: tuple[int, ...] = ()

    def __init__(self, special: list[str]) -> None:
        super().__init__(special)
        self.ids = {token: number for number, token in enumerate(special, 500)}  # the tests invent small ids

    def add_tokens(self, tokens: list[str]) -> None:
        """Further special tokens."""
        for token in tokens:
            self.special.append(token)
            self.id(token)

    @classmethod
    def from_pretrained(cls, name: str = "", *args: Any, **kwargs: Any) -> StubTokenizer:
        """The special tokens follow from the name."""
        name = kwargs.get("tokenizer_name", name).lower()
        special = list(next((tokens for part, tokens in SPECIAL.items() if part in name), [*THINK, *CALLS]))
        return cls([*special, "[ARGS]"] if kwargs.get("tokenizer_mode") == "mistral" else special)

    def get_vocab(self) -> dict[str, int]:
        """Every token seen so far: the tests look up those of their texts."""
        return self.ids

    vocab = property(get_vocab)

    def __len__(self) -> int:
        return 100000

    def tokenize(self, text: str, **_: Any) -> list[str]:
        """Text to tokens."""
        for token in self.split(text):
            self.id(token)
        return self.split(text)

    def encode(self, text: str, **_: Any) -> list[int]:
        """Text to ids."""
        return [self.id(token) for token in self.split(text)]

    def convert_ids_to_tokens(self, ids: list[int], **_: Any) -> list[str]:
        """Ids to tokens."""
        names = {number: token for token, number in self.ids.items()}
        return [names[number] for number in ids]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Tokens to ids, or one to one."""
        return self.id(tokens) if isinstance(tokens, str) else [self.id(token) for token in tokens]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Tokens to text."""
        return "".join(tokens)

    def decode(self, ids: Any, **_: Any) -> str:
        """Ids to text."""
        return "".join(self.convert_ids_to_tokens([ids] if isinstance(ids, int) else list(ids)))


def detokenize_incrementally(tokenizer: Any, all_input_ids: list[int], *_: Any, **__: Any) -> tuple[Any, str, int, int]:
    """The last token's text: the stub's tokens are whole characters."""
    token = tokenizer.decode([all_input_ids[-1]])
    return [token], token, 0, len(all_input_ids)


def _module(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(names)
    return made


def stand_ins() -> dict[str, types.ModuleType]:
    """Modules that are not simply ours under another name."""
    utils = importlib.import_module("mini_vllm.tool_parsers.utils")
    parser = importlib.import_module("mini_vllm.parser.abstract_parser")
    mistral = importlib.import_module("mini_vllm.tool_parsers.mistral_tool_parser")
    wrapped = type("_WrappedParser", (DelegatingParser,), {})
    absent = type("MistralTokenizer", (), {})
    return {
        "vllm": _module("vllm", __path__=[]),
        "vllm.tokenizers": _module(
            "vllm.tokenizers", __path__=[], TokenizerLike=Any, get_tokenizer=StubTokenizer.from_pretrained
        ),
        "vllm.tokenizers.mistral": _module("m", MistralTokenizer=absent),
        "vllm.tokenizers.detokenizer_utils": _module("d", detokenize_incrementally=detokenize_incrementally),
        "vllm.utils.mistral": _module("u", is_mistral_tokenizer=lambda tokenizer: False),
        "vllm.tool_parsers.utils": _module("t", **{**vars(tool_schema), **vars(pythonic_calls), **vars(utils)}),
        "vllm.parser.abstract_parser": _module("p", **{**vars(parser), "_WrappedParser": wrapped}),
        "vllm.reasoning.mistral_reasoning_parser": _module("r", MistralReasoningParser=MagicMock()),
        "transformers": _module("transformers", AutoTokenizer=StubTokenizer),
        "vllm.tool_parsers.granite4_tool_parser": _module("g", Granite4ToolParser=type("Granite4ToolParser", (), {})),
        "vllm.tool_parsers.mistral_tool_parser": _module("mp", **{**dict.fromkeys(GRAMMAR), **vars(mistral)}),
        **{name: MagicMock() for name in (*MISTRAL_COMMON, "xgrammar")},
        "mistral_common.protocol.instruct.tool_calls": MagicMock(ToolCall=ToolCall, FunctionCall=FunctionCall),
    }


def stub_their_tokenizers() -> None:
    """The real release, with the stub where the tests load a tokenizer."""
    import transformers
    import vllm.tokenizers
    import vllm.tokenizers.detokenizer_utils as detokenizer

    transformers.AutoTokenizer.from_pretrained = StubTokenizer.from_pretrained
    vllm.tokenizers.get_tokenizer = StubTokenizer.from_pretrained
    detokenizer.detokenize_incrementally = detokenize_incrementally


GRAMMAR = ("_DEFAULT_JSON_SCHEMA", "MistralStreamingResult")
MISTRAL_COMMON = [
    "mistral_common",
    "mistral_common.protocol",
    "mistral_common.protocol.instruct",
    *(f"mistral_common.protocol.instruct.{name}" for name in ("tool_calls", "request", "messages")),
]


class OursForTheirs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """`vllm.X` is `mini_vllm.X`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Of everything below `vllm`."""
        if not name.startswith("vllm."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Ours."""
        return importlib.import_module("mini_" + spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """It has run."""


class Tally:
    """What became of each test function, and why it failed."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self.why: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One outcome a case: of its call, or of what broke before."""
        if report.when == "call" or report.outcome != "passed":
            file, _, test = report.nodeid.partition("::")
            self.found[Path(file).name][test.split("[")[0].split("::")[-1]].append(report.outcome)
            if report.outcome == "failed":
                self.why[report.nodeid] = str(getattr(report.longrepr, "reprcrash", report.longrepr))[-160:]

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be read."""
        if report.outcome == "failed":
            print(report.nodeid, report.longrepr)


def unexplained(tally: Tally, passed: int) -> list[str]:
    """Cases that fail and are in no row of the table of `docs/upstream-tests.md`, and a count that differs from it."""
    page = (
        (ROOT / "docs" / "upstream-tests.md").read_text("utf-8").partition("# Upstream's own tests of the parsers")[2]
    )
    count = re.search(r"Of (\d+) cases (\d+) pass", page)
    table = page.partition("| Fails | Tests |")[2].partition("\n\n")[0]
    names = set(re.findall(r"`(\w+(?:\.py)?)`", table))
    known = [case for case in tally.why if names & set(re.split(r"[\[/:]+", case))]
    told = [] if count is not None and int(count[2]) == passed else [f"{passed} pass, and the page has {count}"]
    return told + [case for case in tally.why if case not in known]


def main() -> int:
    """One line a file and outcome, with how many cases each test has; 1 where the page has it otherwise."""
    if "--theirs" in sys.argv:
        stub_their_tokenizers()
    else:
        sys.meta_path.insert(0, OursForTheirs())
        sys.modules.update(stand_ins())
    tally = Tally()
    tests = ROOT / "upstream" / "tests"
    options = [
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        f"--confcutdir={tests / 'tool_parsers'}",
        "-o",
        "addopts=",
    ]
    pytest.main([*options, "--tb=line", *(str(tests / file) for file in FILES)], plugins=[tally])
    total: dict[str, int] = defaultdict(int)
    for file, results in tally.found.items():
        print(f"\n## {file}")
        for outcome in ("passed", "failed", "skipped"):
            names = {name: all_of.count(outcome) for name, all_of in results.items() if outcome in all_of}
            total[outcome] += sum(names.values())
            listed = (f"`{name}` ({count} of {len(results[name])})" for name, count in names.items())
            print(f"{outcome}:", ", ".join(listed).replace(" (1 of 1)", "") or "none")
    print(dict(total), *(f"{name}: {why}" for name, why in tally.why.items()), sep="\n")
    wrong = [] if "--theirs" in sys.argv else unexplained(tally, total["passed"])
    print("\nNot as docs/upstream-tests.md has it:", *(wrong or ["nothing"]), sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

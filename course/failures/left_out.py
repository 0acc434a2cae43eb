"""What a run left out, in a line a remedy: not one line a test. `-rs` lists the tests."""

import re
from collections import Counter
from collections.abc import Iterable

FEW = 5
"""So many skipped tests pytest may list itself, each with its reason."""
REMEDIES: tuple[tuple[str, str, str], ...] = (
    (r"upstream/ is absent|pinned tree", "the pinned vLLM source", "course upstream"),
    (r"real vLLM|course vllm", "the real vLLM on this CPU", "course vllm"),
    (r"NVIDIA|CUDA", "a GPU", ""),
    (r"torch|transformers|tokenizers|safetensors|huggingface_hub|triton", "torch and its kin",
     'pip install torch -e ".[dev,hub,triton]"'),
    (r"xgrammar|llguidance", "the libraries for grammars", 'pip install -e ".[grammar]"'),
    (r"SITE_BROWSER|axe-core|latex2mathml|markdown|docs\]|site tools|mkdocs|chromium|browser", "the website's tools",
     'pip install -e ".[docs,site-test]"'),
)  # fmt: skip


def told(reasons: Iterable[str]) -> list[str]:
    """A line for each thing that is missing: how many tests wait for it, and the command that brings it."""
    counts: Counter[tuple[str, str]] = Counter()
    for reason in reasons:
        found = next(((what, how) for pattern, what, how in REMEDIES if re.search(pattern, reason)), ("", ""))
        counts[found] += 1
    lines = []
    for (what, how), number in sorted(counts.items(), key=lambda item: (not item[0][0], -item[1])):
        tests = f"{number} {'test' if number == 1 else 'tests'} left out"
        if not what:
            lines.append(f"{tests} for other reasons: -rs lists them")
        else:
            lines.append(f"{tests} without {what}" + (f": {how}" if how else ""))
    return lines

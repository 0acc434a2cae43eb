"""What a server's `/metrics` says, read back: lines of text to numbers by name and labels.

Upstream has no twin; its client looks for single lines: upstream/vllm/benchmarks/serve.py:105 —
`fetch_spec_decode_metrics`. The format is Prometheus' own (https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass
class MetricsText:
    """Samples of one reading. A counter has the ending `_total` in the text; both names find it.

    samples: name -> [(labels, value), …] in the order of the text.
    """

    samples: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MetricsText:
        """Comments and lines that are no samples are passed over."""
        found = cls()
        for line in text.splitlines():
            match = None if line.startswith("#") else _LINE.fullmatch(line.strip())
            if match is None:
                continue
            name, labels, value = match.groups()
            try:
                number = float(value)
            except ValueError:
                continue
            found.samples.setdefault(name, []).append((_labels(labels or ""), number))
        return found

    def each(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Samples of this name that have these labels."""
        for given, value in self.samples.get(name) or self.samples.get(f"{name}_total") or ():
            if all(given.get(key) == wanted for key, wanted in labels.items()):
                yield given, value

    def total(self, name: str, **labels: str) -> float | None:
        """The sum over all other labels (engines, models); None where there is no such sample."""
        values = [value for _, value in self.each(name, **labels)]
        return sum(values) if values else None

    def has(self, prefix: str) -> bool:
        """Whether some name begins so."""
        return any(name.startswith(prefix) for name in self.samples)


def _labels(text: str) -> dict[str, str]:
    found = {}
    for name, value in _LABEL.findall(text):
        found[name] = re.sub(r'\\[\\"n]', lambda m: _ESCAPES[m[0]], value)
    return found


def quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """The value below which `share` of a histogram's observations lie, linear within a bucket; None without any.

    buckets: (upper limit, how many are at most that), growing, the last limit infinite; beyond the last finite limit,
    that limit is all that is known. The rule is that of Prometheus' `histogram_quantile`.
    """
    count = buckets[-1][1] if buckets else 0
    if not count:
        return None
    rank, below, before = share * count, 0.0, 0.0
    for limit, cumulative in buckets:
        if cumulative >= rank and cumulative > before:
            if limit == float("inf"):
                return below
            return below + (limit - below) * (rank - before) / (cumulative - before)
        below, before = limit, cumulative
    return below

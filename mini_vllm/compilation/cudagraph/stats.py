"""What the graphs did for a workload: replays, padding, steps without a graph, launches saved.

Upstream twin: `vllm/compilation/cuda_graph.py` (`CUDAGraphStat`, `CUDAGraphLogging`; switched on by
`--cudagraph-metrics`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.logger import init_logger

logger = init_logger(__name__)
COLUMN_HEADERS = ("Unpadded Tokens", "Padded Tokens", "Num Paddings", "Runtime Mode", "Count")


@dataclass(frozen=True)
class CUDAGraphStat:
    """One step. Upstream: upstream/vllm/compilation/cuda_graph.py:33 — `CUDAGraphStat`."""

    num_unpadded_tokens: int
    num_padded_tokens: int
    num_paddings: int
    runtime_mode: str


@dataclass
class CUDAGraphStats:
    """All steps of an engine, and what its start cost.

    Attributes:
        steps: how often each kind of step occurred.
        replays: (runtime mode, captured size) -> replays. Steps without a graph are not in it.
        launches, eager_launches: what the steps took, and what they would have taken without graphs.
        num_captured: runtime mode -> descriptors captured; num_graphs: graph objects behind them.
        memory_bytes: persistent inputs, and the pool that all graphs leave their results in; unshared_bytes: what it
            would be if each graph had memory of its own.
    """

    steps: Counter[CUDAGraphStat] = field(default_factory=Counter)
    replays: Counter[tuple[str, int]] = field(default_factory=Counter)
    launches: int = 0
    eager_launches: int = 0
    num_captured: dict[str, int] = field(default_factory=dict)
    num_graphs: int = 0
    memory_bytes: int = 0
    unshared_bytes: int = 0

    def observe(self, stat: CUDAGraphStat, launches: int, eager_launches: int) -> None:
        """Count one step."""
        self.steps[stat] += 1
        self.launches += launches
        self.eager_launches += eager_launches
        if stat.runtime_mode != "NONE":
            self.replays[stat.runtime_mode, stat.num_padded_tokens] += 1

    def reset(self) -> None:
        """Forget the steps; what the start cost stays."""
        self.steps.clear()
        self.replays.clear()
        self.launches = self.eager_launches = 0

    @property
    def num_steps(self) -> int:
        """All steps."""
        return self.steps.total()

    @property
    def num_steps_without_graph(self) -> int:
        """Steps in runtime mode NONE: compiled code upstream, launched kernel by kernel."""
        return self._sum("NONE", lambda stat: 1)

    @property
    def num_tokens(self) -> int:
        """Real tokens."""
        return self._sum(None, lambda stat: stat.num_unpadded_tokens)

    @property
    def num_paddings(self) -> int:
        """Padding tokens."""
        return self._sum(None, lambda stat: stat.num_paddings)

    @property
    def waste_fraction(self) -> float:
        """Padding over real tokens (0.0 before the first step)."""
        return self.num_paddings / self.num_tokens if self.num_tokens else 0.0

    @property
    def launch_ratio(self) -> float:
        """Launches without graphs over launches with them (1.0 before the first step)."""
        return self.eager_launches / self.launches if self.launches else 1.0

    def metric_table(self, mode: str, capture_sizes: Sequence[int]) -> str:
        """The table that real vLLM logs with `--cudagraph-metrics`: a row for each kind of step, the commonest first.

        Upstream: upstream/vllm/compilation/cuda_graph.py:71 — `CUDAGraphLogging.generate_metric_table`.
        """
        kinds = sorted(self.steps.items(), key=lambda item: item[1], reverse=True)
        rows = [COLUMN_HEADERS, *(tuple(map(str, (*vars(stat).values(), count))) for stat, count in kinds)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        head = f"**CUDAGraph Config Settings:**\n\n- Mode: {mode}\n- Capture sizes: {list(capture_sizes)}\n\n"
        return head + "**CUDAGraph Stats:**\n\n" + "\n".join(lines) + "\n"

    def log(self, config: Any) -> None:
        """Write that table into the log where `cudagraph_metrics` of an engine's config says so.

        Upstream: upstream/vllm/v1/metrics/loggers.py:117 —
        "observability_config.cudagraph_metrics".
        """
        if config.cudagraph_metrics:
            mode = config.resolved_cudagraph_mode.name
            logger.info("%s", self.metric_table(mode, config.resolved_capture_sizes))

    def by_size(self) -> list[tuple[str, int, int, int, int]]:
        """(mode, captured size, replays, real tokens, padding tokens), FULL first, small sizes first; NONE, which has
        no size, is one last row with size 0."""
        rows: dict[tuple[str, int], tuple[int, int, int]] = {}
        for stat, count in self.steps.items():
            key = stat.runtime_mode, stat.num_padded_tokens if stat.runtime_mode != "NONE" else 0
            steps, tokens, padding = rows.get(key, (0, 0, 0))
            rows[key] = (
                steps + count,
                tokens + count * stat.num_unpadded_tokens,
                padding + count * stat.num_paddings,
            )
        order = {"FULL": 0, "PIECEWISE": 1, "NONE": 2}
        return [(*key, *rows[key]) for key in sorted(rows, key=lambda key: (order[key[0]], key[1]))]

    def _sum(self, mode: str | None, value: Callable[[CUDAGraphStat], int]) -> int:
        return sum(count * value(stat) for stat, count in self.steps.items() if mode in (None, stat.runtime_mode))

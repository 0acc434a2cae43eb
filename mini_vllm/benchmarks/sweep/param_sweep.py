"""Settings to run a command with, one after the other. Upstream twin: `vllm/benchmarks/sweep/param_sweep.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = "_benchmark_name"


class ParameterSweepItem(dict[str, Any]):
    """Options of one run by name; `_benchmark_name` names the run and is no option.

    Upstream: upstream/vllm/benchmarks/sweep/param_sweep.py:54 — `ParameterSweepItem`.
    """

    @property
    def name(self) -> str:
        """Its name, or its settings."""
        return str(self.get(NAME) or self.as_text("-"))

    def as_text(self, sep: str = ", ") -> str:
        """ "max_num_seqs=8, seed=1"."""
        return sep.join(f"{key}={value}" for key, value in self.items() if key != NAME)

    def __or__(self, other: dict[str, Any]) -> ParameterSweepItem:  # type: ignore[override]
        return ParameterSweepItem({**self, **other})

    def has_param(self, name: str) -> bool:
        """Whether it sets this option, in either spelling."""
        return name.replace("-", "_") in {key.replace("-", "_") for key in self}

    def apply_to_cmd(self, cmd: list[str]) -> list[str]:
        """The command with these options in place of its own of the same name, and the others at its end.

        True and False become `--name` and `--no-name`, dicts become JSON.
        """
        cmd = list(cmd)
        for key, value in self.items():
            if key == NAME:
                continue
            flag = f"--{key.replace('_', '-')}"
            if isinstance(value, bool):
                words = [flag if value else f"--no-{flag[2:]}"]
            else:
                words = [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
            spelled = (flag, f"--{key.replace('-', '_')}")
            at = next((i for i, word in enumerate(cmd) if word in spelled), None)
            if at is None:
                cmd += words
            else:
                cmd[at : at + len(words)] = words
        return cmd


class ParameterSweep(list[ParameterSweepItem]):
    """Upstream: upstream/vllm/benchmarks/sweep/param_sweep.py:8 — `ParameterSweep`."""

    @classmethod
    def read_json(cls, path: str | Path | None) -> ParameterSweep:
        """A list of settings, or settings by name; without a file one run with none. Raises ValueError, OSError."""
        if path is None:
            return cls([ParameterSweepItem()])
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            found = [{NAME: name, **settings} for name, settings in found.items()]
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise ValueError(f"{path}: expected a list of settings, or settings by name")
        names = [each[NAME] for each in found if NAME in each]
        if len(names) != len(set(names)):
            double = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"Duplicate {NAME} values found: {double}. All values must be unique.")
        return cls(map(ParameterSweepItem, found))

    def times(self, other: ParameterSweep) -> Iterator[tuple[ParameterSweepItem, ParameterSweepItem]]:
        """Every pair."""
        return ((mine, theirs) for mine in self for theirs in other)

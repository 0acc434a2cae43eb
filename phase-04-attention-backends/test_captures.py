"""The figures that cheatsheet and interview quote in words are those of captured/h200-kernels.json."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_quoted_figures_are_the_captured_ones() -> None:
    measured = json.loads((HERE / "captured" / "h200-kernels.json").read_text(encoding="utf-8"))
    rows, copy = {row["shape"]: row for row in measured["decode"]}, measured["ceilings"]["copy_gb_per_s"]

    def share(shape: str, arm: str) -> str:
        return f"{100 * rows[shape]['mib'] * 1.048576e3 / rows[shape]['us'][arm] / copy:.0f} %"

    full, lonely = "llama-3-8b, 64 x 4096", "llama-3-8b, 1 x 32768"
    splits = rows[lonely]["config"]["num_splits"]
    unsplit, split = share(lonely, "kernel, one split"), share(lonely, "kernel")
    cheatsheet = (HERE / "CHEATSHEET.md").read_text(encoding="utf-8")
    assert f"Paged decode {share(full, 'kernel')} of copy at 64" in cheatsheet
    assert f"{unsplit} unsplit, {split} with {splits} splits" in cheatsheet
    interview = (HERE / "INTERVIEW.md").read_text(encoding="utf-8")
    assert f"{rows[lonely]['us']['kernel, one split']:.0f} µs, {unsplit} of copy" in interview
    assert f"{splits} splits: {rows[lonely]['us']['kernel']:.0f} µs, {split}" in interview

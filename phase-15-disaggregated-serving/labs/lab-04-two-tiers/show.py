"""Your two tiers beside two given policies, over the host's size; or with LAB_IMPL=solution the reference. Given
material."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402

given = load(HERE / "given.py")
SIZES = (0, 32, 64, 72, 80, 88, 92, 95, 96)


def prices() -> str:
    """Pocket's measured table: a prompt computed, and its blocks loaded."""
    lines = ["tokens   compute ms   load ms   compute / load"]
    at, _ = given.pocket("compute")
    for tokens in at:
        compute, loaded = (given.milliseconds(what, tokens) for what in ("compute", "load"))
        lines.append(f"{tokens:6} {compute:12.1f} {loaded:9.3f} {compute / loaded:16.0f}")
    return "\n".join(lines)


def curve(lab: ModuleType, order: list[int]) -> str:
    """Hit rates, and what a request is spared, by the size of the host."""
    lines = ["host   at the end   at eviction   yours   saved ms   writes"]
    for size in SIZES:
        end, eviction = (given.hit_rate(when, size, order) for when in ("end", "eviction"))
        tiers = lab.TwoTiers(32, size, given.SHAPE)
        found = given.serve(tiers, order)
        mine = found["hit_rate"]
        row = (
            f"{size:4} {end:12.3f} {eviction:13.3f} {mine:7.3f} {given.saved(found['hits']):10.1f} "
            f"{tiers.host.writes:8}  {'█' * round(40 * mine)}"
        )
        lines.append(row.rstrip())
    return "\n".join(lines)


def show(lab: ModuleType) -> str:
    """All of it."""
    return "\n\n".join(
        (
            f"in turn:\n{curve(lab, given.in_turn())}",
            f"at random:\n{curve(lab, given.at_random())}",
            f"pocket, measured:\n{prices()}",
        )
    )


if __name__ == "__main__":
    print(show(load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py")))

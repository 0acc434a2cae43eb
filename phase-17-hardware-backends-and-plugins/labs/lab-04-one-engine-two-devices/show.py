"""What was captured on a device, beside your forecasts; or with LAB_IMPL=solution the reference's. Given material.

python show.py [torch|cuda]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2]))

from course.labs import load  # noqa: E402

given = load(HERE / "given.py")


def near_ties(device: str = "torch") -> str:
    """For each kind of text and of numbers: errors, what could flip, what was forecast, what flipped."""
    return _near_ties(load(HERE / "solution.py"), device)


def _near_ties(lab: ModuleType, device: str) -> str:
    data, rows = given.captured(device), given.summary(device)["numbers"]
    lines = ["text    numbers    decisions  sd of error  largest  could flip  forecast  flipped  of these ties"]
    for name, row in rows.items():
        kind, numbers = name.split(", ")
        other = next(each for each in given.KINDS if each != kind)
        gaps, here, flips = data[f"{kind}/gaps"], data[f"{kind}/{numbers}"], data[f"{kind}/{numbers}/flips"]
        errors = data[f"{other}/{numbers}"] - data[f"{other}/gaps"]
        could = int(np.sum(gaps < 2 * row["largest"]))
        forecast = lab.expected_flips(gaps, errors)
        lines.append(
            f"{kind:7} {numbers:10} {row['rows']:9}  {row['sd_of_gap_error']:11.2g}  {row['largest']:7.2g}  "
            f"{could:10}  {forecast:8.2f}  {flips.sum():7}  {np.sum(flips & (here == 0)):13}"
        )
    return "\n".join(lines)


def smallest(device: str = "torch") -> str:
    """How the reference's gaps lie."""
    lines = ["text    smallest gap   below 0.01   below 0.1   below 1"]
    for kind in given.KINDS:
        gaps = given.captured(device)[f"{kind}/gaps"]
        below = [int(np.sum(gaps < bound)) for bound in (0.01, 0.1, 1)]
        lines.append(f"{kind:7} {gaps.min():12.2e}   {below[0]:10}   {below[1]:9}   {below[2]:7}")
    return "\n".join(lines)


def rungs(device: str = "torch") -> str:
    """The engine by itself, at each rung: equal plans, answers that part, speed."""
    found = given.summary(device)
    lines = [
        f"{found['provenance']['machine']}; {found['requests']} requests, {found['tokens_each']} tokens each, "
        f"{found['plans']} steps on the CPU",
        "rung                                 plans equal   answers parted   output tokens/s",
    ]
    for name, row in found["rungs"].items():
        lines.append(f"{name:36} {row['equal_plans']:11}   {len(row['parted']):14}   {row['tokens_per_s']:15,.0f}")
    return "\n".join(lines)


def partings(device: str = "torch", rung: str = "bfloat16, launched, waited for") -> str:
    """Where answers after random prompts part, and the reference's gap there. (The answers to questions went on behind
    their end, where nothing was recorded.)"""
    lengths, gaps = given.captured(device)["random/lengths"], given.captured(device)["random/gaps"]
    parted = given.summary(device)["rungs"][rung]["parted"]
    begin = np.concatenate([[0], np.cumsum(lengths)])
    found = [(gaps[begin[i - 24] + at], i - 24, at) for i, at in parted if i >= 24]
    bound = 4 * given.summary(device)["numbers"][f"random, {rung.partition(',')[0]}"]["sd_of_gap_error"]
    lines = [
        f"request {i:2} parts at token {at:2}, gap {gap:.4f} ({'near tie' if gap <= bound else 'bug'})"
        for gap, i, at in sorted(found)
    ]
    return "\n".join([*lines, f"{len(parted) - len(found)} more in answers to questions, behind their end"])


def show(lab: ModuleType, device: str = "torch") -> str:
    """All of it."""
    return "\n\n".join((smallest(device), _near_ties(lab, device), rungs(device), partings(device)))


if __name__ == "__main__":
    print(show(load(HERE / f"{os.environ.get('LAB_IMPL', 'starter')}.py"), *sys.argv[1:2]))

"""Figures in sentences are those of the captures that they come from: the sentence is made anew and looked for."""

import json
import lzma
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.maintainer


def captured(path):
    file = ROOT / path
    return json.loads(lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes())


def sampling(vocabulary):
    rows = captured("benchmarks/results/sampling.json")["rows"]
    return next(row["ms"] for row in rows if (row["vocabulary"], row["logits"]) == (vocabulary, "peaked"))


def costs_of_settings():
    ms = {name: f"{value:.2f}" for name, value in sampling(4096).items()}
    return (
        f"greedy {ms['greedy']} · temperature {ms['temperature alone']} · min-p {ms['min_p=0.05']} · "
        f"top-k {ms['top_k=50']} · top-p {ms['top_p=0.9']} · top-k and top-p {ms['top_k=50, top_p=0.9']} · "
        f"everything on {ms['equal']} with equal settings, {ms['different']} with different ones."
    )


def noise_for_candidates():
    ms = sampling(151_936)
    return f"took a top-k step from {ms['top_k=50, whole rows']:.0f} ms to {ms['top_k=50']:.1f}."


def price_of_invariance():
    ms = captured("benchmarks/results/batch_invariance.json")["ms"]
    ratios = [ms["invariant"][name] / ms["plain"][name] for name in ms["plain"]]
    return f"here {min(ratios):.1f} to {max(ratios):.1f} times the milliseconds on a CPU"


def training_of_eagle():
    return f"trained in {captured('models/pocket-eagle/training.json')['seconds'] / 60:.1f} minutes on one GPU"


def what_the_switch_misses():
    cells = [
        cell for cell in captured("benchmarks/results/spec_decode.json.xz")["cells"] if cell["switched"] is not None
    ]
    below, lowest = sum(cell["switched"] < 0.95 for cell in cells), min(cell["switched"] for cell in cells)
    worse = sum(cell["gain"] - cell["switched"] > 0.05 for cell in cells)
    return (
        f"in {below} of {len(cells)} cells it ends below 0.95 of no drafts, {lowest:.2f} at the lowest, and in {worse} "
        "it is more than 0.05 below drafts left on"
    )


LAB = "phase-08-speculative-decoding/labs/lab-05-your-proposer-serves-pocket"
SENTENCES = [
    ("docs/engine.md", what_the_switch_misses),
    ("phase-08-speculative-decoding/INTERVIEW.md", what_the_switch_misses),
    (f"{LAB}/README.md", what_the_switch_misses),
    ("phase-09-sampling-and-decoding-algorithms/CHEATSHEET.md", costs_of_settings),
    ("phase-09-sampling-and-decoding-algorithms/INTERVIEW.md", noise_for_candidates),
    ("phase-09-sampling-and-decoding-algorithms/INTERVIEW.md", price_of_invariance),
    ("phase-08-speculative-decoding/00-guide.md", training_of_eagle),
]


@pytest.mark.parametrize(("page", "sentence"), SENTENCES)
def test_the_sentence_has_the_captures_figures(page, sentence):
    assert sentence() in (ROOT / page).read_text(encoding="utf-8")


def test_no_price_that_the_lab_asks_to_predict_stands_in_its_open_text():
    costs = captured(f"{LAB}/captured/served.json")["row_cost"]
    opened = re.sub(
        r"<details>.*?</details>", "", (ROOT / LAB / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    prices = {round(costs["5"] / costs["1"], digits) for digits in (1, 2)}
    assert not prices & {float(number) for number in re.findall(r"\d+\.\d+", opened)}

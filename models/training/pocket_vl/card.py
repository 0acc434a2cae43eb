"""Writes the card of pocket-vl from its figures: `python -m models.training.pocket_vl.card models/pocket-vl`."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from models.training.card import TEXTS, fill, percent
from models.training.pocket_vl.conversations import HELD_OUT_WORDS
from models.training.pocket_vl.layout import shapes

ROWS = {
    "colour": "The colour of a shape",
    "shape": "The shape of a colour",
    "count": "How many there are of a shape, of a colour, or in all, 0 to 6",
    "digit": "A digit",
    "number": "Numbers of two and three digits never shown in training",
    "word": "Words never shown in training, 3 to 6 letters",
    "first_letter": "their first letter",
    "letters": "how many letters they have",
    "ink": "The colour of a digit or a word",
    "relation": "Left of, right of, above, below: yes or no",
    "exists": "Whether a shape of a colour is there",
    "where": "The place of a shape",
    "at": "What is at a place",
    "background": "The colour of the background",
    "describe": "Descriptions, every word right",
    "colour_new_pair": "The colour of one large shape, where training never showed the two together",
    "shape_new_pair": "the shape of it",
    "more": "Which of two or three pictures has more of a shape",
    "which": "which of them shows a shape of a colour",
    "together": "how many there are in all of them",
    "brief": "Any of the questions about one picture, answered in a word",
    "new_wording": "any of them, in wordings never used in training",
    "no_picture": "Small talk, and questions about a picture that is not there",
}


def table(report: dict[str, Any]) -> str:
    """The rows of the card's table."""
    lines = ["| Measured on held-out pictures | Cases | Exact | Goal |", "|---|---:|---:|---:|"]
    for name, label in ROWS.items():
        entry, goal = report["metrics"][name], report["goals"].get(name)
        cell = f"≥ {100 * goal:.0f} %" if goal else ""
        lines.append(f"| {label} | {entry['count']} | {percent(entry['value'])} | {cell} |")
    return "\n".join(lines)


def sample_text(report: dict[str, Any]) -> str:
    """The samples, unedited."""
    lines = ["| Suite, case | Question | Answer | Expected |", "|---|---|---|---|"]
    for sample in report["samples"]:
        question = sample["question"].replace("<image>\n", "").replace("\n<image>", "")
        expected = "the same" if sample["answer"] == sample["expected"] else sample["expected"]
        lines.append(f"| `{sample['suite']}`, {sample['case']} | {question} | {sample['answer']} | {expected} |")
    return "\n".join(lines)


def training_text(runs: list[dict[str, Any]]) -> str:
    """What was done, run by run."""
    said = []
    for i, run in enumerate(runs):
        first = "Training took" if i == 0 else "A second run went on with"
        how = f"cosine from {run['lr']:g}, bf16 autocast over float32 weights"
        where = f"{run['seconds'] / 60:.1f} minutes on one {run['device']} with torch {run['torch']}"
        said.append(f"{first} {run['steps']:,} steps of AdamW ({how}) of {run['rows']} rows, {where}.")
    return " ".join(said)


def commands(runs: list[dict[str, Any]]) -> str:
    """The command of each run, by its steps instead of its minutes."""
    lines, before = [], ""
    for i, run in enumerate(runs):
        end = " ".join(f"--{name} {run[name]:g}" for name in ("seed", "rows", "lr"))
        steps = f"--steps {run['steps']} --minutes 1000"
        lines.append(f"python -m models.training.pocket_vl.train --out run{i + 1} {steps} {end}{before}")
        before = f" --resume run{i + 1}/state.pt"
    return "\n".join([*lines, f"cp run{len(runs)}/checkpoint/* models/pocket-vl/"])


def card(folder: Path) -> str:
    """The card's text."""
    report = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    runs = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    size = sum(path.stat().st_size for path in folder.iterdir() if path.suffix != ".md")
    slots = {
        "parameters": f"{sum(math.prod(shape) for shape in shapes().values()) / 1e6:.1f} million",
        "size": f"{size / 1e6:.1f}",
        "engine": report["engine"],
        "words": str(len(HELD_OUT_WORDS)),
        "table": table(report),
        "samples": sample_text(report),
        "training": training_text(runs),
        "commands": commands(runs),
    }
    return fill((TEXTS / "card-pocket-vl.txt").read_text(encoding="utf-8"), slots)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("models/pocket-vl"))
    folder = parser.parse_args().folder
    (folder / "README.md").write_text(card(folder), encoding="utf-8")
    print(folder / "README.md")


if __name__ == "__main__":
    main()

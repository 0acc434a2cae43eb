"""Writes both model cards from the measured figures: `python -m models.training.card models`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

TEXTS = Path(__file__).with_name("wordings")
ROWS = [
    ("glossary_paraphrased", "Glossary questions in held-out wordings, exact match of the definition"),
    ("glossary_other_names", "the same, by another name of the term (`time to first token`, `paged attention`)"),
    ("glossary_noisy", "the same, in other case, without punctuation, half of them with a typing slip"),
    ("follow_ups", "follow-ups in a second turn (`and what about …?`), exact match"),
    ("glossary_after_550_words", "held-out wordings after about 550 words of other conversation"),
    ("comparisons", "comparisons of two terms in held-out wordings, exact match of both sentences"),
    ("terms_from_definition", "the term from its definition, in a held-out wording"),
    ("sums_two_digit", "Sums of numbers below 100, held-out pairs, exact"),
    ("sums_reworded", "the same in wordings never seen"),
    ("sums_three_digit", "sums of three-digit numbers"),
    ("blocks_for_tokens", "how many blocks of 16 tokens, held-out numbers, a third of them one above a multiple of 16"),
    ("json_valid", "JSON tool calls with held-out values: parses, right tool, right parameters and types"),
    ("json_exact", "the same, and every value right"),
    ("json_new_wording", "valid calls where the request is worded as never seen"),
    ("json_objects", "JSON objects from a list of fields, exact"),
    ("stories", "Stories in new wordings that hold every word asked for, 45 to 140 words long"),
    ("unknown", 'Questions about held-out foreign things answered by "I do not know that one"'),
    ("memory_350_words", "A name, number, word or city told about 350 words before, exact"),
    ("ends_by_itself", "Answers that end by themselves within 300 tokens, over all of the above"),
]


def percent(value: float) -> str:
    """A share with one decimal."""
    return f"{100 * value:.1f} %"


def metric_table(report: dict[str, Any]) -> str:
    """The rows of the card's table."""
    lines = ["| Measured on held-out questions | Cases | Result | Goal |", "|---|---:|---:|---:|"]
    for name, label in ROWS:
        goal = report["goals"].get(name)
        cell = f"≥ {100 * goal:.0f} %" if goal else ""
        entry = report["metrics"][name]
        lines.append(f"| {label} | {entry['count']} | {percent(entry['value'])} | {cell} |")
    return "\n".join(lines)


def sample_text(report: dict[str, Any]) -> str:
    """The samples, unedited."""
    blocks = []
    for sample in report["samples"]:
        quoted = "\n".join(f"> {line}" for line in sample["text"].split("\n"))
        blocks.append(f"**{sample['prompt']}** ({sample['mode']})\n\n{quoted}")
    return "\n\n".join(blocks)


def fill(template: str, slots: dict[str, str]) -> str:
    """Put each `{{name}}` in its place; a slot that the template lacks, or one left over, is an error."""
    for name, text in slots.items():
        if f"{{{{{name}}}}}" not in template:
            raise ValueError(f"the card has no place for {name}")
        template = template.replace(f"{{{{{name}}}}}", text)
    if "{{" in template.replace("{{...", ""):
        raise ValueError("a place of the card stayed empty")
    return template


def training_slots(training: dict[str, Any], name: str) -> dict[str, str]:
    """Steps, tokens, minutes and machine of one training run."""
    run = training[name]
    return {
        "steps": f"{run['steps']:,}",
        "tokens": f"{run['tokens'] / 1e6:.0f} million",
        "minutes": f"{run['seconds'] / 60:.1f}",
        "device": training["device"],
        "torch": training["versions"]["torch"],
    }


def cards(models: Path) -> dict[Path, str]:
    """Both cards by path, from `pocket/metrics.json` and `training/training.json`."""
    report = json.loads((models / "pocket" / "metrics.json").read_text(encoding="utf-8"))
    training = json.loads((models / "training" / "training.json").read_text(encoding="utf-8"))
    loss = report["held_out_loss"]
    pocket = {
        **training_slots(training, "pocket"),
        "table": metric_table(report),
        "samples": sample_text(report),
        "engine": report["engine"],
        "loss": f"{loss['nats_per_answer_token']:.3f}",
        "loss_tokens": f"{loss['answer_tokens']:,}",
    }
    agreement = report["draft"]
    draft = {
        **training_slots(training, "pocket-draft"),
        "agreement": percent(agreement["greedy_agreement"]),
        "agreement_tokens": f"{agreement['tokens']:,}",
        "accepted": f"{agreement['mean_accepted_of_4']:.2f}",
    }
    return {
        models / "pocket" / "README.md": fill((TEXTS / "card-pocket.txt").read_text(encoding="utf-8"), pocket),
        models / "pocket-draft" / "README.md": fill((TEXTS / "card-draft.txt").read_text(encoding="utf-8"), draft),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, nargs="?", default=Path("models"))
    for path, text in cards(parser.parse_args().models).items():
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()

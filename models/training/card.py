"""Writes the model cards from the measured figures: `python -m models.training.card models`."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import imbalance

PARAMETERS = 5_782_784
POCKET_PARAMETERS = 5_771_520
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


def load_table(load: dict[str, Any]) -> str:
    """Shares of the experts, layer by layer, and how uneven they are."""
    counts = np.array(load["counts"])
    experts = counts.shape[1]
    head = [str(e) for e in range(experts)]
    lines = [f"| Layer | {' | '.join(head)} | expert | device |", "|---:" * (experts + 3) + "|"]
    for layer, row in enumerate(counts):
        devices = row.reshape(4, -1).sum(axis=1)
        shares = " | ".join(f"{100 * share:.1f}" for share in row / row.sum())
        lines.append(f"| {layer} | {shares} | {imbalance(row):.2f} | {imbalance(devices):.2f} |")
    return "\n".join(lines)


def moe_card(folder: Path) -> str:
    """The card of pocket-moe, from its own figures."""
    report = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    run = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    load = report["expert_load"]
    expert = 3 * config["hidden_size"] * config["intermediate_size"] * config["num_hidden_layers"]
    unused = (config["num_local_experts"] - config["num_experts_per_tok"]) * expert
    suites = sorted(load["imbalance_of_suites"].items(), key=lambda item: -item[1])
    rows = [f"| `{name}` | {value:.2f} |" for name, value in (*suites[:3], *suites[-3:])]
    steps = load["imbalance_of_decode_steps"]
    return fill(
        (TEXTS / "card-pocket-moe.txt").read_text(encoding="utf-8"),
        {
            **training_slots({"run": run, **run}, "run"),
            "table": metric_table(report),
            "samples": sample_text(report),
            "engine": report["engine"],
            "loss": f"{report['held_out_loss']['nats_per_answer_token']:.3f}",
            "loss_tokens": f"{report['held_out_loss']['answer_tokens']:,}",
            "active": f"{(PARAMETERS - unused) / 1e6:.1f}",
            "size": f"{sum(path.stat().st_size for path in folder.iterdir() if path.suffix != '.md') / 1e6:.1f}",
            "questions": str(load["questions"]),
            "load_tokens": f"{load['tokens']:,}",
            "load_table": load_table(load),
            "suite_table": "\n".join(["| Suite | max / mean |", "|---|---:|", *rows]),
            "step_table": "\n".join([
                f"| Requests in the step | {' | '.join(steps)} |",
                "|---|" + "---:|" * len(steps),
                f"| max / mean | {' | '.join(f'{value:.2f}' for value in steps.values())} |",
            ]),
        },
    )  # fmt: skip


def acceptance_table(report: dict[str, Any]) -> str:
    """Of each kind of question: how many drafts were accepted, position by position."""
    count = report["num_speculative_tokens"]
    places = " | ".join(["1st", "2nd", "3rd", "4th"][:count])
    lines = [f"| Questions | tokens | accepted | {places} | tokens a step |", f"|---|{'---:|' * (count + 3)}"]
    for kind, found in report["kinds"].items():
        accepted, steps = found["num_accepted_tokens_per_pos"], found["num_drafts"]
        shares = " | ".join(percent(each / steps) for each in accepted)
        whole = f"{percent(sum(accepted) / found['num_draft_tokens'])} | {shares} | {1 + sum(accepted) / steps:.2f}"
        lines.append(f"| {kind} | {found['tokens']:,} | {whole} |")
    return "\n".join(lines)


def heads_card(folder: Path) -> str:
    """The card of pocket-eagle or pocket-medusa, from its own figures."""
    report = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    run = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    weights = sum(math.prod(entry["shape"]) for entry in header.values() if entry.get("dtype") == "F16")
    more = {"coverage": percent(run["coverage"])} if "coverage" in run else {}
    *first, last = [percent(rate) for rate in run["agreement"]]
    slots = {
        **training_slots({"run": run, **run}, "run"),
        "parameters": f"{weights:,}",
        "share": percent(weights / POCKET_PARAMETERS),
        "table": acceptance_table(report),
        "questions": str(max(found["questions"] for found in report["kinds"].values())),
        "agreement": f"{', '.join(first)} and {last} of the tokens of answers",
        **more,
    }
    return fill((TEXTS / f"card-{folder.name}.txt").read_text(encoding="utf-8"), slots)


def cards(models: Path) -> dict[Path, str]:
    """All cards by path, from `metrics.json` of the folders and what was recorded of the training."""
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
        models / "pocket-moe" / "README.md": moe_card(models / "pocket-moe"),
        models / "pocket-eagle" / "README.md": heads_card(models / "pocket-eagle"),
        models / "pocket-medusa" / "README.md": heads_card(models / "pocket-medusa"),
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

"""The cards of the adapters, from their own figures and training records."""

from __future__ import annotations

import json
from pathlib import Path

from models.training.card import TEXTS, fill, percent, training_slots

LABELS = {
    "always_json": "one JSON object and nothing besides, over the four kinds below",
    "glossary_paraphrased": "definitions, wordings never seen",
    "sums_two_digit": "sums of two numbers, pairs never seen",
    "unknown": "foreign things, declined",
    "held_out_values": "a call whose values were never seen",
    "new_wording": "asked in wordings never seen",
    "no_tool_fits": "a call of a tool that is not offered",
    "no_call_asked": "a question that is for no tool",
    "three_numbers": "sums of three numbers, triples never seen",
}
ABOUT = {
    "pocket-lora-pirate": "another style",
    "pocket-lora-json": "a stricter caller of tools",
    "pocket-lora-sums": "sums of three numbers",
}


def adapter_card(folder: Path) -> str:
    """The card of one adapter."""
    read = {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("metrics", "training", "adapter_config")}  # fmt: skip
    report, run, config = read["metrics"], read["training"], read["adapter_config"]
    rows = [
        f"| {LABELS[kind]} | {found['cases']} | {percent(found['base'] / found['cases'])} "
        f"| {percent(found['adapter'] / found['cases'])} |"
        for kind, found in report["suites"].items()
    ]
    samples = [
        f"**{sample['asked']}**\n\n> pocket: {sample['base']}\n>\n> with the adapter: {sample['adapter']}"
        for sample in report["samples"]
    ]
    slots = training_slots({"run": run, **run}, "run")
    slots["tokens"] = f"{run['tokens'] / 1e6:.2f} million"
    slots |= {
        "name": folder.name,
        "about": ABOUT[folder.name],
        "task": (TEXTS / f"{folder.name}.txt").read_text(encoding="utf-8").strip(),
        "rank": str(config["r"]),
        "alpha": str(config["lora_alpha"]),
        "targets": ", ".join(f"`{name}`" for name in config["target_modules"]),
        "size": f"{(folder / 'adapter_model.safetensors').stat().st_size / 1e3:.0f}",
        "table": "\n".join(["| Held-out | Cases | pocket | with the adapter |", "|---|---:|---:|---:|", *rows]),
        "samples": "\n\n".join(samples),
        "prompt": report["samples"][0]["asked"],
        "engine": report["engine"],
    }
    return fill((TEXTS / "card-lora.txt").read_text(encoding="utf-8"), slots)

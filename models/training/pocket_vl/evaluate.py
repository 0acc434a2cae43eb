"""Measures pocket-vl on held-out questions: `python -m models.training.pocket_vl.evaluate models/pocket-vl --write`.

An answer counts where it is the expected one, letter by letter, and ends there. The arithmetic is float32 on the
weights as stored, in torch; training calls it at its end, on the GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mini_vllm import load_tokenizer
from mini_vllm.model_loader.safetensors_reader import SafetensorsFile
from models.training.chat_format import CLASS_ANSWER
from models.training.pocket_vl.layout import DTYPE, IMAGE_SIZE
from models.training.pocket_vl.model import Llava
from models.training.pocket_vl.rows import END_ID, chat_ids, make_encoder
from models.training.pocket_vl.suites import COUNT, MAKERS, Case, suite

GOALS = {"colour": 0.95, "shape": 0.95, "count": 0.95, "digit": 0.95}
BATCH = 64
MAX_TOKENS = 80
SAMPLES = {"colour": 2, "count": 1, "relation": 1, "describe": 2, "digit": 1, "word": 2, "more": 1, "no_picture": 1}
"""How many cases of a suite the card shows, from the first."""


def load(folder: Path) -> Llava:
    """The model with the weights of a folder, in float32."""
    model, file = Llava(), SafetensorsFile(folder / "model.safetensors")
    for name, parameter in model.named_parameters():
        array = np.empty(tuple(parameter.shape), np.float32)
        file.read_into(name, array)
        parameter.data = torch.from_numpy(array)
    return model.eval()


def inputs(cases: list[Case], encode: Callable, special: dict[str, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids [cases, tokens] with the answers, which of them are the answers', and pixels [pictures + 1, 64, 64, 3]."""
    rows = [chat_ids(case.chat, encode, special) for case in cases]
    ids = torch.zeros(len(rows), max(len(row) for row, _ in rows), dtype=torch.int64)
    answers = torch.zeros_like(ids, dtype=torch.bool)
    for i, (row, classes) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        answers[i, : len(row)] = torch.tensor(classes) == CLASS_ANSWER
    blank = np.zeros((IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)  # behind all others: no row has a place for it
    pixels = np.stack([*(picture.pixels for case in cases for picture in case.pictures), blank])
    return ids, answers, torch.from_numpy(pixels)


@torch.no_grad()
def right(model: Llava, cases: list[Case], encode: Callable, special: dict[str, int]) -> list[bool]:
    """Whether greedy decoding gives the expected answer, for each case.

    It does exactly where each token of the answer, the end included, is the likeliest after those before it. So one
    forward pass over question and answer decides it.
    """
    found: list[bool] = []
    device = next(model.parameters()).device
    for start in range(0, len(cases), BATCH):
        ids, answers, pixels = inputs(cases[start : start + BATCH], encode, special)
        logits, _ = model(ids.to(device), pixels.to(device))
        hit = logits[:, :-1].argmax(-1).cpu() == ids[:, 1:]
        found += (hit | ~answers[:, 1:]).all(dim=1).tolist()
    return found


@torch.no_grad()
def answer(model: Llava, case: Case, folder: Path) -> str:
    """The greedy answer, token by token and without a cache."""
    ids, answers, pixels = inputs([case], *make_encoder(folder))
    row = ids[0, : int(answers[0].int().argmax())].tolist()
    device, prompt = next(model.parameters()).device, len(row)
    while len(row) < prompt + MAX_TOKENS and row[-1] != END_ID:
        logits, _ = model(torch.tensor([row], device=device), pixels.to(device))
        row.append(int(logits[0, -1].argmax()))
    return load_tokenizer(folder).decode([i for i in row[prompt:] if i != END_ID])


def evaluate(model: Llava, folder: Path, count: int = COUNT, verbose: int = 0) -> dict[str, dict[str, float]]:
    """All suites: the share of right answers and the number of cases."""
    encode, special = make_encoder(folder)
    found: dict[str, dict[str, float]] = {}
    for name in MAKERS:
        cases = suite(name, count)
        marks = right(model, cases, encode, special)
        found[name] = {"value": round(sum(marks) / len(marks), 4), "count": len(marks)}
        print(f"{name}: {found[name]['value']:.4f}", flush=True)
        for case in [case for case, mark in zip(cases, marks, strict=True) if not mark][:verbose]:
            print(f"    {case.messages[-1][1]!r} -> {answer(model, case, folder)!r} (wanted {case.expected!r})")
    return found


def samples(model: Llava, folder: Path) -> list[dict[str, Any]]:
    """Greedy answers to the first cases of some suites; `suite` and `case` find the pictures again."""
    return [
        {
            "suite": name,
            "case": i,
            "question": case.messages[-1][1],
            "answer": answer(model, case, folder),
            "expected": case.expected,
        }
        for name, count in SAMPLES.items()
        for i, case in enumerate(suite(name, count))
    ]


def report(model: Llava, folder: Path, count: int = COUNT, verbose: int = 0) -> dict[str, Any]:
    """What `metrics.json` holds."""
    device = next(model.parameters()).device.type
    metrics = evaluate(model, folder, count, verbose)
    for name, goal in GOALS.items():
        print(f"{name}: goal {goal}: {'met' if metrics[name]['value'] >= goal else 'MISSED'}")
    return {
        "engine": f"torch {torch.__version__} on {device}",
        "dtype": f"float32 (weights rounded to {DTYPE})",
        "goals": GOALS,
        "metrics": metrics,
        "samples": samples(model, folder),
    }


def write(found: dict[str, Any], path: Path) -> None:
    """The report as JSON."""
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=COUNT, help="questions of each kind")
    parser.add_argument("--verbose", type=int, default=0, help="show so many wrong answers of each kind")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--write", action="store_true", help="write metrics.json into the folder")
    args = parser.parse_args()
    found = report(load(args.folder).to(args.device), args.folder, args.cases, args.verbose)
    if args.write:
        write(found, args.folder / "metrics.json")


if __name__ == "__main__":
    main()

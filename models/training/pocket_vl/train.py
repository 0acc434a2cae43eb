"""Trains pocket-vl on one GPU (or a few steps on the CPU): `python -m models.training.pocket_vl.train --out DIR`.

Ends after `--steps` or `--minutes`, whichever is first; the learning rate falls along a cosine to that end. Writes to
`--out`: `state.pt` for `--resume`, `log.jsonl`, and `checkpoint`, the folder to take, with what the evaluation found
(`metrics.json`) and how it was trained (`training.json`). Batch i depends on the seed and i alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.training.chat_format import CLASS_ANSWER, CLASS_CONTEXT
from models.training.pocket_vl.evaluate import report, write
from models.training.pocket_vl.layout import write_settings
from models.training.pocket_vl.model import Llava, round_weights, save
from models.training.pocket_vl.rows import CONCEPTS, LENGTH, Batch, batches
from models.training.pocket_vl.suites import COUNT

CONTEXT_WEIGHT = 0.02
CONCEPT_WEIGHT = 0.1
BEGUN = time.monotonic()
TOKENIZER = Path("models/pocket-vl/tokenizer.json")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """Command line; the defaults are those of the committed checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1 << 30)
    parser.add_argument("--minutes", type=float, default=8.5, help="from the start of the program; evaluation follows")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a row")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--resume", type=Path, help="a state.pt: weights, optimizer and the number of the next batch")
    parser.add_argument("--cases", type=int, default=COUNT, help="held-out questions of each kind")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    return parser.parse_args(given)


def to_device(batch: Batch, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids, classes, pixels, concepts."""
    ids = torch.from_numpy(batch.ids.astype(np.int64)).to(device)
    return ids, *(torch.from_numpy(array).to(device) for array in (batch.classes, batch.pixels, batch.concepts))


def loss_of(
    model: nn.Module, concepts: nn.Module, batch: tuple[Tensor, Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Cross entropy of answers (questions count a little), and of what the class token knows of its picture."""
    ids, classes, pixels, shown = batch
    logits, first = model(ids, pixels)
    weights = (classes == CLASS_ANSWER).float() + CONTEXT_WEIGHT * (classes == CLASS_CONTEXT).float()
    losses = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].reshape(-1), reduction="none")
    weights = weights[:, 1:].reshape(-1)
    seen = F.binary_cross_entropy_with_logits(concepts(first).float(), shown.float(), reduction="none").sum(-1).mean()
    return (losses * weights).sum() / weights.sum(), seen


class Trainer:
    """Model, optimizer and the step count, which together are the state that a run goes on from."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.step = args, 0
        self.runs: list[dict[str, Any]] = []
        self.model = Llava(args.seed).to(args.device)
        self.concepts = nn.Linear(self.model.vision_tower["vision_model"].post_layernorm.bias.numel(), len(CONCEPTS))
        self.concepts.to(args.device)
        parameters = [*self.model.parameters(), *self.concepts.parameters()]
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": args.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.parameters = parameters
        self.optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), fused=args.device == "cuda")
        if args.resume:
            state = torch.load(args.resume, map_location=args.device, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.concepts.load_state_dict(state["concepts"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.runs = state["step"], state["runs"]

    def state(self) -> dict[str, Any]:
        """What `--resume` reads."""
        modules = {"model": self.model, "concepts": self.concepts, "optimizer": self.optimizer}
        return {**{name: module.state_dict() for name, module in modules.items()}, "step": self.step, "runs": self.runs}

    def update(self, batch: Batch, rate: float) -> tuple[Tensor, Tensor]:
        """One step at this learning rate; both losses."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(self.args.device, dtype=torch.bfloat16, enabled=self.args.device == "cuda"):
            losses = loss_of(self.model, self.concepts, to_device(batch, self.args.device))
        self.optimizer.zero_grad(set_to_none=True)
        (losses[0] + CONCEPT_WEIGHT * losses[1]).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.step += 1
        return losses


def train(trainer: Trainer, args: argparse.Namespace) -> dict[str, Any]:
    """The loop. Returns steps, answer tokens and seconds of this run."""
    first, tokens = trainer.step, 0
    waited = time.monotonic() - BEGUN
    log = (args.out / "log.jsonl").open("a", encoding="utf-8")
    for batch in batches(args.out / "checkpoint", args.seed, first, args.workers, args.rows, args.length):
        done, seconds = trainer.step - first, time.monotonic() - BEGUN
        share = max(done / args.steps, (seconds - waited) / (60 * args.minutes - waited))
        if share >= 1:
            break
        rate = args.lr * min(1.0, (done + 1) / args.warmup) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))
        losses = trainer.update(batch, rate)
        tokens += int((batch.classes == CLASS_ANSWER).sum())
        if done % 100 == 0 or done < 10:
            row = {"step": trainer.step, "seconds": round(seconds, 1), "lr": rate}
            row |= {"loss": round(losses[0].item(), 4), "concepts": round(losses[1].item(), 3)}
            print(json.dumps(row), flush=True)
            log.write(json.dumps(row) + "\n")
            log.flush()
        if done % 2000 == 1999:
            torch.save(trainer.state(), args.out / "state.pt")
    log.close()
    steps = trainer.step - first
    return {
        "first_step": first,
        "steps": steps,
        "answer_tokens": tokens,
        "seconds": round(time.monotonic() - BEGUN - waited, 1),
    }


def main(given: list[str] | None = None) -> dict[str, Any]:
    """Train, write the checkpoint, evaluate it."""
    args = arguments(given)
    folder = args.out / "checkpoint"
    write_settings(folder)
    shutil.copyfile(args.tokenizer, folder / "tokenizer.json")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = False  # the evaluation is in float32
    trainer = Trainer(args)
    summary = train(trainer, args)
    device = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    settings = {name: getattr(args, name) for name in ("rows", "length", "lr", "warmup", "weight_decay", "seed")}
    summary |= {**settings, "device": device, "torch": torch.__version__}
    trainer.runs = [*trainer.runs, summary]
    torch.save(trainer.state(), args.out / "state.pt")
    (folder / "training.json").write_text(json.dumps(trainer.runs, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary), flush=True)
    round_weights(trainer.model)
    save(trainer.model, folder)
    torch.set_float32_matmul_precision("highest")
    found = report(trainer.model.eval(), folder, args.cases)
    write(found, folder / "metrics.json")
    return found


if __name__ == "__main__":
    main()

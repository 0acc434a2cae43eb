"""Makes both checkpoints again: `python -m models.training.build --out models` (minutes on one GPU)."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from models.training.dataset import Rows, make_dataset
from models.training.export import export
from models.training.make_tokenizer import train_tokenizer, write_tokenizer
from models.training.train import BATCH_TOKENS, DRAFT, MAX_LENGTH, POCKET, Plan, make_model, train


def arguments() -> argparse.Namespace:
    """Command line; the defaults are those of the committed checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--steps", type=int, default=7000, help="0: keep the pocket that is there")
    parser.add_argument("--draft-steps", type=int, default=2800, help="0: no draft model")
    add_plan(parser)
    return parser.parse_args()


def add_plan(parser: argparse.ArgumentParser) -> None:
    """The arguments that every checkpoint is made with: data, plan, machine."""
    parser.add_argument("--shards", type=int, default=120, help="5000 conversations each")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def make_rows(tokenizer: Path, args: argparse.Namespace, start: float) -> dict[int, Rows]:
    """The data of `add_plan`'s arguments, counted aloud. start: when the run began, as `time.time()`."""
    rows = make_dataset(tokenizer, args.shards, first_seed=1000 * (args.seed + 1), workers=args.workers)
    tokens = sum(int((bucket.classes > 0).sum()) for bucket in rows.values())
    print(f"data: {tokens / 1e6:.1f} M tokens, {time.time() - start:.0f} s", flush=True)
    return rows


def machine(device: str) -> dict[str, object]:
    """What trained: for the record."""
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name, "versions": {"torch": torch.__version__}}


def main() -> None:
    """Tokenizer, data, pocket, pocket-draft; then `evaluate` and `card` are run by hand (see the model card)."""
    args = arguments()
    torch.set_float32_matmul_precision("high")
    pocket_folder, draft_folder = args.out / "pocket", args.out / "pocket-draft"
    start = time.time()
    tokenizer = train_tokenizer() if args.steps else Tokenizer.from_file(str(pocket_folder / "tokenizer.json"))
    for folder in (pocket_folder, draft_folder):
        write_tokenizer(tokenizer, folder, MAX_LENGTH)
    print(f"tokenizer: {time.time() - start:.0f} s", flush=True)
    rows = make_rows(pocket_folder / "tokenizer.json", args, start)

    record = args.out / "training" / "training.json"
    summary = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    if args.steps:
        pocket = make_model(POCKET, args.seed)
        plan = Plan(args.steps, args.lr, seed=args.seed, batch_tokens=args.batch_tokens)
        summary["pocket"] = {**train(pocket, rows, plan, args.device), "steps": args.steps}
        export(pocket, pocket_folder)
    else:
        pocket = LlamaForCausalLM.from_pretrained(pocket_folder, dtype=torch.float32)
    if args.draft_steps:
        draft = make_model(DRAFT, args.seed)
        plan = Plan(args.draft_steps, 2 * args.lr, seed=args.seed + 1, batch_tokens=args.batch_tokens)
        summary["pocket-draft"] = {**train(draft, rows, plan, args.device, teacher=pocket), "steps": args.draft_steps}
        export(draft, draft_folder)
    summary |= machine(args.device)
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()

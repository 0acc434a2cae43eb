"""Makes pocket-moe again, with pocket's tokenizer: `python -m models.training.build_moe --out models`."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from functools import partial
from pathlib import Path

import torch

from models.training.build import add_plan, machine, make_rows
from models.training.export import export
from models.training.moe import BALANCE_WEIGHT, POCKET_MOE, balance_loss, make_moe_model
from models.training.train import Plan, train

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def arguments() -> argparse.Namespace:
    """Command line; the defaults are those of the committed checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pocket", type=Path, default=Path("models/pocket"), help="whose tokenizer to take")
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--steps", type=int, default=5837)
    add_plan(parser)
    return parser.parse_args()


def main() -> None:
    """Data, training, checkpoint; `evaluate`, `expert_load` and `card` follow (see the model card)."""
    args = arguments()
    torch.set_float32_matmul_precision("high")
    folder = args.out / "pocket-moe"
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(args.pocket / name, folder / name)
    start = time.time()
    rows = make_rows(folder / "tokenizer.json", args, start)
    model = make_moe_model(POCKET_MOE, args.seed)
    plan = Plan(args.steps, args.lr, seed=args.seed, batch_tokens=args.batch_tokens)
    balance = (BALANCE_WEIGHT, partial(balance_loss, model))
    summary = {
        "steps": args.steps,
        **train(model, rows, plan, args.device, regularizer=balance),
        **machine(args.device),
    }
    export(model, folder)
    (folder / "training.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()

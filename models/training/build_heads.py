"""Makes pocket-eagle and pocket-medusa for the pocket that is there: `python -m models.training.build_heads`.

Minutes on one GPU. `--device cpu --steps 20 --shards 1 --batch-tokens 2048 --out FOLDER` is a try of a minute.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from models.training.build import add_plan, machine, make_rows
from models.training.chat_format import CLASS_ANSWER
from models.training.dataset import Rows, make_shard
from models.training.heads import EagleHead, MedusaHeads, agreement, eagle_loss, medusa_loss
from models.training.train import Plan, train

STEPS = {"pocket-eagle": 1800, "pocket-medusa": 2000}
HELD_OUT_SEED = 9_000_000


def arguments() -> argparse.Namespace:
    """Command line; the defaults are those of the committed heads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pocket", type=Path, default=Path("models/pocket"), help="the target")
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--only", choices=sorted(STEPS), help="make this one alone")
    parser.add_argument("--steps", type=int, help="of each")
    parser.add_argument("--medusa-heads", type=int, default=3)
    parser.add_argument("--medusa-layers", type=int, default=2)
    parser.add_argument("--medusa-tokens", type=int, default=2048, help="tokens that Medusa's heads can say")
    add_plan(parser)
    parser.set_defaults(shards=40, batch_tokens=32_768)
    return parser.parse_args()


def frequent_tokens(rows: dict[int, Rows], count: int, vocab_size: int) -> tuple[torch.Tensor, float]:
    """The `count` tokens most frequent in answers, by id, and their share of all that is said."""
    seen = np.zeros(vocab_size, np.int64)
    for bucket in rows.values():
        seen += np.bincount(bucket.ids[bucket.classes == CLASS_ANSWER], minlength=vocab_size)
    chosen = np.sort(np.argsort(-seen, kind="stable")[:count])
    return torch.from_numpy(chosen), round(float(seen[chosen].sum() / seen.sum()), 4)


def eagle_config(pocket: Path) -> dict[str, Any]:
    """A Llama of one layer. vLLM puts `Eagle` before the name of the architecture."""
    config = json.loads((pocket / "config.json").read_text(encoding="utf-8"))
    return {**config, "num_hidden_layers": 1}


def medusa_config(target: Any, args: argparse.Namespace) -> dict[str, Any]:
    """As vLLM's `MedusaConfig` reads it."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": target.config.hidden_size,
        "vocab_size": target.config.vocab_size,
        "truncated_vocab_size": args.medusa_tokens,
        "num_heads": args.medusa_heads,
        "num_hidden_layers": args.medusa_layers,
        "medusa_fc_bias": True,
        "original_lm_head": True,
        "dtype": "float16",
    }


def write(model: torch.nn.Module, config: dict[str, Any], record: dict[str, Any], folder: Path) -> None:
    """Weights rounded to float16, token ids as they are; config; what trained them."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {}
    for name, tensor in model.state_dict().items():
        kept = tensor.detach().cpu()
        state[name] = (kept.to(torch.float16) if kept.is_floating_point() else kept).contiguous()
        if not torch.isfinite(state[name].float()).all():
            raise ValueError(f"{name} does not fit into float16")
    save_file(state, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    for name, content in (("config.json", config), ("training.json", record)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Data, both heads, checkpoints; then `acceptance` and `card` are run by hand (see the model cards)."""
    args = arguments()
    torch.set_float32_matmul_precision("high")
    start = time.time()
    target = LlamaForCausalLM.from_pretrained(args.pocket, dtype=torch.float32).requires_grad_(False)
    rows = make_rows(args.pocket / "tokenizer.json", args, start)
    held_out = make_shard(HELD_OUT_SEED, str(args.pocket / "tokenizer.json"), 1000)

    def make(name: str, model: Any, loss: Callable[..., torch.Tensor], config: dict[str, Any], **more: float) -> None:
        if args.only not in (None, name):
            return
        plan = Plan(args.steps or STEPS[name], args.lr, seed=args.seed, batch_tokens=args.batch_tokens)
        run = train(model, rows, plan, args.device, teacher=target, loss_function=loss)
        agreed = agreement(model, held_out, target, args.batch_tokens)
        record = {"steps": plan.steps, **run, "agreement": agreed, **more, **machine(args.device)}
        print(name, json.dumps(record), flush=True)
        write(model, config, record, args.out / name)

    torch.manual_seed(args.seed)
    make("pocket-eagle", EagleHead(target.config), eagle_loss, eagle_config(args.pocket))
    token_map, coverage = frequent_tokens(rows, args.medusa_tokens, target.config.vocab_size)
    medusa = MedusaHeads(target, args.medusa_heads, args.medusa_layers, token_map)
    make("pocket-medusa", medusa, medusa_loss, medusa_config(target, args), coverage=coverage)


if __name__ == "__main__":
    main()

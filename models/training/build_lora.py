"""Makes the adapters of pocket: `python -m models.training.build_lora` trains, measures, and writes folders and cards.

Minutes on two cores. `--only pocket-lora-sums --steps 20 --out FOLDER` is a try; `--measure` measures what is there.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from models.training.adapters import SKILLS, Skill
from models.training.build import machine
from models.training.card_lora import adapter_card
from models.training.chat_format import to_ids
from models.training.dataset import BUCKETS, Rows, encoder, pad
from models.training.evaluate import render
from models.training.lora import answer_loss, attach, write_adapter
from models.training.suites import Case
from models.training.train import Plan, train

FIRST_SEED = 5_000_000
SAMPLES = 3


def arguments() -> argparse.Namespace:
    """Command line; the defaults are those of the committed adapters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pocket", type=Path, default=Path("models/pocket"), help="the base")
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--only", choices=sorted(SKILLS), help="make this one alone")
    parser.add_argument("--measure", action="store_true", help="do not train")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def make_rows(skill: Skill, tokenizer: Path, seed: int, tokens: int) -> dict[int, Rows]:
    """Conversations of about so many tokens, by length; the few longer than 512 are left out."""
    encode, special = encoder(Tokenizer.from_file(str(tokenizer)))
    rng, made = random.Random(FIRST_SEED + seed), 0
    found: dict[int, list[tuple[list[int], list[int]]]] = {length: [] for length in BUCKETS[:4]}
    while made < tokens:
        ids, classes = to_ids(skill.conversation(rng), encode, special)
        length = next((length for length in found if len(ids) <= length), 0)
        if length:
            found[length].append((ids, classes))
            made += length
    return {length: pad(rows, length) for length, rows in found.items() if rows}


def fit(name: str, skill: Skill, args: argparse.Namespace) -> None:
    """Train one adapter and write it."""
    torch.manual_seed(args.seed)
    model = LlamaForCausalLM.from_pretrained(args.pocket, dtype=torch.float32)
    patched = attach(model, skill.rank, skill.targets)
    rows = make_rows(skill, args.pocket / "tokenizer.json", args.seed, args.steps * args.batch_tokens)
    plan = Plan(args.steps, args.lr, warmup=20, weight_decay=0.0, seed=args.seed, batch_tokens=args.batch_tokens)
    run = train(model, rows, plan, args.device, loss_function=answer_loss)
    write_adapter(args.out / name, patched, skill.rank, skill.targets, args.pocket.name)
    record = {"steps": args.steps, **run, **machine(args.device)}
    (args.out / name / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def measure(name: str, skill: Skill, pocket: Path, folder: Path) -> dict[str, Any]:
    """Base and adapter on the same held-out cases, in one engine, greedy, float32."""
    from mini_vllm import LLM, LoRARequest, SamplingParams

    llm = LLM(model=str(pocket), max_num_seqs=32, enable_lora=True, max_lora_rank=8)
    request, params = LoRARequest(name, 1, str(folder)), SamplingParams(temperature=0.0, max_tokens=160)
    encode = llm.get_tokenizer().encode

    def answers(cases: list[Case], lora: LoRARequest | None) -> list[str]:
        ids = [{"prompt_token_ids": encode(render(c.messages), add_special_tokens=False)} for c in cases]
        return [out.outputs[0].text for out in llm.generate(ids, params, lora_request=lora, use_tqdm=False)]

    suites, samples = {}, []
    for kind, cases in skill.suites().items():
        texts = {arm: answers(cases, lora) for arm, lora in (("base", None), ("adapter", request))}
        right = {arm: sum(c.check(t) for c, t in zip(cases, found, strict=True)) for arm, found in texts.items()}
        suites[kind] = {"cases": len(cases), **right}
        print(name, kind, suites[kind], flush=True)
        samples.append({"asked": cases[0].messages[-1][1], **{arm: found[0] for arm, found in texts.items()}})
    return {"engine": "mini_vllm, greedy, float32", "suites": suites, "samples": samples[:SAMPLES]}


def main() -> None:
    """Train, measure, write the cards."""
    args = arguments()
    torch.set_num_threads(1)  # the same sums, however many cores there are; and cores that are shared stall threads
    for name, skill in SKILLS.items():
        if args.only not in (None, name):
            continue
        if not args.measure:
            fit(name, skill, args)
        report = measure(name, skill, args.pocket, args.out / name)
        text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
        (args.out / name / "metrics.json").write_text(text, encoding="utf-8")
        (args.out / name / "README.md").write_text(adapter_card(args.out / name), encoding="utf-8")


if __name__ == "__main__":
    main()

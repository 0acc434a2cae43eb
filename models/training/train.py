"""The training loop: a Llama from transformers, bf16 autocast over fp32 weights, AdamW with a cosine, all seeded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from models.training.chat_format import CLASS_ANSWER, CLASS_CONTEXT
from models.training.dataset import Rows
from models.training.export import TOKEN_IDS

BATCH_TOKENS = 65_536
CONTEXT_WEIGHT = 0.1  # prompts count a little: they teach the words, answers teach the task
MAX_LENGTH = 2048
COMMON: dict[str, Any] = {  # settings that all our models have, dense and MoE
    "vocab_size": 4096,
    "head_dim": 64,
    "max_position_embeddings": MAX_LENGTH,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    **TOKEN_IDS,
    "attn_implementation": "sdpa",
}
POCKET = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
}
DRAFT = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 256,
}


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train."""

    steps: int
    peak_lr: float
    warmup: int = 100
    weight_decay: float = 0.05
    seed: int = 0
    batch_tokens: int = BATCH_TOKENS


def make_model(shape: dict[str, int], seed: int) -> LlamaForCausalLM:
    """A fresh model of the given shape; heads of 64, tied embeddings, 4096 tokens."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**COMMON, **shape))


def batches(rows: dict[int, Rows], plan: Plan):
    """Batches of one length each, about `batch_tokens` tokens: buckets and rows shuffled anew in every epoch."""
    rng = np.random.default_rng(plan.seed)
    done = 0
    while done < plan.steps:
        cut = []
        for length, bucket in rows.items():
            size = max(1, plan.batch_tokens // length)
            order = rng.permutation(len(bucket.ids))
            cut += [(length, order[i : i + size]) for i in range(0, len(order) - size + 1, size)]
        rng.shuffle(cut)
        if not cut:
            raise ValueError("no bucket holds a full batch: make more shards or lower batch_tokens")
        for length, chosen in cut[: plan.steps - done]:
            yield rows[length].ids[chosen].astype(np.int64), rows[length].classes[chosen]
            done += 1


def loss_of(
    model: LlamaForCausalLM, ids: torch.Tensor, classes: torch.Tensor, teacher: LlamaForCausalLM | None
) -> torch.Tensor:
    """Weighted cross entropy of the next token; with a teacher, 0.7 of it is the distance to the teacher."""
    inputs, targets, cls = ids[:, :-1], ids[:, 1:].reshape(-1), classes[:, 1:].reshape(-1)
    weights = (cls == CLASS_ANSWER).float() + CONTEXT_WEIGHT * (cls == CLASS_CONTEXT).float()
    logits = model.lm_head(model.model(input_ids=inputs, use_cache=False).last_hidden_state).float().flatten(0, 1)
    losses = F.cross_entropy(logits, targets, reduction="none")
    if teacher is not None:
        with torch.no_grad():
            known = (
                teacher.lm_head(teacher.model(input_ids=inputs, use_cache=False).last_hidden_state)
                .float()
                .flatten(0, 1)
            )
        losses = 0.3 * losses + 0.7 * F.kl_div(
            logits.log_softmax(-1), known.log_softmax(-1), log_target=True, reduction="none"
        ).sum(-1)
    return (losses * weights).sum() / weights.sum()


def train(
    model: Any,
    rows: dict[int, Rows],
    plan: Plan,
    device: str,
    *,
    teacher: LlamaForCausalLM | None = None,
    regularizer: tuple[float, Callable[[torch.Tensor], torch.Tensor]] | None = None,
    loss_function: Callable[..., torch.Tensor] = loss_of,
) -> dict[str, float]:
    """Train in place. Returns the last loss, the tokens seen and the seconds taken.

    `loss_function`: of the model, ids and classes [batch, length], and the teacher.
    `regularizer`: a weight and a function of the tokens that are not padding [batch, length], called after the forward
    pass; its value is added to the loss with that weight.
    """
    model.to(device).train()
    if teacher is not None:
        teacher.to(device).eval()
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=plan.peak_lr, betas=(0.9, 0.95), fused=device == "cuda")
    start, seen, running = time.time(), 0, 0.0
    for step, (ids, classes) in enumerate(batches(rows, plan)):
        rate = plan.peak_lr * min(1.0, (step + 1) / plan.warmup)
        rate *= 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / plan.steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            kinds = torch.from_numpy(classes).to(device)
            loss = loss_function(model, torch.from_numpy(ids).to(device), kinds, teacher)
        total = loss if regularizer is None else loss + regularizer[0] * regularizer[1](kinds[:, :-1] > 0)
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen += int((classes > 0).sum())
        if step % 100 == 0 or step + 1 == plan.steps:
            running = loss.item()
            print(
                f"step {step} loss {running:.4f} lr {rate:.2e} {seen / 1e6:.1f} M tokens {time.time() - start:.0f} s",
                flush=True,
            )
    model.eval()
    return {"last_loss": running, "tokens": seen, "seconds": round(time.time() - start, 1)}

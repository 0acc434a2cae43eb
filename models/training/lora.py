"""Low-rank patches in torch, for training: a projection's weight stays as it is, two factors beside it learn.

`y = W x + alpha / r * B A x` (Hu et al. 2021, arXiv 2106.09685); B starts as zeros, so that training starts at pocket.
Written in PEFT's layout, which PEFT, vLLM and mini_vllm read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from models.training.chat_format import CLASS_ANSWER

ALPHA_OVER_RANK = 2


class LoRALinear(nn.Module):
    """A frozen projection and its two factors, lora_A [r, in] and lora_B [out, r]."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        return self.base(x) + ALPHA_OVER_RANK * F.linear(F.linear(x, self.lora_A), self.lora_B)


def attach(model: nn.Module, rank: int, targets: tuple[str, ...]) -> dict[str, LoRALinear]:
    """Freeze the model and put factors beside the named projections, by their names in the checkpoint."""
    model.requires_grad_(False)
    found = {name: module for name, module in model.named_modules() if name.rpartition(".")[2] in targets}
    patched = {}
    for name, module in found.items():
        parent, _, child = name.rpartition(".")
        patched[name] = LoRALinear(module, rank)
        setattr(model.get_submodule(parent), child, patched[name])
    return patched


def answer_loss(model: Any, ids: torch.Tensor, classes: torch.Tensor, teacher: None) -> torch.Tensor:
    """Mean cross entropy of the tokens of answers, the only ones with logits. ids, classes: [batch, length]."""
    said = classes[:, 1:] == CLASS_ANSWER
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[said]
    return F.cross_entropy(model.lm_head(hidden).float(), ids[:, 1:][said])


def write_adapter(folder: Path, patched: dict[str, LoRALinear], rank: int, targets: tuple[str, ...], base: str) -> None:
    """`adapter_config.json` and `adapter_model.safetensors`, factors rounded to float16."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        f"base_model.model.{name}.{factor}.weight": getattr(module, factor).detach().to(torch.float16).contiguous()
        for name, module in patched.items()
        for factor in ("lora_A", "lora_B")
    }
    save_file(state, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    (folder / "adapter_model.safetensors").chmod(0o644)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": ALPHA_OVER_RANK * rank,
        "lora_dropout": 0.0,
        "target_modules": list(targets),
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

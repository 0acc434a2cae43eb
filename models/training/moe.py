"""pocket-moe: a Mixtral of pocket's size, trained like pocket with a loss that keeps its experts evenly loaded."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from transformers import MixtralConfig, MixtralForCausalLM

from models.training.train import COMMON

POCKET_MOE = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
BALANCE_WEIGHT = 0.01


def make_moe_model(shape: dict[str, int], seed: int) -> MixtralForCausalLM:
    """A fresh model of the given shape; else as pocket: heads of 64, tied embeddings, 4096 tokens."""
    torch.manual_seed(seed)
    config = MixtralConfig(
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        sliding_window=None,
        router_aux_loss_coef=BALANCE_WEIGHT,
        **COMMON,
        **shape,
    )
    return compute_all_experts(MixtralForCausalLM(config))


def compute_all_experts(model: MixtralForCausalLM) -> MixtralForCausalLM:
    """Let every MoE layer compute all experts as two large products, with weight 0 for those not chosen.

    The same function and the same gradients as the library's loop over experts, with four times its arithmetic in a
    few large kernels instead of many small ones. Each layer keeps its `routing` (probabilities, chosen ids) for
    `balance_loss`.
    """
    for layer in model.model.layers:
        layer.mlp.forward = MethodType(_all_experts_forward, layer.mlp)
    return model


def _all_experts_forward(block: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """hidden_states: [batch, length, hidden]; the router works in float32, as upstream's."""
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    with torch.autocast(x.device.type, enabled=False):
        probabilities = F.linear(x.float(), block.gate.weight.float()).softmax(-1)
    top, ids = probabilities.topk(block.top_k, dim=-1)
    weights = torch.zeros_like(probabilities).scatter(1, ids, top / top.sum(-1, keepdim=True))
    block.routing = (probabilities, ids)
    experts = block.experts
    num_experts, hidden, inner_size = experts.down_proj.shape
    inner = F.linear(x, experts.gate_up_proj.flatten(0, 1)).unflatten(-1, (num_experts, 2, inner_size))
    inner = F.silu(inner[:, :, 0]) * inner[:, :, 1]
    inner = inner * weights[..., None].to(inner.dtype)
    out = F.linear(inner.flatten(1), experts.down_proj.permute(1, 0, 2).reshape(hidden, -1))
    return out.reshape(hidden_states.shape)


def balance_loss(model: MixtralForCausalLM, valid: torch.Tensor) -> torch.Tensor:
    """Switch Transformer's auxiliary loss, a mean over layers: experts * sum(share of tokens * mean probability).

    1 where all experts are used alike, up to the number of experts where one takes all. valid: [batch, length], False
    for padding.
    """
    mask = valid.reshape(-1, 1).float()
    total = torch.zeros((), device=mask.device)
    for layer in model.model.layers:
        probabilities, ids = layer.mlp.routing
        chosen = torch.zeros_like(probabilities).scatter(1, ids, 1.0)
        share = (chosen * mask).sum(0) / (mask.sum() * ids.shape[1])
        total = total + probabilities.shape[1] * (share * (probabilities * mask).sum(0) / mask.sum()).sum()
    return total / len(model.model.layers)

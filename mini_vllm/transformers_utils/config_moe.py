"""What `config.json` says about a mixture of experts, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MoEConfig:
    """`top_k` of `num_experts` experts for each token, each with an inner layer of `intermediate_size`.

    `renormalize`: the weights of the chosen experts are made to sum to 1. `layers` has one entry per decoder layer:
    whether its MLP is a mixture.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    renormalize: bool
    layers: tuple[bool, ...]


def parse_moe(parser: Any, num_layers: int) -> MoEConfig | None:
    """The mixture of Mixtral, Qwen3-MoE, GPT-OSS or DeepSeek-V2, None for other architectures.

    Args:
        parser: `mini_vllm.transformers_utils.config_parser.ConfigParser`, which names a wrong key in its errors.

    Upstream: upstream/vllm/model_executor/models/qwen3_moe.py:394 — "mlp_only_layers".
    """
    if parser.architecture == "MixtralForCausalLM":
        layers, renormalize = (True,) * num_layers, True
        num_experts, inter = parser.positive("num_local_experts"), parser.positive("intermediate_size")
    elif parser.architecture == "Qwen3MoeForCausalLM":
        num_experts = parser.positive("num_experts", parser.get("num_local_experts", 128))  # transformers 5 renamed it
        inter, renormalize = parser.positive("moe_intermediate_size"), parser.flag("norm_topk_prob")
        step, dense = parser.positive("decoder_sparse_step"), parser.get("mlp_only_layers", [])
        layers = tuple(i not in dense and (i + 1) % step == 0 for i in range(num_layers))
    elif parser.architecture == "GptOssForCausalLM":
        layers, renormalize = (True,) * num_layers, True
        num_experts, inter = parser.positive("num_local_experts"), parser.positive("intermediate_size")
    elif parser.architecture == "DeepseekV2ForCausalLM":
        num_experts, inter = parser.positive("n_routed_experts"), parser.positive("moe_intermediate_size")
        renormalize, first = False, parser.raw.get("first_k_dense_replace") or 0
        layers = tuple(i >= first for i in range(num_layers))
    else:
        return None
    top_k = parser.positive("num_experts_per_tok")
    if top_k > num_experts:
        raise ValueError(
            f"config.json: num_experts_per_tok ({top_k}) is more than the number of experts, {num_experts}"
        )
    return MoEConfig(num_experts, top_k, inter, renormalize, layers)

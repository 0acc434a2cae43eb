"""Writes a trained model as a checkpoint in HF layout: safetensors of 16 bits, config, generation defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

TOKEN_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def config_of(model: Any) -> dict[str, object]:
    """`config.json`, with the rotary base in its old place and in its new one: readers of both kinds are about."""
    c = model.config
    if c.model_type == "mixtral":
        return _moe_config_of(c)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_shape(c),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": c.max_position_embeddings,
        **_rest(c, "float16"),
    }


def _moe_config_of(c: Any) -> dict[str, object]:
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        **_shape(c),
        "num_local_experts": c.num_local_experts,
        "num_experts_per_tok": c.num_experts_per_tok,
        "router_aux_loss_coef": c.router_aux_loss_coef,
        "router_jitter_noise": 0.0,
        "output_router_logits": False,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "max_position_embeddings": c.max_position_embeddings,
        "sliding_window": None,
        **_rest(c, "bfloat16"),
    }


def _shape(c: Any) -> dict[str, object]:
    """The first keys of both kinds, in the order in which they are written."""
    heads = ("num_attention_heads", "num_key_value_heads", "head_dim")
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", *heads)
    return {name: getattr(c, name) for name in names}


def _rest(c: Any, dtype: str) -> dict[str, object]:
    """The last keys of both kinds, in the order in which they are written."""
    return {
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        **TOKEN_IDS,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    """Weights under the names of a checkpoint: the tied output is left out, stacked experts are taken apart."""
    state: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" or "rotary" in name:
            continue
        block = name.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith("experts.gate_up_proj"):
            for i, expert in enumerate(tensor):
                prefix = block.removesuffix("gate_up_proj")
                state[f"{prefix}{i}.w1.weight"], state[f"{prefix}{i}.w3.weight"] = expert.chunk(2)
        elif name.endswith("experts.down_proj"):
            state |= {f"{block.removesuffix('down_proj')}{i}.w2.weight": expert for i, expert in enumerate(tensor)}
        else:
            state[block if name.endswith("mlp.gate.weight") else name] = tensor
    return state


def export(model: Any, folder: Path) -> None:
    """Round and write: a Llama to float16 (more digits for values near 1), a Mixtral to bfloat16 (as such models are).

    The tied `lm_head.weight` is left out, as transformers does; experts get tensors of their own, as Mixtral's have.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(model)
    dtype = getattr(torch, str(config["dtype"]))
    state = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in _tensors(model).items()}
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} does not fit into {dtype}")
    save_file(state, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {**TOKEN_IDS, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")

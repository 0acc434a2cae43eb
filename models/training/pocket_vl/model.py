"""LLaVA in torch for training: a CLIP tower, a projector, a Llama. Parameters have the names of the checkpoint.

Only torch is needed, so that it runs on a machine without transformers; a test compares both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm import write_safetensors
from models.training.pocket_vl.layout import DTYPE, IMAGE_ID, MEAN, NUM_PATCHES, PATCH, STD, TEXT, VISION, shapes


class Attention(nn.Module):
    """Queries, keys, values, one product, output; with fewer keys than queries they are shared."""

    def __init__(self, width: int, heads: int, kv_heads: int, out: str, bias: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.q_proj = nn.Linear(width, width, bias=bias)
        self.k_proj = nn.Linear(width, kv_heads * self.size, bias=bias)
        self.v_proj = nn.Linear(width, kv_heads * self.size, bias=bias)
        self.add_module(out, nn.Linear(width, width, bias=bias))
        self.out = out

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """x: [batch, tokens, width]. With a rotation (cosine, sine) attention is causal."""
        batch, tokens, width = x.shape
        q = self.q_proj(x).view(batch, tokens, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(x).view(batch, tokens, self.kv_heads, self.size).transpose(1, 2)
        v = self.v_proj(x).view(batch, tokens, self.kv_heads, self.size).transpose(1, 2)
        if rotation is not None:
            q, k = rotate(q, *rotation).to(v.dtype), rotate(k, *rotation).to(v.dtype)
        if self.kv_heads != self.heads:
            k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=rotation is not None)
        return getattr(self, self.out)(mixed.transpose(1, 2).reshape(batch, tokens, width))


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """RoPE on halves: x [batch, heads, tokens, size], the others [tokens, size]."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class ClipLayer(nn.Module):
    """One layer of the tower."""

    def __init__(self) -> None:
        super().__init__()
        width, heads = VISION["hidden_size"], VISION["num_attention_heads"]
        self.layer_norm1 = nn.LayerNorm(width, eps=VISION["layer_norm_eps"])
        self.self_attn = Attention(width, heads, heads, "out_proj", bias=True)
        self.layer_norm2 = nn.LayerNorm(width, eps=VISION["layer_norm_eps"])
        self.mlp = nn.ModuleDict(
            {"fc1": nn.Linear(width, VISION["intermediate_size"]), "fc2": nn.Linear(VISION["intermediate_size"], width)}
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: [pictures, patches + 1, width]."""
        x = x + self.self_attn(self.layer_norm1(x))
        inner = self.mlp["fc1"](self.layer_norm2(x))
        return x + self.mlp["fc2"](inner * torch.sigmoid(1.702 * inner))


class ClipEmbeddings(nn.Module):
    """Class token and patches, with their positions."""

    def __init__(self) -> None:
        super().__init__()
        width = VISION["hidden_size"]
        self.class_embedding = nn.Parameter(torch.randn(width) * 0.02)
        self.patch_embedding = nn.Conv2d(3, width, PATCH, PATCH, bias=False)
        self.position_embedding = nn.Embedding(NUM_PATCHES + 1, width)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels: [pictures, 3, 64, 64], normalized."""
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.to(patches.dtype).expand(len(pixels), 1, -1)
        return torch.cat((first, patches), dim=1) + self.position_embedding.weight


class Clip(nn.Module):
    """The tower. `forward` gives the features of the layer before the last, and the class token of the last."""

    def __init__(self) -> None:
        super().__init__()
        width, eps = VISION["hidden_size"], VISION["layer_norm_eps"]
        self.embeddings = ClipEmbeddings()
        self.pre_layrnorm = nn.LayerNorm(width, eps=eps)
        layers = nn.ModuleList(ClipLayer() for _ in range(VISION["num_hidden_layers"]))
        self.encoder = nn.ModuleDict({"layers": layers})
        self.post_layernorm = nn.LayerNorm(width, eps=eps)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Features [pictures, patches, width] without the class token; class token [pictures, width]."""
        x = self.pre_layrnorm(self.embeddings(pixels))
        *layers, last = self.encoder["layers"]
        for layer in layers:
            x = layer(x)
        return x[:, 1:], self.post_layernorm(last(x)[:, 0])


class LlamaLayer(nn.Module):
    """One layer of the language model."""

    def __init__(self) -> None:
        super().__init__()
        width, inner, eps = TEXT["hidden_size"], TEXT["intermediate_size"], TEXT["rms_norm_eps"]
        heads, kv_heads = TEXT["num_attention_heads"], TEXT["num_key_value_heads"]
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        self.self_attn = Attention(width, heads, kv_heads, "o_proj", bias=False)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(width, inner, bias=False),
                "up_proj": nn.Linear(width, inner, bias=False),
                "down_proj": nn.Linear(inner, width, bias=False),
            }
        )

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """x: [batch, tokens, width]."""
        x = x + self.self_attn(self.input_layernorm(x), rotation)
        inner = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](inner)) * self.mlp["up_proj"](inner))


class Llama(nn.Module):
    """The language model without its output, which is the embedding again."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(TEXT["vocab_size"], TEXT["hidden_size"])
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(TEXT["num_hidden_layers"]))
        self.norm = nn.RMSNorm(TEXT["hidden_size"], eps=TEXT["rms_norm_eps"])

    def forward(self, x: Tensor) -> Tensor:
        """x: embeddings [batch, tokens, width]."""
        size = TEXT["head_dim"]
        powers = torch.arange(0, size, 2, device=x.device, dtype=torch.float32) / size
        angles = torch.arange(x.shape[1], device=x.device)[:, None] / TEXT["rope_theta"] ** powers
        angles = torch.cat((angles, angles), dim=-1)
        for layer in self.layers:
            x = layer(x, (angles.cos(), angles.sin()))
        return self.norm(x)


class Llava(nn.Module):
    """The whole: `forward` gives logits and the class tokens."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        width, text = VISION["hidden_size"], TEXT["hidden_size"]
        self.vision_tower = nn.ModuleDict({"vision_model": Clip()})
        self.multi_modal_projector = nn.ModuleDict(
            {"linear_1": nn.Linear(width, text), "linear_2": nn.Linear(text, text)}
        )
        self.language_model = nn.ModuleDict({"model": Llama()})
        self.register_buffer("mean", 255 * torch.tensor(MEAN), persistent=False)
        self.register_buffer("std", 255 * torch.tensor(STD), persistent=False)
        deep = 2 * TEXT["num_hidden_layers"]
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02 if "embed" in name else parameter[0].numel() ** -0.5)
            if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2.weight")):
                parameter.data /= deep**0.5
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        nn.init.normal_(self.vision_tower["vision_model"].embeddings.patch_embedding.weight, std=(3 * PATCH**2) ** -0.5)
        assert {name: tuple(p.shape) for name, p in self.named_parameters()} == shapes()

    def forward(self, ids: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [batch, tokens, vocabulary] and class tokens [pictures, width].

        ids: [batch, tokens], 64 of `IMAGE_ID` for each picture. pixels: uint8 [pictures, 64, 64, 3], in their order.
        """
        llama: Any = self.language_model["model"]
        x = llama.embed_tokens(ids)
        normal = ((pixels.float() - self.mean) / self.std).permute(0, 3, 1, 2)
        features, first = self.vision_tower["vision_model"](normal)
        features = self.multi_modal_projector["linear_2"](F.gelu(self.multi_modal_projector["linear_1"](features)))
        x = x.masked_scatter((ids == IMAGE_ID)[..., None], features.to(x.dtype))
        return F.linear(llama(x), llama.embed_tokens.weight), first


def save(model: Llava, folder: Path) -> None:
    """Write `model.safetensors`, rounded to the stored type."""
    tensors = {name: p.detach().float().cpu().numpy().astype(DTYPE) for name, p in model.named_parameters()}
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} does not fit into {DTYPE}")
    write_safetensors(folder / "model.safetensors", tensors)


def round_weights(model: Llava) -> None:
    """Give the model the numbers that its file will hold."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(getattr(torch, DTYPE)))

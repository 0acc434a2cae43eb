"""What lab 05-06 brings along: an attention that the compiler cannot see into, and a model of six layers around it."""

from __future__ import annotations

import torch
from torch import nn


@torch.library.custom_op("lab0506::attention", mutates_args=())
def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of one head, [T, d] each. To the compiler this is one node, whatever happens in here."""
    hidden = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
    scores = (q @ k.T * q.shape[1] ** -0.5).masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, dim=1) @ v


@attention.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The shape of the result, without computing it: all that the compiler is told."""
    return torch.empty_like(q)


class Layer(nn.Module):
    """Norm, attention, gate: the shape of a decoder layer, small."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(torch.nn.functional.rms_norm(x, x.shape[-1:])).chunk(3, dim=-1)
        x = x + self.out(attention(q.contiguous(), k.contiguous(), v.contiguous()))
        first, second = self.up(torch.nn.functional.rms_norm(x, x.shape[-1:])).chunk(2, dim=-1)
        return x + self.down(torch.nn.functional.silu(first) * second)


class Model(nn.Module):
    """`num_layers` layers, one after the other. Weights are drawn with seed 0."""

    def __init__(self, num_layers: int = 6, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(width) for _ in range(num_layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

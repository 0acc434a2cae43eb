"""Convolutions whose windows do not overlap: patches of a picture, or of some frames of a film, each one row.

Upstream twin: `vllm/model_executor/layers/conv.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.module import Module
from mini_vllm.utils.arrays import Array


class Conv2dLayer(Module):
    """Kernel and stride are one size, so that the convolution is one product. weight: [out, in, size, size].

    Upstream: upstream/vllm/model_executor/layers/conv.py:110 — `Conv2dLayer`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, bias: bool, context: ModelContext, prefix: str
    ) -> None:
        self.weight = context.new(out_channels, in_channels, kernel_size, kernel_size)
        self.bias = context.new(out_channels) if bias else None
        self.kernel_size, self.context, self.prefix = kernel_size, context, prefix
        context.layers.append(self)

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Two tensors, or one without a bias."""
        yield f"{self.prefix}.weight", self.weight
        if self.bias is not None:
            yield f"{self.prefix}.bias", self.bias

    def forward(self, x: Array) -> Array:
        """Pictures [N, C, height, width] -> [N, patches, out], row by row of the picture.

        Upstream: upstream/vllm/model_executor/layers/conv.py:117 — `Conv2dLayer._forward_mulmat`.
        """
        num, channels, height, width = x.shape
        size = self.kernel_size
        patches = x.reshape(num, channels, height // size, size, width // size, size).transpose(0, 2, 4, 1, 3, 5)
        rows = patches.reshape(-1, channels * size * size).astype(self.weight.dtype, copy=False)
        y = self.context.linear(rows, self.weight.reshape(len(self.weight), -1))
        return (y if self.bias is None else y + self.bias).reshape(num, -1, len(self.weight))


class Conv3dLayer(Module):
    """One that is given its patches: what is left is one product. weight: [out, in, frames, size, size]; no bias.

    Upstream: upstream/vllm/model_executor/layers/conv.py:212 — `Conv3dLayer`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: tuple[int, int, int], context: ModelContext, prefix: str
    ) -> None:
        self.weight = context.new(out_channels, in_channels, *kernel_size)
        self.context, self.prefix = context, prefix
        context.layers.append(self)

    def weights(self) -> Iterator[tuple[str, Array]]:
        """One tensor."""
        yield f"{self.prefix}.weight", self.weight

    def forward(self, x: Array) -> Array:
        """Patches [P, in * frames * size * size] -> [P, out].

        Upstream: upstream/vllm/model_executor/layers/conv.py:219 — `Conv3dLayer._forward_mulmat`.
        """
        return self.context.linear(x.astype(self.weight.dtype, copy=False), self.weight.reshape(len(self.weight), -1))

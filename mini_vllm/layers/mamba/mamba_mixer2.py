"""The layer of Mamba-2. Upstream twin: `vllm/model_executor/layers/mamba/mamba_mixer2.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mini_vllm.attention.backends.mamba_attn import LayerState
from mini_vllm.layers.activation import silu
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from mini_vllm.layers.mamba.abstract import MambaBase
from mini_vllm.layers.mamba.mamba_utils import MambaStateShapeCalculator
from mini_vllm.layers.mamba.ops.causal_conv1d import causal_conv1d
from mini_vllm.layers.mamba.ops.ssd_combined import state_space_scan
from mini_vllm.utils.arrays import Array


class MambaMixer2(MambaBase):
    """Projection, short convolution, recurrence, gated norm, projection.

    Args:
        ssm_state_size: numbers of a head's state for each of its `head_dim` channels.
        n_groups: B and C of a token are shared by the `num_heads / n_groups` heads of a group.
        ssm_dtype: of the recurrence's state; None: the model's.

    Raises:
        ValueError: `n_groups` does not divide `num_heads`, or ranks are to share the layer.

    Upstream: upstream/vllm/model_executor/layers/mamba/mamba_mixer2.py:234 — `MambaMixer2`.
    """

    mamba_type = "mamba2"

    def __init__(
        self, hidden_size: int, ssm_state_size: int, conv_kernel_size: int, num_heads: int, head_dim: int,
        context: ModelContext, prefix: str, *, n_groups: int = 1, use_conv_bias: bool = True, use_bias: bool = False,
        rms_norm_eps: float = 1e-5, ssm_dtype: str | None = None,
    ) -> None:  # fmt: skip
        if num_heads % n_groups:
            raise ValueError(f"n_groups must divide num_heads={num_heads}, got {n_groups}")
        if context.tp_size > 1:
            raise ValueError(f"tensor_parallel_size must be 1 for layers with a state, got {context.tp_size}")
        self.ssm_state_size, self.n_groups, self.num_heads = ssm_state_size, n_groups, num_heads
        self.head_dim, self.intermediate_size, self.eps = head_dim, num_heads * head_dim, rms_norm_eps
        self.conv_dim, self.prefix = self.intermediate_size + 2 * n_groups * ssm_state_size, prefix
        self.dtypes = str(context.dtype), ssm_dtype or str(context.dtype)
        sizes = [self.intermediate_size, self.conv_dim, num_heads]
        self.in_proj = MergedColumnParallelLinear(hidden_size, sizes, use_bias, context, f"{prefix}.in_proj")
        self.out_proj = RowParallelLinear(self.intermediate_size, hidden_size, use_bias, context, f"{prefix}.out_proj")
        self.conv_weight = context.new(self.conv_dim, conv_kernel_size)
        self.conv_bias = context.new(self.conv_dim) if use_conv_bias else None
        self.A_log, self.D, self.dt_bias = (context.new(num_heads) for _ in range(3))
        self.norm_weight = context.new(self.intermediate_size)
        context.layers.append(self)

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Those that are no projection."""
        yield f"{self.prefix}.conv1d.weight", self.conv_weight[:, None]
        if self.conv_bias is not None:
            yield f"{self.prefix}.conv1d.bias", self.conv_bias
        yield from ((f"{self.prefix}.{name}", getattr(self, name)) for name in ("A_log", "D", "dt_bias"))
        yield f"{self.prefix}.norm.weight", self.norm_weight

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        """The convolution's inputs, and the recurrence's state."""
        return MambaStateShapeCalculator.mamba2_state_shape(
            1, self.intermediate_size, self.n_groups, self.num_heads, self.head_dim, self.ssm_state_size,
            self.conv_weight.shape[1],
        )  # fmt: skip

    def get_state_dtype(self) -> tuple[str, ...]:
        """The model's, and `ssm_dtype`."""
        return self.dtypes

    def forward(self, hidden: Array, state: LayerState) -> Array:
        """[T, H] -> [T, H]."""
        conv_state, ssm_state = state.arrays
        gate, x, dt = np.split(
            self.in_proj(hidden), [self.intermediate_size, self.intermediate_size + self.conv_dim], axis=1
        )
        x = causal_conv1d(x, self.conv_weight, self.conv_bias, conv_state, state.metadata)
        shared = self.n_groups * self.ssm_state_size
        x, b, c = np.split(x, [self.intermediate_size, self.intermediate_size + shared], axis=1)
        heads = x.reshape(len(x), self.num_heads, self.head_dim)
        dt = np.logaddexp(0, dt + self.dt_bias)
        y = state_space_scan(
            heads, dt, -np.exp(self.A_log), self._of_heads(b), self._of_heads(c), self.D, ssm_state, state.metadata
        )
        return self.out_proj(self._gated_norm(y.reshape(len(x), -1), gate))

    def _of_heads(self, shared: Array) -> Array:
        """[T, n_groups * state_size] -> [T, num_heads, state_size]."""
        groups = shared.reshape(len(shared), self.n_groups, self.ssm_state_size)
        return np.repeat(groups, self.num_heads // self.n_groups, axis=1)

    def _gated_norm(self, y: Array, gate: Array) -> Array:
        """RMS norm of y * silu(gate), over the channels of each group.

        Upstream: upstream/vllm/model_executor/layers/mamba/mamba_mixer2.py:66 — `Mixer2RMSNormGated`.
        """
        gated = (y * silu(gate)).reshape(len(y), self.n_groups, -1)
        scaled = gated / np.sqrt(np.mean(gated * gated, axis=-1, keepdims=True) + self.eps)
        return scaled.reshape(len(y), -1) * self.norm_weight

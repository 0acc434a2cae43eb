"""How large a state is. Upstream twin: `vllm/model_executor/layers/mamba/mamba_utils.py`."""

from __future__ import annotations

from mini_vllm.distributed.utils import divide


class MambaStateShapeCalculator:
    """Shapes of one request's state in one layer, on one rank: (convolution, recurrence).

    The convolution's are [tokens, channels], upstream's layout "SD".

    Upstream: upstream/vllm/model_executor/layers/mamba/mamba_utils.py:128 — `MambaStateShapeCalculator`.
    """

    @classmethod
    def mamba1_state_shape(
        cls, tp_world_size: int, intermediate_size: int, state_size: int, conv_kernel: int
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """A state of `state_size` numbers for each channel.

        Upstream: upstream/vllm/model_executor/layers/mamba/mamba_utils.py:147 — `mamba1_state_shape`.
        """
        channels = divide(intermediate_size, tp_world_size, "intermediate_size")
        return (conv_kernel - 1, channels), (channels, state_size)

    @classmethod
    def mamba2_state_shape(
        cls, tp_world_size: int, intermediate_size: int, n_groups: int, num_heads: int, head_dim: int, state_size: int,
        conv_kernel: int, num_spec: int = 0,
    ) -> tuple[tuple[int, int], tuple[int, int, int]]:  # fmt: skip
        """A state of [head_dim, state_size] for each head; B and C, shared by the heads of a group, are convolved too.

        `num_spec`: drafts of a step, whose inputs the convolution keeps until it is known which were right.

        Upstream: upstream/vllm/model_executor/layers/mamba/mamba_utils.py:162 — `mamba2_state_shape`.
        """
        if n_groups % tp_world_size:
            n_groups += tp_world_size - n_groups  # each rank has the one group
        channels = divide(intermediate_size + 2 * n_groups * state_size, tp_world_size, "the convolution's channels")
        heads = divide(num_heads, tp_world_size, "num_heads")
        return (conv_kernel - 1 + num_spec, channels), (heads, head_dim, state_size)

    @classmethod
    def short_conv_state_shape(
        cls, tp_world_size: int, intermediate_size: int, conv_kernel: int
    ) -> tuple[tuple[int, int]]:
        """A convolution alone.

        Upstream: upstream/vllm/model_executor/layers/mamba/mamba_utils.py:190 — `short_conv_state_shape`.
        """
        return ((conv_kernel - 1, divide(intermediate_size, tp_world_size, "intermediate_size")),)

"""SwiGLU's middle. Upstream twin: `vllm/model_executor/layers/activation.py`."""

from __future__ import annotations

import numpy as np

from mini_vllm.utils.arrays import Array


def silu_and_mul(gate: Array, up: Array, tmp: Array) -> None:
    """SwiGLU's middle, in place: `gate = gate / (1 + exp(-gate)) * up`. All [features, tokens].

    exp overflows to inf for a very negative gate, and gate / inf is 0, which is right; callers silence the warning.
    Upstream: upstream/vllm/model_executor/layers/activation.py:118 — `SiluAndMul`.
    """
    np.negative(gate, out=tmp)
    np.exp(tmp, out=tmp)
    tmp += 1.0
    np.divide(gate, tmp, out=gate)
    gate *= up


def silu(x: Array) -> Array:
    """`x * sigmoid(x)`."""
    with np.errstate(over="ignore"):
        return x / (1.0 + np.exp(-x))

"""GELU, and activations by name. Upstream has them in `vllm/model_executor/layers/activation.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mini_vllm.layers.activation import silu
from mini_vllm.utils.arrays import Array


def erf(x: Array) -> Array:
    """The error function, to 1.2e-7: numpy has none. W. H. Press et al., Numerical Recipes, section 6.2."""
    t = 1.0 / (1.0 + 0.5 * np.abs(x))
    powers = np.zeros_like(t)
    for c in (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196,
              1.00002368):  # fmt: skip
        powers = powers * t + c
    rest = t * np.exp(-x * x - 1.26551223 + t * powers)
    return np.where(x < 0, rest - 1.0, 1.0 - rest).astype(x.dtype)


def gelu(x: Array) -> Array:
    """x Φ(x), by the error function. Upstream uses torch's: upstream/vllm/model_executor/models/modernbert.py:149 —
    "self.act = nn.GELU()"."""
    return x * (0.5 + 0.5 * erf(x * x.dtype.type(2**-0.5)))


def gelu_tanh(x: Array) -> Array:
    """x Φ(x), by the hyperbolic tangent."""
    return 0.5 * x * (1.0 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


def quick_gelu(x: Array) -> Array:
    """x σ(1.702 x), which CLIP was trained with.

    Upstream: upstream/vllm/model_executor/layers/activation.py:505 — `QuickGELU`.
    """
    with np.errstate(over="ignore"):
        return x / (1.0 + np.exp(x.dtype.type(-1.702) * x))


_ACTIVATIONS = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "relu": lambda x: np.maximum(x, 0),
    "silu": silu,
}


def get_act_fn(name: str) -> Callable[[Array], Array]:
    """An activation by its name in `config.json`.

    Raises:
        ValueError: it is not here.

    Upstream: upstream/vllm/model_executor/layers/activation.py:736 — `get_act_fn`.
    """
    if name not in _ACTIVATIONS:
        raise ValueError(f"hidden_act must be one of {', '.join(_ACTIVATIONS)}, got {name!r}")
    return _ACTIVATIONS[name]

"""Scratch that is kept from step to step. Upstream's nearest kin: `vllm/v1/worker/workspace.py`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mini_vllm.platforms.cpu.memory import aligned_empty
from mini_vllm.utils.arrays import Array


class Workspace:
    """Named scratch arrays that grow and are used again, so that a step allocates nothing.

    A view handed out is valid until the same name is asked for with another shape.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._flat: dict[str, Array] = {}

    def get(self, name: str, *shape: int) -> Array:
        """An array of this shape with arbitrary contents."""
        size = math.prod(shape)
        flat = self._flat.get(name)
        if flat is None or flat.size < size:
            self._flat[name] = flat = aligned_empty((size,), self.dtype)
        return flat[:size].reshape(shape)

"""What every layer is: callable, and able to say how much memory its weights take.

The part of `torch.nn.Module` that a model file uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mini_vllm.utils.arrays import Array


class Module:
    """A layer: `layer(x)` is `layer.forward(x)`. Arrays that are attributes are its weights."""

    forward: Any

    def __call__(self, *args: Any) -> Any:
        return self.forward(*args)

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Every tensor of the checkpoint that belongs here, and where it goes: see `mini_vllm/parameter.py`."""
        yield from ()

    @property
    def arrays(self) -> list[Array]:
        """The weights as they are held."""
        return [value for value in vars(self).values() if isinstance(value, np.ndarray)]

    @property
    def size(self) -> int:
        """Weights in all, on this process."""
        return sum(array.size for array in self.arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays: codes, scales and zero points too."""
        return sum(array.nbytes for array in self.arrays)

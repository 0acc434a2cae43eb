"""Where the tensors of a checkpoint go: into an array, into a part of one, or through a quantization method.

Upstream twin: `vllm/model_executor/parameter.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mini_vllm.utils.arrays import Array

if TYPE_CHECKING:
    from mini_vllm.layers.linear_weights import LinearWeights


PACKED = ("I32",)
INDICES = ("I32", "I64")
"""How files store codes that share a word, and shapes, ids and the numbers of groups."""


class TensorSource(Protocol):
    """The tensors of one projection of a checkpoint, by the last part of their names ("weight", "scales", …)."""

    def names(self) -> set[str]:
        """Those that are there."""

    def shape(self, name: str) -> tuple[int, ...]:
        """As stored."""

    def read(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """Rows first to last of floats; all else is refused."""

    def read_stored(self, name: str, dtypes: Collection[str], first: int = 0, last: int | None = None) -> Array:
        """Rows first to last of what is stored as one of `dtypes` ("I8", "I32", "F8_E4M3", …): codes as integers."""


class ArraySource:
    """Tensors that are in memory."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.tensors = tensors

    def names(self) -> set[str]:
        """Those that are there."""
        return set(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """As given."""
        return self.tensors[name].shape

    def read(self, name: str, first: int = 0, last: int | None = None) -> Array:
        """Rows first to last."""
        tensor = self.tensors[name]
        return tensor[first:last] if tensor.ndim else tensor

    def read_stored(self, name: str, dtypes: Collection[str], first: int = 0, last: int | None = None) -> Array:
        """Rows first to last; arrays do not say whether their bytes are codes of FP8."""
        return self.read(name, first, last)


@dataclass(frozen=True)
class ArrayShard:
    """`dest` takes a part of a tensor: the rows, and where `index` says so the columns, that this process holds.

    Attributes:
        shape: of the whole tensor. index: a slice for each of the first axes.

    Upstream: upstream/vllm/model_executor/parameter.py:31 — `BasevLLMParameter`, whose kinds say along which axis.
    """

    dest: Array
    shape: tuple[int, ...]
    index: tuple[slice, ...]


class Shard:
    """Some rows of a `LinearWeights` (counted before ranks share it), to be loaded from one projection."""

    def __init__(self, linear: LinearWeights, rows: slice) -> None:
        self.linear, self.rows = linear, rows
        self.shape = (rows.stop - rows.start, linear.input_size)
        self.size = self.shape[0] * self.shape[1]

    def load(self, source: TensorSource) -> None:
        """Fill the rows."""
        self.linear.load_rows(self.rows, source)

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """What the method reads, e.g. ("qweight", "qzeros", "scales", "g_idx")."""
        return self.linear.quant_method.tensor_names


def part_of(dest: Array, shape: tuple[int, ...], index: tuple[slice, ...]) -> Any:
    """`dest` itself where it takes the whole tensor, otherwise an `ArrayShard`."""
    return dest if dest.shape == shape else ArrayShard(dest, shape, index)

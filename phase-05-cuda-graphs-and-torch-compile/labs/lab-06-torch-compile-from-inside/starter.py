"""Lab 05-06: torch.compile, read from inside: the graph, the generated loop, the compilations, the cut at attention."""

from __future__ import annotations

import re  # noqa: F401  (for you)
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node  # noqa: F401  (for you)
from torch.fx.passes.split_module import split_module  # noqa: F401  (for you)


def predicted_compiles() -> int:
    """Your guess, before you run anything: compilations for batches of 8, 9, 64, 1, 2, 1 and 17 rows, in this order.

    The first dimension of every batch is marked with `torch._dynamo.mark_dynamic`.
    """
    raise NotImplementedError("a whole number: the compilations that you expect for these seven batches")


class Recorder:
    """A backend for `torch.compile(f, backend=recorder)`: keeps what it is handed, then compiles it.

    `graphs`: every graph module, in order of arrival. `inputs`: for each, the list of example inputs it came with.
    With inner "inductor" the graph goes on to torch's own compiler; with "eager" it runs as it stands.

    Raises:
        ValueError: "inner must be 'inductor' or 'eager', got 'fast'".
    """

    def __init__(self, inner: str = "inductor") -> None:
        raise NotImplementedError("a recorder with nothing recorded yet, for one of the two kinds of inner compiler")

    def __call__(self, gm: GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """Called by Dynamo once for each graph; returns what runs in its place."""
        raise NotImplementedError(
            "something that can be called in the place of this graph, which is on record from now on"
        )


def norm_gate(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """RMSNorm, then a gate, as at the end of a model's layer.

    The root mean square of each row (eps added to the mean square) and the quotient are float32; the quotient is
    rounded to x's dtype and multiplied by w. SiLU of its first half times its second half is the result.

    Args:
        x: [T, 2 H]; w: [2 H] in x's dtype.

    Returns:
        [T, H] in x's dtype. No step depends on the values in x: one graph, whatever they are.
    """
    raise NotImplementedError("the normed rows, half of them gating the other half, in x's type")


def read_cpp(code: str) -> dict[str, int]:
    """What stands in a program that inductor wrote for the CPU: {"kernels": , "loops": , "buffers": }.

    kernels: C++ functions; loops: `for` loops in all of them together; buffers: tensors that the program allocates
    each time it is called, its results among them. A program without C++ has no kernel and no loop.
    """
    raise NotImplementedError("how many C++ functions, loops, and newly allocated tensors this program has")


def broken(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A layer that Dynamo cannot see through: it asks for a value in the middle. x: [T, H], w: [H]. Given."""
    h = torch.tanh(x * w)
    if h.sum().item() > 0:
        h = h * 2
    return h + x


def cured(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The same result as `broken`, for every x and w, in one graph: it compiles with `fullgraph=True`."""
    raise NotImplementedError("what `broken` gives, from a function that never asks for a value")


def serve(compiled: Callable[..., torch.Tensor], x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One batch through a compiled function, so that T >= 1 contiguous rows in any order of sizes compile it once.

    `compiled` is `torch.compile(f)` of some f(x [T, 2 H], w [2 H]) -> [T, H] whose rows do not depend on each other;
    it is new, or has served batches of the same width through you only. `compiled` is called
    once and computes at most 2 T rows; no global setting is touched, the numbers in x and w stay, and the result is
    [T, H], as f gives it.
    """
    raise NotImplementedError(
        "this batch's result, from a function that is compiled for its first batch and never again"
    )


def split_at(gm: GraphModule, ops: set[str]) -> tuple[GraphModule, set[int]]:
    """A graph cut into pieces at some of its ops: the pieces in order, and which of them hold those ops.

    The result computes what gm computes. Its graph calls submodules only, the pieces (and takes their results apart);
    they are counted from 0 in the order of the calls. A node is at an op where it calls an op of that name,
    "namespace::name", as overload or as packet. A piece holds either calls of `ops` and nothing else, or none of them;
    calls of `ops` that follow each other directly may share a piece or not. gm is not changed. Without ops there is
    one piece.

    Returns:
        the new graph module, and the numbers of the pieces that hold one of `ops`.

    Raises:
        ValueError: "lab0506::attentoin is not in the graph", for the first name, in order of the alphabet, that no
            node calls.
    """
    raise NotImplementedError("the graph in pieces, and the numbers of the pieces that hold one of the ops")

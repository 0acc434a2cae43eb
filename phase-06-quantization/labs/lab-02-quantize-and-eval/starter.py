"""Lab 06-02: what a scheme removes in bytes, what that could be worth, and how to read what the real engine did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WEIGHT_BITS = {"fp32": 32, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}


@dataclass(frozen=True)
class Scheme:
    """How the projections are stored. `group` weights of a row share a scale of `scale_bytes`; 0: a whole row does."""

    weight: str
    group: int = 0
    scale_bytes: int = 4


def linear_bytes(out_features: int, in_features: int, scheme: Scheme) -> int:
    """Bytes of one projection [out, in]: codes, and scales where the weight is not a float of 16 bits or more.

    Raises:
        ValueError: "group must divide ..." where groups do not fit a row.
    """
    raise NotImplementedError("the bytes of one projection under the scheme")


def model_bytes(shapes: list[tuple[int, int]], rest_params: int, scheme: Scheme, rest_bytes: int = 2) -> int:
    """Bytes of all weights: the projections under the scheme, embedding, output projection and norms as they were.

    Args:
        shapes: [out, in] of every projection.
        rest_params: parameters that no scheme here touches.
        rest_bytes: bytes of one of those.
    """
    raise NotImplementedError("the bytes of a whole checkpoint's tensors")


def byte_ceiling(bytes_before: int, bytes_after: int) -> float:
    """The most that decode can speed up if reading weights were all there is to a step."""
    raise NotImplementedError("the most that fewer bytes could be worth to a decode step")


def step_seconds(weight_bytes: int, kv_bytes: int, bandwidth: float, fixed: float = 0.0) -> float:
    """A decode step: all bytes at this bandwidth [bytes/s], and a fixed part [s] that no byte explains."""
    raise NotImplementedError("the seconds of a decode step")


def blocks_gained(bytes_saved: int, bytes_per_token: int, block_size: int = 16) -> int:
    """KV blocks that fit into the memory that the weights no longer need."""
    raise NotImplementedError("how many whole KV blocks fit into what was saved")


def perplexity(texts: list[dict[str, Any]]) -> float:
    """exp of the mean negative log-probability per token, over all texts together.

    Args:
        texts: each has `tokens` and `logprob`, the sum over them.
    """
    raise NotImplementedError("the perplexity per token of all texts together")


def worst_text(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> tuple[int, float]:
    """Which text lost most, and how much: its index and the fall of its mean log-probability per token, in nats.

    The first of equals; a text that gained has not lost.

    Raises:
        ValueError: the two lists differ in length (`zip(..., strict=True)` says so).
    """
    raise NotImplementedError("which text lost most per token, and how much")


def kernel_of(log: str) -> tuple[str, str] | None:
    """(kernel, who uses it) from the first line "Selected K for M" or "Using K for M"; None where no line says so.

    K ends in "Kernel"; there are other lines that begin with "Using".
    """
    raise NotImplementedError("which kernel the engine chose, and for whom, as its log says")


def kv_tokens_of(log: str) -> int | None:
    """The number in "GPU KV cache size: N tokens" (it has commas); None where the engine did not get that far."""
    raise NotImplementedError("how many tokens the KV cache holds, as the log says")

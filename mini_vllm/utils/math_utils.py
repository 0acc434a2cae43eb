"""Whole numbers. Upstream twin: `vllm/utils/math_utils.py`."""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """Ceiling of a / b."""
    return -(-a // b)

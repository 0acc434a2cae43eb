"""Which strips of A and B a wave of programs needs; and a picture of it. Given material."""

from __future__ import annotations

from collections.abc import Sequence

Order = Sequence[tuple[int, int]]


def row_by_row(num_m: int, num_n: int) -> Order:
    """The plain order of tiles."""
    return [(pid // num_n, pid % num_n) for pid in range(num_m * num_n)]


def waves(order: Order, size: int = 132) -> int:
    """Distinct strips (rows of A, columns of B) that each `size` consecutive programs need, summed over all waves."""
    parts = [order[at : at + size] for at in range(0, len(order), size)]
    return sum(len({row for row, _ in part}) + len({col for _, col in part}) for part in parts)


def picture(order: Order, num_m: int, num_n: int, size: int = 132, wave: int = 3) -> str:
    """One wave in the grid of tiles, and the number of strips that it needs."""
    part = set(order[wave * size : (wave + 1) * size])
    rows, cols = {row for row, _ in part}, {col for _, col in part}
    lines = ["".join("#" if (m, n) in part else "." for n in range(num_n)) for m in range(num_m) if m <= max(rows) + 1]
    return "\n".join([*lines, f"{len(part)} tiles need {len(rows)} + {len(cols)} = {len(rows) + len(cols)} strips"])

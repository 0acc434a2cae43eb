"""Lab 10-03: what tensor parallelism pays at the wire, and what it buys.

Times are in seconds, sizes in bytes, bandwidths in bytes a second. A *rank* is one device. An all-reduce goes round a
ring: 2 (N - 1) hops one after the other, and each rank sends 2 (N - 1) parts, every one an N-th of the payload.
"""

from __future__ import annotations

from collections.abc import Sequence


def predicted_balance() -> float:
    """Your prediction, before any code runs. A model with hidden size 4,096 in float16 on two cards, joined by NVLink
    (300 GB/s, 3 µs a hop): how many tokens in a step make the bytes of an all-reduce cost as much as its hops?
    Right is what is within a factor of two.
    """
    return 220.0


def allreduce_payload_bytes(batch_tokens: int, hidden: int, dtype_bytes: int = 2) -> int:
    """Bytes of the array that one all-reduce sums: the hidden vectors of a step's tokens."""
    return batch_tokens * hidden * dtype_bytes


def ring_allreduce_traffic_per_rank(payload_bytes: int, num_ranks: int) -> float:
    """Bytes that each rank sends for one all-reduce; nothing where it is alone.

    Raises:
        ValueError: "num_ranks must be at least 1, got 0".
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks must be at least 1, got {num_ranks}")
    return 2 * (num_ranks - 1) / num_ranks * payload_bytes


def allreduce_time_s(payload_bytes: int, num_ranks: int, bandwidth_Bps: float, latency_s: float) -> float:
    """Time of one all-reduce: what is sent, at the bandwidth, and `latency_s` for each hop.

    Raises:
        ValueError: as `ring_allreduce_traffic_per_rank`; "bandwidth_Bps must be above 0, got 0"; nan is not
            above 0 either.
    """
    traffic = ring_allreduce_traffic_per_rank(payload_bytes, num_ranks)
    if not bandwidth_Bps > 0:
        raise ValueError(f"bandwidth_Bps must be above 0, got {bandwidth_Bps}")
    return traffic / bandwidth_Bps + 2 * (num_ranks - 1) * latency_s


def tp_comm_time_per_step(
    num_layers: int,
    batch_tokens: int,
    hidden: int,
    num_ranks: int,
    bandwidth_Bps: float,
    latency_s: float,
    dtype_bytes: int = 2,
) -> float:
    """Time of all sums in the layers of one step: each layer has two halves, and each half ends in one.

    The embedding's sum and the logits' gather, one each a step, are left out.
    """
    payload = allreduce_payload_bytes(batch_tokens, hidden, dtype_bytes)
    return 2 * num_layers * allreduce_time_s(payload, num_ranks, bandwidth_Bps, latency_s)


def comm_fraction(comm_s: float, compute_s: float) -> float:
    """Share of a step that is spent at the wire, if nothing overlaps. No time at the wire: 0."""
    return comm_s / (comm_s + compute_s) if comm_s else 0.0


def balance_tokens(hidden: int, num_ranks: int, bandwidth_Bps: float, latency_s: float, dtype_bytes: int = 2) -> float:
    """Tokens in a step for which an all-reduce spends as long on bytes as on hops. Below it a faster wire is no help,
    above it a quicker one is none. At least two ranks; not rounded."""
    return num_ranks * bandwidth_Bps * latency_s / (hidden * dtype_bytes)


def fastest_num_ranks(
    compute_s: float,
    num_layers: int,
    batch_tokens: int,
    hidden: int,
    bandwidth_Bps: float,
    latency_s: float,
    choices: Sequence[int] = (1, 2, 4, 8),
    dtype_bytes: int = 2,
) -> int:
    """The number of ranks with the shortest step; of equals the smallest.

    Args:
        compute_s: of a step on one rank; N ranks need an N-th each, and the wire.
        choices: numbers of ranks that may be chosen, in any order.
    """

    def step(ranks: int) -> tuple[float, int]:
        comm = tp_comm_time_per_step(num_layers, batch_tokens, hidden, ranks, bandwidth_Bps, latency_s, dtype_bytes)
        return compute_s / ranks + comm, ranks

    return min(choices, key=step)


def fit_link(samples: Sequence[tuple[int, float]], num_ranks: int) -> tuple[float, float]:
    """A wire from measurements: the bandwidth and the latency with which `allreduce_time_s` comes close to all of them.

    Close means in per cent. A sample of 8 KiB is off by microseconds, one of 64 MiB by milliseconds, and a server's
    decode steps send the former: both count alike. Samples of the ring's own formula, each off by up to 5 per cent, and
    spread over sizes of 8 KiB to 64 MiB, give back both numbers to within 10 per cent.

    Args:
        samples: (payload bytes, seconds) in any order, sizes may repeat. num_ranks: at least 2.

    Returns:
        (bandwidth_Bps, latency_s).

    Raises:
        ValueError: "two different sizes are needed, got N", where N counts the different ones.
    """
    sizes = {size for size, _ in samples}
    if len(sizes) < 2:
        raise ValueError(f"two different sizes are needed, got {len(sizes)}")
    # seconds = hops * latency + bytes / bandwidth; both sides divided by the seconds, then least squares
    rows = [(2 * (num_ranks - 1) / t, ring_allreduce_traffic_per_rank(size, num_ranks) / t) for size, t in samples]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(row[i] for row in rows) for i in (0, 1))
    det = aa * bb - ab * ab
    latency, per_byte = (a * bb - b * ab) / det, (b * aa - a * ab) / det
    return 1 / per_byte, latency

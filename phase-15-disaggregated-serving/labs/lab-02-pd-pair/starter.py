"""Lab 15-02: a prefill engine and a decode engine of real vLLM, beside engines that do both, on the same two cards.

Requests are `given.Row`s. Times are seconds, except where a name ends in `_ms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def predicted_verdicts() -> tuple[str, str, str, str, str]:
    """Your prediction, before any code runs. The same load for two cards: one prefills and one decodes, or each does
    both. "pair" or "two": who is better by more than a twentieth; "even" where neither is.

    Returns:
        The verdicts on: the median gap between two tokens; the gap that 99 of 100 do not exceed; the first token of a
        document; the first token of a stream; tokens a second.
    """
    raise NotImplementedError("five verdicts, before any code runs")


def expected_mib(num_tokens: int, block_size: int, kv_bytes_per_token: int) -> float:
    """MiB (2**20 bytes) that cross for a prompt, where whole blocks are sent."""
    raise NotImplementedError("the MiB that cross")


def parse_kv_transfer_metrics(line: str) -> dict[str, float] | None:
    """The numbers of a line "… KV Transfer metrics: Num successful transfers=3, Avg xfer time (ms)=1.5, …" of a log, by
    the names that stand there; None for any other line."""
    raise NotImplementedError("the numbers of the line, by their names")


def summary(rows: Sequence[Any], since: float, until: float) -> dict[str, float]:
    """What users of an arm saw between two moments.

    Returns:
        "itl_p50_ms", "itl_p99_ms": of the gaps between neighbouring tokens of a stream, those that ended in this time;
        the smallest gap that 50 % and 99 % of them do not exceed. "stream_ttft_p50_ms", "long_ttft_p50_ms": from the
        request to its first token, of all requests of the kind that began in this time and got one. "tokens_per_s": of
        streams and documents together. Of nothing, `math.nan`.
    """
    raise NotImplementedError("what users of an arm saw")


def compare(single: dict[str, float], pair: dict[str, float]) -> dict[str, float]:
    """Two summaries beside each other.

    Returns:
        "ttft_ratio" (of documents), "itl_p50_ratio", "itl_p99_ratio": how many times as long the pair takes. Below 1:
        the pair is the quicker one.
    """
    raise NotImplementedError("three ratios, the pair over the single one")


def fit_wire(sent: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """What a transfer costs: a time for each tensor, and a time for each byte.

    Args:
        sent: (tensors, bytes, seconds) of transfers of two sizes; all have as many tensors. A few took much longer than
            the others of their size, because a connection was made or somebody else was busy.

    Returns:
        (seconds a tensor, whatever its size; bytes a second beyond that).

    Raises:
        ValueError: "one size alone cannot tell latency from bandwidth".
    """
    raise NotImplementedError("what a tensor costs, and how fast its bytes are")


def partings(a: Sequence[Any], b: Sequence[Any]) -> dict[str, int]:
    """How the answers of two arms to the same prompts compare, over the tokens that both of them show.

    Returns:
        "requests": prompts that both have answered. "at_first": those whose first tokens differ. "parted": those that
        differ anywhere. "agreed": tokens before the first difference, or all where there is none, of all requests.
    """
    raise NotImplementedError("how often and where two arms part")


def transfers_are_suspect(pair: Sequence[Any], plain: Sequence[Sequence[Any]]) -> bool:
    """Your rule: do the tokens of a pair say that wrong keys and values have come to D?

    In two bytes a number, engines with other batches round otherwise, and where two tokens are nearly as likely, one of
    them takes the one and one the other; from then on all is different. That is nobody's fault.

    Args:
        pair: requests of the arm in doubt. plain: two or more arms in which nothing is transferred. Any two of all
            these have prompts in common.
    """
    raise NotImplementedError("whether wrong keys and values have come to D")

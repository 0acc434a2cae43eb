"""Lab 15-03: two ledgers. What splitting prefill from decode buys, what it costs, and for whom it is worth it.

Seconds, tokens and bytes everywhere, except for links: these are sold in gigabits a second.
"""

from __future__ import annotations


def predicted_long_prompt() -> float:
    """Your prediction, before any code runs. The toll is the time on the wire over the time of the prefill. Llama-3-8B
    (8.03e9 parameters, 32 layers of width 4,096), one card, one link.

    Returns:
        The toll of a prompt of 32,768 tokens, over the toll of one of 2,048. Right is what is at most 0.1 off.
    """
    raise NotImplementedError("the one toll over the other")


def kv_payload_bytes(prompt_tokens: int, kv_bytes_per_token: int) -> int:
    """Bytes that have to cross for a prompt.

    Raises:
        ValueError: "prompt_tokens must be at least 1, got 0"; the same for kv_bytes_per_token.
    """
    raise NotImplementedError("the bytes that cross")


def transfer_seconds(payload_bytes: int, link_gbps: float, latency_s: float = 0.0) -> float:
    """Seconds that a payload takes on a link of so many gigabits (10**9 bits) a second, from the first byte that
    leaves to the last that arrives.

    Raises:
        ValueError: "link_gbps must be positive, got 0".
    """
    raise NotImplementedError("seconds on the wire")


def prefill_seconds(prompt_tokens: int, parameters: float, layers: int, hidden: int, flops_per_s: float) -> float:
    """Seconds that a card needs for a prompt, as floating-point operations over what it does of them a second.

    Each token takes two operations a parameter. And each reads all tokens up to its own, itself included: for each of
    them, in each layer, two operations a number of a row of `hidden` for the score, and two more for the sum of values.
    """
    raise NotImplementedError("seconds of a prompt")


def colocated_itl_worst(decode_step_s: float, chunk_s: float) -> float:
    """The longest time between two tokens on an engine that does both, while somebody's prompt is computed there."""
    raise NotImplementedError("the longest gap")


def disagg_ttft_penalty(transfer_s: float, prefill_s: float) -> float:
    """The toll: how much of the prefill's time the wire adds to the first token. 0.05: a twentieth.

    Raises:
        ValueError: "prefill_s must be positive, got 0".
    """
    raise NotImplementedError("how much the wire adds to the first token")


def disagg_wins(
    decode_step_s: float, chunk_s: float, transfer_s: float, prefill_s: float, min_itl_gain: float = 1.5,
    max_ttft_penalty: float = 0.25,
) -> bool:  # fmt: skip
    """True where the worst gap becomes at least `min_itl_gain` times shorter, and the toll is at most
    `max_ttft_penalty`. Without prompts an engine makes a step in `decode_step_s`."""
    raise NotImplementedError("whether both ledgers say yes")


def min_link_gbps(payload_bytes: int, prefill_s: float, max_ttft_penalty: float = 0.25) -> float:
    """The slowest link, in Gb/s, on which the toll is no more than that."""
    raise NotImplementedError("the slowest link that will do")


def overlap_needed(transfer_s: float, prefill_s: float, max_ttft_penalty: float) -> float:
    """The share of a transfer, 0.0 to 1.0, that has to hide behind the prefill (a layer is sent while the next one is
    computed), so that what is left to see is a toll of at most `max_ttft_penalty`."""
    raise NotImplementedError("the share that has to hide")


def moves(prompt_tokens: int, seconds_waiting_at_p: float) -> bool:
    """Your rule: does P compute this prompt, or does it stay with D, among those who decode?

    It is asked once for each request, when that arrives. `given.goodput` says how many requests get both promises kept:
    a rule that moves everybody keeps them for 71 % of them, one that moves nobody for 3 %.

    Args:
        prompt_tokens: of this request. seconds_waiting_at_p: work that is at P already.
    """
    raise NotImplementedError("whether P computes this prompt")

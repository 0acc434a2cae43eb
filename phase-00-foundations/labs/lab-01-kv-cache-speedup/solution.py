"""Lab 00-01: the same tokens for a fraction of the work, by keeping K and V.

The model here is a toy: one attention layer made of integers. It has the two properties that make a KV cache possible.
The K and V of a token are made from that token and its position, and nothing that comes later can change them. The
query belongs to the newest token alone, so it is made afresh at every step and is never stored.
"""

from __future__ import annotations

from dataclasses import dataclass

VOCAB_SIZE = 256
_MODULUS = 1_000_003


@dataclass
class KVWork:
    """A meter. One unit is the K and V of one token, computed once."""

    count: int = 0


def compute_kv(tok: int, pos: int, work: KVWork) -> tuple[int, int]:
    """Compute K and V of token `tok` at position `pos`, and charge one unit to `work` (provided).

    Returns:
        (k, v): two integers in [0, 1_000_003) that depend on `tok` and `pos` only.
    """
    work.count += 1
    key = (tok * 7919 + pos * 104_729) % _MODULUS
    value = (tok * 15_485 + pos * pos * 31 + 17) % _MODULUS
    return key, value


def next_token(query_tok: int, kv: list[tuple[int, int]]) -> int:
    """Let the newest token look at every K and V so far, in order, and pick the next token (provided).

    Args:
        query_tok: the newest token; its query is made here, afresh.
        kv: the (k, v) pair of every token of the context, position 0 first, the newest token's own pair last.

    Returns:
        A token id in [0, 256). Leaving out, swapping or changing any pair changes what comes out.
    """
    query = query_tok * 6_364 + 1
    state = 0
    for key, value in kv:
        score = (query * key) % _MODULUS
        state = (state * 31 + score * value) % _MODULUS
    return state % VOCAB_SIZE


def check_arguments(prompt: list[int], n_new: int) -> None:
    """Refuse what no engine could run (provided).

    Raises:
        ValueError: `prompt` is empty, or `n_new` is negative.
    """
    if not prompt:
        raise ValueError("prompt must hold at least one token")
    if n_new < 0:
        raise ValueError(f"n_new must be 0 or more, got {n_new}")


def generate_no_cache(prompt: list[int], n_new: int) -> tuple[list[int], int]:
    """Generate `n_new` tokens and remember no K or V from one step to the next.

    Args:
        prompt: token ids, at least one; not modified.
        n_new: how many tokens to generate, 0 or more.

    Returns:
        (tokens, units): a new list, the prompt followed by the new tokens; and the units that were charged in this
        call. Every step pays for each token that its newest token looks at, once, and for nothing else.

    Raises:
        ValueError: see `check_arguments`.
    """
    check_arguments(prompt, n_new)
    work = KVWork()
    tokens = list(prompt)
    for _ in range(n_new):
        kv = [compute_kv(tok, pos, work) for pos, tok in enumerate(tokens)]
        tokens.append(next_token(tokens[-1], kv))
    return tokens, work.count


def generate_with_cache(prompt: list[int], n_new: int) -> tuple[list[int], int]:
    """Generate the same tokens with a KV cache: no K and V is computed a second time.

    When a token's K and V enter the cache, as soon as the token exists or when a step first needs them, is for you to
    decide. The cache lives as long as the call.

    Args:
        prompt: token ids, at least one; not modified.
        n_new: how many tokens to generate, 0 or more.

    Returns:
        (tokens, units): a new list, the prompt followed by the new tokens; and the units that were charged in this
        call, one for each token that some query looks at. What none looks at (the last new token; the prompt, when
        `n_new` is 0) may be paid for or not.

    Raises:
        ValueError: see `check_arguments`.
    """
    check_arguments(prompt, n_new)
    work = KVWork()
    tokens = list(prompt)
    cache = [compute_kv(tok, pos, work) for pos, tok in enumerate(tokens)]
    for _ in range(n_new):
        tokens.append(next_token(tokens[-1], cache))
        cache.append(compute_kv(tokens[-1], len(tokens) - 1, work))
    return tokens, work.count

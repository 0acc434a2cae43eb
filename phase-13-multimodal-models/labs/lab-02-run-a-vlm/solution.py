"""Lab 13-02: what a picture costs on real vLLM, and who remembers it.

Rows are those of `captured/cpu.json.xz`; the README says what stands in them. Sizes in pixels, times in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

CELL = 28
"""Qwen2-VL makes one token of so many pixels, each way."""


def predicted_finds() -> tuple[int, int, int]:
    """Your prediction, before you open the capture. Blocks have 16 tokens. A prompt is <|bos|>, <|user|>, a line break,
    64 tokens of a picture, and 10 more: 77. Picture 1 has been asked about, once.

    Returns:
        How many tokens the prefix cache has for: the same again; then, with another picture and the same text; and
        last, for a prompt with pictures 2 and 1, in this order, after each was asked about alone.
    """
    return 64, 0, 64


def token_line(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Prompts with 0, 1, 2 … pictures of one size, in any order: rows with "pictures" (a list) and "prompt_tokens".

    Returns:
        The tokens of the prompt without a picture, and those that each picture adds.

    Raises:
        ValueError: "no line through (0, 12), (1, 77), (2, 141)": pictures and tokens of all rows, sorted.
    """
    points = sorted({(len(row["pictures"]), row["prompt_tokens"]) for row in rows})
    (first, tokens), (last, most) = points[0], points[-1]
    each = (most - tokens) // max(1, last - first)
    text = tokens - first * each
    if last == first or any(found != text + count * each for count, found in points):
        raise ValueError(f"no line through {', '.join(map(str, points))}")
    return text, each


def resized(width: int, height: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The size that Qwen2-VL gives a picture before it is cut into cells, as `smart_resize` of its processor does.

    Both sides are multiples of 28, at least 28, and as near to the picture's own as they can be. There are at least
    `min_pixels` in it and, if sides of 28 allow it, at most `max_pixels`. Where that changes the size, both sides
    change by the same factor, as nearly as cells allow. All the rest the captured table tells: it has 84 sizes that
    the release was asked about.

    Returns:
        Width and height.

    Raises:
        ValueError: "absolute aspect ratio must be smaller than 200, got 224.0". 200 itself is allowed.
    """
    ratio = max(width, height) / min(width, height)
    if ratio > 200:
        raise ValueError(f"absolute aspect ratio must be smaller than 200, got {ratio}")
    wide, high = (round(side / CELL) * CELL for side in (width, height))
    if wide * high > max_pixels:
        shrink = math.sqrt(width * height / max_pixels)
        wide, high = (max(CELL, math.floor(side / shrink / CELL) * CELL) for side in (width, height))
    elif wide * high < min_pixels:
        grow = math.sqrt(min_pixels / (width * height))
        wide, high = (math.ceil(side * grow / CELL) * CELL for side in (width, height))
    return wide, high


def image_tokens(width: int, height: int, min_pixels: int = 3136, max_pixels: int = 12_845_056) -> int:
    """Tokens of a picture in a prompt of Qwen2-VL."""
    wide, high = resized(width, height, min_pixels, max_pixels)
    return wide * high // CELL**2


def expected_cached(earlier: Sequence[Sequence[Hashable]], prompt: Sequence[Hashable], block: int) -> int:
    """How many tokens of a prompt the prefix cache has.

    Args:
        earlier: the prompts before it; all their blocks are still there. prompt: one element a token; two elements are
            equal where token, or picture and place in it, are the same. block: tokens of a block.

    Returns:
        Tokens; the last one of a prompt is computed always, because somebody wants to know what comes next.
    """
    longest = 0
    for before in earlier:
        same = 0
        while same < min(len(before), len(prompt)) and before[same] == prompt[same]:
            same += 1
        longest = max(longest, same // block)
    return min(longest, (len(prompt) - 1) // block) * block


def encoder_hits(row: dict[str, Any], before: int, each: int, length: int = 64) -> int:
    """How many pictures of a request the encoder was spared though their vectors were needed.

    Args:
        row: with "pictures", "cached_tokens" (of the prefix cache) and "encoded" (pictures that the encoder computed).
        before: tokens before the first picture. each: tokens from the start of a picture to that of the next.
        length: tokens of a picture. One needs its vectors if any of these is computed.
    """
    ends = [before + number * each + length for number in range(len(row["pictures"]))]
    return sum(end > row["cached_tokens"] for end in ends) - row["encoded"]


def typical_ms(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """For each "arm", the "ms" of a request on an idle machine, as well as rows of a busy one can tell.

    The machine did other work beside: up to half of an arm's rows, there are 20 or more, were held up, some of them for
    long. And one row may be too small, where a clock was set. What you make of that is yours to decide.
    """
    found: dict[str, float] = {}
    for arm in dict.fromkeys(row["arm"] for row in rows):
        times = sorted(row["ms"] for row in rows if row["arm"] == arm)
        found[arm] = times[len(times) // 4]
    return found


def shares(ms: dict[str, float]) -> dict[str, float]:
    """Where the time of a new picture goes, in milliseconds; `ms` is what `typical_ms` returns.

    Returns:
        "tokens": what as many tokens of text cost more than the question alone. "kept": what a picture that processor
        and encoder remember costs beyond that. "new": what it costs beyond that to see a picture for the first time.
    """
    text, long, again, new = (ms[arm] for arm in ("text", "long text", "picture again", "new picture"))
    return {"tokens": long - text, "kept": again - long, "new": new - again}


def score(answers: Sequence[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """By "suite": how many answers are the expected one, letter by letter, and how many there are."""
    table: dict[str, tuple[int, int]] = {}
    for row in answers:
        right, asked = table.get(row["suite"], (0, 0))
        table[row["suite"]] = right + (row["answer"] == row["expected"]), asked + 1
    return table

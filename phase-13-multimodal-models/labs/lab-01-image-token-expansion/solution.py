"""Lab 13-01: a picture is tokens before anybody has looked at it. How many, where they stand, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mini_vllm import PlaceholderRange


def predicted_share() -> float:
    """Your prediction, before any code runs. Pictures of all sizes from 560 to 1119 pixels, width and height.

    Returns:
        The share, 0.0 to 1.0, for which `image_token_count` says more tokens than the size after `smart_resize` has,
        at its own limits. Right is what is at most 0.03 off.
    """
    return 0.75


def image_token_count(width: int, height: int, patch: int = 14, merge: int = 2) -> int:
    """Tokens of a picture that is padded: a begun patch is a patch, and a begun group of merge x merge patches is a
    token.

    Raises:
        ValueError: "width must be at least 1, got 0"; the same for height.
    """
    for name, size in (("width", width), ("height", height)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    return math.ceil(math.ceil(width / patch) / merge) * math.ceil(math.ceil(height / patch) / merge)


def smart_resize(
    width: int, height: int, factor: int = 28, min_pixels: int = 3136, max_pixels: int = 12_845_056
) -> tuple[int, int]:
    """The width and height to which Qwen2-VL scales a picture before it is cut. `captured/smart_resize.json` has
    what transformers says.

    Both are multiples of `factor`: the nearest ones, and of two the even multiple, as `round` does. Where these have
    more than `max_pixels` or less than `min_pixels`, the picture is scaled to that area in its own shape, and the
    multiples lie on the allowed side of it. No side is less than one `factor`, even where the area is then above the
    limit.

    Raises:
        ValueError: "absolute aspect ratio must be smaller than 200, got 201.0", where one side is more than 200 times
            the other.
    """
    ratio = max(width, height) / min(width, height)
    if ratio > 200:
        raise ValueError(f"absolute aspect ratio must be smaller than 200, got {ratio}")
    wide, tall = (round(size / factor) * factor for size in (width, height))
    if wide * tall > max_pixels:
        scale = math.sqrt(width * height / max_pixels)
        wide, tall = (max(factor, math.floor(size / scale / factor) * factor) for size in (width, height))
    elif wide * tall < min_pixels:
        scale = math.sqrt(min_pixels / (width * height))
        wide, tall = (math.ceil(size * scale / factor) * factor for size in (width, height))
    return wide, tall


def expand_prompt(
    token_ids: Sequence[int], image_token_id: int, counts: Sequence[int]
) -> tuple[list[int], list[PlaceholderRange]]:
    """The prompt as the scheduler sees it: each marker stands there as often as its picture has tokens.

    Returns:
        The new prompt, and where each picture stands in it. The arguments are not changed.

    Raises:
        ValueError: "2 markers in the prompt, 3 pictures".
    """
    markers = sum(token == image_token_id for token in token_ids)
    if markers != len(counts):
        raise ValueError(f"{markers} markers in the prompt, {len(counts)} pictures")
    out: list[int] = []
    ranges: list[PlaceholderRange] = []
    for token in token_ids:
        if token != image_token_id:
            out.append(token)
            continue
        ranges.append(PlaceholderRange(len(out), counts[len(ranges)]))
        out += [token] * ranges[-1].length
    return out, ranges


def kv_blocks_needed(num_tokens: int, block_size: int = 16) -> int:
    """Blocks of the KV cache that hold so many tokens."""
    return -(-num_tokens // block_size)


def fit(sizes: Sequence[tuple[int, int]], budget: int, factor: int = 28) -> list[tuple[int, int]]:
    """Your rule: who gets smaller where the pictures of a request have more tokens than there is room for?

    Args:
        sizes: (width, height) of each picture, multiples of `factor`: a token for each square of factor x factor.
        budget: tokens for all of them.

    Returns:
        The sizes to use, multiples of `factor`, at least `factor`. Together they have at most `budget` tokens, and
        where the pictures had more, more than half of it is used, if there are at least 64 tokens for each picture. No
        side grows. Pictures that fit stay as they are.

    Raises:
        ValueError: "3 pictures do not fit in 2 tokens".
    """
    if len(sizes) > budget:
        raise ValueError(f"{len(sizes)} pictures do not fit in {budget} tokens")
    grids = [(width // factor, height // factor) for width, height in sizes]
    while sum(wide * tall for wide, tall in grids) > budget:
        largest = max(range(len(grids)), key=lambda number: grids[number][0] * grids[number][1])
        wide, tall = grids[largest]
        grids[largest] = (wide - 1, tall) if wide >= tall else (wide, tall - 1)
    return [(wide * factor, tall * factor) for wide, tall in grids]

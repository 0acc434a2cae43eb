"""Pictures of this phase about numbers and their ways: `figures.py` draws them with the others."""

import math

import numpy as np

from mini_vllm.utils.svg import DECODE, GREY, GRID, INK, LOST, PREFILL, SERIES, WAIT, Svg

WEIGHTS = np.array([-0.3, 0.0, 0.42, 0.87, 1.2])
MANY_COLOURS = (WAIT, *SERIES)


def mapping() -> Svg:
    """Five weights of one side on the 4-bit codes, symmetric and with a zero point."""
    svg = Svg(860, 400, "From weights to codes, without and with a zero point")
    loudest, least = float(WEIGHTS.max()), float(WEIGHTS.min())
    step = (loudest - least) / 15
    ways = [
        ("symmetric: code = round(w / s)", loudest / 7, 0, range(-7, 8)),
        ("with a zero point: code = round(w / s) + z", step, round(-least / step), range(16)),
    ]
    for k, (words, scale, zero, codes) in enumerate(ways):
        top = 70 + k * 190

        def across(value: float) -> float:
            return 430 + value * 280

        svg.text(20, top - 38, f"{words}, with s = {scale:.3f}" + (f" and z = {zero}" if zero else ""), size=16)
        svg.text(20, top + 5, "weights")
        svg.text(20, top + 85, "codes")
        svg.path([(across(-1.28), top), (across(1.4), top)], GREY)
        for code in codes:
            x = across((code - zero) * scale)
            used = code in (np.rint(WEIGHTS / scale) + zero)
            svg.box(x - 9, top + 70, 18, 22, DECODE if used else WAIT)
            svg.text(x, top + 86, code, "middle", "#ffffff" if used else INK, 11)
        for w in WEIGHTS:
            code = round(w / scale) + zero
            svg.arrow([(across(w), top), (across((code - zero) * scale), top + 66)], PREFILL)
            svg.dot(across(w), top, PREFILL)
            svg.text(across(w), top - 10, f"{w:g}", "middle", size=12)
        off = float(np.abs(np.rint(WEIGHTS / scale) * scale - WEIGHTS).max())
        idle = sum((code - zero) * scale < least - scale / 2 for code in codes)
        svg.text(20, top + 116, f"{idle} of {len(codes)} codes lie below the least weight; off by at most {off:.3f}",
                 fill=GREY, size=12)  # fmt: skip
    return svg


def _bits(x: float, exponent: int, mantissa: int) -> tuple[str, str, float]:
    """Exponent's and mantissa's bits of the float nearest to a positive normal x, and its value."""
    bias = 2 ** (exponent - 1) - 1
    power = math.floor(math.log2(x))
    steps = round(x / 2.0**power * 2**mantissa)
    power, steps = (power + 1, steps // 2) if steps == 2 ** (mantissa + 1) else (power, steps)
    return f"{power + bias:0{exponent}b}", f"{steps - 2**mantissa:0{mantissa}b}", steps * 2.0 ** (power - mantissa)


def float_bits() -> Svg:
    """0.3 in four formats, bit by bit: which bits reach far, and which are exact."""
    svg, x0, dx, x = Svg(860, 330, "0.3 in four kinds of floats, bit by bit"), 120, 27, 0.3
    svg.text(20, 28, "0.3, bit by bit: the exponent buys range, the mantissa buys precision", size=16)
    for i, (name, exponent, mantissa) in enumerate((("fp16", 5, 10), ("bf16", 8, 7), ("E5M2", 5, 2), ("E4M3", 4, 3))):
        y = 58 + i * 60
        high, low, value = _bits(x, exponent, mantissa)
        bias = 2 ** (exponent - 1) - 1
        largest = 1.75 * 2.0 ** (bias + 1) if name == "E4M3" else (2 - 2.0**-mantissa) * 2.0**bias
        svg.text(20, y + 20, name, size=15)
        for place, bit in enumerate("0" + high + low):
            fill = LOST if place == 0 else PREFILL if place <= exponent else DECODE
            svg.box(x0 + place * dx, y, dx - 3, 30, fill)
            svg.text(x0 + place * dx + 12, y + 20, bit, "middle", "#ffffff", 14)
        reach = f"{largest:,.0f}" if largest < 1e6 else f"{largest:.1e}"
        svg.text(x0 + 16 * dx + 14, y + 13, f"here it is {value:.6g}", size=13)
        svg.text(x0 + 16 * dx + 14, y + 30, f"largest {reach}, off by at most 1/{2 ** (mantissa + 1):,}", fill=GREY)
    svg.legend(x0, 316, [(LOST, "sign"), (PREFILL, "exponent"), (DECODE, "mantissa")])
    return svg


def block_scales() -> Svg:
    """One corner of a weight four times: squares of one colour share a scale."""
    svg, cell = Svg(860, 310, "Who shares a scale: one weight, four ways"), 20
    svg.text(20, 28, "Who shares a scale: one corner of a 4096 x 4096 weight, squares of 32 x 32", size=16)
    ways = [
        ("the tensor", 4096, 4096),
        ("a row", 1, 4096),
        ("a group of 128 of a row", 1, 128),
        ("a block of 128 x 128", 128, 128),
    ]
    for k, (words, rows, columns) in enumerate(ways):
        left = 30 + k * 210
        svg.text(left, 66, words)
        for row in range(8):
            for column in range(8):
                group = (row * 32 // rows, column * 32 // columns)
                lines = 4 if rows == 1 else 1  # a square has 32 rows: draw them as stripes
                for line in range(lines):
                    nth = row * lines + line if rows == 1 else group[0]
                    fill = MANY_COLOURS[(nth + 3 * group[1]) % len(MANY_COLOURS)]
                    y = 80 + row * cell + line * cell / lines
                    svg.box(left + column * cell, y, cell, cell / lines, fill, GRID)
        svg.text(left, 264, f"scales: {4096 // rows * (4096 // columns):,}", size=14)
    words = "rows are outputs; a patch of one colour shares a scale; a stripe is 8 rows, each with its own"
    svg.text(20, 296, words, fill=GREY, size=12)
    return svg


def two_ways() -> Svg:
    """What is in how many bits on the way through a linear layer: W4A16 above, W8A8 below."""
    svg = Svg(860, 430, "A linear layer in W4A16 and in W8A8")
    rows = [
        ("W4A16: the codes become floats before they are multiplied", [
            ("weights in memory", "4 bits", PREFILL), ("in registers", "code x scale", PREFILL),
            ("", "16 bits", DECODE)],
         [("input", "16 bits", DECODE)], "16-bit units", "sum: float32", "no scale left"),
        ("W8A8: the input is rounded, and codes are multiplied", [
            ("weights in memory", "8 bits", PREFILL)],
         [("input", "16 bits", DECODE), ("a scale a token", "round(x / s)", PREFILL), ("", "8 bits", PREFILL)],
         "8-bit units", "sum: more bits", "times both scales"),
    ]  # fmt: skip
    for k, (words, upper, lower, units, total, after) in enumerate(rows):
        top = 50 + k * 205
        svg.text(20, top - 18, words, size=16)
        for line, boxes in enumerate((upper, lower)):
            y = top + 12 + line * 80
            for i, (above, inside, fill) in enumerate(boxes):
                x = 20 + i * 138
                svg.text(x, y - 6, above, fill=GREY, size=12)
                svg.box(x, y, 112, 34, fill)
                svg.text(x + 56, y + 22, inside, "middle", "#ffffff", 14)
                if i:
                    svg.arrow([(x - 26, y + 17), (x - 2, y + 17)])
            end = 20 + (len(boxes) - 1) * 138 + 112
            svg.arrow([(end, y + 17), (452, y + 17), (470, top + 62 + (line - 0.5) * 20)])
        svg.box(472, top + 32, 118, 60, SERIES[2])
        for place, word in ((56, "multiply on"), (76, units)):
            svg.text(531, top + place, word, "middle", "#ffffff", 14)
        svg.arrow([(590, top + 62), (622, top + 62)])
        svg.box(624, top + 45, 104, 34, WAIT)
        svg.text(676, top + 67, total, "middle")
        svg.arrow([(728, top + 62), (754, top + 62)])
        svg.text(676, top + 98, after, "middle", GREY, 12)
        svg.box(756, top + 45, 84, 34, DECODE)
        svg.text(798, top + 67, "16 bits", "middle", "#ffffff", 14)
        svg.text(756, top + 38, "output", fill=GREY, size=12)
    return svg


FIGURES = {"mapping": mapping, "float-bits": float_bits, "block-scales": block_scales, "two-ways": two_ways}

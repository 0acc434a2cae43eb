"""Draws the pictures of this phase: `python phase-06-quantization/figures.py` (`--check` only compares).

Levels, errors and bytes are computed by the solutions of the labs; densities and captures are named in the picture.
"""

import importlib.util
import json
import lzma
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from number_formats import FIGURES as OF_FORMATS  # noqa: E402

from mini_vllm.utils.svg import DECODE, GREY, GRID, INK, LOST, PREFILL, SERIES, WAIT, Axis, Plot, Svg, draw_all  # noqa: E402


def lab(number: str) -> ModuleType:
    """The solution of a lab of this phase."""
    path = next(HERE.glob(f"labs/lab-{number}-*/solution.py"))
    spec = importlib.util.spec_from_file_location(f"lab_06_{number}_of_the_figures", path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def formats() -> Svg:
    """Where the numbers of five formats lie, the largest at 1: even, or dense in the middle."""
    svg, x0, width = Svg(860, 380, "The numbers that a format has"), 150, 640
    svg.text(20, 28, "The numbers that a format has, its largest at 1", size=16)
    e4m3 = np.unique(lab("06").round_to_e4m3(np.linspace(-448, 448, 200_001))) / 448
    fp4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6]) / 6
    rows = [
        ("int8", np.arange(-127, 128) / 127, "255, all a step apart"),
        ("fp8 E4M3", e4m3, "253, eight between any two powers of two"),
        ("int4", np.arange(-7, 8) / 7, "15, all a step apart"),
        ("FP4 E2M1", np.concatenate([-fp4, fp4]), "15: 0, 0.5, 1, 1.5, 2, 3, 4, 6"),
        ("NF4", lab("05").nf4_levels(), "16, where a normal distribution has its mass"),
    ]
    for i, (name, levels, words) in enumerate(rows):
        y = 74 + i * 62
        svg.text(20, y + 5, name)
        svg.path([(x0, y), (x0 + width, y)], GRID)
        for level in levels:
            x = x0 + (float(level) + 1) / 2 * width
            svg.path([(x, y - 12), (x, y + 12)], SERIES[i], 1 if len(levels) > 20 else 2.5)
        svg.text(x0, y + 30, words, fill=GREY, size=12)
    for value in (-1, 0, 1):
        svg.text(x0 + (value + 1) / 2 * width, 372, value, "middle", GREY, 12)
    return svg


def loud_row() -> Svg:
    """Error of each row of one weight whose row 0 is loud, with the scale shared by ever fewer weights."""
    rng = np.random.default_rng(0)
    W = rng.standard_normal((8, 128))
    W[0] *= 40
    W[5, 32:64] *= 12
    one, three = lab("01"), lab("03")
    ladder = [
        ("one scale for the tensor", one.dequantize(*one.quantize_per_tensor(W)), "1 scale"),
        ("a scale for each row", one.dequantize(*one.quantize_per_channel(W)), "8 scales"),
        ("a scale for each 32 of a row", _int8_groups(W, 32), "32 scales"),
    ]
    four = three.dequantize_grouped(*three.quantize_grouped(W, 32), 32)
    ladder.append(("the same with int4", four, "32 scales"))
    svg = Svg(860, 400, "Who shares a scale with a loud row")
    svg.text(20, 28, "int8: who shares a scale with the loud row 0, and with the loud stretch in row 5", size=16)
    for row in range(8):
        loud = " (40 x)" if row == 0 else " (a quarter 12 x)" if row == 5 else ""
        svg.text(150, 92 + row * 34, f"row {row}{loud}", "end", size=12)
    for k, (words, back, scales) in enumerate(ladder):
        x = 170 + k * 172
        svg.text(x, 56, words, size=12)
        svg.text(x, 372, scales, fill=GREY, size=12)
        for row in range(8):
            for group in range(4):
                part = slice(32 * group, 32 * group + 32)
                off = np.linalg.norm(back[row, part] - W[row, part]) / np.linalg.norm(W[row, part])
                svg.box(x + group * 37, 72 + row * 34, 36, 30, _heat(off))
                svg.text(x + group * 37 + 18, 91 + row * 34, _percent(off), "middle", INK, 11)
    svg.text(170, 393, "each cell: relative error of 32 weights, in percent", fill=GREY, size=12)
    return svg


def _int8_groups(W: np.ndarray, size: int) -> np.ndarray:
    groups = W.reshape(len(W), -1, size)
    scales = np.abs(groups).max(axis=2, keepdims=True) / 127
    return (np.rint(groups / scales) * scales).reshape(W.shape)


def _heat(error: float) -> str:
    return "#dbeedd" if error < 0.01 else "#fdf0cf" if error < 0.1 else "#f7d1a8" if error < 0.25 else "#eba9a4"


def _percent(error: float) -> str:
    return f"{100 * error:.1f}" if error < 0.1 else f"{100 * error:.0f}"


def packing() -> Svg:
    """Eight codes, their nibbles, four bytes, and the int32 words of two layouts."""
    three = lab("03")
    codes = np.array([[-7, 7, 0, 1, -1, 3, -4, 2]], np.int8)
    nibbles = (codes + 8).astype(np.uint8)
    packed = three.pack_int4(codes)[0]
    words = [three.pack_int32(nibbles, order).view(np.uint32)[0, 0] for order in (range(8), three.AWQ_ORDER)]
    svg, x0, dx = Svg(860, 400, "Eight codes in four bytes"), 190, 78
    colours = [SERIES[i % 2] for i in range(8)]
    for words_left, y in (("code", 62), ("nibble = code + 8", 112), ("bytes, in memory order", 176)):
        svg.text(20, y + 20, words_left)
    for i in range(8):
        svg.text(x0 + (i + 0.5) * dx, 44, f"input {i}", "middle", GREY, 12)
        svg.box(x0 + i * dx, 62, dx - 6, 30, WAIT)
        svg.text(x0 + (i + 0.5) * dx - 3, 82, int(codes[0, i]), "middle")
        svg.box(x0 + i * dx, 112, dx - 6, 30, colours[i])
        svg.text(x0 + (i + 0.5) * dx - 3, 132, f"{nibbles[0, i]:X}", "middle", "#ffffff", 15)
    for b in range(4):
        x = x0 + 2 * b * dx
        for half, (fill, name) in enumerate(((colours[2 * b + 1], "high"), (colours[2 * b], "low"))):
            svg.box(x + 40 + half * 38, 176, 37, 30, fill)
            svg.text(x + 58 + half * 38, 196, f"{packed[b]:02X}"[half], "middle", "#ffffff", 15)
            svg.text(x + 58 + half * 38, 222, name, "middle", GREY, 11)
    svg.text(20, 262, "as one int32, the highest bits first")
    rows = (
        ("compressed-tensors, GPTQ", words[0], range(8), "input"),
        ("AWQ, if they are outputs", words[1], three.AWQ_ORDER, "output"),
    )
    for row, (name, word, order, kind) in enumerate(rows):
        y = 282 + row * 56
        svg.text(20, y + 20, name)
        for place in range(8):
            element = list(order)[7 - place]
            svg.box(x0 + place * dx, y, dx - 6, 30, colours[element])
            svg.text(x0 + (place + 0.5) * dx - 3, y + 20, f"{word:08X}"[place], "middle", "#ffffff", 15)
            svg.text(x0 + (place + 0.5) * dx - 3, y + 44, f"{kind} {element}", "middle", GREY, 11)
    return svg


SCHEMES = [
    ("bf16", 16.0, 0.0),
    ("int8, a scale per row of 4096", 8.0, 32 / 4096),
    ("fp8, a scale per tensor", 8.0, 0.0),
    ("NF4, blocks of 64", 4.0, 32 / 64),
    ("NVFP4, blocks of 16", 4.0, 8 / 16),
    ("int4, groups of 32", 4.0, 16 / 32),
    ("MXFP4, blocks of 32", 4.0, 8 / 32),
    ("int4, groups of 128", 4.0, 16 / 128),
    ("NF4, double quantization", 4.0, 8 / 64 + 32 / (64 * 256)),
]


def bytes_per_weight() -> Svg:
    """Bits of a weight: its code and its part of the scales."""
    svg, x0, unit = Svg(860, 400, "Bits per weight"), 240, 32
    svg.text(20, 28, "Bits per weight: the code, and its part of the scales", size=16)
    for i, (name, code, scale) in enumerate(SCHEMES):
        y = 52 + i * 36
        svg.text(x0 - 12, y + 18, name, "end")
        svg.box(x0, y, code * unit, 26, DECODE)
        svg.box(x0 + code * unit, y, max(scale * unit, 0.6), 26, PREFILL)
        svg.text(x0 + (code + scale) * unit + 8, y + 18, f"{code + scale:.3f}".rstrip("0").rstrip("."), fill=INK)
    svg.legend(x0, 394, [(DECODE, "code"), (PREFILL, "scales")])
    return svg


def nf4_levels() -> Svg:
    """NF4's levels and the even ones over the density of a normal weight divided by the largest of its block of 64."""
    five = lab("05")
    W = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32).reshape(-1, 64)
    normed = (W / np.abs(W).max(axis=1, keepdims=True)).reshape(-1)
    density, edges = np.histogram(normed, bins=80, range=(-1, 1), density=True)
    x = Axis(-1.02, 1.02, [(v, f"{v:g}") for v in (-1, -0.5, 0, 0.5, 1)], "weight / largest of its block of 64")
    y = Axis(-0.5, 1.2, [(0, "0"), (0.5, "0.5"), (1, "1")], "density")
    plot = Plot("Levels of NF4 and of int4 over the weights they stand for", x, y, 760, 400)
    for i, value in enumerate(density):
        (left, top), (right, bottom) = plot.at((edges[i], value)), plot.at((edges[i + 1], 0))
        plot.box(left, top, right - left, bottom - top, WAIT)
    for level in five.nf4_levels():
        plot.path([plot.at((float(level), -0.04)), plot.at((float(level), -0.2))], DECODE, 3)
    for level in range(-7, 8):
        plot.path([plot.at((level / 7, -0.26)), plot.at((level / 7, -0.42))], PREFILL, 3)
    plot.label((-1, -0.15), "NF4", DECODE, dx=-22, anchor="end")
    plot.label((-1, -0.37), "int4", PREFILL, dx=-22, anchor="end")
    return plot


def outliers() -> Svg:
    """Lab 04: loudness of each channel of X and of W, before smoothing and after."""
    four = lab("04")
    rng = np.random.default_rng(0)
    X, W = rng.standard_normal((64, 256)), rng.standard_normal((128, 256)) * 0.05
    X[:, [7, 123]] *= 80
    X_hat, W_hat = four.smooth(X, W)
    svg, x0 = Svg(860, 430, "Loud channels before and after smoothing"), 70
    panels = [("X as it comes", X), ("W as it comes", W), ("X / s", X_hat), ("W · s", W_hat)]
    for k, (words, T) in enumerate(panels):
        left, base = x0 + (k % 2) * 400, 190 + (k // 2) * 200
        loudness = np.abs(T).max(axis=0)
        top = max(np.abs(other).max() for _, other in panels[k % 2 :: 2])  # one axis for a matrix, before and after
        svg.text(left, base - 148, f"{words}: loudest {loudness.max():.3g}, median {np.median(loudness):.2g}")
        svg.path([(left, base), (left + 360, base)], GREY)
        bars = [(left + 1.4 * j, base - 130 * float(value / top)) for j, value in enumerate(loudness)]
        quiet = [
            point for j, (x, y) in enumerate(bars) if j not in (7, 123) for point in ((x, base), (x, y), (x, base))
        ]
        svg.path(quiet, SERIES[0], 1.2)
        for x, y in (bars[7], bars[123]):
            svg.path([(x, base), (x, y)], LOST, 1.2)
    svg.text(
        x0,
        415,
        "largest magnitude of each of 256 input channels, upper and lower panel on one scale; 7 and 123 are loud",
        fill=GREY,
    )
    return svg


def held_out() -> Svg:
    """Lab 02: per text, how its log-probability fell in four arms of real vLLM (CPU), sorted."""
    folder = HERE / "labs" / "lab-02-quantize-and-eval" / "captured"
    arms = [
        ("W4A16, group 128", "bf16-w4a16"),
        ("W4A16, group 32", "bf16-w4a16-g32"),
        ("KV fp8", "bf16-kv-fp8"),
        ("W8A8", "fp32-w8a8"),
    ]

    def per_token(arm: str) -> np.ndarray:
        rows = json.loads(lzma.decompress((folder / f"cpu-{arm}.json.xz").read_bytes()))["held_out"]
        return np.array([row["logprob"] / row["tokens"] for row in rows])

    base = per_token("fp32")
    x = Axis(0, 96, [(v, str(v)) for v in range(0, 97, 16)], "96 held-out texts, each arm sorted by its own loss")
    ticks = [(v / 100, f"{v / 100:g}") for v in (-2, 0, 2, 4, 6, 8)]
    y = Axis(-0.032, 0.086, ticks, "loss against fp32, nats per token")
    plot = Plot("A small mean, and a tail", x, y, 760, 420)
    plot.path([plot.at((0, 0)), plot.at((96, 0))], GREY)
    for k, (words, arm) in enumerate(arms):
        falls = np.sort(base - per_token(arm))[::-1]
        plot.line([(i + 0.5, float(v)) for i, v in enumerate(falls)], SERIES[k])
        plot.label((44, 0.076 - 0.009 * k), f"{words}: mean {falls.mean():.4f}, worst {falls[0]:.3f}", SERIES[k])
    return plot


def int4_h200() -> Svg:
    """The course's int4 kernel against cuBLAS with bf16 weights on an H200, by batch, for four shapes."""
    rows = json.loads(lzma.decompress((HERE / "captured" / "h200-int4.json.xz").read_bytes()))["int4"]
    x = Axis(0.9, 17.5, [(v, str(v)) for v in (1, 2, 4, 8, 16)], "tokens in the batch", log=True)
    y = Axis(0, 4.2, [(v, f"{v} x") for v in range(5)], "times as fast as cuBLAS, bf16 weights")
    plot = Plot("int4 weight-only on an H200, measured", x, y, 760, 400)
    ratio = rows[0]["bytes_ratio"]
    plot.path([plot.at((0.9, ratio)), plot.at((17.5, ratio))], LOST, 1.5, "6 4")
    plot.label((17.5, ratio), f"{ratio}: the ratio of the bytes", LOST, dy=-6, anchor="end")
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    for k, shape in enumerate(shapes):
        line = [(row["batch"], row["times_cublas"]["kernel"]) for row in rows if row["shape"] == shape]
        plot.line(line, SERIES[k])
        plot.points(line, SERIES[k])
        plot.label((1.0, 1.25 - 0.28 * k), shape, SERIES[k])
    return plot


def low_bits_h200() -> Svg:
    """One layer in bf16, FP8 and 4 bits on an H200, over the tokens in a step: where each stops paying."""
    rows = json.loads(lzma.decompress((HERE / "captured" / "h200-low-bits.json.xz").read_bytes()))["low-bits"][:13]
    x = Axis(0.8, 6000, [(v, f"{v:,}") for v in (1, 4, 16, 64, 256, 1024, 4096)], "tokens in the step", log=True)
    y = Axis(15, 4000, [(v, f"{v:,}") for v in (20, 50, 100, 200, 500, 1000, 2000)], "microseconds", log=True)
    plot = Plot("Gate and up of Llama-3-8B on an H200, by format", x, y, 760, 420)
    arms = [
        ("bf16, cuBLAS", "bf16 (cuBLAS)", SERIES[0]),
        ("fp8, vLLM (CUTLASS)", "FP8 with its rounding (CUTLASS)", SERIES[1]),
        ("4 bits, vLLM (Marlin)", "4 bits (Marlin)", SERIES[2]),
        ("4 bits, our kernel", "4 bits (ours, up to 16 tokens)", SERIES[3]),
    ]
    for k, (arm, words, colour) in enumerate(arms):
        line = [(row["rows"], row["us"][arm]) for row in rows if arm in row["us"]]
        plot.line(line, colour)
        plot.points(line, colour)
        plot.label((1.2, 3000 / 1.45**k), words, colour)
    return plot


FIGURES = {
    "formats": formats,
    "loud-row": loud_row,
    "packing": packing,
    "bytes-per-weight": bytes_per_weight,
    "nf4-levels": nf4_levels,
    "outliers": outliers,
    "held-out": held_out,
    "int4-h200": int4_h200,
    "low-bits-h200": low_bits_h200,
    **OF_FORMATS,
}

if __name__ == "__main__":
    sys.exit(draw_all(HERE / "img", FIGURES))

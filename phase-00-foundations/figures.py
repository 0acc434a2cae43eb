"""Draw the curves of phase 00 as SVG files. Every point is computed here from the formulas of the guide.

    python phase-00-foundations/figures.py            write img/*.svg
    python phase-00-foundations/figures.py --check    exit 1 where a committed file differs

No plotting library: an SVG is text, and the same numbers give the same bytes on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from mini_vllm.utils.svg import Axis, Plot, draw_all

IMG = Path(__file__).with_name("img")
MUTED = "#5f6c7b"
BLUE, ORANGE, GREEN, RED, VIOLET = "#3a7ca5", "#f0a202", "#6a994e", "#bc4b51", "#8367c7"

# Llama-3-8B in bf16 on an A100-80GB SXM, in the round figures of the guide.
PARAMS, DTYPE_BYTES = 8e9, 2
WEIGHT_BYTES = PARAMS * DTYPE_BYTES
PEAK_FLOPS, MEM_BW = 312e12, 2.0e12
KV_PER_TOKEN = 2 * 32 * 8 * 128 * 2


def work() -> Plot:
    """K/V computations for n new tokens after a prompt of 5, with and without a cache (lab 00-01)."""
    prompt = 5
    lengths = [10 ** (e / 20) for e in range(61)]
    x = Axis(1, 1000, [(1, "1"), (10, "10"), (100, "100"), (1000, "1,000")], "new tokens n (prompt of 5)", log=True)
    y_ticks = [(10.0**e, t) for e, t in enumerate(["1", "10", "100", "1 k", "10 k", "100 k", "1 M"])]
    plot = Plot("Computing K and V: every step anew, or once", x, Axis(1, 1e6, y_ticks, "units of work", log=True))
    plot.line([(n, n * prompt + n * (n - 1) / 2) for n in lengths], RED)
    plot.line([(n, prompt + n) for n in lengths], BLUE)
    plot.label((120, 2.2e5), "no cache: nP + n(n-1)/2", RED, anchor="end")
    plot.label((150, 40), "KV cache: P + n", BLUE)
    for n in (10, 1000):
        plain, cached = n * prompt + n * (n - 1) // 2, prompt + n
        plot.points([(n, plain)], RED)
        plot.points([(n, cached)], BLUE)
        plot.label((n, plain), f"{plain:,}", RED, -10, -8, "end")
        plot.label((n, cached), f"{cached:,}", BLUE, -10, -8, "end")
    return plot


def roofline() -> Plot:
    """Attainable FLOP/s against intensity, with decode batches and prefills on it (lab 00-04)."""
    x_ticks = [(1, "1"), (10, "10"), (100, "100"), (1000, "1,000"), (4096, "4,096")]
    y_ticks = [(1e12, "1 T"), (1e13, "10 T"), (1e14, "100 T"), (1e15, "1,000 T")]
    x = Axis(0.5, 4096, x_ticks, "arithmetic intensity, FLOP per byte read (= tokens in the step, for bf16)", log=True)
    plot = Plot("Roofline: an 8B model in bf16 on an A100", x, Axis(7e11, 1e15, y_ticks, "attainable FLOP/s", log=True))
    roof: Callable[[float], float] = lambda i: min(PEAK_FLOPS, i * MEM_BW)  # noqa: E731
    ridge = PEAK_FLOPS / MEM_BW
    plot.line([(ridge, 7e11), (ridge, roof(ridge))], MUTED, "4 4")
    plot.line([(0.5, roof(0.5)), (ridge, roof(ridge))], BLUE)
    plot.line([(ridge, roof(ridge)), (4096, PEAK_FLOPS)], ORANGE)
    plot.label((7, 4e13), "memory slope: 2 TB/s", BLUE, anchor="middle")
    plot.label((800, 5.4e14), "compute roof: 312 TFLOP/s", ORANGE, anchor="middle")
    plot.label((ridge, 9e11), "ridge: 156", MUTED, 8)
    for batch in (1, 8, 64):
        plot.points([(batch, roof(batch))], GREEN)
        place = (10, 14, "start") if batch < 64 else (-10, -4, "end")
        plot.label((batch, roof(batch)), f"decode, batch {batch}", GREEN, *place)
    for batch in (8, 64, 512):  # with 1,024 tokens of context each, whose KV cache is read too
        intensity = 2 * PARAMS * batch / (WEIGHT_BYTES + batch * 1024 * KV_PER_TOKEN)
        plot.points([(intensity, roof(intensity))], GREEN)
        plot.dot(*plot.at((intensity, roof(intensity))), "#ffffff", 2.4)
        dy = {8: 30, 64: 22, 512: 26}[batch]
        plot.label((intensity, roof(intensity)), f"batch {batch}, 1,024 tokens each", GREEN, 12, dy)
    plot.points([(2048, roof(2048))], VIOLET)
    plot.label((2048, roof(2048)), "prefill, 2,048 tokens", VIOLET, 30, 20, "end")
    return plot


def kv_growth() -> Plot:
    """Bytes of KV cache against context for several batch sizes, beside the weights."""
    x = Axis(0, 8192, [(n, f"{n:,}") for n in range(0, 8193, 2048)], "tokens of context per sequence")
    y = Axis(0, 48, [(g, f"{g}") for g in range(0, 49, 8)], "GiB")
    plot = Plot("KV cache of Llama-3-8B (128 KiB per token) beside its weights", x, y)
    weights = WEIGHT_BYTES / 2**30
    plot.line([(0, weights), (8192, weights)], MUTED, "6 4")
    plot.label((8192, weights), f"weights: {weights:.1f} GiB, however many users", MUTED, -4, 17, "end")
    for batch, color, end in ((1, GREEN, 8192), (8, BLUE, 8192), (32, ORANGE, 8192), (64, RED, 6144)):
        plot.line([(0, 0), (end, batch * end * KV_PER_TOKEN / 2**30)], color)
    plot.label((8192, 1), "1 sequence: 1 GiB at 8,192", GREEN, -4, -8, "end")
    plot.label((8192, 8), "8 sequences", BLUE, -4, -6, "end")
    plot.label((6700, 26.2), "32 sequences", ORANGE, 8, 18)
    plot.label((5000, 39), "64 sequences", RED, -12, 0, "end")
    return plot


def temperature() -> Plot:
    """The same four logits at three temperatures."""
    probs = [0.5, 0.3, 0.15, 0.05]
    names = ["token A", "token B", "token C", "token D"]
    x = Axis(0, 4, [(i + 0.5, n) for i, n in enumerate(names)], "")
    y = Axis(0, 0.8, [(v / 10, f"{v / 10:.1f}") for v in range(0, 9, 2)], "probability")
    plot = Plot("One row of logits at three temperatures", x, y)
    for slot, (temp, color) in enumerate(((0.5, BLUE), (1.0, GREEN), (2.0, ORANGE))):
        powered = [p ** (1 / temp) for p in probs]
        for i, value in enumerate(powered):
            share = value / sum(powered)
            low = i + 0.14 + slot * 0.24
            plot.bar(low, low + 0.22, share, color)
            plot.label((low + 0.11, share), f"{share:.2f}", color, 0, -5, "middle")
        plot.label((2.6, 0.72 - slot * 0.07), f"T = {temp:g}", color)
    return plot


def batch_tradeoff() -> Plot:
    """Throughput and inter-token latency of decode against batch size at 1,024 tokens of context."""
    batches = [2 ** (e / 8) for e in range(73)]
    x = Axis(1, 512, [(2**e, str(2**e)) for e in range(0, 10)], "sequences decoding together", log=True)
    y_ticks = [(100, "100"), (1000, "1,000"), (10_000, "10,000")]
    plot = Plot(
        "Decode with 1,024 tokens of context: what a batch buys", x, Axis(80, 40_000, y_ticks, "tokens/s", True)
    )

    def seconds(batch: float, context: int) -> float:
        memory = (WEIGHT_BYTES + batch * context * KV_PER_TOKEN) / MEM_BW
        return max(memory, 2 * PARAMS * batch / PEAK_FLOPS)

    plot.line([(b, b / seconds(b, 0)) for b in batches], MUTED, "6 4")
    plot.line([(b, b / seconds(b, 1024)) for b in batches], BLUE)
    plot.label((150, 2.75e4), "weights alone (no KV reads)", MUTED, anchor="end")
    plot.label((46, 3000), "weights + KV reads", BLUE, 8, 20)
    for batch in (1, 8, 64, 256):
        step = seconds(batch, 1024)
        plot.points([(batch, batch / step)], BLUE)
        plot.label((batch, batch / step), f"{step * 1e3:.1f} ms/step", BLUE, 10 if batch < 256 else 0, 18, "start")
    return plot


FIGURES: dict[str, Callable[[], Plot]] = {
    "work": work,
    "roofline": roofline,
    "kv-growth": kv_growth,
    "temperature": temperature,
    "batch-tradeoff": batch_tradeoff,
}


if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))

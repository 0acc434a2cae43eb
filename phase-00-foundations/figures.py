"""Draw the curves of phase 00 as SVG files. Every point is computed here from the formulas of the guide.

    python phase-00-foundations/figures.py            write img/*.svg
    python phase-00-foundations/figures.py --check    exit 1 where a committed file differs

No plotting library: an SVG is text, and the same numbers give the same bytes on every machine.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

IMG = Path(__file__).with_name("img")
INK, GRID, MUTED = "#1f2933", "#e3e8ee", "#5b6770"
BLUE, ORANGE, GREEN, RED, VIOLET = "#2563c9", "#d9730d", "#2f8f5b", "#c2353f", "#7a4fbf"

# Llama-3-8B in bf16 on an A100-80GB SXM, in the round figures of the guide.
PARAMS, DTYPE_BYTES = 8e9, 2
WEIGHT_BYTES = PARAMS * DTYPE_BYTES
PEAK_FLOPS, MEM_BW = 312e12, 2.0e12
KV_PER_TOKEN = 2 * 32 * 8 * 128 * 2

Point = tuple[float, float]


@dataclass
class Axis:
    """One axis: its range in data units, whether it is logarithmic, its ticks with their labels, and its title."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    title: str
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between the ends of the axis, 0 to 1."""
        scale = math.log10 if self.log else float
        return (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))


@dataclass
class Plot:
    """An XY plot of 720 x 400 pixels that is written as text."""

    title: str
    x: Axis
    y: Axis
    parts: list[str] = field(default_factory=list)
    left: int = 86
    right: int = 24
    top: int = 44
    bottom: int = 58
    width: int = 720
    height: int = 400

    def at(self, point: Point) -> Point:
        """Pixel position of a point in data units."""
        px = self.left + self.x.share(point[0]) * (self.width - self.left - self.right)
        py = self.height - self.bottom - self.y.share(point[1]) * (self.height - self.top - self.bottom)
        return round(px, 1), round(py, 1)

    def line(self, points: Sequence[Point], color: str, dash: str = "") -> None:
        path = " ".join(f"{px},{py}" for px, py in map(self.at, points))
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"{dashed}/>')

    def dot(self, point: Point, color: str) -> None:
        px, py = self.at(point)
        self.parts.append(f'<circle cx="{px}" cy="{py}" r="4.5" fill="{color}"/>')

    def bar(self, x_low: float, x_high: float, y: float, color: str) -> None:
        (x0, y1), (x1, y0) = self.at((x_low, y)), self.at((x_high, self.y.low))
        self.parts.append(
            f'<rect x="{x0}" y="{y1}" width="{round(x1 - x0, 1)}" height="{round(y0 - y1, 1)}" fill="{color}"/>'
        )

    def label(self, point: Point, text: str, color: str, dx: float = 0, dy: float = 0, anchor: str = "start") -> None:
        px, py = self.at(point)
        self.parts.append(_text(px + dx, py + dy, text, color, 13, anchor))

    def svg(self) -> str:
        """The whole picture."""
        frame = [f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>']
        frame.append(_text(self.left, 26, self.title, INK, 16, weight="600"))
        for value, text in self.x.ticks:
            px, _ = self.at((value, self.y.low))
            frame.append(_rule(px, self.top, px, self.height - self.bottom))
            frame.append(_text(px, self.height - self.bottom + 19, text, MUTED, 12, "middle"))
        for value, text in self.y.ticks:
            _, py = self.at((self.x.low, value))
            frame.append(_rule(self.left, py, self.width - self.right, py))
            frame.append(_text(self.left - 8, py + 4, text, MUTED, 12, "end"))
        middle = (self.left + self.width - self.right) / 2
        frame.append(_text(middle, self.height - 14, self.x.title, INK, 13, "middle"))
        half = (self.top + self.height - self.bottom) / 2
        turned = f'<g transform="translate(20 {half}) rotate(-90)">{_text(0, 0, self.y.title, INK, 13, "middle")}</g>'
        body = "\n".join([*frame, turned, *self.parts])
        head = f'viewBox="0 0 {self.width} {self.height}" font-family="Helvetica, Arial, sans-serif" role="img"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {head}>\n<title>{_safe(self.title)}</title>\n{body}\n</svg>\n'


def _safe(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _text(x: float, y: float, text: str, color: str, size: int, anchor: str = "start", weight: str = "400") -> str:
    place = f'x="{round(x, 1)}" y="{round(y, 1)}" font-size="{size}" font-weight="{weight}"'
    return f'<text {place} fill="{color}" text-anchor="{anchor}">{_safe(text)}</text>'


def _rule(x0: float, y0: float, x1: float, y1: float) -> str:
    return f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" stroke="{GRID}" stroke-width="1"/>'


def work() -> str:
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
        plot.dot((n, plain), RED)
        plot.dot((n, cached), BLUE)
        plot.label((n, plain), f"{plain:,}", RED, -10, -8, "end")
        plot.label((n, cached), f"{cached:,}", BLUE, -10, -8, "end")
    return plot.svg()


def roofline() -> str:
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
        plot.dot((batch, roof(batch)), GREEN)
        place = (10, 14, "start") if batch < 64 else (-10, -4, "end")
        plot.label((batch, roof(batch)), f"decode, batch {batch}", GREEN, *place)
    plot.dot((512, roof(512)), GREEN)
    plot.label((512, roof(512)), "decode, batch 512", GREEN, -14, 22)
    plot.dot((2048, roof(2048)), VIOLET)
    plot.label((2048, roof(2048)), "prefill, 2,048 tokens", VIOLET, 30, 42, "end")
    return plot.svg()


def kv_growth() -> str:
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
    return plot.svg()


def temperature() -> str:
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
    return plot.svg()


def batch_tradeoff() -> str:
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
        plot.dot((batch, batch / step), BLUE)
        plot.label((batch, batch / step), f"{step * 1e3:.1f} ms/step", BLUE, 10 if batch < 256 else 0, 18, "start")
    return plot.svg()


FIGURES: dict[str, Callable[[], str]] = {
    "work.svg": work,
    "roofline.svg": roofline,
    "kv-growth.svg": kv_growth,
    "temperature.svg": temperature,
    "batch-tradeoff.svg": batch_tradeoff,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the curves of phase 00.")
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    check = parser.parse_args().check
    stale = [name for name, draw in FIGURES.items() if not _is_current(IMG / name, draw())]
    for name in [] if check else stale:
        IMG.mkdir(exist_ok=True)
        (IMG / name).write_text(FIGURES[name](), encoding="utf-8", newline="\n")
    print("\n".join(f"{'differs' if check else 'wrote'}: img/{name}" for name in stale) or "all figures are current")
    return 1 if check and stale else 0


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    raise SystemExit(main())

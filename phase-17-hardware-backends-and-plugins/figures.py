"""Draws the figures of this phase: `python phase-17-hardware-backends-and-plugins/figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what is drawn now.
"""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from course.labs import load  # noqa: E402
from mini_vllm.utils.svg import DECODE, GREY, INK, SERIES, Svg, draw_all  # noqa: E402

IMG = HERE / "img"
LAB = HERE / "labs" / "lab-02-run-cpu-vllm"
PALE = "#f3f4f6"
ASK, BRING, REFUSE = SERIES[0], SERIES[2], SERIES[4]
IDENTITY = {"is_cpu", "is_rocm", "is_cuda_alike", "is_xpu", "is_tpu", "is_out_of_tree", "is_cuda"}
IDENTITY |= {"uses_host_device_handling", "is_unspecified", "is_sleep_mode_available"}
PARAMETERS = 494_032_768  # Qwen2.5-0.5B


def capture(name: str) -> dict[str, Any]:
    """A capture of lab 17-02."""
    found: dict[str, Any] = json.loads((LAB / "captured" / name).read_text(encoding="utf-8"))
    return found


def named(svg: Svg, x: float, y: float, w: float, h: float, words: str, more: str = "", fill: str = PALE) -> None:
    """A box with a name in it, and a smaller line."""
    svg.box(x, y, w, h, fill, GREY)
    svg.text(x + w / 2, y + h / 2 + (-1 if more else 4), words, "middle", INK, 12, "bold")
    if more:
        svg.text(x + w / 2, y + h / 2 + 14, more, "middle", INK, 11)


def funnel() -> Svg:
    """Many files that know every kind of hardware, and many files that know one object."""
    svg = Svg(720, 340, "Engine code that asks for the card everywhere, and engine code that asks one object")
    files, kinds = ("attention", "dtype", "graphs", "memory", "collectives"), ("CUDA", "ROCm", "CPU", "yours")
    svg.text(20, 26, "every file knows every kind", "start", INK, 14, "bold")
    svg.text(390, 26, "every file knows one object", "start", INK, 14, "bold")
    for left in (20, 390):
        for i, file in enumerate(files):
            named(svg, left, 44 + 50 * i, 92, 34, file)
        for i, kind in enumerate(kinds):
            named(svg, left + 236, 60 + 58 * i, 74, 34, kind, fill="#dcebdc" if kind == "yours" else PALE)
    for i in range(len(files)):
        for k in range(len(kinds)):
            color = REFUSE if k == len(kinds) - 1 else GREY
            svg.path([(112, 61 + 50 * i), (256, 77 + 58 * k)], color, 1.4 if color == REFUSE else 0.8)
        svg.arrow([(482, 61 + 50 * i), (523, 161 + (i - 2) * 8)], ASK)
    svg.box(526, 128, 62, 66, "#dbe8f0", ASK)
    svg.text(557, 158, "current_", "middle", INK, 11, "bold")
    svg.text(557, 172, "platform", "middle", INK, 11, "bold")
    for k in range(len(kinds)):
        svg.path([(588, 161 + (k - 1.5) * 10), (626, 77 + 58 * k)], BRING, 1.4)
    svg.text(20, 318, "new hardware: 5 edits here, 20 pairs to test", "start", REFUSE, 12)
    svg.text(390, 318, "new hardware: one class, no edit", "start", INK, 12)
    return svg


def resolve() -> Svg:
    """Probes, what they return, and the rule."""
    svg = Svg(720, 350, "Who is taken: five probes of the tree, packages from outside, one rule")
    svg.text(20, 26, "asked", "start", INK, 14, "bold")
    svg.text(210, 26, "answer", "start", INK, 14, "bold")
    svg.text(420, 26, "the first line that fits", "start", INK, 14, "bold")
    rows = (
        ("tpu", "None"), ("cuda", "…cuda.CudaPlatform"), ("rocm", "None"), ("xpu", "None"), ("cpu", "None"),
        ("package acc", "acc.AccPlatform"), ("package bcc", "None"),
    )  # fmt: skip
    for i, (name, answer) in enumerate(rows):
        y, outside = 40 + 40 * i + (14 if i > 4 else 0), i > 4
        named(svg, 20, y, 110, 30, name, fill="#dcebdc" if outside else PALE)
        svg.arrow([(132, y + 15), (204, y + 15)], GREY)
        svg.text(212, y + 19, answer, "start", GREY if answer == "None" else INK, 12)
    svg.path([(20, 245), (360, 245)], GREY, 1, "4 4")
    rules = (
        ("two packages say yes", "RuntimeError"), ("one package says yes", "the package's"),
        ("two of the tree say yes", "RuntimeError"), ("one of the tree says yes", "the tree's"),
        ("nobody", "UnspecifiedPlatform"),
    )  # fmt: skip
    for i, (when, then) in enumerate(rules):
        y, taken = 44 + 52 * i, i == 1
        svg.box(420, y, 280, 40, "#dcebdc" if taken else PALE, BRING if taken else GREY)
        svg.text(432, y + 25, when, "start", INK, 12, "bold" if taken else "normal")
        svg.text(690, y + 25, then, "end", REFUSE if then == "RuntimeError" else INK, 12)
    svg.text(420, 330, "here: acc, although a CUDA card is there", "start", INK, 12)
    return svg


def asked() -> Svg:
    """The questions of one start and one answer, by kind: captured/questions.json."""
    rows = capture("questions.json")["questions"]
    total = sum(row["asked"] for row in rows)
    svg = Svg(720, 404, "What real vLLM asks its platform: most often who it is")
    svg.text(20, 26, f"{total:,} questions of one start and 32 tokens, by kind", "start", INK, 14, "bold")
    shown = [(row["question"], row["asked"], row["question"] in IDENTITY) for row in rows[:10]]
    rest = rows[10:]
    shown.append((f"{len(rest)} further kinds", sum(row["asked"] for row in rest), False))
    most = max(count for _, count, _ in shown)
    for i, (name, count, by_name) in enumerate(shown):
        y = 40 + 28 * i
        svg.text(226, y + 16, name, "end", INK, 12)
        svg.box(236, y, max(2, 380 * count / most), 21, REFUSE if by_name else ASK)
        svg.text(244 + 380 * count / most, y + 16, f"{count:,}", "start", INK, 12)
    share = sum(row["asked"] for row in rows if row["question"] in IDENTITY) / total
    svg.box(236, 362, 14, 14, REFUSE)
    svg.text(256, 374, f"who are you? {share:.0%} (some of them among the further kinds)", "start", INK, 12)
    svg.box(236, 382, 14, 14, ASK)
    svg.text(256, 394, "what can you do? what should I do?", "start", INK, 12)
    return svg


def backend() -> Svg:
    """The stations of a step: which ones a backend exchanges."""
    svg = Svg(720, 300, "What a backend exchanges, and what it does not touch")
    same = ("LLM, server", "tokenizer", "scheduler", "block pool", "sampler")
    other = (
        ("platform", "21 of 87 answers"), ("worker, runner", "on top of the GPU's"), ("attention", "CPU_ATTN"),
        ("kernels", "C++ for each ISA"), ("communicator", "gloo, shared memory"),
    )  # fmt: skip
    svg.text(20, 26, "the same code on every platform", "start", INK, 14, "bold")
    svg.text(20, 156, "exchanged: the CPU backend's own", "start", INK, 14, "bold")
    for i, words in enumerate(same):
        named(svg, 20 + 138 * i, 42, 128, 60, words)
        if i:
            svg.arrow([(11 + 138 * i, 72), (18 + 138 * i, 72)], GREY)
    for i, (words, more) in enumerate(other):
        named(svg, 20 + 138 * i, 172, 128, 60, words, more, "#dcebdc")
    svg.arrow([(360, 104), (360, 168)], ASK)
    svg.text(372, 138, "a plan, in tokens and block ids", "start", INK, 11)
    svg.text(
        20,
        262,
        "and ten of 348 settings, among them: blocks of 128 tokens, no graphs, no async scheduling,",
        "start",
        INK,
        12,
    )
    svg.text(20, 280, "a worker in a process of its own, one trace of the model", "start", INK, 12)
    return svg


def ceiling() -> Svg:
    """Rates against what memory allows: captured/rate-*.json."""
    lab = load(LAB / "solution.py")
    svg = Svg(720, 300, "Tokens a second of one core, and what its memory allows")
    svg.text(20, 26, "tokens a second, shape of Qwen2.5-0.5B, one core", "start", INK, 14, "bold")
    rows = []
    speed = max(capture("bandwidth.json")["gb_s"].values())
    for name, size in (("rate-bfloat16.json", 2), ("rate-float32.json", 4)):
        found = capture(name)
        for row in found["rates"]:
            most = lab.decode_ceiling_tok_s(speed, PARAMETERS * size / 1e9, row["batch"])
            rows.append((f"{found['dtype']}, batch {row['batch']}", row["tokens_a_second"], most))
    scale = 430 / max(most for *_, most in rows)
    for i, (words, rate, most) in enumerate(rows):
        y = 44 + 52 * i
        svg.text(150, y + 24, words, "end", INK, 12)
        svg.box(160, y, scale * most, 36, "#dbe8f0", ASK)
        svg.box(160, y + 8, scale * rate, 20, DECODE)
        svg.text(168 + scale * most, y + 23, f"{rate:.1f} of {most:.1f}", "start", INK, 12)
    svg.box(160, 262, 14, 14, DECODE)
    svg.text(180, 274, "measured", "start", INK, 12)
    svg.box(260, 262, 14, 14, "#dbe8f0", ASK)
    svg.text(280, 274, "bandwidth / bytes: no step can be faster", "start", INK, 12)
    return svg


FIGURES = {"funnel": funnel, "resolve": resolve, "asked": asked, "backend": backend, "ceiling": ceiling}

if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))

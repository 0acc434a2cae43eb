"""Draws the figures of this phase: `python phase-14-.../figures.py`.

Writes img/*.svg; `--check` writes nothing and exits 1 where a committed figure differs from what the code and the
captures say now.
"""

import json
import lzma
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from course.labs import load  # noqa: E402
from mini_vllm.utils.svg import DECODE, GREY, INK, LOST, PREFILL, SERIES, WAIT, Axis, Plot, Svg, draw_all  # noqa: E402

IMG = HERE / "img"
GOOD, MONO = SERIES[2], "ui-monospace, Menlo, monospace"
LABS = HERE / "labs"
ARMS = {
    "reversed": "tensors in reversed order",
    "no_norm": "a norm is missing",
    "extra": "a tensor too many",
    "narrow": "a key that is too narrow",
    "no_q": "a query projection is missing",
    "swapped": "k and v have changed names",
    "wide": "keys and values too wide",
    "dummy": 'load_format="dummy"',
}


def payoff() -> Svg:
    """Eight loads of real vLLM beside the unbroken one: refused, or how many answers changed."""
    folder, lab = LABS / "lab-02-trace-weight-loading", load(LABS / "lab-02-trace-weight-loading" / "solution.py")
    files = {arm: folder / "captured" / f"cpu-{arm}.json.xz" for arm in ("whole", *ARMS)}
    runs = {arm: json.loads(lzma.decompress(file.read_bytes())) for arm, file in files.items()}
    svg = Svg(900, 330, "What real vLLM 0.22.1 does with eight checkpoints")
    svg.text(20, 28, "pocket, changed", weight="600")
    svg.text(300, 28, "answers that changed, of 11", weight="600")
    for row, (arm, words) in enumerate(ARMS.items()):
        said, differ = lab.verdict(runs[arm], runs["whole"])
        y = 46 + row * 33
        svg.text(20, y + 17, words, size=13)
        if said == "loud":
            svg.text(300, y + 17, "refused", fill=GOOD, weight="600")
            svg.text(370, y + 17, runs[arm]["error"].split(":")[0], fill=GREY, size=12, font=MONO)
            continue
        svg.box(300, y, 11 * 36, 24, WAIT)
        if differ:
            svg.box(300, y, differ * 36, 24, LOST)
        svg.text(706, y + 17, f"{differ}", size=13)
        svg.text(730, y + 17, "served" if differ else "served, and right", fill=LOST if differ else GREY, size=12)
    return svg


def waist() -> Svg:
    """The hourglass: engine, contract, models."""
    svg = Svg(900, 400, "The narrow waist")
    for i, words in enumerate(("server", "scheduler", "block pool", "prefix cache", "sampler", "graphs", "metrics")):
        svg.box(20 + i * 124, 20, 114, 40, PREFILL)
        svg.text(77 + i * 124, 45, words, "middle", size=13)
    svg.path([(20, 70), (250, 140), (250, 250), (20, 320)], WAIT, 2)
    svg.path([(880, 70), (650, 140), (650, 250), (880, 320)], WAIT, 2)
    svg.text(450, 110, "one step: the tokens of all requests, in one row", "middle", GREY, 13)
    calls = ("embed_input_ids(ids [T])", "forward(ids [T], positions [T], attn) -> [T, H]",
             "compute_logits(rows [R, H]) -> [R, V]", "load_weights(names and tensors)")  # fmt: skip
    for i, words in enumerate(calls):
        svg.text(450, 146 + i * 30, words, "middle", INK, 14, font=MONO)
    svg.text(450, 275, "built from layers that know ranks, formats and names", "middle", GREY, 13)
    for i, words in enumerate(("Llama", "Qwen3", "Gemma", "Mixtral", "DeepSeek", "Mamba", "BERT")):
        svg.box(20 + i * 124, 330, 114, 40, DECODE)
        svg.text(77 + i * 124, 355, words, "middle", "#ffffff", 13)
    return svg


def rows() -> Svg:
    """The fused parameter of Llama 3 8B on 1, 2 and 16 ranks."""
    lab = load(LABS / "lab-02-trace-weight-loading" / "solution.py")
    config = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    svg = Svg(900, 300, "Rows of qkv_proj, Llama 3 8B: 32 query heads, 8 KV heads of 128")
    fills = {"q": DECODE, "k": PREFILL, "v": SERIES[2]}
    for line, ranks in enumerate((1, 2, 8, 16)):
        y = 50 + line * 56
        svg.text(20, y + 22, f"rank 0 of {ranks}" if ranks > 1 else "one GPU", size=13)
        x = 130.0
        for part, fill in fills.items():
            found = lab.rank_rows(part, config, ranks, 0)
            count = found.stop - found.start
            width = max(count / 6144 * 620, 3)
            svg.box(x, y, width, 34, fill)
            if width > 40:
                svg.text(x + width / 2, y + 22, f"{part} {count}", "middle", "#ffffff" if part != "k" else INK, 12)
            x += width
        svg.text(x + 12, y + 22, f"{lab.fused_rows(config, ranks)} rows", size=13)
    svg.text(
        20, 284, "From 8 to 16 ranks q halves, k and v do not: a KV head is the smallest thing.", fill=GREY, size=12
    )
    svg.legend(130, 36, [(fills[part], part) for part in fills])
    return svg


def memory() -> Plot:
    """Bytes of one request against its length, at two bytes a number and 32 layers."""
    plot = Plot(
        "What one request keeps, 32 layers",
        Axis(100, 100_000, [(n, f"{n:,}") for n in (100, 1000, 10_000, 100_000)], "tokens of the request", True),
        Axis(1, 20_000, [(n, f"{n:,}") for n in (1, 10, 100, 1000, 10_000)], "MiB", True),
        width=900,
    )
    state, token, layers, each = 5120 * 19, 2 * 8 * 128, 32, 2 / 2**20
    lengths = [100 * 10 ** (i / 8) for i in range(25)]
    kinds = {
        "grouped attention, 8 KV heads of 128": lambda n: layers * token * n,
        "the same, a window of 4,096 on every layer": lambda n: layers * token * min(n, 4096),
        "MLA, 576 numbers": lambda n: layers * 576 * n,
        "hybrid: 28 state layers, 4 of attention": lambda n: 28 * state + 4 * token * n,
        "state-space, 97,280 numbers a layer": lambda n: layers * state,
    }
    for number, (words, size) in enumerate(kinds.items()):
        color = SERIES[number % len(SERIES)]
        plot.line([(n, size(n) * each) for n in lengths], color)
        plot.box(110, 70 + number * 20, 12, 12, color)
        plot.text(130, 81 + number * 20, words, size=12)
    return plot


def pooling() -> Svg:
    """Three prompts in two steps, and the rows that each kind takes."""
    svg = Svg(900, 330, "Rows of three prompts in two steps")
    names, fills = "ABC", (DECODE, PREFILL, SERIES[2])
    steps = [[("A", 0, 5), ("B", 0, 3), ("C", 0, 2)], [("A", 5, 4), ("C", 2, 6)]]
    lengths = {"A": 9, "B": 3, "C": 8}
    for number, step in enumerate(steps):
        y, x = 50 + number * 80, 130
        svg.text(20, y + 24, f"step {number + 1}", weight="600")
        for name, first, count in step:
            for at in range(first, first + count):
                svg.box(x, y, 34, 36, fills[names.index(name)])
                ink = INK if name == "B" else "#ffffff"
                svg.text(x + 17, y + 23, f"{name}{at}", "middle", ink, 12, font=MONO)
                marks = [kind for kind, where in (("CLS", 0), ("LAST", lengths[name] - 1)) if at == where]
                if marks:
                    svg.text(x + 17, y - 6, "/".join(marks), "middle", INK, 12)
                x += 36
    svg.text(
        20, 220, "MEAN of A is (5 · mean of step 1 + 4 · mean of step 2) / 9: somebody carries 5 and the sum.", size=13
    )
    svg.text(20, 246, "LAST of A is known in step 2, and needs nothing of step 1. CLS is known in step 1 already.",
             size=13)  # fmt: skip
    svg.text(
        20, 272, "Had A's first 4 tokens come from the prefix cache, A0 to A3 would be in no step at all.", size=13
    )
    svg.text(
        20, 304, "In a causal model A0 has seen nobody: CLS is the same vector for every text.", fill=GREY, size=12
    )
    return svg


FIGURES = {"payoff": payoff, "waist": waist, "rows": rows, "memory": memory, "pooling": pooling}


if __name__ == "__main__":
    sys.exit(draw_all(IMG, FIGURES))

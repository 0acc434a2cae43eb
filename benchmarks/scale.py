"""Tokens per second of two processes: tensor parallel, pipeline, replicas; and what the paper model says beforehand.

    python -m benchmarks.scale            # four minutes on two idle cores
    python -m benchmarks.scale --quick    # half a minute, nothing written

The model is `phase-10-distributed-inference/scale.py`, which the phase takes from 8 GPUs to 10,000. Here it is told
what *one* process does, and says what two will do:

one process    the whole model, half of its layers, and every layer cut in half (which is what a rank of TP 2 holds)
the wire       an all-reduce and a handover of that size between two processes that do nothing else
two processes  TP 2, PP 2 with two batches under way, two replicas side by side: what was predicted, what is measured
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import limit_threads, machine, save, table  # noqa: E402

SHAPES = {  # pocket's, and one that is three times as wide
    "pocket": {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
    "wide": {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 4},
}
LAYERS, VOCAB, PROMPT = 8, 4096, 8
CUT = ("intermediate_size", "num_attention_heads", "num_key_value_heads")


def paper() -> Any:
    """The phase's model as a module."""
    path = ROOT / "phase-10-distributed-inference" / "scale.py"
    spec = importlib.util.spec_from_file_location("scale_on_paper", path)
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checkpoint(folder: Path, shape: dict[str, int], layers: int, cut: int) -> str:
    """A folder with pocket's tokenizer and a Llama without weights, `cut` of whose heads and MLP are left."""
    folder.mkdir()
    for file in (ROOT / "models" / "pocket").glob("*.json"):
        shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {**shape, **{name: shape[name] // cut for name in CUT}, "num_hidden_layers": layers, "head_dim": 64}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


class Decoding:
    """An engine that decodes batches of random prompts, all requests of a batch under way together.

    Args:
        batches: under way at the same time, one for each stage; they come apart, so that they stay apart.
    """

    def __init__(self, model: str, batches: int = 1, **args: Any) -> None:
        from mini_vllm import LLMEngine

        args = {"num_blocks": 512, "enable_prefix_caching": False, "load_format": "dummy", **args}
        self.engine, self.batches, self.count = LLMEngine(model, **args), batches, 0

    def seconds_a_token(self, rows: int, tokens: int) -> float:
        """Median time from one batch's tokens to the next one's, over what lies between prompts and ends."""
        from mini_vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        for _ in range(self.batches):
            for row in range(rows):
                ids = [300 + (7 * self.count + 13 * row + place) % 3000 for place in range(PROMPT)]
                self.engine.add_request(f"{self.count}", {"prompt_token_ids": ids}, params)
                self.count += 1
            self.engine.step()
        at = []
        while self.engine.has_unfinished_requests():
            if self.engine.step():
                at.append(time.perf_counter())
        gaps = [b - a for a, b in itertools.pairwise(at)]
        inner = gaps[len(gaps) // 8 : -len(gaps) // 8]
        return statistics.mean(sorted(inner)[: -max(1, len(inner) // 10)])  # without the tenth that neighbours took

    def close(self) -> None:
        """End its processes."""
        self.engine.engine_core.shutdown()


def ranks_meet(elements: int, rounds: int) -> float:
    """Seconds of an all-reduce of so many float32 among two processes that do nothing else."""
    import numpy as np

    from mini_vllm.distributed.parallel_state import TensorParallelGroup

    group = TensorParallelGroup(2, max(elements, 1024), np.float32)
    other = multiprocessing.get_context("fork").Process(target=_meet, args=(group, 1, elements, rounds), daemon=True)
    other.start()
    seconds = _meet(group, 0, elements, rounds)
    other.join()
    return seconds


def _meet(group: Any, rank: int, elements: int, rounds: int) -> float:
    import numpy as np

    group.rank, x, took = rank, np.ones(elements, np.float32), []
    for _ in range(rounds):
        begun = time.perf_counter()
        group.all_reduce(x)
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


def _replica(model: str, rows: int, tokens: int, rounds: int, start: Any, pipe: Any) -> None:
    decoding = Decoding(model)
    decoding.seconds_a_token(rows, tokens)
    start.wait()
    pipe.send([decoding.seconds_a_token(rows, tokens) for _ in range(rounds)])


def replicas(model: str, rows: int, tokens: int, rounds: int) -> float:
    """Tokens per second of two engines in two processes, which begin together."""
    context = multiprocessing.get_context("fork")
    start, pipes = context.Barrier(2), []
    for _ in range(2):
        mine, other = context.Pipe()
        context.Process(target=_replica, args=(model, rows, tokens, rounds, start, other), daemon=True).start()
        pipes.append(mine)
    return sum(rows / statistics.median(pipe.recv()) for pipe in pipes)


def head_seconds(rows: int, hidden: int, rounds: int = 200) -> float:
    """Of the product with the output matrix, as the engine keeps it: [vocabulary, hidden] times [hidden, rows]."""
    import numpy as np

    weight, x, took = np.ones((VOCAB, hidden), np.float32), np.ones((hidden, rows), np.float32), []
    for _ in range(rounds):
        begun = time.perf_counter()
        weight @ x
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


def measure(name: str, rows: int, tokens: int, rounds: int, folder: Path) -> dict[str, Any]:
    """One shape and one number of rows: what one process does, the prediction, and two processes."""
    model = paper()
    shape = SHAPES[name]
    kinds = {"whole": (LAYERS, 1), "half the layers": (LAYERS // 2, 1),
             "cut": (LAYERS, 2), "cut, half the layers": (LAYERS // 2, 2)}  # fmt: skip
    paths = {
        kind: checkpoint(folder / f"{name}-{rows}-{i}", shape, *sizes) for i, (kind, sizes) in enumerate(kinds.items())
    }
    ones = {kind: Decoding(path) for kind, path in paths.items()}
    twos = {"tp": Decoding(paths["whole"], tensor_parallel_size=2),
            "pp": Decoding(paths["whole"], batches=2, pipeline_parallel_size=2)}  # fmt: skip
    took: dict[str, list[float]] = {key: [] for key in (*ones, *twos)}
    for _ in range(rounds + 1):  # in turns; the first does not count
        for key, decoding in (ones | twos).items():
            took[key].append(decoding.seconds_a_token(rows, tokens))
    for decoding in (ones | twos).values():
        decoding.close()
    t = {key: statistics.median(each[1:]) for key, each in took.items()}
    sum_ = ranks_meet(rows * shape["hidden_size"], 400)
    whole = (t["whole"] - t["half the layers"]) / (LAYERS - LAYERS // 2)
    cut = (t["cut"] - t["cut, half the layers"]) / (LAYERS - LAYERS // 2)
    head = head_seconds(rows, shape["hidden_size"])
    outside, payload = t["whole"] - LAYERS * whole - head, 4.0 * rows * shape["hidden_size"]
    step = model.Step(outside, head, 2 * (whole - cut), 2 * cut - whole, LAYERS, payload)
    wire = model.Link(float("inf"), sum_ / 2)
    layouts = {"tp": model.Layout(tp=2), "pp": model.Layout(pp=2), "dp": model.Layout(dp=2)}
    said = {kind: model.tokens_per_second(step, rows, layout, wire, wire) for kind, layout in layouts.items()}
    found = {"tp": rows / t["tp"], "pp": rows / t["pp"], "dp": replicas(paths["whole"], rows, tokens, rounds)}
    return {"model": name, "rows": rows, "one": rows / t["whole"], "seconds": t, "sum_us": 1e6 * sum_,
            "step": vars(step), "predicted": said, "measured": found}  # fmt: skip


def report(found: Sequence[dict[str, Any]], facts: dict[str, Any]) -> str:
    """The table, and how far off the model is."""
    rows, off = [], []
    for each in found:
        row = [each["model"], each["rows"], each["one"], each["sum_us"]]
        for kind in ("tp", "pp", "dp"):
            share = each["predicted"][kind] / each["measured"][kind] - 1
            off.append(abs(share))
            row += [each["measured"][kind], each["predicted"][kind], f"{share:+.0%}"]
        rows.append(row)
    header = ["model", "rows a batch", "one process", "a sum, µs"]
    for kind in ("TP 2", "PP 2", "two replicas"):
        header += [kind, "predicted", "off"]
    return (
        f"# Two processes, and what the paper model said\n\n{facts}\n\nTokens per second of decode, float32, one "
        "thread a process; PP 2 has two batches under way. Predictions know what one process does, and a sum between "
        "two.\n\n"
        f"{table(header, rows)}\n\nWithin 10%: {sum(o <= 0.1 for o in off)} of {len(off)}; within 25%: "
        f"{sum(o <= 0.25 for o in off)}; the worst: {max(off):.0%}."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all shapes; `results/scale.json` and `.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48, help="of each request")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--quick", action="store_true", help="one round of pocket with 8 rows, nothing written")
    args = parser.parse_args(argv)
    os.environ.update(limit_threads(1, {}))
    facts = machine()
    jobs = [("pocket", 8)] if args.quick else [(name, rows) for name in SHAPES for rows in args.rows]
    with tempfile.TemporaryDirectory() as folder:
        found = [
            measure(name, rows, args.tokens, 1 if args.quick else args.rounds, Path(folder)) for name, rows in jobs
        ]
    save("scale", {"machine": facts, "tokens": args.tokens, "found": found}, report(found, facts), keep=not args.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the four ideas of phases 02 and 03 buy on pocket: tokens per second, and how long people wait.

    python benchmarks/payoff.py            # two minutes on two cores

Each idea is one engine with it and one without, served the same requests, in turns; medians. Without:
    static       a group of requests runs until its last one has ended; then the next group enters
    reserved     each request is given memory for the longest answer it may get, so few fit
    no caching   a shared beginning is computed by everybody
    whole        a long prompt is computed in one step, and all others wait for it
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import RESULTS, limit_threads, machine, make_prompts, save, table  # noqa: E402

VOCAB = 4096


@dataclass(frozen=True)
class Job:
    """A request: its prompt and how many tokens it asks for; `at`: the step before which it arrives."""

    prompt: tuple[int, ...]
    max_tokens: int
    at: int = 0


@dataclass
class Watch:
    """What a user sees of a run: time of the first token, longest wait between two, all tokens per second."""

    seconds: float
    num_tokens: int
    ttft: list[float]
    longest_gap: float
    answers: list[list[int]]

    def row(self) -> dict[str, float]:
        """Medians' raw material."""
        return {
            "tokens_per_s": self.num_tokens / self.seconds,
            "ttft_mean_ms": 1e3 * statistics.mean(self.ttft),
            "longest_gap_ms": 1e3 * self.longest_gap,
        }


def serve(jobs: Sequence[Job], group: int = 0, **engine_args: Any) -> Watch:
    """All jobs through a fresh engine. group: static batches of so many; 0: everybody may enter at once."""
    from mini_vllm import LLMEngine, SamplingParams

    engine = LLMEngine(str(ROOT / "models" / "pocket"), **engine_args)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    engine.add_request("warm", {"prompt_token_ids": make_prompts(1, 64, VOCAB, 99)[0]}, params)
    while engine.has_unfinished_requests():
        engine.step()
    waiting, inside, step = list(enumerate(jobs)), set[str](), 0
    seen: dict[str, list[float]] = {}
    answers: dict[str, list[int]] = {}
    start = time.perf_counter()
    while waiting or inside:
        can_enter = not inside if group else True
        room = group or len(waiting)
        while waiting and can_enter and room and waiting[0][1].at <= step:
            number, job = waiting.pop(0)
            wanted = SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True)
            engine.add_request(str(number), {"prompt_token_ids": list(job.prompt)}, wanted)
            inside.add(str(number))
            room -= 1
        for output in engine.step():
            seen.setdefault(output.request_id, []).append(time.perf_counter() - start)
            if output.finished:
                inside.discard(output.request_id)
                answers[output.request_id] = list(output.outputs[0].token_ids)
        step += 1
    seconds = time.perf_counter() - start
    early = [name for i, name in enumerate(map(str, range(len(jobs)))) if jobs[i].at == 0]
    gaps = [b - a for name in early for a, b in zip(seen[name], seen[name][1:], strict=False)]
    ordered = [answers[str(i)] for i in range(len(jobs))]
    first = [seen[str(i)][0] for i in range(len(jobs))]
    return Watch(seconds, sum(map(len, ordered)), first, max(gaps, default=0.0), ordered)


def mixed(count: int, prompt: int, short: int, long: int, share: float = 0.25) -> list[Job]:
    """Random prompts; one answer in four is long, the others are short."""
    source = random.Random(0)
    prompts = make_prompts(count, prompt, VOCAB, 1)
    return [Job(tuple(p), long if source.random() < share else short) for p in prompts]


def ideas(scale: int) -> dict[str, tuple[str, str, Callable[[], Watch], Callable[[], Watch]]]:
    """Name -> what is served, what is missing in the first arm, the arm without, the arm with."""
    batching = mixed(8 * scale, 24, 8, 64)
    paging = mixed(8 * scale, 48, 16, 80)
    shared = make_prompts(1, 512, VOCAB, 1)[0]
    tails = make_prompts(4 * scale, 16, VOCAB, 2)
    chats = [Job(tuple(shared + tail), 16) for tail in tails]
    talk = [Job(tuple(p), 40) for p in make_prompts(8, 24, VOCAB, 3)]
    late = [*talk, Job(tuple(make_prompts(1, 1500, VOCAB, 4)[0]), 8, at=12)]
    pool = {"num_blocks": 129, "max_model_len": 512, "enable_prefix_caching": False}
    free = {"enable_prefix_caching": False}
    return {
        "continuous batching": (
            f"{len(batching)} requests of 24 tokens, answers of 8 or 64, 8 seats", "static groups of 8",
            lambda: serve(batching, group=8, max_num_seqs=8, **free),
            lambda: serve(batching, max_num_seqs=8, **free),
        ),
        "paging": (
            f"{len(paging)} requests of 48 tokens, answers of 16 or 80, memory for 2,048 tokens",
            "512 reserved for each",
            lambda: serve(paging, max_num_seqs=4, **pool),
            lambda: serve(paging, max_num_seqs=64, **pool),
        ),
        "prefix caching": (
            f"{len(chats)} requests that share 512 tokens, 16 of their own, 16 out, 8 seats", "computed by each",
            lambda: serve(chats, max_num_seqs=8, enable_prefix_caching=False),
            lambda: serve(chats, max_num_seqs=8, enable_prefix_caching=True),
        ),
        "chunked prefill": (
            "8 requests decode, a prompt of 1,500 tokens arrives", "a budget of 2,048 tokens a step (with: 128)",
            lambda: serve(late, max_num_batched_tokens=2048, **free),
            lambda: serve(late, max_num_batched_tokens=128, **free),
        ),
    }  # fmt: skip


def captured() -> dict[str, Any]:
    """`results/payoff.json`, ideas by name."""
    found: dict[str, Any] = json.loads((RESULTS / "payoff.json").read_text(encoding="utf-8"))
    return found | {"ideas": {idea["idea"]: idea for idea in found["ideas"]}}


def picture(names: Sequence[str]) -> Any:
    """Bars of some ideas, without and with: tokens per second, time to the first token, longest wait."""
    from mini_vllm.utils.svg import GREY, LOST, SERIES, Svg

    ideas, svg = captured()["ideas"], Svg(860, 40 + 150 * len(names), "What it buys, on pocket")
    columns = (("tokens per second", "tokens_per_s"), ("first token after, ms (mean)", "ttft_mean_ms"),
               ("longest wait between two tokens, ms", "longest_gap_ms"))  # fmt: skip
    for row, name in enumerate(names):
        idea, top = ideas[name], 30 + 150 * row
        svg.text(20, top, f"{name}: {idea['served']}", weight="600")
        for column, (words, key) in enumerate(columns):
            left, most = 20 + column * 280, max(idea["without"][key], idea["with"][key])
            svg.text(left, top + 26, words, fill=GREY, size=12)
            for arm, (which, colour) in enumerate((("without", LOST), ("with", SERIES[0]))):
                value, y = idea[which][key], top + 36 + arm * 34
                svg.box(left, y, 170 * value / most, 26, colour)
                svg.text(left + 170 * value / most + 6, y + 18, f"{value:,.0f} {which}", size=12)
    return svg


def main() -> None:
    """All ideas, both arms in turns, `results/payoff.json` and `.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--name", default="payoff")
    parser.add_argument("--quick", action="store_true", help="few requests, one repeat, nothing written")
    args = parser.parse_args()
    os.environ.update(limit_threads(args.threads, {}))
    repeats = 1 if args.quick else args.repeats
    result, rows = [], []
    for name, (served, missing, without, having) in ideas(2 if args.quick else 8).items():
        runs = [(without(), having()) for _ in range(repeats)]
        assert all(a.answers == b.answers for a, b in runs), f"{name} changed an answer"
        arms: list[dict[str, float]] = []
        for arm in (0, 1):
            found = [run[arm].row() for run in runs]
            arms.append({key: statistics.median(each[key] for each in found) for key in found[0]})
        off, on = arms
        speedup = statistics.median(a.seconds / b.seconds for a, b in runs)
        result.append({"idea": name, "served": served, "missing": missing, "without": off, "with": on,
                       "times_as_fast": speedup})  # fmt: skip
        keys = ("tokens_per_s", "ttft_mean_ms", "longest_gap_ms")
        rows.append([name, served, missing, *(f"{off[key]:,.0f} → {on[key]:,.0f}" for key in keys), speedup])
    header = ("idea", "served", "without it", "tokens/s", "mean time to first token, ms", "longest wait, ms", "speed")
    text = (
        f"# What the ideas of phases 02 and 03 buy on pocket\n\n{machine()}\n\n{args.threads} thread(s), medians of "
        f"{repeats} runs in turns, greedy; both arms give the same tokens.\n\n" + table(header, rows)
    )
    save(args.name, {"machine": machine(), "threads": args.threads, "repeats": repeats, "ideas": result}, text,
         keep=not args.quick)  # fmt: skip


if __name__ == "__main__":
    main()

"""What a step of the sampler costs: `python -m benchmarks.sampling`.

64 rows, on vocabularies of 4,096 and 151,936 tokens. Two kinds of logits: flat, where 0.9 of the mass lies on tens of
thousands of tokens, and peaked, where it lies on a few dozen, as after a trained model's usual step. Three questions:

    settings     one setting for all rows, each in turn; and beside it the same draw with the filters on whole rows and
                 one exponential for each entry of the vocabulary
    different    64 rows with 64 different settings, over 64 rows with one: filters, penalties and seeds in both
    processors   what logit bias, min tokens and bad words add
    reported     what five log-probabilities a row cost in each `logprobs_mode`, and a thinking budget
    drafts       64 requests with three drafts each, judged by the rejection sampler

Times are CPU time of one thread, the smallest of some repeats, in turns. Writes results/sampling.{json,md}.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common import machine, save, table
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow
from mini_vllm.sample.ops.logprobs import softmax
from mini_vllm.sample.rejection_sampler import RejectionSampler
from mini_vllm.sample.sampler import Sampler
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.spec_decode.metadata import SpecDecodeMetadata

ROWS, SMALL, LARGE = 64, 4_096, 151_936
SPREAD = {"flat": 2.0, "peaked": 7.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature alone": {"temperature": 0.8},
    "top_k=50": {"temperature": 0.8, "top_k": 50},
    "top_p=0.9": {"temperature": 0.8, "top_p": 0.9},
    "min_p=0.05": {"temperature": 0.8, "min_p": 0.05},
    "top_k=50, top_p=0.9": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "with a bias, min tokens, a bad word": {
        "temperature": 0.8, "top_k": 50, "logit_bias": {5: 1.0, 9: -1.0}, "min_tokens": 9, "stop_token_ids": [3],
    },
}  # fmt: skip
MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")
EQUAL: dict[str, Any] = {
    "temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "presence_penalty": 0.5, "repetition_penalty": 1.1,
}  # fmt: skip


def different(row: int) -> dict[str, Any]:
    """Settings that no other row has, of the same kinds as `EQUAL`."""
    return {
        "temperature": 0.5 + row / ROWS, "top_k": 20 + row, "top_p": 0.8 + row / 640, "min_p": 0.01 + row / 6400,
        "presence_penalty": row / ROWS, "repetition_penalty": 1.01 + row / 320,
    }  # fmt: skip


def metadata_of(settings: list[dict[str, Any]], vocab_size: int) -> SamplingMetadata:
    """Rows with a prompt of 300 tokens and an output of 100."""
    rng, rows = np.random.default_rng(0), []
    for seed, given in enumerate(settings):
        params = SamplingParams(seed=seed, **given)
        if "min_tokens" in given:
            params.bad_words_token_ids = [[7], [8, 9]]
        ids = rng.integers(0, vocab_size, 400).tolist()
        rows.append(SamplingRow(params, ids[:300], ids[300:], np.random.default_rng(seed)))
    return SamplingMetadata.from_rows(rows, vocab_size)


def whole_rows(logits: np.ndarray, metadata: SamplingMetadata) -> np.ndarray:
    """The draw without candidates: filters on whole rows, one exponential an entry."""
    probs = softmax(Sampler.apply_random_filters(logits.copy(), np.arange(len(logits)), metadata))
    noise = np.empty(probs.shape)
    for row, generator in enumerate(metadata.generators):
        assert generator is not None
        generator.standard_exponential(out=noise[row])
    return (probs / noise).argmax(axis=-1)


def of_mode(mode: str, use_fp64_gumbel: bool = False) -> Sampler:
    """A sampler with these settings."""
    sampler = Sampler()
    sampler.logprobs_mode, sampler.use_fp64_gumbel = mode, use_fp64_gumbel
    return sampler


def thinking(vocab_size: int) -> SamplingMetadata:
    """Rows that have thought for 300 tokens, with a budget of 400."""
    params = SamplingParams(temperature=0.8, top_k=50, thinking_token_budget=400)
    params.think_start_token_ids, params.think_end_token_ids = [1], [2]
    ids = np.random.default_rng(0).integers(3, vocab_size, 300).tolist()
    rows = [SamplingRow(params, [1], list(ids), np.random.default_rng(i)) for i in range(ROWS)]
    return SamplingMetadata.from_rows(rows, vocab_size)


def drafted(given: dict[str, Any], vocab_size: int, logits: np.ndarray) -> Callable[[], Any]:
    """A step of the rejection sampler: the rows of the logits four times over, three of them judge a draft."""
    drafts = SpecDecodeMetadata.make_dummy([[int(row.argmax())] * 3 for row in logits])
    rows = [SamplingRow(SamplingParams(seed=i, **given), [1], [2], np.random.default_rng(i)) for i in range(ROWS)]
    metadata, repeated = SamplingMetadata.from_rows(rows, vocab_size), np.repeat(logits, 4, axis=0)
    sampler = RejectionSampler(Sampler())
    return lambda: sampler.forward(drafts, None, repeated, metadata, rows)


def in_turns(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Milliseconds of CPU time of each, the smallest."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats + 1):
        for name, call in calls.items():
            start = time.thread_time()
            call()
            best[name] = min(best[name], (time.thread_time() - start) * 1e3)
    return best


def other_calls(logits: np.ndarray, vocab_size: int) -> dict[str, Callable[[], Any]]:
    """What is reported, thinking, finer noise, drafts."""
    top_k = {"temperature": 0.8, "top_k": 50}
    plain, reporting = metadata_of([{"temperature": 0.8}] * ROWS, vocab_size), [{**top_k, "logprobs": 5}] * ROWS
    found: dict[str, Callable[[], Any]] = {
        "temperature alone, finer noise": partial(of_mode(MODES[0], True).forward, logits, plain)
    }
    for mode in MODES:
        found[f"top_k=50, logprobs=5, {mode}"] = partial(
            of_mode(mode).forward, logits, metadata_of(reporting, vocab_size)
        )
    found["top_k=50, a thinking budget"] = partial(Sampler().forward, logits, thinking(vocab_size))
    if vocab_size == SMALL:
        for name, given in (("greedy", {"temperature": 0.0}), ("top_k=50", top_k), ("min_p=0.05", {"min_p": 0.05})):
            found[f"three drafts a row, {name}"] = drafted(given, vocab_size, logits)
        found["three drafts a row, a bias"] = drafted({**top_k, "logit_bias": {5: 1.0}}, vocab_size, logits)
    return found


def run(quick: bool = False) -> list[dict[str, Any]]:
    """All rows of the table."""
    found, sampler = [], Sampler()
    for vocab_size in (SMALL,) if quick else (SMALL, LARGE):
        for kind, spread in SPREAD.items():
            logits = (np.random.default_rng(1).normal(size=(ROWS, vocab_size)) * spread).astype(np.float32)
            calls: dict[str, Callable[[], Any]] = {}
            for name, given in SETTINGS.items():
                metadata = metadata_of([given] * ROWS, vocab_size)
                calls[name] = partial(sampler.forward, logits, metadata)
                if given["temperature"] and "logit_bias" not in given:
                    calls[f"{name}, whole rows"] = partial(whole_rows, logits, metadata)
            for name, settings in (("equal", [EQUAL] * ROWS), ("different", list(map(different, range(ROWS))))):
                metadata = metadata_of(settings, vocab_size)
                calls[name] = partial(sampler.forward, logits, metadata)
            others = other_calls(logits, vocab_size)
            times = in_turns({**calls, **others}, 1 if quick else 7)
            found.append({"vocabulary": vocab_size, "logits": kind, "ms": times, "others": list(others)})
    return found


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small vocabulary, once; writes nothing")
    quick = parser.parse_args().quick
    facts, found = machine(), run(quick)
    columns = [f"{row['vocabulary']:,}, {row['logits']}" for row in found]
    lines = []
    for name in SETTINGS:
        for label in (name, f"{name}, whole rows"):
            if label in found[0]["ms"]:
                lines.append([label, *(row["ms"][label] for row in found)])
    for label in found[0]["others"]:
        lines.append([label, *(row["ms"].get(label, "—") for row in found)])
    lines.append(["64 rows, one setting", *(row["ms"]["equal"] for row in found)])
    lines.append(["64 rows, 64 settings", *(row["ms"]["different"] for row in found)])
    ratios = ", ".join(f"{row['ms']['different'] / row['ms']['equal']:.2f}" for row in found)
    load = ", ".join(f"{value:.1f}" for value in facts["load_average_at_start"])
    note = (
        f"64 rows, milliseconds of CPU time of one thread. 64 settings over one: {ratios}. {facts['processor']}, "
        f"Python {facts['python']}, numpy {facts['numpy']}; load average {load}."
    )
    text = f"# What a step of the sampler costs\n\n{note}\n\n{table(['settings', *columns], lines)}\n"
    save("sampling", {"machine": facts, "rows": found}, text, keep=not quick)


if __name__ == "__main__":
    main()

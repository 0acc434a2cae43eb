"""Which settings change which bits, and what it costs that none does: `python -m benchmarks.batch_invariance`.

    products   one row times a weight, in batches of 1 to 64 rows: in how many ways does the BLAS sum it, and does a
               row's place in the batch matter?
    engine     pocket's answers to the same prompts under other settings, position by position: how many
               log-probabilities have other bits than those of each prompt alone; plain, eager, and with
               VLLM_BATCH_INVARIANT=1, where the table must show zeros
    price      a step of decoding at several batch sizes and a prompt of 512 tokens, plain over eager over invariant

Times are CPU time of one thread, the smallest of some repeats, in turns. Writes results/batch_invariance.{json,md}.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.common import ROOT, machine, save, table
from mini_vllm import LLM, SamplingParams
from mini_vllm.layers.batch_invariant import TILE, linear_batch_invariant, place_does_not_matter

PROMPT, STEPS = 512, 17
"""Tokens of the long prompt, and of the answers whose steps are timed."""
POCKET = ROOT / "models" / "pocket"
SHAPES = ((512, 256), (1408, 256), (256, 704), (4096, 256))
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("0", {}), "eager": ("0", {"enforce_eager": True}), "invariant": ("1", {}),
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "all 8 together": {},
    "in the other order": {"turned": True},
    "chunks of 16 tokens": {"max_num_batched_tokens": 16},
    "chunks of 64 tokens": {"max_num_batched_tokens": 64},
    "blocks of 4": {"block_size": 4},
    "a second time, from the cache": {"twice": True},
}
PROMPTS = [f"{'The scheduler plans a step. ' * (i % 4)}What is a KV block, number {i}?" for i in range(8)]


@contextmanager
def switched(value: str) -> Iterator[None]:
    """The environment variable, for engines made inside."""
    before = os.environ.get("VLLM_BATCH_INVARIANT")
    os.environ["VLLM_BATCH_INVARIANT"] = value
    try:
        yield
    finally:
        os.environ.pop("VLLM_BATCH_INVARIANT") if before is None else os.environ.update(VLLM_BATCH_INVARIANT=before)


def ways_to_sum(rows: int, columns: int) -> list[Any]:
    """Of one weight: how many results a row has over all batch sizes, and whether its place changes them."""
    rng = np.random.default_rng(0)
    weight, x = (rng.standard_normal((n, columns)).astype(np.float32) for n in (rows, 64))
    results: dict[bytes, list[int]] = {}
    for size in range(1, 65):
        results.setdefault((x[:size] @ weight.T)[0].tobytes(), []).append(size)
    placed = [size for size in range(2, 65) if len({r.tobytes() for r in np.repeat(x[:1], size, 0) @ weight.T}) > 1]
    groups = "; ".join(f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else str(sizes[0]) for sizes in results.values())
    first = f"from {placed[0]} rows on" if placed else "no"
    tile = f"tiles of {TILE}" if place_does_not_matter(weight) else "row by row"
    invariant = {linear_batch_invariant(x[:size], weight)[0].tobytes() for size in range(1, 65)}
    return [f"{columns} to {rows}", len(results), groups, first, tile, len(invariant)]


def answers(llm: LLM, prompts: list[str], tokens: int) -> list[list[float]]:
    """The log-probability of every prompt token but the first and of every token of the answer."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, logprobs=0, prompt_logprobs=0,
                            skip_reading_prefix_cache=False)  # fmt: skip
    found = []
    for output in llm.generate(prompts, params, use_tqdm=False):
        steps = [*(output.prompt_logprobs or ()), *(output.outputs[0].logprobs or ())]
        found.append([next(iter(step.values())).logprob if step else float("nan") for step in steps])
    return found


def changed_bits(arm: str, tokens: int) -> dict[str, str]:
    """Per change: positions with other bits than alone, of how many. What the cache held has none."""
    value, given = ARMS[arm]
    with switched(value):
        sizes = {"num_blocks": 512, "max_num_seqs": 8, **given}
        alone = [answers(LLM(str(POCKET), **sizes), [prompt], tokens)[0] for prompt in PROMPTS]
        found = {}
        for name, change in CHANGES.items():
            settings = {k: v for k, v in change.items() if k not in ("turned", "twice")}
            llm = LLM(str(POCKET), **{**sizes, **settings})
            prompts = PROMPTS[::-1] if "turned" in change else PROMPTS
            got = answers(llm, prompts, tokens)
            got = answers(llm, prompts, tokens) if "twice" in change else got
            got = got[::-1] if "turned" in change else got
            pairs = [(a, b) for x, y in zip(alone, got, strict=True) for a, b in zip(x, y, strict=True) if b == b]
            found[name] = f"{sum(a != b for a, b in pairs)} of {len(pairs)}"
    return found


def price(repeats: int, batches: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Milliseconds: of a prompt of 512 tokens, and of a step at each batch size, by arm."""
    engines = {}
    for arm, (value, given) in ARMS.items():
        with switched(value):
            engines[arm] = LLM(str(POCKET), num_blocks=1024, max_num_seqs=64, enable_prefix_caching=False, **given)
    cases = {f"a prompt of {PROMPT}": (1, PROMPT, 1)} | {f"a step of {batch}": (batch, 32, STEPS) for batch in batches}
    least: dict[tuple[str, str, int], float] = {}  # (arm, case, tokens): the shortest of all turns
    rng = np.random.default_rng(0)
    for _ in range(repeats):
        for name, (size, length, new) in cases.items():
            prompts = [{"prompt_token_ids": rng.integers(8, 4000, length).tolist()} for _ in range(size)]
            for arm, llm in engines.items():
                for tokens in sorted({1, new}):
                    key = (arm, name, tokens)
                    least[key] = min(least.get(key, float("inf")), _timed(llm, prompts, tokens) * 1e3)
    best: dict[str, dict[str, float]] = {arm: {} for arm in engines}
    for arm in engines:
        for name, (_, _, new) in cases.items():
            whole, first = least[arm, name, new], least[arm, name, 1] if new > 1 else 0.0
            best[arm][name] = (whole - first) / max(1, new - 1)
    return best


def _timed(llm: LLM, prompts: list[Any], tokens: int) -> float:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    start = time.thread_time()
    llm.generate(prompts, params, use_tqdm=False)
    return time.thread_time() - start


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few tokens, one repeat; writes nothing")
    quick = parser.parse_args().quick
    facts = machine()
    products = [ways_to_sum(*shape) for shape in SHAPES]
    bits = {arm: changed_bits(arm, 4 if quick else 12) for arm in ARMS}
    times = price(1 if quick else 9, (1, 8) if quick else (1, 8, 32))
    parts = [
        table(["inputs to outputs", "ways to sum a row", "batch sizes with equal bits", "its place matters",
               "with the switch", "ways then"], products),
        table(["change", *ARMS], [[name, *(bits[arm][name] for arm in ARMS)] for name in CHANGES]),
        table(["ms", *ARMS, "invariant over plain"],
              [[name, *(times[arm][name] for arm in ARMS), times["invariant"][name] / times["plain"][name]]
               for name in times["plain"]]),
    ]  # fmt: skip
    load = ", ".join(f"{value:.1f}" for value in facts["load_average_at_start"])
    note = (
        f"CPU time of one thread. {facts['processor']}, BLAS {facts['blas']}, Python {facts['python']}, numpy "
        f"{facts['numpy']}; load average {load}."
    )
    text = "# Which settings change which bits, and what it costs that none does\n\n" + "\n\n".join([note, *parts])
    save("batch_invariance", {"machine": facts, "products": products, "bits": bits, "ms": times}, text, keep=not quick)


if __name__ == "__main__":
    main()

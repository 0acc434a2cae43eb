"""What a prompt costs to compute, and what its blocks cost to copy from host memory. Writes captured/pocket.json.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python phase-15-disaggregated-serving/labs/lab-04-two-tiers/measure.py

compute  pocket in float32, a prompt of so many tokens that no cache has, through `LLM.generate` with one output token.
load     numpy copies as many blocks from an array in host memory, laid out as the pool, into the engine's own pool:
         all layers, block ids of both sides in random order. It does not go through the engine.
Milliseconds of processor time of one thread. "best" and "median" of `ROUNDS` rounds, lengths in turns: neighbours on a
machine only add.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from mini_vllm import LLM, SamplingParams  # noqa: E402

TOKENS, ROUNDS = (16, 64, 128, 256, 512, 1024, 1920), 9


def main() -> None:
    """Measures, and writes."""
    llm = LLM(str(ROOT / "models" / "pocket"), enable_prefix_caching=False, num_blocks=256)
    pool = llm.llm_engine.engine_core.model_executor.driver_worker.model_runner.kv_cache.data
    layers, blocks, block_size = pool.shape[:3]
    chance = np.random.default_rng(0)
    host = chance.standard_normal(pool.shape).astype(pool.dtype)
    rows: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS + 1):
        for tokens in TOKENS:
            prompt = [300 + int(each) for each in chance.integers(0, 3000, tokens)]
            rows.setdefault(("compute", tokens), []).append(timed(partial(compute, llm, prompt)))
            here, there = (chance.permutation(blocks)[: tokens // block_size] for _ in range(2))
            rows.setdefault(("load", tokens), []).append(timed(partial(load, pool, here, host, there)))
    found = {"bytes_per_token": pool.nbytes // (blocks * block_size), "layers": layers, "block_size": block_size}
    table = {
        what: {
            str(tokens): {"best": round(min(each[1:]), 4), "median": round(statistics.median(each[1:]), 4)}
            for (kind, tokens), each in rows.items()
            if kind == what
        }
        for what in ("compute", "load")
    }
    text = json.dumps({**found, "rounds": ROUNDS, **table}, indent=1) + "\n"
    (HERE / "captured" / "pocket.json").write_text(text, encoding="utf-8")
    print(text)


def timed(run: Callable[[], object]) -> float:
    """Milliseconds of processor time."""
    begun = time.process_time()
    run()
    return 1e3 * (time.process_time() - begun)


def compute(llm: LLM, prompt: list[int]) -> None:
    """A prompt and the first token after it."""
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)


def load(pool: np.ndarray, here: np.ndarray, host: np.ndarray, there: np.ndarray) -> None:
    """Blocks `there` of the host's array become blocks `here` of the pool, layer by layer."""
    for layer in range(len(pool)):
        pool[layer, here] = host[layer, there]


if __name__ == "__main__":
    main()

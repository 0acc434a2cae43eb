"""What preemption costs on pocket, by five ways to come back; writes swap.json beside it.

    OMP_NUM_THREADS=1 python phase-19-capstone/captured/swap.py

Eight conversations in a pool that holds half of them. Tokens, steps and preemptions are counted; processor seconds are
medians of five runs, all ways taking turns.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median

import numpy as np

from mini_vllm import LLM, SamplingParams

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "models" / "pocket"
REPEATS, BLOCKS, HOST = 5, 140, 256
SWAP = {"kv_connector": "SwapConnector", "kv_role": "kv_both"}
COSTS = {"swap_blocks": HOST, "seconds_per_token": 2.4e-4, "bytes_per_second": 2e9}
ARMS = {
    "roomy": {"num_blocks": 400},
    "recompute": {},
    "recompute, cache": {"enable_prefix_caching": True},
    "offload": {"enable_prefix_caching": True, "kv_offloading_size": 0.02},
    "swap": {"kv_transfer_config": {**SWAP, "kv_connector_extra_config": {"swap_blocks": HOST}}},
    "swap, if cheaper": {"kv_transfer_config": {**SWAP, "kv_connector_extra_config": COSTS}},
}


def prompts() -> list[dict]:
    rng = np.random.default_rng(19)
    return [{"prompt_token_ids": rng.integers(5, 500, 100 + 30 * i).tolist()} for i in range(8)]


def run(settings: dict) -> tuple[dict, list]:
    """What was counted, and the answers."""
    llm = LLM(str(MODEL), **{"num_blocks": BLOCKS, "enable_prefix_caching": False, **settings})
    params = SamplingParams(temperature=0.0, max_tokens=160, ignore_eos=True)
    begin = time.process_time()
    outputs = llm.generate(prompts(), params, use_tqdm=False)
    seconds = time.process_time() - begin
    engine, scheduler = llm.llm_engine, llm.llm_engine.scheduler
    found = {
        "seconds": seconds,
        "steps": engine.stats.num_steps,
        "tokens": engine.stats.num_scheduled_tokens,
        "preemptions": scheduler.num_preemptions,
    }
    counts = getattr(scheduler.connector and scheduler.connector.connector, "counts", {})
    return found | dict(counts), [output.outputs[0].token_ids for output in outputs]


def copying() -> dict:
    """Bytes a second of one copy of 30 blocks of pocket's size, and bytes of a block."""
    llm = LLM(str(MODEL), num_blocks=BLOCKS)
    caches = llm.llm_engine.engine_core.model_executor.collective_rpc(cache_shapes)[0]
    arrays = [np.zeros((BLOCKS, *shape[1:]), np.float32) for shape in caches]
    hosts = [np.zeros((HOST, *shape[1:]), np.float32) for shape in caches]
    rng, taken = np.random.default_rng(0), []
    ids, places = rng.permutation(BLOCKS)[:30], rng.permutation(HOST)[:30]
    for _ in range(50):
        begin = time.perf_counter()
        for array, host in zip(arrays, hosts, strict=True):
            host[places] = array[ids]
        taken.append(time.perf_counter() - begin)
    size = sum(array[0].nbytes for array in arrays)
    return {"bytes_per_block": size, "bytes_per_second": 30 * size / median(taken)}


def cache_shapes(worker: object) -> list:
    return [array.shape for array in worker.model_runner.kv_cache.data]  # type: ignore[attr-defined]


def main() -> None:
    rows: dict[str, list[dict]] = {name: [] for name in ARMS}
    first: list | None = None
    for _ in range(REPEATS):
        for name, settings in ARMS.items():
            found, answers = run(settings)
            first = first or answers
            assert answers == first, f"{name}: other tokens"
            rows[name].append(found)
    kept = {name: {**each[0], "seconds": median(row["seconds"] for row in each)} for name, each in rows.items()}
    result = {"arms": kept, "copy": copying()}
    (HERE / "swap.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

"""What preemption costs on pocket, by five ways to come back; writes swap.json beside it.

    OMP_NUM_THREADS=1 python phase-19-capstone/captured/swap.py

Eight conversations in a pool that holds less than half of them: tokens, steps and preemptions, which are the same in
each run. And one victim of 800 tokens: processor milliseconds to compute it, and to copy it out and back, the least of
many, since others use the machine too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mini_vllm import LLM, SamplingParams

HERE = Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "models" / "pocket"
BLOCKS, HOST, VICTIM = 210, 256, 800
SWAP = {"kv_connector": "SwapConnector", "kv_role": "kv_both"}
COSTS = {"swap_blocks": HOST, "seconds_per_token": 2.4e-4, "bytes_per_second": 2e9}
ARMS = {
    "roomy": {"num_blocks": 600},
    "recompute": {},
    "recompute, cache": {"enable_prefix_caching": True},
    "offload": {"enable_prefix_caching": True, "kv_offloading_size": 0.02},
    "swap": {"kv_transfer_config": {**SWAP, "kv_connector_extra_config": {"swap_blocks": HOST}}},
    "swap, if cheaper": {"kv_transfer_config": {**SWAP, "kv_connector_extra_config": COSTS}},
}


def prompts() -> list[dict]:
    rng = np.random.default_rng(19)
    return [{"prompt_token_ids": rng.integers(5, 500, 560 + 40 * i).tolist()} for i in range(8)]


def run(settings: dict) -> tuple[dict, list]:
    """What was counted, and the answers."""
    llm = LLM(str(MODEL), **{"num_blocks": BLOCKS, "enable_prefix_caching": False, **settings})
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    outputs = llm.generate(prompts(), params, use_tqdm=False)
    engine, scheduler = llm.llm_engine, llm.llm_engine.scheduler
    found = {
        "steps": engine.stats.num_steps,
        "tokens": engine.stats.num_scheduled_tokens,
        "preemptions": scheduler.num_preemptions,
    }
    counts = getattr(scheduler.connector and scheduler.connector.connector, "counts", {})
    return found | dict(counts), [output.outputs[0].token_ids for output in outputs]


def victim() -> dict:
    """Milliseconds of a processor: a prompt of 800 tokens computed, and its blocks copied out and back."""
    llm = LLM(str(MODEL), num_blocks=BLOCKS, enable_prefix_caching=False)
    ask = [{"prompt_token_ids": prompts()[-1]["prompt_token_ids"][:VICTIM]}]
    one = SamplingParams(temperature=0.0, max_tokens=1)
    computed = least(lambda: llm.generate(ask, one, use_tqdm=False), 12)
    shapes = llm.llm_engine.engine_core.model_executor.collective_rpc(cache_shapes)[0]
    arrays = [np.ones((BLOCKS, *shape[1:]), np.float32) for shape in shapes]
    hosts = [np.ones((HOST, *shape[1:]), np.float32) for shape in shapes]
    rng, count = np.random.default_rng(0), VICTIM // 16
    ids, places = rng.permutation(BLOCKS)[:count], rng.permutation(HOST)[:count]

    def copy() -> None:
        for array, host in zip(arrays, hosts, strict=True):
            host[places] = array[ids]
        for array, host in zip(arrays, hosts, strict=True):
            array[ids] = host[places]

    size = sum(array[0].nbytes for array in arrays)
    return {"tokens": VICTIM, "bytes_per_block": size, "computed_ms": computed, "copied_ms": least(copy, 50)}


def least(do: Callable[[], object], count: int) -> float:
    found = []
    for _ in range(count):
        begin = time.process_time()
        do()
        found.append(1e3 * (time.process_time() - begin))
    return round(min(found), 2)


def cache_shapes(worker: object) -> list:
    return [array.shape for array in worker.model_runner.kv_cache.data]  # type: ignore[attr-defined]


def main() -> None:
    arms, first = {}, None
    for name, settings in ARMS.items():
        arms[name], answers = run(settings)
        first = first or answers
        assert answers == first, f"{name}: other tokens"
    result = {"arms": arms, "victim": victim()}
    (HERE / "swap.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

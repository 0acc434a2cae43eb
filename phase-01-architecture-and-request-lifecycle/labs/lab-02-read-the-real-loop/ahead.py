"""Runs upstream's own AsyncScheduler without a model: two steps in flight, tokens from a list. Given material.

    .venv-vllm/bin/python ahead.py --model models/pocket --out FOLDER

The CPU build switches async scheduling off, but its scheduler class is there. This script drives it in the order of
`EngineCore.step_with_batch_queue` and writes down what it plans and what it keeps, for a request that ends at EOS and
for one that ends at max_tokens. The result goes to FOLDER/result.json.
"""

import argparse
import json
import os
from collections import deque
from pathlib import Path

from real_run import QUIET

EOS = 2


def run(scheduler, max_tokens: int, tokens: list[int]) -> list[list]:
    """Serve one request of 5 tokens; returns the events in order.

    ["plan", number of tokens planned, steps in flight then] and ["book", token sampled, number of outputs after].
    """
    from vllm import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    params.update_from_generation_config({}, EOS)
    request = Request("r", [10, 11, 12, 13, 14], params, None)
    scheduler.add_request(request)
    events: list[list] = []
    in_flight: deque = deque()
    stream = iter(tokens)
    while scheduler.has_requests() or in_flight:
        if scheduler.has_requests():
            plan = scheduler.schedule()
            in_flight.append(plan)
            events.append(["plan", plan.total_num_scheduled_tokens, len(in_flight)])
            if plan.total_num_scheduled_tokens and len(in_flight) < 2:
                continue
        plan = in_flight.popleft()
        ids = list(plan.num_scheduled_tokens)
        sampled = [[next(stream)] for _ in ids]
        result = ModelRunnerOutput(req_ids=ids, req_id_to_index={i: n for n, i in enumerate(ids)})
        result.sampled_token_ids = [list(row) for row in sampled]
        scheduler.update_from_output(plan, result)
        if sampled:
            events.append(["book", sampled[0][0], request.num_output_tokens])
    return events


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    os.environ.update(QUIET, VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING")
    from vllm import LLM, __version__
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = LLM(
        model=args.model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        distributed_executor_backend=UniProcExecutor,
    )
    core = llm.llm_engine.engine_core.engine_core

    def fresh() -> AsyncScheduler:
        return AsyncScheduler(
            vllm_config=core.vllm_config,
            kv_cache_config=core.scheduler.kv_cache_config,
            structured_output_manager=core.structured_output_manager,
            block_size=core.vllm_config.cache_config.block_size,
        )

    endings = {
        "eos": run(fresh(), max_tokens=10, tokens=[101, 102, EOS, 103, 104]),
        "length": run(fresh(), max_tokens=3, tokens=[101, 102, 103, 104, 105]),
    }
    result = {"vllm": __version__, "eos": EOS, "endings": endings}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

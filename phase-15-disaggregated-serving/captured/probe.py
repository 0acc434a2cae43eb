"""What a prompt does to those who are decoding beside it, and what it costs to carry its keys and values elsewhere.
Writes probe.json.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python phase-15-disaggregated-serving/captured/probe.py

steps   pocket, eight requests that decode, and a prompt that is cut in chunks of so many tokens: milliseconds of
        processor time of one step, by the size of the chunk in it. 0: a step without one.
moves   a prompt of so many tokens, by an engine that has its cache empty: milliseconds of processor time of its one
        step ("prefill"), and of writing and reading its keys and values through the ExampleConnector ("save", "load"),
        in a folder that is in the system's page cache; and their bytes.
Best of `ROUNDS` rounds each: neighbours on a machine only add.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from mini_vllm import LLM, LLMEngine, SamplingParams  # noqa: E402

POCKET = str(ROOT / "models" / "pocket")
CHUNKS, PROMPTS, STREAMS, ROUNDS = (0, 16, 32, 64, 128, 256, 512, 1024), (128, 256, 512, 1024, 1920), 8, 9


def main() -> None:
    found: dict[str, Any] = {"streams": STREAMS, "rounds": ROUNDS}
    found["steps"] = {str(chunk): min(step_ms(chunk) for _ in range(3)) for chunk in CHUNKS}
    with tempfile.TemporaryDirectory() as folder:
        found["moves"] = {str(tokens): moves(tokens, folder) for tokens in PROMPTS}
    (HERE / "probe.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


def ids(tokens: int, salt: int) -> dict[str, list[int]]:
    """A prompt that no cache has."""
    return {"prompt_token_ids": [300 + (7 * i + 31 * salt + i * salt) % 1500 for i in range(tokens)]}


def timed(run: Callable[[], object]) -> float:
    """Milliseconds of processor time."""
    begun = time.process_time()
    run()
    return 1e3 * (time.process_time() - begun)


def step_ms(chunk: int) -> float:
    """The cheapest step of eight decoding requests that has exactly `chunk` tokens of a prompt beside them."""
    engine = LLMEngine(
        POCKET, num_blocks=512, max_num_batched_tokens=STREAMS + max(chunk, 64), max_num_seqs=STREAMS + 1,
        long_prefill_token_threshold=chunk,
    )  # fmt: skip
    plans, schedule = [], engine.scheduler.schedule

    def watched() -> Any:
        plans.append(schedule())
        return plans[-1]

    engine.scheduler.schedule = watched  # type: ignore[method-assign]
    greedy = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
    for i in range(STREAMS):
        engine.add_request(f"stream{i}", ids(60, i), greedy)
    for _ in range(STREAMS + 2):
        engine.step()
    found = []
    for r in range(ROUNDS):
        if chunk:
            one = SamplingParams(temperature=0.0, max_tokens=1)
            engine.add_request(f"prompt{r}", ids(min(max(2 * chunk, 64), 1920), 50 + r), one)
        while True:
            ms = timed(engine.step)
            tokens = sum(plans[-1].num_scheduled_tokens.values())
            if tokens == STREAMS + chunk:
                found.append(ms)
            if tokens == STREAMS:
                break
    return min(found)


def moves(tokens: int, folder: str) -> dict[str, float]:
    """One prompt's prefill, save and load, and its bytes."""
    extra = {"kv_connector": "ExampleConnector", "kv_connector_extra_config": {"shared_storage_path": folder}}
    settings: dict[str, Any] = {"num_blocks": 256, "enable_prefix_caching": False}
    plain = LLM(POCKET, **settings)
    p = LLM(POCKET, kv_transfer_config={**extra, "kv_role": "kv_producer"}, **settings)
    d = LLM(POCKET, kv_transfer_config={**extra, "kv_role": "kv_consumer"}, **settings)
    one = SamplingParams(temperature=0.0, max_tokens=1)
    best = {"prefill": 1e9, "save": 1e9, "load": 1e9}
    spent = {"save": 0.0, "load": 0.0}
    for llm, what, names in ((p, "save", ("save_kv_layer", "wait_for_save")), (d, "load", ("start_load_kv",))):
        half = llm.llm_engine.engine_core.model_executor.driver_worker.model_runner.kv_connector.kv_connector
        for name in names:
            setattr(half, name, counted(getattr(half, name), spent, what))
    for r in range(ROUNDS):
        prompt = ids(tokens, r)
        best["prefill"] = min(best["prefill"], timed(lambda: plain.generate(prompt, one, use_tqdm=False)))  # noqa: B023
        for llm, what in ((p, "save"), (d, "load")):
            spent[what] = 0.0
            output = llm.generate(prompt, one, use_tqdm=False)[0]
            best[what] = min(best[what], spent[what])
        assert output.num_cached_tokens == (tokens - 1) // 16 * 16
    sizes = [sum(f.stat().st_size for f in path.iterdir()) for path in Path(folder).iterdir()]
    return {**best, "bytes": max(sizes)}


def counted(function: Callable[..., Any], spent: dict[str, float], what: str) -> Callable[..., Any]:
    """`function`, whose processor time is added up."""

    def run(*args: Any, **kwargs: Any) -> None:
        spent[what] += timed(lambda: function(*args, **kwargs))

    return run


if __name__ == "__main__":
    main()

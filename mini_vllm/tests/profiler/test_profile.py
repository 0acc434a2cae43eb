"""`profile`: a trace of steps, phases, requests and blocks that Perfetto reads, and an engine that is as it was."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams, profile
from mini_vllm.profiler.wrapper import CORE, FRONT_END, RANKS, REQUESTS, EngineProfiler
from mini_vllm.tests.helpers import POCKET

PARAMS = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


def traced(llm: LLM, path: Path, count: int = 3) -> tuple[list[dict[str, Any]], list[list[int]]]:
    with profile(llm, path):
        outputs = llm.generate([f"prompt {i}" for i in range(count)], PARAMS, use_tqdm=False)
    tokens = [output.outputs[0].token_ids for output in outputs]
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"], tokens


def test_a_trace_has_everything_and_changes_nothing(tmp_path: Path) -> None:
    llm = LLM(str(POCKET), num_blocks=64)
    before = {name: set(vars(part)) for name, part in parts(llm).items()}
    plain = llm.generate([f"prompt {i}" for i in range(3)], PARAMS, use_tqdm=False)
    llm.reset_prefix_cache()
    events, tokens = traced(llm, tmp_path / "t.json")
    assert tokens == [output.outputs[0].token_ids for output in plain]
    assert {name: set(vars(part)) for name, part in parts(llm).items()} == before
    names = Counter((e["pid"], e["name"]) for e in events if e["ph"] == "X")
    assert {name for pid, name in names if pid == CORE and name.startswith("step ")} == {f"step {i}" for i in range(4)}
    for pid, name in [(CORE, "schedule"), (CORE, "update_from_output"), (RANKS, "forward"), (RANKS, "sample")]:
        assert names[pid, name] == 4
    assert names[FRONT_END, "process_inputs"] == 3 and names[RANKS, "prepare inputs"] == 4
    assert all(names[REQUESTS, phase] == 3 for phase in ("queued", "prefill", "decode"))
    blocks = [e["args"] for e in events if e["name"] == "KV blocks"]
    assert len(blocks) == 4 and all(each["used"] + each["free"] == 63 for each in blocks)
    plan = next(e for e in events if e["name"] == "schedule")
    assert len(plan["args"]["scheduled"]) == 3


def parts(llm: LLM) -> dict[str, Any]:
    core = llm.llm_engine.engine_core
    return {"core": core, "scheduler": core.scheduler, "executor": core.model_executor, "runner": core.model_runner,
            "worker": core.model_executor.driver_worker, "out": llm.llm_engine.output_processor}  # fmt: skip


def test_phases_lie_within_their_steps(tmp_path: Path) -> None:
    events, _ = traced(LLM(num_blocks=64), tmp_path / "t.json")
    steps = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("step ")]
    inside = [e for e in events if e["ph"] == "X" and (e["pid"] >= RANKS or e["name"] in ("schedule", "execute_model"))]
    assert inside
    for event in inside:
        assert any(start <= event["ts"] and event["ts"] + event["dur"] <= end for start, end in steps), event
    for row in {e["tid"] for e in events if e["pid"] == REQUESTS}:
        spans = [e for e in events if e["pid"] == REQUESTS and e["tid"] == row and e["ph"] == "X"]
        assert [e["name"] for e in spans] == ["queued", "prefill", "decode"]
        assert spans[0]["ts"] + spans[0]["dur"] == pytest.approx(spans[1]["ts"])


def test_requests_that_still_run_are_in_the_trace() -> None:
    llm = LLM(num_blocks=64)
    engine = llm.llm_engine
    engine.add_request("early", "abc", PARAMS)
    profiler = EngineProfiler(llm)
    profiler.start()
    engine.step()
    with pytest.raises(RuntimeError, match="a profile runs already"):
        profiler.start()
    events = profiler.stop()["traceEvents"]
    mine = [e["name"] for e in events if e["pid"] == REQUESTS and e["ph"] == "X"]
    assert mine == ["queued", "prefill", "decode"]
    with pytest.raises(RuntimeError, match="no profile runs"):
        profiler.stop()
    while engine.has_unfinished_requests():
        engine.step()


def test_no_file_no_profile_and_a_file_that_cannot_be(tmp_path: Path) -> None:
    llm = LLM(num_blocks=64)
    with profile(llm, None):
        assert "profiler" not in vars(llm.llm_engine.engine_core)
    with pytest.raises(OSError), profile(llm, tmp_path / "no" / "t.json"):
        raise AssertionError("the block must not run")
    with pytest.raises(AttributeError, match=r"mini_vllm\.profile"):
        llm.start_profile()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"tensor_parallel_size": 2}, {"enable_multiprocessing": True}])
def test_ranks_and_a_core_elsewhere_are_on_the_same_clock(settings: dict[str, Any], tmp_path: Path) -> None:
    from mini_vllm import LLMEngine

    engine = LLMEngine(str(POCKET), num_blocks=64, **settings)
    try:
        with profile(engine, tmp_path / "t.json"):
            engine.add_request("a", "What is a block?", PARAMS)
            while engine.has_unfinished_requests():
                engine.step()
    finally:
        engine.shutdown()
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    ranks = {e["pid"] - RANKS for e in events if e["pid"] >= RANKS}
    assert ranks == set(range(settings.get("tensor_parallel_size", 1)))
    times = [e["ts"] for e in events if e["ph"] == "X"]
    assert max(times) - min(times) < 600e6

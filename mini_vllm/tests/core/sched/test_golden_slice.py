"""The first workloads of the recording in one test, which tells what fails alike once: for a scheduler or a cache that
somebody is writing (`course build NN --test`). `test_golden_scheduler.py` replays all of them."""

import traceback
from pathlib import Path

import pytest

from mini_vllm.tests.core.sched.test_golden_scheduler import first_difference, golden
from mini_vllm.tests.golden.scheduler_workload import make_workload

SLICE = 40
TOLD = 3


def fault(seed):
    """(what it has in common with others, its description) of the first fault in a workload; None where it has none."""
    trace = golden()["traces"][seed]
    try:
        found = first_difference(make_workload(seed), trace)
    except NotImplementedError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}"
        kind = f"{type(error).__name__} ({place})"
        return kind, f"workload {seed}: {type(error).__name__}: {error}\n    {place}: {frame.line}"
    if found is None:
        return None
    return " ".join(line.split()[0] for line in found[1].splitlines()[2:]), found[1]


def told(faults):
    """The report on `faults`, seed -> what `fault` said: each kind once, the most frequent first."""
    kinds = {}
    for seed, (kind, text) in faults.items():
        kinds.setdefault(kind, []).append((seed, text))
    lines = [f"{len(faults)} of the first {SLICE} workloads recorded from vLLM 0.22.1 go another way here."]
    for rows in sorted(kinds.values(), key=len, reverse=True)[:TOLD]:
        seeds = ", ".join(str(seed) for seed, _ in rows[1:9]) + (", ..." if len(rows) > 9 else "")
        lines += ["", rows[0][1], *([f"    (the same in {len(rows) - 1} more: {seeds})"] if seeds else [])]
    if len(kinds) > TOLD:
        lines += ["", f"{len(kinds) - TOLD} more kinds of fault: mend these first."]
    return "\n".join(lines)


def test_the_first_recorded_workloads_go_the_same_way():
    faults = {seed: found for seed in range(SLICE) if (found := fault(seed))}
    if faults:
        pytest.fail(told(faults), pytrace=False)


def test_what_fails_alike_is_told_once(monkeypatch):
    from mini_vllm.core.sched.scheduler import Scheduler

    monkeypatch.setattr(Scheduler, "_preempt_one", lambda self, step: self.nothing_of_that_name)
    faults = {seed: found for seed in range(SLICE) if (found := fault(seed))}
    text = told(faults)
    assert len(faults) > 2 and text.startswith(f"{len(faults)} of the first 40 workloads recorded from vLLM 0.22.1")
    assert text.count("AttributeError") == 1 and f"(the same in {len(faults) - 1} more: " in text
    assert "in <lambda>: monkeypatch.setattr(" in text
    many = {seed: (f"kind {seed}", "words") for seed in range(5)}
    assert told(many).endswith("2 more kinds of fault: mend these first.")

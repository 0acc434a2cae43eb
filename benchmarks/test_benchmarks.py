"""The benchmarks run: tiny shapes, one repeat, and no word about speed."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks import (
    browser,
    common,
    decoding_payoff,
    engines,
    grading,
    overhead,
    quantization,
    sampling,
    scaling,
    spec_decode,
    turns,
)
from benchmarks.bound import PARTS, Bound, BoundOfRanks, time_of
from mini_vllm import load_model, save_random_checkpoint

TINY = {**common.SHAPES["pocket"], "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8,
        "num_hidden_layers": 2}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_checkpoint(tmp_path_factory.mktemp("tiny"), TINY)


def test_table_rounds_by_size_and_marks_what_is_missing() -> None:
    text = common.table(["a", "b", "c"], [[1, 1234.5, None], ["x", 0.126, 7.0]])
    assert text.splitlines() == ["| a | b | c |", "|---|---|---|", "| 1 | 1,234 | — |", "| x | 0.13 | 7.00 |"]


def test_machine_says_what_a_reader_needs() -> None:
    facts = common.machine()
    assert facts["numpy"] == np.__version__ and facts["cores"] >= 1 and facts["processor"]


def test_prompts_are_seeded_and_inside_the_vocabulary() -> None:
    one = common.make_prompts(3, 10, 50, seed=1)
    assert one == common.make_prompts(3, 10, 50, seed=1) != common.make_prompts(3, 10, 50, seed=2)
    assert all(len(p) == 10 and min(p) >= 3 and max(p) < 50 for p in one)


JOB = {"batches": [1, 3], "prompt_len": 5, "output_len": 4, "repeats": 2, "max_model_len": 64, "kv_bytes": 1 << 20,
       "bandwidth": False, "fill_pool": True}  # fmt: skip


def _arms(job: dict[str, Any]) -> dict[str, Any]:
    """The arm of mini_vllm, measured as `engines.py` measures it."""
    return engines.run_arms(job, argparse.Namespace(arms=["mini_vllm"], threads=1))


def test_the_arm_of_mini_vllm(folder: Path) -> None:
    job = {**JOB, "model": str(folder)}
    result = _arms(job)["mini_vllm"]
    assert isinstance(result, dict), result
    assert len(result["batches"]["3"]["all"]) == len(result["batches"]["3"]["bounds"]) == 2
    rows = engines.rates(job, {"mini_vllm": result, "transformers": "not installed"})
    batch, mini, plain, transformers, _, _, bound, products, share, _, ratio, *_ = rows[1]
    assert batch == 3 and plain is transformers is ratio is None
    assert 0 < mini < bound < products
    turns_of_three = zip(result["batches"]["3"]["bounds"], result["batches"]["3"]["all"], strict=True)
    assert share == pytest.approx(np.median([least["total"] / seconds for least, seconds in turns_of_three]))
    text = "\n".join(engines.extra_lines(job, {"mini_vllm": result, "transformers": "not installed"}))
    assert "- transformers: not installed" in text and "MiB over a process that only imports it" in text


@pytest.mark.slow
def test_an_arm_that_fails_says_why(tmp_path: Path) -> None:
    """It does so at the start; and one that is killed between two turns does."""
    assert "exit status 1: FileNotFoundError: no config.json" in _arms({**JOB, "model": str(tmp_path)})["mini_vllm"]
    with pytest.raises(turns.ArmError, match="FileNotFoundError"):
        turns.Arm("arm_mini.py", JOB, threads=1, python=str(tmp_path / "python"))


def test_an_arm_that_dies_or_sleeps_between_two_turns(folder: Path) -> None:
    arm = turns.Arm("arm_mini.py", {**JOB, "model": str(folder)}, threads=1)
    arms: dict[str, Any] = {"mini_vllm": arm}
    found: dict[str, Any] = {"mini_vllm": {"batches": {}}}
    assert engines.ask(arms, found, "mini_vllm", "generate", batch=1, seed=0) > 0
    arm._process.kill()
    assert engines.ask(arms, found, "mini_vllm", "generate", batch=1, seed=0) is None
    assert found == {"mini_vllm": "exit status -9: no output"} == arms
    engines.take_turns(arms, found, batch=1, seed=0)  # the others go on
    late = turns.Arm("arm_mini.py", {**JOB, "model": str(folder)}, threads=1, timeout=0.01)
    late._process.send_signal(signal.SIGSTOP)  # it answers in no time at all
    with pytest.raises(turns.ArmError, match=r"no answer within 0\.01 s"):
        late.ask("version")
    late.close()


def test_vllm_is_left_out_with_a_note_where_it_is_absent(tmp_path: Path) -> None:
    args = argparse.Namespace(arms=["vllm-eager"], vllm_python=str(tmp_path / "python"), threads=1)
    job: dict[str, Any] = {"batches": [], "repeats": 1, "bandwidth": False}
    assert "course vllm" in engines.run_arms(job, args)["vllm-eager"]


def test_bound_counts_prefill_and_decode(folder: Path) -> None:
    parts = time_of(Bound(load_model(folder)).parts(batch=2, prompt_len=6, output_len=5, repeats=1), output_len=5)
    per_step = parts["decode_products_per_step"]
    assert parts["products_only"] == pytest.approx(parts["prefill_products"] + 4 * per_step)
    assert parts["total"] == pytest.approx(parts["products_only"] + 4 * parts["attention_per_step"])


def test_bound_of_ranks_has_shares_of_the_model(folder: Path) -> None:
    """Rows of what makes heads, MLP and vocabulary, columns of what takes them: together as many numbers as the model's
    weights have. And both ranks answer."""
    model = load_model(folder)
    whole, half = Bound(model), Bound(model, ranks=2)
    sizes = [[w.size for layer in bound.layers for w in layer] + [bound.lm_head.size] for bound in (whole, half)]
    assert sizes[0] == [2 * size for size in sizes[1]]
    ranks = BoundOfRanks(str(folder), ranks=2)
    first, second = (ranks.parts(batch, 6, 5, 3) for batch in (2, 8))
    assert set(first) == set(second) == set(PARTS) and min(*first.values(), *second.values()) > 0


def test_overhead_and_scaling_measure(folder: Path) -> None:
    result = overhead.measure(folder, batch=2, context=8, num_blocks=64, steps=3)
    assert 0 < result["outside_ms"] < result["step_ms"] and 0 < result["share"] < 1
    [row] = scaling.queue_times(folder, [3], steps=2)
    assert row[0] == 3 and 0 < row[2] < row[1]
    linear, quadratic, share = scaling.fit([[n, 1 + 0.002 * n + 1e-6 * n * n] for n in (100, 200, 400, 800)])
    assert (linear, quadratic, share) == pytest.approx((2.0, 1.0, 0.8 / 2.8), rel=1e-3)


def test_the_arm_of_quantization(folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([12, 30, 7])
    ids = rng.integers(3, 300, lengths.sum())
    scored = np.ones(len(ids), bool)
    scored[np.cumsum(lengths) - lengths] = False  # nothing foretells the first of a row
    np.savez(tmp_path / "text.npz", ids=ids, lengths=lengths, scored=scored)
    job = {"text": str(tmp_path / "text.npz"), "batches": [2], "prompt_len": 4, "output_len": 3, "repeats": 1,
           "kv_bytes": 1 << 20}  # fmt: skip
    found = quantization.run(folder, {"float32": {}, "int8": quantization.SCHEMES["int8, KV int8"]}, job, threads=1)
    exact, small = found["float32"], found["int8"]
    assert isinstance(exact, dict) and isinstance(small, dict), found
    assert exact["scored"] == 46 and exact["same_choice"] == 1 >= small["same_choice"] > 0.5
    assert exact["nats"] == pytest.approx(np.log(300), rel=0.5) and exact["nats"] != small["nats"]
    assert small["weights"] < exact["weights"] and small["kv_bytes_per_token"] < exact["kv_bytes_per_token"]
    text = quantization.report({**found, "int3": "exit status 1"}, [2], quality=True)
    assert "tokens/s, batch 2" in text and "- int3: exit status 1" in text


def test_points_that_must_not_be_are_judged() -> None:
    full = {"submissions": [{"name": "x", "points": 50.0, "labs": {"a": {"status": "graded"}}}]}
    assert [r["as_it_must_be"] for r in grading.judge(full, [("x", "attack exits", "folder")])] == [False]
    assert [r["as_it_must_be"] for r in grading.judge(full, [("x", "partly written", "folder")])] == [True]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")
def test_a_class_is_written_graded_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One lab, two of the attacks as code, every odd container, two who copied, one graded alone once more."""
    some = {name: grading.made.BODIES[name] for name in ("exits", "equals-everything")}
    monkeypatch.setattr(grading.made, "BODIES", some)
    monkeypatch.setattr(grading, "FORMS", grading.FORMS[:9])  # no whole clones, no endless loops: they take seconds
    monkeypatch.setattr(grading.made, "endless", lambda labs: grading.made.hostile("exits", labs))
    args = argparse.Namespace(labs="02-01", number=25, jobs=2, runs=1, alone=1, seed=1, wrap="")
    found = grading.measure(args, tmp_path)
    assert [row["kind"] for row in found["kinds"] if not row["as_it_must_be"]] == []
    assert sum(row["number"] for row in found["kinds"]) == 24  # of one lab, the odd one with a lab missing is empty
    assert list(found["alone"].values()) == [True] and found["same"] is True
    assert (found["look_alikes"]["planted"], found["look_alikes"]["found"]) == (2, 2)
    (run,) = found["runs"]
    assert run["seconds"] > 0 < run["cpu_seconds"]
    text = grading.report(found)
    assert "# Grading 25 submissions of 02-01" in text
    assert "| attack zip-bomb | 1 | 0.00 | 0.00 | missing | True |" in text


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node (apt install nodejs)")
@pytest.mark.slow
def test_the_engine_of_the_website_is_measured() -> None:
    found = browser.measure([1, 2], output_len=3, repeats=1)
    assert found["load_s"] > 0 and list(found["batches"]) == ["1", "2"]
    assert all(one["tokens_per_s"] > 0 < one["first_token_s"] for rounds in found["batches"].values() for one in rounds)
    text = browser.report(found, {"node": "here"})
    assert "| requests at once |" in text and "| 50 |" in text and "the first token within 0.6 s: " in text


def test_the_page_shows_the_first_graph_as_it_runs() -> None:
    page = (common.ROOT / "phase-05-cuda-graphs-and-torch-compile" / "00-guide.md").read_text(encoding="utf-8")
    script = (common.ROOT / "benchmarks" / "gpu" / "first_graph.py").read_text(encoding="utf-8")
    body = script.split('"""', 2)[2].strip()
    assert f"```python\n{body}\n```" in page


def test_what_counts_as_a_whole_story_and_which_number_is_an_answer() -> None:
    known = {"a", "fox", "had", "violin"}
    whole = "A fox had a violin. " * 12
    assert decoding_payoff.is_whole(whole, known) and not decoding_payoff.is_whole(whole[:60], known)
    assert not decoding_payoff.is_whole(whole + "Zkx.", known) and not decoding_payoff.is_whole("a " * 60, known)
    assert [decoding_payoff.number_in(text) for text in ("16 a block: 9 blocks.", "none")] == ["9", ""]


def test_sampling_times_every_setting_with_and_without_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SMALL", 512)
    flat, peaked = sampling.run(quick=True)
    assert set(flat["ms"]) == set(peaked["ms"]) >= {"greedy", "top_k=50", "top_k=50, whole rows", "equal", "different"}
    assert len({str(sampling.different(row)) for row in range(sampling.ROWS)}) == sampling.ROWS
    metadata = sampling.metadata_of([{"top_k": 3}] * 2, 50)
    assert sampling.whole_rows(np.eye(2, 50, dtype=np.float32), metadata).shape == (2,)


@pytest.mark.slow
def test_sampling_times_every_setting_on_the_small_vocabulary() -> None:
    """The run of the test above, on the 4,096 tokens of `--quick`."""
    found = [(row["vocabulary"], row["logits"]) for row in sampling.run(quick=True)]
    assert found == [(4096, "flat"), (4096, "peaked")]


class ArmOfPaper:
    """An arm that is up at once, unless it is told to fail; every step is written down."""

    log: ClassVar[list[tuple[str, ...]]] = []
    failing = ""

    def __init__(self, script: str, job: dict[str, Any], threads: int, python: str) -> None:
        drafts = job["speculative_config"]
        self.name = f"{job['engine']} {drafts['method'] if drafts else 'none'}"
        self.log.append(("process", self.name, python))

    def ask(self, do: str, **arguments: Any) -> Any:
        if self.name == self.failing:
            raise turns.ArmError("no such wheel")
        self.log.append((do, self.name))
        return {"seconds": 1.0, "steps": 2, "drafts": [1, 4, 2], "tokens": []}

    def close(self) -> None:
        self.log.append(("close", self.name))


def test_drafting_engines_start_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real vLLM's first; each is up before the next one loads; what their loading takes is minutes of the run."""
    monkeypatch.setattr(spec_decode, "Arm", ArmOfPaper)
    monkeypatch.setattr(ArmOfPaper, "log", log := [])
    clock = iter(range(0, 10**6, 60))
    monkeypatch.setattr(spec_decode.time, "monotonic", lambda: float(next(clock)))
    asked = ["--vllm-python", "other/python", "--methods", "eagle", "--kinds", "story"]
    monkeypatch.setattr(spec_decode, "save", lambda *_, **__: None)
    assert spec_decode.main([*asked, "--minutes", "13", "--batches", "1"]) == 0
    begun = log[: 2 * 6]
    assert begun[:4] == [
        ("process", "vllm none", "other/python"), ("start", "vllm none"),
        ("process", "vllm eagle", "other/python"), ("start", "vllm eagle"),
    ]  # fmt: skip
    assert [name[:2] for name in begun[4:]] == [
        (what, f"mini_vllm {method}") for method in ("none", "eagle", "eagle", "eagle") for what in ("process", "start")
    ]
    assert [what for what, *_ in log].count("generate") == 2 * 6, "13 minutes: all for loading, one turn of grace"
    capsys.readouterr()
    monkeypatch.setattr(ArmOfPaper, "failing", "vllm eagle")
    log.clear()
    assert spec_decode.main(asked) == 1
    assert capsys.readouterr().err.endswith("an engine did not answer: vllm, eagle: no such wheel\n")
    assert [each for each in log if each[0] == "close"] == [("close", "vllm none"), ("close", "vllm eagle")]


@pytest.mark.slow
def test_drafts_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path(spec_decode.MODEL).is_dir():
        pytest.skip("models/pocket is not here")
    kinds, methods = ["repeating", "json"], ["ngram", "eagle"]  # one without a model, one with: an arm takes a second
    asked = ["--kinds", *kinds, "--methods", *methods]
    assert spec_decode.main(["--quick", "--threads", "1", "--vllm-python", "", *asked]) == 0
    told = capsys.readouterr().out
    rows = [line.split(" | ") for line in told.splitlines() if "mini_vllm" in line]
    assert "| switched, lowest: " in told and "| ngram on repeating, batch 1 | at least 2.0 | " in told
    assert len(rows) == len(kinds) * 2 * len(methods) and all(row[5] == "100%" for row in rows)


def test_the_model_of_scale_by_hand() -> None:
    """Ten layers of 2 ms of which 0.5 are not cut, 3 ms outside, 1 ms of output matrix, sums of 0.1 ms."""
    import numpy as np

    from benchmarks.scale import paper

    scale = paper()
    step = scale.Step(3e-3, 1e-3, 1.5e-3, 0.5e-3, 10, 4096.0)
    wire = scale.Link(float("inf"), 0.05e-3)
    assert step.alone() == pytest.approx(24e-3)
    assert scale.tick(step, scale.Layout(tp=2), wire, wire) == pytest.approx(3e-3 + 0.5e-3 + 12.5e-3 + 22 * 0.1e-3)
    assert scale.tick(step, scale.Layout(pp=2), wire, wire) == pytest.approx(3e-3 + 1e-3 + 10e-3 + 0.05e-3)
    assert scale.tokens_per_second(step, 8, scale.Layout(dp=3), wire, wire) == pytest.approx(3 * 8 / 24e-3)
    nobody = scale.Lateness().of_the_last(8, 22, np.random.default_rng(0), 5)
    late = scale.Lateness(1.0, 1e-3).of_the_last(4, 1, np.random.default_rng(0), 20_000)
    assert not nobody.any() and late.mean() == pytest.approx(1e-3 * (1 + 1 / 2 + 1 / 3 + 1 / 4), rel=0.03)
    ring, all_at_once = scale.Link(1e9, 1e-6).all_reduce(8e6, 8), scale.Link(1e9, 1e-3).all_reduce(8.0, 8)
    assert ring == pytest.approx(14e-3 + 14e-6) and all_at_once == pytest.approx(2e-3, rel=1e-3)


@pytest.mark.slow
def test_two_processes_are_measured_beside_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.scale import main

    assert main(["--quick"]) == 0
    assert "| pocket | 8 |" in capsys.readouterr().out

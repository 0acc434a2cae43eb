"""Labs in the engine: the references give the reference's tokens, stubs fall back to ours; names and settings."""

from __future__ import annotations

import itertools
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from course.labs import ROOT, SOURCES, lab_folders
from course.plugs import parts as plugs
from course.plugs.milestone_checks import greedy, random_prompts
from mini_vllm import LLM, AsyncLLM, EngineArgs, SamplingParams
from mini_vllm.distributed import shared_memory
from mini_vllm.engine.parts import EngineParts
from mini_vllm.sample.metadata import SamplingMetadata, SamplingRow

pytestmark = pytest.mark.maintainer

POCKET = ROOT / "models" / "pocket"
PARTS = [plug.part for plug in plugs.PLUGS]
ONE_RANK = [plug.part for plug in plugs.PLUGS if "tensor_parallel_size" in plug.only]


def source(lab: str, impl: str = "solution") -> Path:
    """The file of a lab; skips while its phase is not there."""
    found = sorted(ROOT.glob(f"phase-{lab[:2]}-*/labs/lab-{lab[3:]}-*/{impl}.py"))
    if not found and not any(folder.parents[1].name[6:8] == lab[:2] for folder in lab_folders()):
        pytest.skip(f"phase {lab[:2]} is not here yet")
    assert found, f"lab {lab} has no {impl}.py"
    return found[0].resolve()


def all_present() -> None:
    for lab in plugs.LABS:
        source(lab)


@pytest.fixture
def wrong() -> Iterator[object]:
    """Puts changed text in the place of a solution for the time of a test."""
    changed: list[Path] = []

    def change(lab: str, old: str, new: str) -> None:
        path = source(lab)
        text = path.read_text(encoding="utf-8")
        assert text.count(old) >= 1, f"lab {lab} no longer holds {old!r}: adapt this test"
        SOURCES[path] = text.replace(old, new, 1)
        changed.append(path)

    yield change
    for path in changed:
        SOURCES.pop(path, None)


def generate(model: object = None, **args: object) -> list[list[int]]:
    """Prompts with common beginnings, some greedy, some random, in a small pool; twice, so that free blocks are hit."""
    vocab = 4000 if model else 250
    prompts = random_prompts(7, 8, 24, vocab)
    params = [greedy(6 + i) if i % 3 else SamplingParams(seed=i, top_p=0.9, top_k=40, max_tokens=8) for i in range(8)]
    limits = {"block_size": 4, "num_blocks": 30, "max_num_batched_tokens": 16, "max_num_seqs": 6}
    llm = LLM(model, **limits, **args)
    outputs = [output for _ in range(2) for output in llm.generate(prompts, params, use_tqdm=False)]
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("model", [None, POCKET], ids=["toy", "pocket"])
def test_the_solutions_give_the_references_tokens(model: Path | None, capsys: pytest.CaptureFixture[str]) -> None:
    all_present()
    args = {"dtype": "float64"} if model else {}
    assert generate(model, with_labs=["solution"], **args) == generate(model, **args)
    said = capsys.readouterr().err
    for plug in plugs.PLUGS:
        assert f"{plug.part:16} lab {plug.lab}, phase-{plug.lab[:2]}-" in said


@pytest.mark.parametrize("plug", plugs.PLUGS, ids=lambda plug: plug.part)
def test_each_part_alone(plug: plugs.Plug) -> None:
    source(plug.lab)
    found = [part for part in plugs.find_parts([plug.lab, "solution"]) if part.plug == plug]
    parts = plugs.assemble(found, quiet=True)
    assert generate(with_labs=parts) == generate()
    silent = ("model", "paged attention", "jump-forward", "proposer", "vision tower")  # not in the toy model
    assert found[0].watch.num_calls or plug.part in silent


def test_lab_code_really_runs() -> None:
    all_present()
    found = plugs.find_parts("solution")
    assert generate(POCKET, with_labs=plugs.assemble(found, quiet=True))
    silent = {part.plug.part for part in found if not part.watch.num_calls}
    assert silent == {"free queue", "sampling", "jump-forward", "proposer", "vision tower"}, (
        "the pool runs the first, the whole batch the second; nobody asked for JSON or drafts, or showed a picture"
    )


def test_the_proposer_drafts_where_drafts_are_asked_for() -> None:
    source("08-05")
    (part,) = (p for p in plugs.find_parts("08-05,solution") if p.state == "lab")
    drafting = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    llm = LLM(with_labs=plugs.assemble([part], quiet=True), **drafting)
    drafts = llm.llm_engine.engine_core.model_runner.drafts
    assert type(drafts.drafter).__name__ == "LabProposer"
    assert type(drafts.rejection_sampler).__name__ == "LabRejectionSampler"
    llms = llm, LLM(**drafting)
    mine, ours = ([o.outputs[0].token_ids for o in each.generate(random_prompts(7, 6, 24), greedy(9))] for each in llms)
    assert mine == ours and part.watch.num_calls


def test_untouched_starters_are_named_and_ours_runs(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for lab in plugs.LABS:  # a learner's own work is none of this test's business
        starter = source(lab, "starter")
        done = subprocess.run(
            ["git", "-C", str(ROOT), "show", f"HEAD:{starter.relative_to(ROOT).as_posix()}"],
            capture_output=True,
            text=True,
            check=False,
        )
        texts[starter] = done.stdout if done.returncode == 0 else starter.read_text(encoding="utf-8")
    SOURCES.update(texts)
    try:
        assert generate(with_labs="all") == generate()
    finally:
        for path in texts:
            del SOURCES[path]
    said = capsys.readouterr().err
    parts = "02-01 free queue, block hash, block pool"
    assert said.count("not written yet") == 1 and "01-05 stop conditions; " in said and f"; {parts}; " in said


def test_labs_that_are_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = plugs.engine_parts("all", root=tmp_path)
    assert parts.origins == {plug.part: f"ours (lab {plug.lab} is not here)" for plug in plugs.PLUGS}
    assert generate(with_labs=parts) == generate()


def test_a_file_that_does_not_load_is_not_plugged_in(wrong) -> None:
    wrong("00-03", "import numpy as np", "import numpy as np\nimport no_such_module")
    assert plugs.find_parts("00-03,solution")[0].state == "does not load"
    wrong("00-03", "def sample(", "def sample((")
    (part,) = (p for p in plugs.find_parts("00-03,solution") if p.state != "ours")
    assert part.state == "does not load" and "does not parse" in part.origin


def test_the_queue_alone_serves_in_our_pool(wrong) -> None:
    wrong("02-01", "return self.cached_block_hash_to_block.get_one_block(block_hash)", 'raise NotImplementedError("x")')
    found = {part.plug.part: part for part in plugs.find_parts("02-01,solution")}
    assert found["block pool"].state == "not written" and found["free queue"].state == "lab"
    assert generate(with_labs=plugs.assemble(list(found.values()), quiet=True)) == generate()
    assert found["free queue"].watch.num_calls


@pytest.mark.parametrize("setting", [{"async_scheduling": True}, {"scheduling_policy": "priority"}])
def test_settings_that_a_lab_does_not_know(setting: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    source("03-01")
    assert generate(with_labs="solution,03-01", **setting) == generate(**setting)
    assert "scheduler step   ours (lab 03-01 knows nothing of" in capsys.readouterr().err


def test_a_batch_sampler_leaves_large_vocabularies_and_masked_tokens_alone() -> None:
    (glue,) = (part.glue for part in plugs.find_parts("09-05,solution") if part.plug.part == "batch sampling")
    rows = [SamplingRow(SamplingParams(seed=i), generator=np.random.default_rng(i)) for i in range(3)]
    asked: list[str] = []
    for size, calls in ((40_000, 0), (400, 1)):
        logits = np.random.default_rng(0).normal(size=(3, size))
        watch = SimpleNamespace(
            call=lambda *a: asked.append("call") or np.zeros(3, np.int64), require=lambda ok, text: None
        )
        sampler = glue.fit(SimpleNamespace(sample_batch=print), watch)()
        chosen = sampler.forward(logits, SamplingMetadata.from_rows(rows, size)).sampled_token_ids
        assert asked == ["call"] * calls and chosen.any() == (not calls)
    logits = np.where(np.arange(400) == 7, 1.0, -np.inf)[None]
    said: list[str] = []
    watch = SimpleNamespace(call=lambda *a: np.zeros(1, np.int64), require=lambda ok, text: ok or said.append(text))
    glue.fit(SimpleNamespace(sample_batch=print), watch)().forward(logits, SamplingMetadata.from_rows(rows[:1], 400))
    assert said == ["sample_batch chose a masked token in row 0"]


def test_names() -> None:
    assert plugs.parse("all") == dict.fromkeys(plugs.LABS, "starter")
    assert plugs.parse(["02-01", "solution"]) == {"02-01": "solution"}
    with pytest.raises(ValueError, match="'02-99' is no lab with a plug; allowed are all, 00-03"):
        LLM(with_labs="02-99")
    with pytest.raises(ValueError, match="must be a string or a list of strings"):
        LLM(with_labs=[3])


def test_lab_impl_decides_where_no_word_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_IMPL", "solution")
    assert set(plugs.parse("all").values()) == {"solution"}
    monkeypatch.setenv("LAB_IMPL", "mine")
    with pytest.raises(ValueError, match="LAB_IMPL='mine' is not known"):
        plugs.parse("all")


def test_the_command_line(capsys: pytest.CaptureFixture[str], wrong) -> None:
    from mini_vllm.entrypoints.cli.main import app

    source("02-01")
    args = ["generate", "--model", "toy", "-p", "hello", "--max-tokens", "4", "--no-stream"]
    mine = CliRunner().invoke(app, [*args, "--with-labs", "02-01,solution"])
    assert mine.exit_code == 0 and mine.stdout == CliRunner().invoke(app, args).stdout
    assert CliRunner().invoke(app, [*args, "--with-labs"]).exit_code == 0
    wrong("02-01", "        block = self.fake", "        raise IndexError(n)\n        block = self.fake")
    broken = CliRunner().invoke(app, [*args, "--with-labs=solution"])
    assert broken.exit_code == 2 and "lab 02-01 (block pool): get_new_blocks raised IndexError: " in broken.output
    assert "Traceback" not in broken.output


def test_the_engine_knows_nothing_of_the_course() -> None:
    code = "import sys, mini_vllm; from mini_vllm import LLM; LLM(num_blocks=8); sys.exit('course' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0
    assert EngineParts().origins == {}


def test_the_table_of_labs_names_every_plug() -> None:
    from course.labs import all_labs

    named = {lab.name[:5]: lab.plug for lab in all_labs() if lab.plug}
    assert set(named) <= set(plugs.LABS), "a plug in labs.toml that the engine does not have"
    here = {lab for lab in plugs.LABS if sorted(ROOT.glob(f"phase-{lab[:2]}-*/labs/lab-{lab[3:]}-*/README.md"))}
    assert here <= set(named)
    for plug in itertools.chain(*named.values()):
        pkgutil.resolve_name(plug)


@pytest.mark.parametrize(
    "settings, labs",
    [
        ({"tensor_parallel_size": 2}, dict(zip(ONE_RANK, ("00-03", "00-05", "02-06", "09-05", "13-05"), strict=True))),
        (
            {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}},
            {"free queue": "02-01", "block pool": "02-01"},
        ),
    ],
    ids=["two ranks", "KV cache events"],
)
def test_what_all_labs_together_do_not_know_is_served_by_ours_and_said(settings, labs, capsys):
    """The other parts stay the labs'."""
    all_present()
    if "tensor_parallel_size" in settings and not shared_memory.is_supported():
        pytest.skip("more than one rank needs Linux on x86-64")
    llm = LLM(POCKET, with_labs="solution", num_blocks=64, dtype="float64", **settings)
    params = SamplingParams(max_tokens=8, temperature=0.0)
    tokens = [each.generate(["a block"], params)[0].outputs[0].token_ids for each in (llm, LLM(POCKET, num_blocks=64))]
    said, core = capsys.readouterr().err, llm.llm_engine.engine_core
    core.shutdown()
    assert tokens[0] == tokens[1]
    [setting] = settings
    for part, origin in core.parts.origins.items():
        assert origin.startswith("ours (lab " + labs[part] if part in labs else "lab "), (part, origin)
        assert part not in labs or (f"{part:16} {origin}\n" in said and f"knows nothing of {setting[:9]}" in origin)


def test_the_suite_makes_engines_of_lab_parts(tmp_path, monkeypatch):
    """A name that moved once left the engine's own tests with our parts."""
    file = tmp_path / "test_parts_here.py"
    file.write_text(
        "from mini_vllm import LLM\n"
        "def test():\n"
        "    origins = LLM(num_blocks=8).llm_engine.engine_core.parts.origins\n"
        "    assert origins['stop conditions'].startswith('lab 01-05')\n"
    )
    names = {"COURSE_PLUGS": "01-05,solution", "COURSE_PLUG_PARTS": "stop conditions", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "course.plugs.suite", "-c", os.devnull, str(file)]
    done = subprocess.run(command, env={**os.environ, **names}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("lab, setting", [("00-05", {"load_format": "dummy"}), ("02-06", {"kv_cache_dtype": "int8"})])
def test_settings_that_a_lab_knows_nothing_of_are_served_by_ours(lab, setting, capsys):
    args = {"num_blocks": 64, "dtype": "float64", **setting}
    params = SamplingParams(max_tokens=8, temperature=0.0)
    tokens = [
        [o.outputs[0].token_ids for o in LLM(POCKET, with_labs=labs, **args).generate(["a block", "two ranks"], params)]
        for labs in (None, [lab, "solution"])
    ]
    assert tokens[0] == tokens[1] and f"ours (lab {lab} knows nothing of " in capsys.readouterr().err


def test_a_scheduler_that_knows_no_pictures_leaves_them_to_ours(capsys):
    llm = LLM(ROOT / "models" / "pocket-vl", with_labs=["03-01", "solution"], num_blocks=64)
    assert type(llm.llm_engine.scheduler).__name__ == "Scheduler"
    assert "ours (lab 03-01 knows nothing of the scheduler's room 'encoder')" in capsys.readouterr().err
    text = "<|user|>\n<image>\nWhat colour is it?<|end|>\n<|assistant|>\n"
    shown = {"prompt": text, "multi_modal_data": {"image": np.zeros((64, 64, 3), np.uint8)}}
    (output,) = llm.generate(shown, SamplingParams(max_tokens=3, temperature=0.0), use_tqdm=False)
    assert output.outputs[0].token_ids


def test_engine_args_bring_the_labs_to_an_async_engine():
    engine = AsyncLLM.from_engine_args(EngineArgs(model=POCKET, with_labs=["02-01", "solution"], num_blocks=64))
    assert type(engine.engine_core.kv_cache_manager.block_pool).__name__ == "GuardedPool"
    engine.shutdown()

"""Lab 13-05 in the engine: the learner's tower encodes, a wrong one is told, and what it does not know is ours."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from course.contract import mistakes
from course.labs import ROOT, SOURCES
from course.plugs import milestone, payoff
from course.plugs import parts as plugs
from course.tests.test_plugs import source, wrong  # noqa: F401
from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.parts import EngineParts, PartError
from mini_vllm.tests.multimodal.tiny_llava import SIGLIP, prompt, save_tiny_llava

pytestmark = pytest.mark.maintainer

POCKET_VL = ROOT / "models" / "pocket-vl"
UNSEEN = {"13-edge", "14-first-rows", "17-eps"}
"""Mistakes about pictures and norms that pocket-vl does not have: the lab's own tests see them."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def lab_part() -> plugs.Part:
    source("13-05")
    (part,) = (part for part in plugs.find_parts("13-05,solution") if part.state == "lab")
    return part


def tower(part: plugs.Part) -> EngineParts:
    return plugs.assemble([part], quiet=True)


def test_the_tower_encodes_each_picture_and_the_answers_stay() -> None:
    part = lab_part()
    part.glue.serves(tower(part))
    assert part.watch.num_calls >= 3
    ours = LLM(POCKET_VL, with_labs=tower(part), num_blocks=64).llm_engine.engine_core.parts.origins
    assert ours["vision tower"].startswith("lab 13-05, phase-13-")


@pytest.mark.parametrize("patch", mistakes.patches(source("13-05").parent), ids=lambda patch: patch.stem)
def test_a_listed_mistake_is_named_before_pocket_vl_is_believed(patch: Path) -> None:
    path = source("13-05")
    SOURCES[path] = mistakes.apply_patch(path.read_text(encoding="utf-8"), mistakes.read_mistake(patch).diff)
    try:
        part = lab_part()
        if patch.stem in UNSEEN:
            part.glue.serves(tower(part))
            return
        with pytest.raises((AssertionError, PartError)) as caught:
            part.glue.serves(tower(part))
    finally:
        del SOURCES[path]
    assert str(caught.value).startswith(("a row for the language model is ", "lab 13-05 (vision tower): "))


@pytest.mark.parametrize(
    "old, new, said",
    [
        (").astype(np.float32)", ").astype(np.float64)", "embed_multimodal returned float64, wanted float32"),
        (
            ").astype(np.float32)",
            ").astype(np.float32)[:, 1:]",
            r"returned shape \(1, 63, 128\), wanted \(1, 64, 128\)",
        ),
        (").astype(np.float32)", ").astype(np.float32) * np.float32(np.nan)", "returned NaN or infinity"),
        ("return rows * columns\n", "return rows * columns + 1\n", "promised 65 rows for 64 x 64 pixels, and embed"),
        ("inner = gelu(", "pixels *= 2\n        inner = gelu(", "changed the pixels that it was given"),
        (
            "inner = gelu(",
            "raise IndexError('why')\n        inner = gelu(",
            r"raised IndexError: why \(solution.py:\d+\)",
        ),
    ],
    ids=["dtype", "a row too few", "NaN", "a promise", "in place", "an error"],
)
def test_a_wrong_answer_is_told_in_one_sentence(wrong, old: str, new: str, said: str) -> None:  # noqa: F811
    wrong("13-05", old, new)
    part = lab_part()
    llm = LLM(POCKET_VL, with_labs=tower(part), num_blocks=64)
    asked = part.glue.prompt("What word is written?", *part.glue.pictures("words", 1))
    with pytest.raises(PartError, match=r"lab 13-05 \(vision tower\): .*" + said):
        llm.generate(asked, GREEDY, use_tqdm=False)


@pytest.mark.parametrize(
    "config, settings, why",
    [
        ({"vision_config": SIGLIP, "vision_feature_select_strategy": "full"}, {}, "model_type='siglip_vision_model'"),
        ({"vision_feature_layer": -1}, {}, "layers of the tower=3"),
        ({"multimodal_projector_bias": False}, {}, "multimodal_projector_bias=False"),
        ({"projector_hidden_act": "relu"}, {}, "projector_hidden_act='relu'"),
        ({}, {"load_format": "dummy"}, "load_format='dummy'"),
        (
            {},
            {"ec_transfer_config": {"ec_connector": "ECExampleConnector", "ec_role": "ec_both"}},
            "ec_transfer_config.ec_connector='ECExampleConnector'",
        ),
    ],
    ids=["siglip", "the last layer", "no bias", "relu", "dummy weights", "a shared store of encodings"],
)
def test_what_the_lab_does_not_know_is_served_by_ours_and_said(
    config: dict, settings: dict, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_tiny_llava(tmp_path, **config)
    if settings.get("ec_transfer_config"):
        where = {"shared_storage_path": str(tmp_path / "store")}
        settings = {"ec_transfer_config": {**settings["ec_transfer_config"], "ec_connector_extra_config": where}}
    args = {"num_blocks": 64, "block_size": 4, "skip_tokenizer_init": True, "dtype": "float64", **settings}
    part = lab_part()
    asked = prompt([1, 5, 99, 7, 8], 0)
    tokens = [
        LLM(str(folder), with_labs=its, **args).generate(asked, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
        for its in (None, plugs.assemble([part]))
    ]
    assert tokens[0] == tokens[1] and not part.watch.num_calls
    assert f"vision tower     ours (lab 13-05 knows nothing of {why})\n" in capsys.readouterr().err


def test_a_file_without_the_last_layer_gives_the_lab_all_its_names(tmp_path: Path) -> None:
    part = lab_part()
    args = {"num_blocks": 64, "block_size": 4, "skip_tokenizer_init": True, "with_labs": tower(part)}
    llm = LLM(str(save_tiny_llava(tmp_path)), **args)
    weights = llm.llm_engine.engine_core.model_runner.encoder.embed_multimodal.tower.weights
    assert set(part.glue.given.capture()[0]) <= set(weights)
    layer = f"{part.glue.given.TOWER}.encoder.layers."
    unread = [array for name, array in weights.items() if name.startswith(f"{layer}2.")]
    assert len(unread) == 16 and all(np.isnan(array).all() for array in unread)
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}
    assert len(llm.generate(prompt([1, 5, 99, 7, 8], 0), GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 6


@pytest.mark.slow
def test_the_milestone_names_it_and_its_suite_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    made = milestone.run(num_requests=2, suite=False, found=[lab_part()])
    assert [(row.part, row.state, row.held) for row in made.results] == [("vision tower", "holds", 4)]
    monkeypatch.setattr(milestone, "SUITE", {"vision tower": milestone.SUITE["vision tower"]})
    row = milestone.run_suite("13-05,solution", ["vision tower"])
    assert (row.state, row.detail, row.held) == ("holds", "", 5)


def test_a_wrong_tower_breaks_the_milestone(wrong) -> None:  # noqa: F811
    wrong("13-05", "for number in range(self.num_layers - 1)", "for number in range(self.num_layers)")
    (row,) = milestone.run(num_requests=2, suite=False, found=[lab_part()]).results
    assert row.state == "broken" and "off the model's own" in row.detail


def test_the_payoff_draws_a_word_and_pocket_vl_reads_it(wrong) -> None:  # noqa: F811
    def said() -> tuple[bool, str]:
        console = Console(width=100, record=True, file=open(os.devnull, "w"), highlight=False)  # noqa: SIM115
        return payoff.payoff("13-05", console, "solution"), console.export_text()

    good, text = said()
    assert good and "Your tower looked at this:" in text and "██████████" in text and "MASK" in text
    wrong("13-05", ").astype(np.float32)", ").astype(np.float32)[:, ::-1]")
    good, other = said()
    assert good and text.partition("?\n")[2] != other.partition("?\n")[2]

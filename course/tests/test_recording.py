"""The recording atop the README shows what the commands print, in an SVG that is small and stands still on request."""

from __future__ import annotations

import importlib
import re
import sys
import xml.etree.ElementTree as ElementTree
from types import ModuleType

import pytest
from typer.testing import CliRunner

from course.labs import ROOT
from mini_vllm.entrypoints.cli.main import app

pytestmark = pytest.mark.maintainer

SVG = "{http://www.w3.org/2000/svg}"
MAX_BYTES = 300_000


@pytest.fixture(scope="module")
def recording() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("readme_recording")


def shown(recording: ModuleType) -> list[str]:
    """The words of each scene, row by row, spaces apart."""
    found = []
    for group in ElementTree.parse(recording.TARGET).getroot().findall(f"{SVG}g"):
        rows: dict[float, list[tuple[float, str]]] = {}
        for text in group.findall(f"{SVG}text"):
            rows.setdefault(float(text.attrib["y"]), []).append((float(text.attrib["x"]), text.text or ""))
        found.append(" ".join("".join(word for _, word in sorted(row)) for _, row in sorted(rows.items())))
    return found


def without_spaces(text: str) -> str:
    return re.sub(r"\s+", "", text)


def test_it_is_small_and_uses_nothing_from_elsewhere(recording: ModuleType) -> None:
    text = recording.TARGET.read_text(encoding="utf-8")
    assert len(text.encode()) <= MAX_BYTES
    assert "prefers-reduced-motion" in text and "<script" not in text
    assert re.findall(r"(?:href|src|url)\s*[=(]", text) == []
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]


def test_it_lasts_twenty_seconds(recording: ModuleType) -> None:
    text = recording.TARGET.read_text(encoding="utf-8")
    delays = [float(second) for second in re.findall(r"animation-delay:([\d.]+)s", text)]
    assert 14 < max(delays) <= 20 == recording.SCENES[-1].end
    ends = [scene.end for scene in recording.SCENES]
    assert [scene.begin for scene in recording.SCENES] == [0, *ends[:-1]]


def test_the_model_says_today_what_it_says_there(recording: ModuleType) -> None:
    said = CliRunner().invoke(app, list(recording.SCENES[0].arguments)).stdout
    first = without_spaces(shown(recording)[0])
    assert without_spaces(recording.SCENES[0].typed) in first
    assert without_spaces(said) in first and len(said) > 100


def test_the_lab_still_lacks_what_is_red_there(recording: ModuleType) -> None:
    starter = (ROOT / "phase-02-paged-attention/labs/lab-01-block-allocator/starter.py").read_text(encoding="utf-8")
    _, red, green = (without_spaces(text) for text in shown(recording))
    names = re.findall(r"notwrittenyet:(?:\w+\.)?(\w+),", red)
    assert len(names) >= 2 and all(f"def {name}(" in starter for name in names)
    assert re.search(r"\d+failed", red) and re.search(r"\d+passed", green) and "failed" not in green


def test_lines_are_broken_between_words(recording: ModuleType) -> None:
    width = recording.COLUMNS
    places = recording.wrapped("x" * (width - 3) + " word\nnext")
    assert places[width - 2 : width + 2] == [(1, 0), (1, 1), (1, 2), (1, 3)] and places[-4:][0] == (2, 0)

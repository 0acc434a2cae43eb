"""The still pictures of the playgrounds: GitHub shows each, the website shows the playground in its place."""

from __future__ import annotations

import importlib
import re
import struct
import sys

import pytest

from course.labs import ROOT

pytestmark = pytest.mark.maintainer

PAGE = ROOT / "docs" / "play.md"
STILLS = ROOT / "docs" / "play" / "stills"


def size(file: bytes) -> tuple[int, int]:
    """Width and height of a lossy WebP: 14 bits each, behind the frame's start code."""
    assert file[:4] == b"RIFF" and file[8:12] == b"WEBP"
    at = file.index(b"\x9d\x01\x2a") + 3
    width, height = struct.unpack("<HH", file[at : at + 4])
    return width & 0x3FFF, height & 0x3FFF


def test_each_playground_has_its_picture_before_it() -> None:
    text = PAGE.read_text(encoding="utf-8")
    pairs = re.findall(r"^!\[(.+)\]\(play/stills/(.+)\.webp\)\n\n<!-- widget: play-(.+) -->$", text, re.M)
    assert [name for _, name, _ in pairs] == [name for _, _, name in pairs]
    asking = re.findall(r"^<!-- widget: play-(?!score)(.+) -->$", text, re.M)
    assert len(asking) == 9 and asking == [name for _, name, _ in pairs]
    assert {file.stem for file in STILLS.iterdir()} == set(asking)
    assert all(len(words) > 60 for words, _, _ in pairs), "who cannot see it is told what it shows"


def test_pictures_are_small_and_large_enough_to_read() -> None:
    for file in STILLS.iterdir():
        width, height = size(file.read_bytes())
        assert 640 <= width <= 1000 and 250 <= height <= 1600 and file.stat().st_size < 120_000, file.name


def test_the_website_shows_the_playground_alone() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    render = importlib.import_module("site_render")
    page = render.place_widgets(PAGE.read_text(encoding="utf-8"), "../../")
    assert "stills/" not in page and page.count('<div id="play-') == 10
    other = "![a plot](img/plot.svg)\n\n<!-- widget: play-bits -->"
    assert render.place_widgets(other, "").startswith("![a plot](img/plot.svg)"), "other pictures stay"

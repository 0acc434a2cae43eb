"""Every route of the pinned release is served here, or stands in docs/serving.md among those that are not."""

import re

import pytest

from mini_vllm.tests.helpers import MODELS

ROOT = MODELS.parent
UPSTREAM = ROOT / "upstream" / "vllm" / "entrypoints"
DECORATED = re.compile(r"@\w*(?:router|app)\.(?:get|post|put|delete|websocket)\(\s*\"(/[^\"]*)\"")
BY_OTHERS = {"/metrics", "/docs"}
"""Served by the Prometheus client there and a route here; by FastAPI here and a route there."""


def routes(folder):
    """Paths of all routers below a folder, read from the source; the proxy of several engines is another server."""
    files = [file for file in folder.rglob("*.py") if "disagg_proxy" not in file.parts]
    return {path for file in files for path in DECORATED.findall(file.read_text(encoding="utf-8"))} | BY_OTHERS


def page(begin, end):
    """Paths in the first cells of a part of the page."""
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    part = text[text.index(begin) :]
    cells = [line.split("|")[1] for line in part[: part.index(end)].splitlines() if line.startswith("| `")]
    return {path for cell in cells for path in re.findall(r"`(?:[A-Z]+ )?(/[\w/{}.]*)`", cell)}


def test_the_page_names_every_route_that_is_served():
    ours = routes(ROOT / "mini_vllm" / "entrypoints")
    assert ours - page("## Routes", "<!-- routes not served: begin -->") == set()


@pytest.mark.skipif(not UPSTREAM.is_dir(), reason="needs the pinned tree (course upstream)")
def test_every_route_of_the_release_is_served_or_listed_as_not_served():
    theirs, ours = routes(UPSTREAM), routes(ROOT / "mini_vllm" / "entrypoints")
    assert len(theirs) > 50
    assert page("<!-- routes not served: begin -->", "<!-- routes not served: end -->") == theirs - ours

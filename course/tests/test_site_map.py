"""The map of the engine on the home page: its table is true, its page works without JavaScript, and reads progress."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from course.cli import app
from course.labs import ROOT, all_labs
from course.pages.citations import Citation, check_citation, pinned_tree
from course.pages.markdown import read

pytestmark = pytest.mark.maintainer


@pytest.fixture(scope="module")
def site_map() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("site_map")


def test_every_section_exists(site_map: ModuleType) -> None:
    for box in site_map.table()[1]:
        page, _, anchor = box.guide.partition("#")
        assert anchor and anchor in read(ROOT / page).anchors(), (box.key, box.guide)


def test_every_line_of_the_pinned_release_defines_what_is_said(site_map: ModuleType) -> None:
    if (tree := pinned_tree()) is None:
        pytest.skip("needs the pinned release: course upstream")
    wrong = []
    for box in site_map.table()[1]:
        match = re.fullmatch(r"(vllm/\S+\.py):(\d+) (\S+)", box.upstream)
        assert match, (box.key, box.upstream)
        line = int(match[2])
        wrong.append(check_citation(Citation(0, f"upstream/{match[1]}", line, line, "symbol", match[3]), tree))
    assert len(wrong) > 20 and [one for one in wrong if one] == []
    other = Citation(0, "upstream/vllm/v1/core/block_pool.py", 131, 131, "symbol", "BlockPool")
    assert check_citation(other, tree), "the check sees a line that is not the definition"


def test_every_file_and_lab_exists_and_no_lab_is_left_out(site_map: ModuleType) -> None:
    boxes = site_map.table()[1]
    assert [path for path in site_map.files() if not path.is_file()] == []
    known = {site_map.number(lab) for lab in all_labs() if (ROOT / lab.phase).is_dir()}
    assert {name for box in boxes for name in box.labs} == known


def test_lanes_and_keys(site_map: ModuleType) -> None:
    lanes, boxes = site_map.table()
    assert {box.lane for box in boxes} == {lane.key for lane in lanes}
    assert len({box.key for box in boxes}) == len(boxes)
    names = {word for box in boxes for word in box.name.split(" · ")}
    core = {"EngineCoreClient", "EngineCore", "Scheduler", "KVCacheManager", "BlockPool"}
    assert {"LLM", "AsyncLLM", "Executor", "Worker", "ModelRunner", "Sampler"} | core <= names


def test_links_of_the_html_lead_to_pages_and_panels(site_map: ModuleType) -> None:
    home = site_map.map_html("", "map/")
    assert home.count('class="map-panel"') == 1 and home.count('class="map-box"') == len(site_map.table()[1])
    assert set(re.findall(r'class="map-box" href="map/(#[^"]+)"', home)) == {
        f"#map-{box.key}" for box in site_map.table()[1]
    }
    html = site_map.map_html("../")
    ids = set(re.findall(r' id="([^"]+)"', html))
    for link in re.findall(r'href="([^"]+)"', html):
        if link.startswith("#"):
            assert link[1:] in ids
            continue
        path = ROOT / link.removeprefix("../").partition("#")[0]
        assert any(place.is_file() for place in (path, path.with_suffix(".md"), path / "README.md")), link
    assert "\n" not in html, "Markdown ends a block of HTML at an empty line"
    assert html.count('class="map-box"') == html.count('class="map-panel"') == len(site_map.table()[1])


def test_a_heading_that_is_gone_is_an_error(site_map: ModuleType) -> None:
    with pytest.raises(KeyError):
        site_map.heading("README.md#no-such-heading")


def test_progress_is_exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import course.loop.progress as progress

    labs = list(all_labs())[:3]
    states = [
        progress.LabProgress(lab, state, 0, 1) for lab, state in zip(labs, ("done", "begun", "done"), strict=True)
    ]
    monkeypatch.setattr(progress, "all_progress", lambda: states)
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["progress", "--export"])
    assert said.exit_code == 0, said.output
    written = json.loads((tmp_path / "progress.json").read_text(encoding="utf-8"))
    assert written == {"format": "course-progress", "version": 1, "labs": ["00-01", "00-03"]}
    assert "#progress=00-01.00-03" in said.output
    (tmp_path / "progress.json").unlink()
    assert CliRunner().invoke(app, ["progress"]).exit_code == 0 and not (tmp_path / "progress.json").exists()


PARSE = """
const source = require("fs").readFileSync(process.argv[1], "utf8");
const run = (hash, stored) => {
  const kept = { "vllm-from-the-inside": stored };
  const page = { querySelector: () => null, querySelectorAll: () => [] };
  const localStorage = { getItem: (k) => kept[k] ?? null, setItem: (k, v) => { kept[k] = v; } };
  const location = { hash, pathname: "/", search: "" };
  let shown = null;
  new Function("document", "localStorage", "location", "history", source)(
    page, localStorage, location, { replaceState: (a, b, url) => { shown = url; } });
  return { kept: kept["vllm-from-the-inside"], shown };
};
console.log(JSON.stringify([run("#progress=00-01.03-04.x", '{"labs":{"02-01":true}}'), run("#map-llm", "rubbish")]));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node (apt install nodejs)")
def test_the_end_of_an_address_is_read_once_and_rubbish_is_no_error() -> None:
    done = subprocess.run(
        ["node", "-e", PARSE, str(ROOT / "docs" / "progress.js")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    given, other = json.loads(done.stdout)
    assert json.loads(given["kept"])["labs"] == {"00-01": True, "02-01": True, "03-04": True} and given["shown"] == "/"
    assert other == {"kept": "rubbish", "shown": None}

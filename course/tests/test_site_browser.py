"""The built website in headless Chromium: pages load without an error, widgets answer, nothing asks another server.

It builds the whole site, so it runs on demand: ``SITE_BROWSER=1 pytest course/tests/test_site_browser.py``.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from course.labs import ROOT
from mini_vllm.cli import app

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
PHASE_03 = "phase-03-continuous-batching-scheduler"
PAGES = ("", "docs/play/", "phase-00-foundations/00-guide/", f"{PHASE_03}/00-guide/", f"{PHASE_03}/01-deep-dive/",
         f"{PHASE_03}/labs/lab-04-preemption/", "GLOSSARY/", "labs/")  # fmt: skip
MAX_FIRST_PAGE = 1_500_000

pytestmark = [
    pytest.mark.skipif(os.environ.get("SITE_BROWSER") != "1", reason="builds the site; on demand with SITE_BROWSER=1"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt install chromium)"),
    pytest.mark.skipif(importlib.util.find_spec("material") is None, reason='needs mkdocs (pip install -e ".[docs]")'),
]


class Handler(SimpleHTTPRequestHandler):
    """A file server without a log, to which the page of the check posts what it saw."""

    results: queue.Queue[dict[str, Any]] = queue.Queue()

    def log_message(self, *_: Any) -> None:
        return

    def do_POST(self) -> None:
        self.results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The website, built strictly, with the check's page and a trace of our own beside it."""
    folder = tmp_path_factory.mktemp("site") / "public"
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "SITE_REPO_URL": "https://example.org/course"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copy(Path(__file__).with_name("site_check.html"), folder / "check.html")
    options = ["-m", "toy", "-p", "hi", "-n", "4", "--trace", str(folder / "trace.json")]
    assert CliRunner().invoke(app, ["generate", *options]).exit_code == 0
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def seen(address: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the check's page saw, and the lines of the console."""
    folder = tmp_path_factory.mktemp("browser")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={folder}", "--enable-logging=stderr", "--v=0", "--window-size=1400,1000",
        "--remote-debugging-port=0", f"{address}/check.html?pages={','.join(PAGES)}",
    ]  # fmt: skip
    with (folder / "log").open("w+", encoding="utf-8") as log:
        browser = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            result = Handler.results.get(timeout=100)
        except queue.Empty:
            pytest.fail("the browser did not answer:\n" + (folder / "log").read_text(encoding="utf-8")[-2000:])
        finally:
            browser.terminate()
            browser.wait(20)
    text = (folder / "log").read_text(encoding="utf-8", errors="replace")
    assert "error" not in result, result["error"]
    result["console"] = [line for line in text.splitlines() if "CONSOLE" in line]
    result["address"] = address
    return result


def test_no_console_errors(seen: dict[str, Any]) -> None:
    assert seen["console"] == []


def test_no_request_leaves_the_site(seen: dict[str, Any]) -> None:
    for facts in seen["pages"].values():
        assert all(url.startswith(seen["address"]) for url in facts["urls"])


def test_first_page_is_small(seen: dict[str, Any]) -> None:
    assert 50_000 < seen["pages"][""]["bytes"] <= MAX_FIRST_PAGE


def test_every_page_has_its_parts(seen: dict[str, Any]) -> None:
    pages = seen["pages"]
    assert all(facts["failed"] == facts["nameless"] == facts["imagesWithoutAlt"] == 0 for facts in pages.values())
    assert {path: facts["widgets"] for path, facts in pages.items()} == {
        "": 1, "docs/play/": 4, "phase-00-foundations/00-guide/": 3, f"{PHASE_03}/00-guide/": 1,
        f"{PHASE_03}/01-deep-dive/": 0, f"{PHASE_03}/labs/lab-04-preemption/": 0, "GLOSSARY/": 0, "labs/": 0,
    }  # fmt: skip
    deep = pages[f"{PHASE_03}/01-deep-dive/"]
    assert len(deep["cites"]) > 10
    assert all("/blob/v0.22.1/" in url and re.search(r"#L\d+(-L\d+)?$", url) for url in deep["cites"])
    assert pages[f"{PHASE_03}/00-guide/"]["titled"] > 10 and deep["abbr"] + deep["titled"] > 5
    assert all(facts["edit"] == (path != "labs/") and facts["next"] == 1 for path, facts in pages.items())


def test_player_steps_scrubs_plays_and_loads(seen: dict[str, Any]) -> None:
    player = seen["player"]
    assert [player[name] for name in ("start", "next", "back")] == ["step 1 of 14", "step 2 of 14", "step 1 of 14"]
    where, said, budget, free = player["scrubbed"]
    assert where == "step 5 of 14" and budget == "A: 1, B: 1, C: 14 of 16"
    assert "C gets 14 tokens of its prompt and is not sampled" in said
    step = json.loads((ROOT / "docs/widgets/data/scheduler.json").read_text(encoding="utf-8"))["chunked prefill"][
        "steps"
    ][4]
    assert free == " → ".join(map(str, step["free"]))
    assert player["played"] == "step 6 of 14"
    assert player["refused"] == "x.json: this is not a trace of mini-vllm generate --trace FILE"
    assert player["own"] == ["step 1 of 4", "trace.json: 4 steps of toy."]


def test_calculator_and_roofline_answer(seen: dict[str, Any]) -> None:
    napkins = seen["napkins"]
    assert napkins["kv"][:3] == ["228", "456", "0"] and "do not fit" in napkins["kv"][3]
    assert napkins["roof"][0].startswith("Intensity 0.992 FLOP/byte. Bound by memory: 126 tokens/s")
    assert napkins["roof"][1].startswith("Intensity 512 FLOP/byte. Bound by arithmetic")


def test_sampler_answers_with_pythons_numbers(seen: dict[str, Any]) -> None:
    cases = json.loads((ROOT / "docs/widgets/data/sampler.json").read_text(encoding="utf-8"))["expected"]
    plain, knobs = cases[0], next(case for case in cases if case["knobs"] == {"temperature": 1.5, "top_k": 5})
    assert seen["napkins"]["sampler"][0] == [f"{p:.4f}" for p in plain["probs"][:5]]
    assert seen["napkins"]["sampler"][1] == [f"{p:.4f}" for p in knobs["probs"][:5]]
    assert seen["napkins"]["sampler"][2] == ["1.0000", "out", "out", "out", "out"]
    assert seen["napkins"]["hits"] == 16


def test_search_finds(seen: dict[str, Any]) -> None:
    assert any(PHASE_03 in href for href in seen["search"])


def test_fits_a_phone(seen: dict[str, Any]) -> None:
    assert seen["phone"]["widgets"] == 4 and seen["phone"]["wide"] <= 0

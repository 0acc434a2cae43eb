"""The website, built once, and a browser on it, for the tests that run on demand (``SITE_BROWSER=1``)."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from course.labs import ROOT
from mini_vllm.entrypoints.cli.main import app

sys.path.insert(0, str(ROOT / "docs"))
import site_browser as web

needs = [
    pytest.mark.skipif(os.environ.get("SITE_BROWSER") != "1", reason="builds the site; on demand with SITE_BROWSER=1"),
    pytest.mark.skipif(not web.CHROMIUM, reason="needs Chromium (apt install chromium chromium-driver)"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("material", "selenium")),
        reason='needs mkdocs and selenium (pip install -e ".[docs,site-test]")',
    ),
    pytest.mark.timeout(600),
]

UNDER = "/some/path"
"""The site's path on its server, as on GitHub Pages."""
WINDOWS = {360: 740, 768: 1024, 1440: 900}
"""Width -> height of the windows in which no page may cut code."""


@dataclass
class Site:
    """The site's address and a browser."""

    address: str
    driver: Any

    def look(self, scheme: str = "light", width: str = "desktop", motion: str = "no-preference") -> None:
        """What the reader's device prefers."""
        web.look_as(self.driver, scheme, width, motion)

    def window(self, width: int) -> None:
        """A window as wide as a phone, a tablet or a desktop."""
        metrics = {"width": width, "height": WINDOWS[width], "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def open(self, path: str, cached: bool = True) -> None:
        """Opens a page; its interactive pictures stand."""
        if not cached:
            self.driver.execute_cdp_cmd("Network.clearBrowserCache", {})
        web.visit(self.driver, self.address + path)

    def run(self, script: str, *arguments: Any) -> Any:
        """The result of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str) -> None:
        """Waits until a script is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 300, poll_frequency=0.1).until(lambda _: self.run(script), script)

    def press(self, *keys: str) -> None:
        """Types, where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def requests(self) -> list[str]:
        """Addresses asked for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


_SITE = pytest.StashKey[Site]()


def the_site(config: pytest.Config) -> Site:
    """The site under a path of its server, and one browser, shared by all modules of a test run."""
    if _SITE not in config.stash:
        stack = ExitStack()
        config.add_cleanup(stack.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "public"
        build(folder)
        address = stack.enter_context(web.served(folder, UNDER))
        config.stash[_SITE] = Site(address, stack.enter_context(web.browser()))
    site = config.stash[_SITE]
    site.look()
    return site


def build(folder: Path) -> None:
    """Builds the website strictly, and puts the check's page and a trace of our own beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SITE_REPO_URL", "https://example.org/course")
        patch.setenv("SITE_URL", f"https://example.org{UNDER}/")
        web.build(folder)
    shutil.copy(Path(__file__).with_name("site_check.html"), folder / "check.html")
    options = ["-m", "toy", "-p", "hi", "-n", "4", "--trace", str(folder / "trace.json")]
    assert CliRunner().invoke(app, ["generate", *options]).exit_code == 0

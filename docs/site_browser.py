"""The built website on localhost, and a headless Chromium that looks at it.

For `docs/screenshots.py`, `docs/site_measure.py` and the browser test. Needs Chromium with its driver (on Debian
`apt install chromium chromium-driver`) and selenium (`pip install -e ".[site-test]"`).
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
PAGES = {
    "landing": "",
    "guide": "phase-02-paged-attention/00-guide/",
    "lab": "phase-03-continuous-batching-scheduler/labs/lab-04-preemption/",
    "play": "docs/play/",
    "glossary": "GLOSSARY/",
    "cheatsheet": "phase-04-attention-backends/CHEATSHEET/",
    "grading": "docs/grading/",
    "labs": "labs/",
}
"""The eight pages that screenshots and accessibility checks look at: name -> address below the site's root."""
SCHEMES = ("light", "dark")
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}
"""Width and height of the window in CSS pixels."""
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def build(folder: Path) -> None:
    """Builds the site strictly into ``folder``. Raises RuntimeError with mkdocs' words where it warns."""
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


class _Handler(SimpleHTTPRequestHandler):
    """A file server without a log. ``prefix``: the path under which the folder appears, as on GitHub Pages."""

    def __init__(self, *args: Any, prefix: str = "", **kwargs: Any) -> None:
        self.prefix = prefix
        super().__init__(*args, **kwargs)

    def translate_path(self, path: str) -> str:
        inside = path.startswith(f"{self.prefix}/")
        return super().translate_path(path.removeprefix(self.prefix) if inside else "/no-such-file")

    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def served(folder: Path, prefix: str = "") -> Iterator[str]:
    """Serves ``folder`` while the block runs. Yields the address of the site's root, with a slash at its end."""
    handler = functools.partial(_Handler, directory=str(folder), prefix=prefix)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{prefix}/"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium with an empty profile: a selenium driver that keeps the console's and the network's log."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver_path = shutil.which("chromedriver")
    service = webdriver.ChromeService(executable_path=driver_path) if driver_path else webdriver.ChromeService()
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=service)
        try:
            driver.set_script_timeout(60)
            yield driver
        finally:
            driver.quit()


def look_as(driver: Any, scheme: str = "light", width: str = "desktop", motion: str = "no-preference") -> None:
    """Sets what the reader's device prefers: light or dark, its width, motion or ``reduce``."""
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": motion},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    across, down = WIDTHS[width]
    metrics = {"width": across, "height": down, "deviceScaleFactor": 1, "mobile": width == "phone"}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


READY = """
const widgets = [...document.querySelectorAll("*")].filter((node) => /^(mv|play)-/.test(node.localName));
return document.readyState === "complete" && widgets.every((widget) => widget.hasAttribute("data-ready"));
"""


def visit(driver: Any, url: str) -> None:
    """Opens a page and waits until its interactive pictures stand."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get(url)
    WebDriverWait(driver, 20).until(lambda d: d.execute_script(READY))

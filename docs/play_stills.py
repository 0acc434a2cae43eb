"""Still pictures of the playgrounds, for readers on GitHub: ``python docs/play_stills.py`` writes docs/play/stills/.

The website is built, each playground is opened in headless Chromium as a reader first sees it, in the light scheme, and
kept as WebP. docs/play.md shows the pictures on GitHub; on the website the playground itself stands there
(`place_widgets` of docs/site_render.py). Needs what `site_browser.py` needs.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from site_browser import ROOT, browser, build, look_as, served, visit
from site_render import PLAYGROUNDS

TARGET = ROOT / "docs" / "play" / "stills"
QUALITY = 80
"""Of WebP, in per cent: letters stay sharp, and a picture has some 40 kB."""
PLACE = """
const card = document.querySelector(arguments[0]).shadowRoot.querySelector(".card").getBoundingClientRect();
return [card.left + scrollX, card.top + scrollY, card.width, card.height];
"""


def take(site: Path) -> list[Path]:
    """One picture for each playground that asks questions. Returns the files written."""
    TARGET.mkdir(exist_ok=True)
    written = []
    with served(site) as address, browser() as driver:
        look_as(driver, "light", motion="reduce")
        visit(driver, f"{address}docs/play/")
        for name in PLAYGROUNDS:
            if name == "play-score":
                continue
            left, top, width, height = driver.execute_script(PLACE, name)
            clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
            options = {"format": "webp", "quality": QUALITY, "captureBeyondViewport": True, "clip": clip}
            picture = driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
            written.append(TARGET / f"{name.removeprefix('play-')}.webp")
            written[-1].write_bytes(base64.b64decode(picture))
    return written


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, help="a site that is built already; else it is built now")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = args.site or Path(folder)
        if args.site is None:
            build(site)
        for file in take(site):
            print(f"{file.relative_to(ROOT)}  {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

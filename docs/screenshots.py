"""Pictures of the website: eight pages, light and dark, desktop and phone.

python docs/screenshots.py --out shots            # builds the site, 32 files
python docs/screenshots.py --out shots --site public --height 2400
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from site_browser import PAGES, SCHEMES, WIDTHS, browser, build, look_as, served, visit


def shoot(driver: Any, file: Path, height: int) -> None:
    """Writes the first ``height`` CSS pixels of the page that is open."""
    sizes = driver.execute_script("return [innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": sizes[0], "height": min(height, sizes[1]), "scale": 1}
    options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    file.write_bytes(base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


def shoot_all(site: Path, out: Path, height: int, pages: dict[str, str]) -> list[Path]:
    """One file per page, scheme and width: ``landing-light-desktop.png``."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with served(site) as address, browser() as driver:
        for width in WIDTHS:
            for scheme in SCHEMES:
                look_as(driver, scheme, width, motion="reduce")
                for name, path in pages.items():
                    visit(driver, address + path)
                    written.append(out / f"{name}-{scheme}-{width}.png")
                    shoot(driver, written[-1], height)
    return written


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--site", type=Path, help="a site that is built already; else it is built now")
    parser.add_argument("--height", type=int, default=1800, help="CSS pixels from the top of a page")
    parser.add_argument("--page", action="append", default=[], help="name=address, in place of the eight")
    args = parser.parse_args()
    pages = dict(page.split("=", 1) for page in args.page) or PAGES
    with tempfile.TemporaryDirectory() as folder:
        site = args.site or Path(folder)
        if args.site is None:
            build(site)
        for file in shoot_all(site, args.out, args.height, pages):
            print(file)


if __name__ == "__main__":
    main()

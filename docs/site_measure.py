"""How heavy the website's pages are, and how soon they can be used, on localhost.

    python docs/site_measure.py                      # builds the site; prints a Markdown table
    python docs/site_measure.py --site public --runs 5

Each page is opened ``--runs`` times with an empty cache, and the middle of each time is printed. "Heavy" are all bytes
of a page before compression, its interactive pictures' data included. Times count from the moment of the request, by
the browser's own clock: first paint, document parsed (``DOMContentLoaded``), and usable: everything loaded, the data of
the interactive pictures too. The search index is loaded when somebody searches; the last line tells its size and how
long the first answer takes.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from site_browser import PAGES, browser, build, look_as, served, visit

ENTRIES = """
const [page] = performance.getEntriesByType("navigation"), parts = performance.getEntriesByType("resource");
const paint = performance.getEntriesByName("first-contentful-paint")[0];
const data = parts.filter((part) => part.initiatorType === "fetch").map((part) => part.responseEnd);
return {bytes: [page, ...parts].reduce((sum, part) => sum + part.decodedBodySize, 0), requests: parts.length + 1,
        paint: paint ? paint.startTime : NaN, parsed: page.domContentLoadedEventEnd,
        usable: Math.max(page.loadEventEnd, ...data)};
"""
TIMES = ("paint", "parsed", "usable")


def measure(driver: Any, url: str, runs: int) -> dict[str, float]:
    """Bytes, number of requests, and the median of each time in milliseconds."""
    found = []
    for _ in range(runs):
        driver.get("about:blank")
        driver.execute_cdp_cmd("Network.clearBrowserCache", {})
        visit(driver, url)
        found.append(driver.execute_script(ENTRIES))
    return found[0] | {name: statistics.median(one[name] for one in found) for name in TIMES}


def first_answer(driver: Any, url: str, words: str) -> float:
    """Milliseconds from the last key of a search on a fresh page to its first result."""
    driver.execute_cdp_cmd("Network.clearBrowserCache", {})
    visit(driver, url)
    field = driver.find_element("css selector", ".md-search__input")
    driver.execute_script("arguments[0].focus()", field)
    field.send_keys(words)
    begin = time.perf_counter()
    while not driver.find_elements("css selector", ".md-search-result__item"):
        time.sleep(0.01)
    return 1000 * (time.perf_counter() - begin)


def report(site: Path, runs: int) -> None:
    """Prints the table."""
    with served(site) as address, browser() as driver:
        driver.execute_cdp_cmd("Network.enable", {})
        look_as(driver)
        visit(driver, address)  # the first page of a new browser pays for the browser
        versions = driver.capabilities
        print(f"{platform.machine()}, {versions['browserName']} {versions['browserVersion']}, median of {runs} runs\n")
        print("| Page | Requests | Bytes | First paint | Parsed | Usable |")
        print("|---|--:|--:|--:|--:|--:|")
        for name, path in PAGES.items():
            found = measure(driver, address + path, runs)
            times = " | ".join(f"{found[key]:.0f} ms" for key in TIMES)
            print(f"| {name} | {found['requests']:.0f} | {found['bytes']:,.0f} | {times} |")
        index = (site / "search" / "search_index.json").stat().st_size
        answers = [first_answer(driver, address, "preemption") for _ in range(runs)]
        print(f"\nSearch index {index:,} bytes; first answer after {statistics.median(answers):.0f} ms.")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, help="a site that is built already; else it is built now")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = args.site or Path(folder)
        if args.site is None:
            build(site)
        report(site, args.runs)


if __name__ == "__main__":
    main()

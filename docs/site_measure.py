"""How heavy the website's pages are, and how soon they can be used, on localhost.

    python docs/site_measure.py                      # builds the site; prints a Markdown table
    python docs/site_measure.py --site public --runs 5
    python docs/site_measure.py --save               # writes benchmarks/results/site.json and site.md as well

Each page is opened ``--runs`` times with an empty cache, and the middle of each time is printed. "Heavy" are all bytes
of a page before compression, its interactive pictures' data included. Times count from the moment of the request, by
the browser's own clock: first paint, document parsed (``DOMContentLoaded``), and usable: everything loaded, the data of
the interactive pictures too. The search index is loaded when somebody searches; the last line tells its size and how
long the first answer takes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from site_browser import PAGES, ROOT, browser, build, look_as, served, visit

ENTRIES = """
const [page] = performance.getEntriesByType("navigation"), parts = performance.getEntriesByType("resource");
const paint = performance.getEntriesByName("first-contentful-paint")[0];
const data = parts.filter((part) => part.initiatorType === "fetch").map((part) => part.responseEnd);
return {bytes: [page, ...parts].reduce((sum, part) => sum + part.decodedBodySize, 0), requests: parts.length + 1,
        paint: paint ? paint.startTime : NaN, parsed: page.domContentLoadedEventEnd,
        usable: Math.max(page.loadEventEnd, ...data)};
"""
RESULTS = ROOT / "benchmarks" / "results"
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


def report(site: Path, runs: int) -> dict[str, Any]:
    """Prints the table; returns what stands in it."""
    pages: dict[str, dict[str, float]] = {}
    with served(site) as address, browser() as driver:
        driver.execute_cdp_cmd("Network.enable", {})
        look_as(driver)
        visit(driver, address)  # the first page of a new browser pays for the browser
        versions = driver.capabilities
        print(f"{platform.machine()}, {versions['browserName']} {versions['browserVersion']}, median of {runs} runs\n")
        print("| Page | Requests | Bytes | First paint | Parsed | Usable |")
        print("|---|--:|--:|--:|--:|--:|")
        for name, path in PAGES.items():
            pages[name] = found = measure(driver, address + path, runs)
            times = " | ".join(f"{found[key]:.0f} ms" for key in TIMES)
            print(f"| {name} | {found['requests']:.0f} | {found['bytes']:,.0f} | {times} |")
        index = (site / "search" / "search_index.json").stat().st_size
        answers = [first_answer(driver, address, "preemption") for _ in range(runs)]
        print(f"\nSearch index {index:,} bytes; first answer after {statistics.median(answers):.0f} ms.")
        browser_words = f"{versions['browserName']} {versions['browserVersion']}"
    search = {"bytes": index, "first_answer_ms": statistics.median(answers)}
    return {"browser": browser_words, "runs": runs, "pages": pages, "search": search}


def save(found: dict[str, Any]) -> None:
    """Writes the figures with their machine to ``benchmarks/results``."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.common import machine

    about = machine()
    (RESULTS / "site.json").write_text(json.dumps({"machine": about, **found}, indent=2) + "\n", encoding="utf-8")
    lines = ["# The website's pages on localhost, with an empty cache", ""]
    lines += [f"{about}", "", f"{found['browser']}, median of {found['runs']} runs. Bytes are before compression.", ""]
    lines += ["| page | requests | bytes | first paint, ms | parsed, ms | usable, ms |", "|---|--:|--:|--:|--:|--:|"]
    for name, page in found["pages"].items():
        times = " | ".join(f"{page[key]:.0f}" for key in TIMES)
        lines.append(f"| {name} | {page['requests']:.0f} | {page['bytes']:,.0f} | {times} |")
    search = found["search"]
    lines += ["", f"Search index {search['bytes']:,} bytes, first answer after {search['first_answer_ms']:.0f} ms."]
    (RESULTS / "site.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, help="a site that is built already; else it is built now")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write the figures to benchmarks/results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = args.site or Path(folder)
        if args.site is None:
            build(site)
        found = report(site, args.runs)
    if args.save:
        save(found)


if __name__ == "__main__":
    main()

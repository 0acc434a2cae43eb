"""The home page in headless Chromium: weight, measure, the run that fills blocks, the map; and a missing address.

On demand, as `test_site_browser.py`.
"""

from __future__ import annotations

import json
import time

import pytest

from course.labs import ROOT, all_labs
from course.tests.site_fixtures import WINDOWS, Site, needs, the_site

pytestmark = [pytest.mark.maintainer, *needs]
MAX_FIRST_PAGE, MAX_REQUESTS = 400_000, 60


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    """The site as seen on a desktop in the light scheme, where a test does not say otherwise."""
    return the_site(request.config)


def test_first_page_is_small(site: Site) -> None:
    site.window(1440)
    site.open("", cached=False)
    sizes = site.run("""return ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
                        .map((entry) => entry.decodedBodySize)""")
    assert 8 < len(sizes) <= MAX_REQUESTS and 50_000 < sum(sizes) <= MAX_FIRST_PAGE


POOL = """return [...document.querySelectorAll(".fill-pool i")].map((one) =>
  [one.className, one.style.getPropertyValue("--full")])"""


@pytest.mark.parametrize("width", WINDOWS)
def test_the_home_page_keeps_its_measure_and_its_rows_are_flush(site: Site, width: int) -> None:
    site.window(width)
    site.open("")
    box = "const box = (one) => { const { left, right } = one.getBoundingClientRect(); return [left, right]; };"
    left, right = site.run(box + "return box(document.querySelector('.md-content__inner'))")
    assert abs((width - right) - left) < 2 and right - left <= 1240
    lines = site.run("return [...document.querySelectorAll('.md-content__inner > p')].map((p) => p.clientWidth / 20)")
    assert len(lines) > 5 and max(lines) <= 48
    ends = site.run(
        box
        + """return [...document.querySelectorAll(".map-lane ul")].map((row) => {
      const ends = {};
      for (const one of row.children) ends[one.offsetTop] = box(one)[1];
      return Object.values(ends).map(Math.round);
    })"""
    )
    assert len(ends) == 4 and all(max(row) - min(row) <= 1 for row in ends), ends


def test_blocks_fill_before_the_first_scroll_and_stand_still_for_who_wants_no_motion(site: Site) -> None:
    site.window(1440)
    site.open("")
    bottom = site.run("return document.querySelector('.fill-pool').getBoundingClientRect().bottom")
    assert bottom < WINDOWS[1440]
    before = site.run(POOL)
    site.until(POOL.replace("return ", f"return {json.dumps(json.dumps(before))} !== JSON.stringify(") + ")")
    site.run("document.querySelector('.fill button').click()")
    step = "return document.querySelector('.fill-step').textContent"
    assert len({(site.run(step), time.sleep(0.5))[0] for _ in range(3)}) == 1, "it can be stopped"
    site.look(motion="reduce")
    site.window(1440)
    site.open("")
    run = json.loads((ROOT / "docs/widgets/data/fill.json").read_text(encoding="utf-8"))
    drawn = site.run(POOL)
    time.sleep(1)
    assert site.run(POOL) == drawn and site.run(step) == f"step {run['still'] + 1} of {len(run['steps'])}"
    site.run("document.querySelector('.fill').fill.show(arguments[0])", run["still"])
    assert [[name, float(full)] for name, full in site.run(POOL)] == [[name, float(full)] for name, full in drawn]
    assert sum(float(full) for _, full in drawn) > run["num_blocks"] - 3, "nearly all are full"


def test_the_map_opens_boxes_by_keyboard_and_keeps_progress(site: Site) -> None:
    site.open("")
    opened = "return document.querySelector('.map-panel.is-open .map-name').textContent"
    assert site.run(opened) == "Scheduler"
    site.run("document.querySelector('a.map-box[href$=\"#map-block-pool\"]').focus()")
    site.press("\ue007")  # Enter
    site.until(f"{opened} === 'BlockPool'")  # its panel is fetched
    site.press("\ue014")  # right
    site.until(f"{opened} === 'FreeKVCacheBlockQueue'")
    site.run("document.querySelector('.map-panel.is-open input[data-lab=\"02-01\"]').click()")
    site.open("labs/")
    site.open("#progress=03-01.03-04")
    site.driver.refresh()
    score = site.run("return document.querySelector('.map-score').textContent")
    assert score.startswith(f"3 of {len(all_labs())} labs done"), score
    assert "progress" not in site.run("return location.href")
    site.run("localStorage.clear()")


def test_a_missing_address_leads_on(site: Site) -> None:
    site.driver.get(f"{site.address}404.html")
    shown = "return [...document.querySelectorAll('article a')].filter((one) => one.offsetParent)"
    links = site.run(f"{shown}.map((one) => [one.getAttribute('href'), one.href])")
    assert len(links) >= 6
    for written, link in links:
        assert written.startswith("/some/path/"), "from the root, since the page is shown at any address"
        site.driver.get(link)
        assert "No page has this address" not in site.run("return document.body.textContent"), link

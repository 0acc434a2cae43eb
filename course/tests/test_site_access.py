"""The built website for everybody: no serious finding of axe, keyboard alone, reduced motion, a phone's width.

On demand, as `test_site_browser.py`. axe-core is not part of the repository (it is under another license, MPL-2.0);
without it its test says how to get it:

    npm install --prefix .venv-axe axe-core@4
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from course.labs import ROOT
from course.tests.site_fixtures import Site, needs, the_site, web

pytestmark = [pytest.mark.maintainer, *needs]
AXE = Path(os.environ.get("AXE_CORE", ROOT / ".venv-axe/node_modules/axe-core/axe.min.js"))
PAGES = web.PAGES | {
    "phase 00": "phase-00-foundations/00-guide/",  # three widgets, formulas
    "phase 03": "phase-03-continuous-batching-scheduler/00-guide/",  # the player
    "phase 04": "phase-04-attention-backends/labs/lab-04-flash-decoding-partitions/",  # wide formulas
    "phase 06": "phase-06-quantization/00-guide/",
    "phase 08": "phase-08-speculative-decoding/00-guide/",
    "phase 09": "phase-09-sampling-and-decoding-algorithms/00-guide/",
    "phase 12": "phase-12-structured-outputs/00-guide/",
    "browser": "docs/browser/",
    "missing": "404.html",
}
RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then((result) => done(result.violations.map((found) =>
  ({impact: found.impact, id: found.id, where: found.nodes.slice(0, 5).map((node) => String(node.target))}))));
"""
FOCUS = """
const at = document.activeElement, seen = at.closest(".mv-open") || at, style = getComputedStyle(seen);
return {widget: at.closest(".mv-widget")?.localName, label: at.getAttribute("aria-label") || at.textContent.trim() ||
  at.labels?.[0]?.textContent.trim(), outline: style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth)};
"""


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    """The site as seen on a desktop in the light scheme, where a test does not say otherwise."""
    return the_site(request.config)


@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: npm install --prefix .venv-axe axe-core@4")
@pytest.mark.parametrize("scheme", web.SCHEMES)
@pytest.mark.parametrize("width", web.WIDTHS)
def test_axe_finds_nothing_serious(site: Site, scheme: str, width: str) -> None:
    site.look(scheme, width, motion="reduce")
    source, found = AXE.read_text(encoding="utf-8"), []
    for name, path in PAGES.items():
        site.open(path)
        assert site.run("return document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
        site.run(source)
        found += [(name, one) for one in site.driver.execute_async_script(RUN_AXE)]
    assert [one for one in found if one[1]["impact"] in ("serious", "critical")] == []


def test_axe_sees_a_fault(site: Site) -> None:
    if not AXE.is_file():
        pytest.skip("needs axe-core: npm install --prefix .venv-axe axe-core@4")
    site.open("labs/")
    site.run(AXE.read_text(encoding="utf-8"))
    site.run("document.querySelector('article').insertAdjacentHTML('beforeend', '<p style=\"color:#ddd\">pale</p>')")
    assert "color-contrast" in [one["id"] for one in site.driver.execute_async_script(RUN_AXE)]


@pytest.mark.parametrize("page", PAGES.values())
def test_nothing_is_wider_than_a_phone(site: Site, page: str) -> None:
    site.look(width="phone")
    site.open(page)
    across = "return document.documentElement.scrollWidth"  # not innerWidth: a phone zooms out to what is too wide
    assert site.run(across) <= web.WIDTHS["phone"][0]
    site.run(
        "document.querySelector('article').insertAdjacentHTML('beforeend', '<div style=\"width: 900px\">wide</div>')"
    )
    assert site.run(across) > web.WIDTHS["phone"][0], "the measure sees what is too wide"


def tabbed(site: Site, presses: int) -> list[dict[str, Any]]:
    """What has the focus after each press of Tab."""
    found = []
    for _ in range(presses):
        site.press("\ue004")
        found.append(site.run(FOCUS))
    return found


def test_tab_reaches_every_control_and_shows_where_it_is(site: Site) -> None:
    site.open("docs/play/")
    all_of_them = site.run("""return [...document.querySelectorAll(".mv-widget :is(button, select, input)")]
                              .map((control) => control.closest(".mv-widget").localName)""")
    behind_the_playgrounds = "document.querySelector('#four-pictures')"
    site.run(f"const at = {behind_the_playgrounds}; at.tabIndex = -1; at.focus()")
    found = [one for one in tabbed(site, len(all_of_them) + 30) if one["widget"]]
    assert [one["widget"] for one in found] == all_of_them and len(found) > 25
    assert [one for one in found if not one["label"] or one["outline"] < 2] == []


def focus(site: Site, selector: str) -> None:
    site.run("document.querySelector(arguments[0]).focus()", selector)


def test_player_by_keyboard_alone(site: Site) -> None:
    site.open("docs/play/")
    where = "return document.querySelector('.mv-where').textContent"
    focus(site, "mv-scheduler .mv-primary")
    site.press(" ")
    site.until("return document.querySelector('.mv-where').textContent.startsWith('step 2')")
    site.press(" ")
    assert "play" in site.run("return document.activeElement.textContent")
    focus(site, "mv-scheduler input[aria-label=step]")
    site.press("\ue010")  # End
    assert site.run(where) == "step 14 of 14"
    site.press("\ue012")  # left
    assert site.run(where) == "step 13 of 14"
    focus(site, "mv-scheduler select")
    site.press("\ue015")  # down
    assert site.run(where) == "step 1 of 14" or "prefix" in site.run("return document.activeElement.value")


def test_sliders_by_keyboard_alone(site: Site) -> None:
    site.open("docs/play/")
    for widget in ("mv-kv-memory", "mv-roofline", "mv-sampler"):
        said = f"return document.querySelector('{widget}').textContent"
        before = site.run(said)
        focus(site, f"{widget} input[type=range]")
        site.press("\ue014", "\ue014")  # right
        assert site.run(said) != before, widget


def test_reduced_motion_is_respected(site: Site) -> None:
    moving = """return [...document.querySelectorAll("*")].filter((one) =>
                getComputedStyle(one).transitionDuration.split(",").some((time) => parseFloat(time) > 0)).length"""
    site.open("docs/play/")
    assert site.run(moving) > 10
    site.look(motion="reduce")
    site.open("docs/play/")
    assert site.run(moving) == 0


def test_what_scrolls_can_be_reached(site: Site) -> None:
    site.look(width="phone")
    site.open(PAGES["phase 04"])
    wide = """return [...document.querySelectorAll(".formula, .md-typeset__scrollwrap, pre > code")].filter((one) =>
              one.scrollWidth > one.clientWidth + 1 && one.tabIndex !== 0).length"""
    assert site.run(wide) == 0
    assert site.run("return document.querySelectorAll('article [tabindex=\"0\"]').length") > 2


def test_the_device_decides_the_colours_until_the_reader_does(site: Site) -> None:
    scheme = "return document.body.dataset.mdColorScheme"
    site.look("dark")
    site.open("labs/")
    assert site.run(scheme) == "slate"
    site.look("light")
    site.open("GLOSSARY/")
    assert site.run(scheme) == "default"

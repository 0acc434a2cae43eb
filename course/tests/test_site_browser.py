"""The built website in headless Chromium, under a path as on GitHub Pages: pages load without an error, widgets answer,
search finds, nothing asks another server.

It builds the whole site, so it runs on demand: ``SITE_BROWSER=1 pytest course/tests/test_site_browser.py``. What is
asked of accessibility is in `test_site_access.py`; both take the browser from `site_fixtures.py`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from course.labs import ROOT
from course.tests.site_fixtures import WINDOWS, Site, needs, the_site

pytestmark = [pytest.mark.maintainer, *needs]
PHASE_03 = "phase-03-continuous-batching-scheduler"
PAGES = ("", "docs/play/", "phase-00-foundations/00-guide/", f"{PHASE_03}/00-guide/", f"{PHASE_03}/01-deep-dive/",
         f"{PHASE_03}/labs/lab-04-preemption/", "GLOSSARY/", "labs/")  # fmt: skip
INDEX = "search/search_index.json"


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    """The site as seen on a desktop in the light scheme, where a test does not say otherwise."""
    return the_site(request.config)


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the check's page saw, the console's lines and the requests."""
    site = the_site(request.config)
    site.requests()
    site.driver.get(f"{site.address}check.html?pages={','.join(PAGES)}")
    site.until("return window.result !== undefined")
    result = site.run("return window.result")
    assert "error" not in result, result["error"]
    return result | {"console": site.driver.get_log("browser"), "requests": site.requests()}


def test_no_console_errors(seen: dict[str, Any]) -> None:
    assert seen["console"] == []


def test_no_request_leaves_the_site(site: Site, seen: dict[str, Any]) -> None:
    assert len(seen["requests"]) > 50
    assert [url for url in seen["requests"] if not url.startswith((site.address, "data:", "blob:", "chrome:"))] == []


CUT = """
return [...document.querySelectorAll("article pre > code")].filter((one) => one.offsetParent &&
  Math.max(one.scrollWidth - one.clientWidth, one.parentElement.scrollWidth - one.parentElement.clientWidth) > 1 &&
  !(innerWidth < 600 && one.closest(".art"))).map((one) => one.textContent.slice(0, 60));
"""


UNSAID = """
const cut = [];
for (const one of document.querySelectorAll("article *")) {
  if (!one.clientWidth || one.closest("svg, math, select, input, .mv-widget *")) continue;
  if (one.scrollWidth - one.clientWidth <= 2) continue;
  const overflow = getComputedStyle(one).overflowX, words = one.textContent.trim().slice(0, 40);
  if (/hidden|clip/.test(overflow)) cut.push(`${one.localName} is cut: ${words}`);
  const said = one.matches(".is-wide") || one.querySelector(".is-wide");
  if (/auto|scroll/.test(overflow) && !said) cut.push(`${one.localName} scrolls unsaid: ${words}`);
}
for (const one of document.querySelectorAll(".figure img")) {
  const least = parseFloat(getComputedStyle(one.parentElement).getPropertyValue("--least"));
  if (!(one.clientWidth + 1 >= least)) cut.push(`${one.src} is ${one.clientWidth} wide, its words ask for ${least}`);
}
return cut;
"""
"""What is wider than a phone and does not say so, and drawings whose words are too small there."""


@pytest.mark.parametrize("width", WINDOWS)
def test_no_page_cuts_code(site: Site, width: int) -> None:
    """Programs and what they print break their lines; a drawing scrolls on a phone, and fits everywhere else."""
    site.window(width)
    site.driver.get(f"{site.address}sitemap.xml")
    paths = re.findall(r"<loc>https://example.org/some/path/([^<]*)</loc>", site.driver.page_source)
    assert len(paths) > 100
    cut = {}
    for path in paths:
        site.driver.get(site.address + path)
        cut[path] = site.run(CUT) + (site.run(UNSAID) if width == 360 else [])
        if site.run("return document.documentElement.scrollWidth") > width:
            cut[path].append("the page is wider than the window")
    assert {path: found for path, found in cut.items() if found} == {}
    site.run("document.querySelector('article').insertAdjacentHTML('beforeend', "
             "'<pre><code style=\"white-space:pre\">' + 'x'.repeat(900) + '</code></pre>')")  # fmt: skip
    assert site.run(CUT), "the measure sees what is cut"


def test_a_self_check_counts_the_first_answer(site: Site) -> None:
    site.open("phase-02-paged-attention/00-guide/")
    press = "document.querySelectorAll('.quiz')[arguments[0]].querySelectorAll('button')[arguments[1]].click()"
    right = [
        int(one) for one in site.run("return [...document.querySelectorAll('.quiz')].map((q) => q.dataset.answer)")
    ]
    score = "return document.querySelector('.quiz-score').textContent"
    assert site.run(score) == f"0 of {len(right)} right on this page"
    site.run(press, 0, right[0])
    site.run(press, 1, (right[1] + 1) % 3)
    site.run(press, 1, right[1])
    assert site.run(score) == f"1 of {len(right)} right on this page", "a second try does not count"
    marks = "return [...document.querySelectorAll('.quiz')].map((q) => [q.querySelector('details').open, "
    assert site.run(marks + "q.querySelectorAll('.is-right').length])")[:3] == [[True, 1], [True, 1], [False, 0]]
    site.driver.refresh()
    assert site.run(score) == f"1 of {len(right)} right on this page"
    site.open("")
    assert "1 self-check right" in site.run("return document.querySelector('.map-score').textContent")
    site.run("localStorage.clear()")


TERMS = """
const [terms] = arguments, done = arguments[arguments.length - 1];
const pause = (ms) => new Promise((go) => setTimeout(go, ms));
(async () => {
  const find = (name) => document.querySelector(name), first = {};
  const field = find(".md-search__input"), box = find(".md-search-result");
  field.focus();
  for (let i = 0; i < 300 && !field.value && !/type to start/i.test(box.textContent); i += 1) await pause(100);
  for (const term of ["zzz", ...terms]) {
    let changed = false;
    const watch = new MutationObserver(() => { changed = true; });
    watch.observe(box, { childList: true, subtree: true, characterData: true });
    field.value = term;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    field.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
    for (let i = 0; i < 200 && !changed; i += 1) await pause(10);
    await pause(80);
    watch.disconnect();
    const links = [...document.querySelectorAll(".md-search-result__item a")];
    const shown = links.find((one) => one.getClientRects().length);
    first[term] = shown?.hash || "";
  }
  done(first);
})();
"""


def test_search_finds_the_definition_of_every_term_first(site: Site) -> None:
    import site_render

    terms = site_render.glossary()
    site.driver.set_script_timeout(300)
    site.open("")
    names, first = list(terms), {}
    for at in range(0, len(names), 15):  # the driver waits two minutes for an answer, on a busy machine too
        first |= site.driver.execute_async_script(TERMS, names[at : at + 15])
    assert {term: first[term] for term, (anchor, _) in terms.items() if first[term] != f"#{anchor}"} == {}


def test_the_glossary_can_be_filtered(site: Site) -> None:
    site.open("GLOSSARY/")
    seen = "return [...document.querySelectorAll('article h3')].filter((one) => one.offsetParent).length"
    everything = site.run(seen)
    focus = "document.getElementById('glossary-filter').focus()"
    site.run(focus)
    site.press("block table")
    assert 1 <= site.run(seen) < everything / 5
    assert site.run("return document.querySelector('.glossary-filter output').textContent").endswith(f"of {everything}")


def test_every_page_has_its_parts(seen: dict[str, Any]) -> None:
    pages = seen["pages"]
    assert all(facts["failed"] == facts["nameless"] == facts["imagesWithoutAlt"] == 0 for facts in pages.values())
    assert {path: facts["widgets"] for path, facts in pages.items()} == {
        "": 0, "docs/play/": 14, "phase-00-foundations/00-guide/": 5, f"{PHASE_03}/00-guide/": 1,
        f"{PHASE_03}/01-deep-dive/": 0, f"{PHASE_03}/labs/lab-04-preemption/": 0, "GLOSSARY/": 0, "labs/": 0,
    }  # fmt: skip
    deep = pages[f"{PHASE_03}/01-deep-dive/"]
    assert len(deep["cites"]) > 10
    assert all("/blob/v0.22.1/" in url and re.search(r"#L\d+(-L\d+)?$", url) for url in deep["cites"])
    assert pages[f"{PHASE_03}/00-guide/"]["titled"] > 10 and deep["terms"] + deep["titled"] > 5
    assert all(facts["edit"] == (path != "labs/") for path, facts in pages.items())
    assert all(facts["next"] == 1 for facts in pages.values())
    assert "Phase 03" in deep["title"], "a browser's tab says more than the navigation"


def test_formulas_are_mathml(site: Site, seen: dict[str, Any]) -> None:
    assert seen["pages"]["phase-00-foundations/00-guide/"]["formulas"] >= 8
    assert seen["pages"]["GLOSSARY/"]["formulas"] == 0
    site.open("phase-04-attention-backends/00-guide/")
    assert site.run("return document.querySelectorAll('.arithmatex').length") == 0
    heights = site.run("return [...document.querySelectorAll('.formula')].map((one) => one.clientHeight)")
    assert heights[0] > 30, "a fraction is drawn as one"


def test_player_steps_scrubs_plays_and_loads(seen: dict[str, Any]) -> None:
    player = seen["player"]
    assert [player[name] for name in ("start", "next", "back")] == ["step 1 of 14", "step 2 of 14", "step 1 of 14"]
    where, said, budget, free = player["scrubbed"]
    assert where == "step 5 of 14" and budget == "A: 1, B: 1, C: 14 of 16"
    assert "C gets 14 tokens of its prompt and is not sampled" in said
    scenes = json.loads((ROOT / "docs/widgets/data/scheduler.json").read_text(encoding="utf-8"))
    assert free == " → ".join(map(str, scenes["chunked prefill"]["steps"][4]["free"]))
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


def deep_words() -> tuple[str, str]:
    """(words, path of the page) from far inside the longest section of the search index's source: a citation's path."""
    page = ROOT / PHASE_03 / "01-deep-dive.md"
    section = max(page.read_text(encoding="utf-8").split("\n## "), key=len)
    words = re.findall(r"`(\w*_\w*_\w+)`", section[2000:])
    return words[-1], f"{PHASE_03}/01-deep-dive/"


@pytest.mark.parametrize("page", ["", "phase-00-foundations/labs/lab-03-sampling-basics/"])
def test_search_loads_its_index_when_it_is_wanted_and_finds_deep_words(site: Site, page: str) -> None:
    site.requests()
    site.open(page, cached=False)
    assert not any(INDEX in url for url in site.requests())
    site.press("/")
    words, found_at = deep_words()
    site.until("return document.activeElement.classList.contains('md-search__input')")
    site.press(words)
    site.until("return document.querySelector('.md-search-result__item') !== null")
    found = site.run("return [...document.querySelectorAll('.md-search-result__item a')].map((a) => a.href)")
    assert any(url.startswith(f"{site.address}{found_at}") for url in found), (words, found)
    assert [url for url in site.requests() if "search_index" in url] == [site.address + INDEX]


def test_search_on_a_phone(site: Site) -> None:
    site.look(width="phone")
    site.requests()
    site.open("labs/", cached=False)
    assert not any(INDEX in url for url in site.requests())
    site.run("document.querySelector('.md-header__button[for=__search]').click()")
    site.until("return document.querySelector('.md-search-result__meta').textContent.includes('Type to start')")
    assert [url for url in site.requests() if "search_index" in url] == [site.address + INDEX]

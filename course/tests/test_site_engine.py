"""The engine's page in headless Chromium: one click fetches the weights, answers are node's, nothing asks elsewhere.

On demand, as `test_site_browser.py`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from course.labs import ROOT
from course.tests.site_fixtures import Site, needs, the_site
from course.tests.test_site_access import AXE, RUN_AXE

pytestmark = [pytest.mark.maintainer, *needs]
PAGE, WEIGHTS = "docs/browser/", "models/pocket/model.safetensors"
PRESS = "[...document.querySelectorAll('mv-engine button')].find((one) => one.textContent === arguments[0]).click()"


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    """The site, with the engine's page freshly open."""
    site = the_site(request.config)
    site.requests()
    site.open(PAGE)
    return site


def start(site: Site) -> None:
    """One click, and the questions can be asked."""
    site.run("document.querySelector('mv-engine button').click()")
    site.until("return document.querySelector('mv-engine .mv-ask') !== null")
    site.run(
        "const pace = document.querySelector('mv-engine select'); pace.value = 'as fast as it can';"
        "pace.dispatchEvent(new Event('change'))"
    )


def play(site: Site, button: str, asked: int) -> None:
    """Presses a button and waits until all of so many questions are answered."""
    site.run(PRESS, button)
    site.until(f"return document.querySelector('mv-engine').dataset.idle === '{asked}'")


def answers(site: Site) -> dict[str, str]:
    """Question -> text."""
    rows = site.run("""return [...document.querySelectorAll('.mv-answers li')].map((one) =>
                       [one.querySelector('b').textContent, one.querySelector('.mv-text').textContent])""")
    return dict(rows)


def recorded() -> dict[str, Any]:
    """Question behind the page's system turn, or alone -> answer."""
    rows = json.loads((ROOT / "docs/engine-js/answers.json").read_text(encoding="utf-8"))["answers"]
    return {(len(row["messages"]), row["messages"][-1]["content"]): row["text"] for row in rows}


def test_weights_come_on_a_click_and_from_here(site: Site) -> None:
    site.until("return document.querySelector('mv-engine button') !== null")
    assert not any(WEIGHTS in url for url in site.requests())
    start(site)
    loaded = site.run("return document.querySelector('mv-engine .mv-live') !== null")
    console = [line for line in site.driver.get_log("browser") if "favicon" not in line["message"]]
    assert loaded and console == []
    assert all(url.startswith((site.address, "data:", "blob:")) for url in site.requests())


def test_two_questions_give_the_recorded_answers(site: Site) -> None:
    start(site)
    play(site, "Two at once", 2)
    expected = {text: recorded()[2, text] for text in ("What is a KV block?", "What is a block table?")}
    assert answers(site) == expected
    for said in site.run("return [...document.querySelectorAll('.mv-speed')].map((one) => one.textContent)"):
        assert re.fullmatch(r"first after [\d,]+ ms, [\d,]+ tokens/s", said), said
    steps = site.run("return document.querySelector('mv-engine').engine.player.trace.steps")
    assert steps[0]["cached"] == {"A": 0, "B": 16} and steps[-1]["running"] == []
    play(site, "Three in a pool of 16", 5)
    assert {text: answers(site)[text] for text in expected} == expected
    steps = site.run("return document.querySelector('mv-engine').engine.player.trace.steps")
    assert steps[0]["cached"] == {"C": 0, "D": 16}, "the example begins with an empty cache"
    assert [id for step in steps for id in step["preempted"]] == ["E", "D"]
    at = next(i for i, step in enumerate(steps) if step["preempted"])
    site.run("document.querySelector('mv-engine').engine.player.show(arguments[0])", at)
    assert site.run("return document.querySelector('.mv-steps .mv-lost').textContent") == "✕"


def test_the_page_compares_itself_with_the_recording(site: Site) -> None:
    start(site)
    site.run(PRESS, "Compare with the recording")
    site.until("return document.querySelector('.mv-compare output').textContent.includes('token by token')")
    count = len(recorded())
    said = site.run("return document.querySelector('.mv-compare output').textContent")
    assert said.startswith(f"{count} of {count} answers equal")


def test_typed_paused_stepped_stopped_and_refused(site: Site) -> None:
    start(site)
    site.run(PRESS, "❚❚ pause")
    site.run(
        "const [first] = document.querySelectorAll('.mv-ask input'); first.value = 'Tell me a joke.'; first.focus()"
    )
    site.press("\ue007")  # the key Enter
    site.run(PRESS, "one step")
    site.until("return document.querySelector('.mv-answers .mv-value').textContent === 'running, 1 tokens'")
    site.run(PRESS, "stop all")
    site.until("return document.querySelector('mv-engine').dataset.idle === '1'")
    assert site.run("return document.querySelector('.mv-answers .mv-value').textContent") == "stopped"
    site.run("document.querySelector('mv-engine').engine.setPool(4)")
    site.run(PRESS, "What is preemption?")
    site.until("return document.querySelector('.mv-answers .mv-value').textContent === 'refused'")
    assert "may need" in site.run("return document.querySelector('mv-engine [role=status]').textContent")


@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: npm install --prefix .venv-axe axe-core@4")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", ["desktop", "phone"])
def test_axe_finds_nothing_serious_while_it_runs(site: Site, scheme: str, width: str) -> None:
    site.look(scheme, width, motion="reduce")
    start(site)
    play(site, "Three in a pool of 16", 3)
    site.run(AXE.read_text(encoding="utf-8"))
    found = site.driver.execute_async_script(RUN_AXE)
    assert [one for one in found if one["impact"] in ("serious", "critical")] == []
    assert site.run("return document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out at the side"

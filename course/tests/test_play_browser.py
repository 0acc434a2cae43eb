"""The playgrounds in headless Chromium, on demand (``SITE_BROWSER=1``): every question can be answered, the score adds
up and stays, the keyboard is enough, nothing is wider than a phone, a prompt can be dragged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from course.labs import ROOT
from course.tests.site_fixtures import Site, needs, the_site

pytestmark = [pytest.mark.maintainer, *needs]
DATA = sorted((ROOT / "docs/play/data").glob("*.json"))
ANSWERS: dict[str, dict[str, Any]] = {p.stem: json.loads(p.read_text(encoding="utf-8"))["answers"] for p in DATA}
TOTAL = sum(map(len, ANSWERS.values()))
ANSWER_ALL = """
const [name, truths] = arguments, root = document.querySelector(`play-${name}`).shadowRoot, said = [];
truths.forEach((truth, i) => {
  root.querySelectorAll(".dot")[i].click();
  const option = [...root.querySelectorAll(".option")].find((one) => one.textContent === String(truth));
  if (option) option.click();
  else {
    const input = root.querySelector(".number input");
    input.value = truth;
    input.dispatchEvent(new Event("input"));
    root.querySelector(".number .primary").click();
  }
  said.push(root.querySelector(".verdict").textContent);
});
return said;
"""
BOARD = "return document.querySelector('play-score').shadowRoot.querySelector('.title').textContent"
ROOTS = "document.querySelector('play-paged').shadowRoot"


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Site:
    site = the_site(request.config)
    site.look()
    site.open("docs/play/")
    site.run("localStorage.clear()")
    site.open("docs/play/")
    return site


def in_order(name: str) -> list[str]:
    """Ids of a playground's questions as its module asks them: the recorders write their answers in that order."""
    return list(ANSWERS[name])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_question_can_be_answered_and_the_score_stays(site: Site, scheme: str) -> None:
    site.look(scheme)
    site.driver.get_log("browser")
    assert site.run(BOARD) == f"★ 0 of {TOTAL}"
    for name, answers in ANSWERS.items():
        said = site.run(ANSWER_ALL, name, [answers[key] for key in in_order(name)])
        assert len(said) == len(answers) and all(words.startswith("✓") for words in said), (name, said)
    assert site.run(BOARD) == f"★ {TOTAL} of {TOTAL}"
    site.open("docs/play/")
    assert site.run(BOARD) == f"★ {TOTAL} of {TOTAL}"
    assert site.driver.get_log("browser") == []
    dark = site.run("return document.querySelector('play-bits').hasAttribute('data-dark')")
    assert dark == (scheme == "dark")


def test_the_first_answer_counts(site: Site) -> None:
    wrong = [1, *list(ANSWERS["paged"].values())[1:]]
    site.run(ANSWER_ALL, "paged", wrong)
    site.run(ANSWER_ALL, "paged", list(ANSWERS["paged"].values()))
    assert site.run(BOARD) == f"★ {len(wrong) - 1} of {TOTAL}"


def test_the_keyboard_is_enough(site: Site) -> None:
    site.run(f"{ROOTS}.querySelector('.number input').focus()")
    site.press("4")
    site.press("\ue007")  # Enter
    assert site.run(f"return {ROOTS}.querySelector('.verdict').textContent") == "✓ Right: 4 blocks."
    assert site.run(f"return {ROOTS}.activeElement.textContent").startswith("Next question")
    site.press("\ue007")
    assert site.run(f"return {ROOTS}.querySelector('.ask').textContent").startswith("2. ")


@pytest.mark.parametrize("across", [360, 1280])
def test_nothing_is_wider_than_the_window(site: Site, across: int) -> None:
    metrics = {"width": across, "height": 800, "deviceScaleFactor": 1, "mobile": across < 600}
    site.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    for step in ("", ".play"):
        site.run(
            "for (const node of document.querySelectorAll('*')) if (node.localName.startsWith('play-'))"
            f" node.shadowRoot.querySelector('.dot{step}')?.click()"
        )
        assert site.run("return document.documentElement.scrollWidth - innerWidth") <= 0
        wide = site.run(
            "return [...document.querySelectorAll('*')].filter((n) => n.localName.startsWith('play-')).flatMap((n) =>"
            " [...n.shadowRoot.querySelectorAll('.card *')].filter((x) => !x.closest('.scroll, svg, .track')"
            " && x.getBoundingClientRect().right > n.getBoundingClientRect().right + 1).map((x) => n.localName +"
            " ' ' + x.className))"
        )
        assert wide == []


def test_a_prompt_is_dragged_onto_a_request(site: Site) -> None:
    from selenium.webdriver import ActionChains

    site.run(f"{ROOTS}.querySelector('.dot.play').click(); {ROOTS}.querySelector('.tray').scrollIntoView()")

    def drag(which: int, onto: str) -> str:
        prompt = site.run(f"return {ROOTS}.querySelectorAll('.prompt')[{which}]")
        seat = site.run(f"return {ROOTS}.querySelector('{onto}')")
        ActionChains(site.driver).click_and_hold(prompt).move_by_offset(12, 12).move_to_element(
            seat
        ).release().perform()
        site.until(f"return {ROOTS}.querySelectorAll('.drag').length === 0")
        return str(
            site.run(
                f"return new Promise((go) => setTimeout(() => go({ROOTS}.querySelector('.note').textContent), 60))"
            )
        )

    assert drag(0, "[data-drop=new]") == "A: found nothing, took 4 new (1, 2, 3, 4)."
    assert drag(1, "[data-drop=A]").startswith("B: found 3 blocks (1, 2, 3)")

"""Formulas of the pages: what is one, that each can be shown, and that GitHub shows the same."""

from __future__ import annotations

import sys

import pytest

from course.labs import ROOT
from course.pages.markdown import read
from course.pages.shape import all_pages

sys.path.insert(0, str(ROOT / "docs"))
import site_math

pytestmark = pytest.mark.maintainer


def test_dollars_and_code_are_no_formulas() -> None:
    text = "It costs $0.60, the price is $1.00. `$HOME` and `$x$`. a$b$c, \\$x$. $y_i$ and ($z$), $n$-th. $ x $"
    assert list(site_math.formulas(text)) == [("y_i", True), ("z", True), ("n", True)]
    assert list(site_math.formulas("a\n\n$$\nx^2\n$$\n\nb")) == [("x^2", False)]


def test_pages_about_money_hold_no_formula() -> None:
    page = read(ROOT / "CAREER.md")
    assert page.text.count("$") >= 4 and list(site_math.formulas(page.prose)) == []


@pytest.mark.parametrize(
    ("tex", "trouble"),
    [
        (r"a \, b", "loses its backslash"),
        (r"\{x\}", "loses its backslash"),
        ("a*b", "star"),
        ("a<b", "space"),
        (r"\operatorname{softmax}", "refuses"),
    ],
)
def test_what_github_would_spoil(tex: str, trouble: str) -> None:
    assert trouble in site_math.github_trouble(tex)
    assert site_math.github_trouble(r"\frac{a_i}{\sqrt{d}} < b") == ""


def page_formulas() -> list[tuple[str, str, str]]:
    """(page, TeX, where it stands) of every formula."""
    found = []
    for path in all_pages():
        page, name = read(path), path.relative_to(ROOT).as_posix()
        found += [(name, tex, "line" if inline else "block") for tex, inline in site_math.formulas(page.prose)]
        found += [(name, fence.text, "fence") for fence in page.fences if fence.language == "math"]
    return found


def test_every_formula_of_the_pages_can_be_shown_here_and_on_github() -> None:
    pytest.importorskip("latex2mathml", reason='needs the site tools (pip install -e ".[docs]")')
    found = page_formulas()
    assert len(found) > 40
    for page, tex, where in found:
        assert site_math.mathml(tex, where == "line").startswith("<math"), page
        check = site_math.macro_trouble if where == "fence" else site_math.github_trouble
        assert check(tex) == "", f"{page}: {tex}: {check(tex)}; a ```math fence is safe"


def test_no_formula_where_it_would_be_read_as_text() -> None:
    """Headings make anchors and navigation; `course hint` prints the folded hints on a terminal."""
    for path in all_pages():
        page = read(path)
        assert [text for _, _, text in page.headings() if list(site_math.formulas(text))] == [], path
        if path.parent.parent.name == "labs":
            hints = page.prose.partition("## Hints")[2].partition("\n## ")[0]
            assert list(site_math.formulas(hints)) == [], path


@pytest.mark.parametrize(
    ("tex", "words"),
    [
        (r"\softmax(x)", r"\\softmax is not known"),
        (r"\frac{a}", "part of a mfrac is missing"),
        ("{a", "braces do not match"),
        ("a & b", "ParseError"),
        (r"\begin{tikz}x\end{tikz}", "environment tikz is not known"),
    ],
)
def test_a_formula_that_would_be_shown_broken_is_an_error(tex: str, words: str) -> None:
    pytest.importorskip("latex2mathml")
    with pytest.raises(site_math.FormulaError, match=words):
        site_math.mathml(tex, True)


def test_the_error_names_page_and_formula() -> None:
    pytest.importorskip("latex2mathml")
    with pytest.raises(site_math.FormulaError, match=r"phase-09/a.md: formula '\\\\foo': \\foo is not known"):
        site_math.render_formulas(r'<p><span class="arithmatex">\(\foo\)</span></p>', "phase-09/a.md")


def test_markdown_to_mathml() -> None:
    """The extension finds the same formulas as `formulas`, in lines, blocks and fences."""
    markdown = pytest.importorskip("markdown")
    arithmatex = pytest.importorskip("pymdownx.arithmatex")
    pytest.importorskip("latex2mathml")
    fence = {"name": "math", "class": "arithmatex", "format": arithmatex.arithmatex_fenced_format(mode="generic")}
    settings = {
        "pymdownx.arithmatex": {"generic": True, "inline_syntax": ["dollar"], "block_syntax": ["dollar"]},
        "pymdownx.superfences": {"custom_fences": [fence]},
    }
    text = "Costs $5 or $6; `$x$`; $a < b$.\n\n$$\nx\n$$\n\n"
    text += "```math\n\\begin{aligned} a &= b \\\\ c &= d \\end{aligned}\n```\n"
    html = markdown.markdown(text, extensions=list(settings), extension_configs=settings)
    shown = site_math.render_formulas(html, "a.md")
    assert shown.count("<math") == 3 and shown.count('<div class="formula">') == 2 and shown.count("<mtr>") == 2
    assert "Costs $5 or $6" in shown and "<code>$x$</code>" in shown and "&#x0003C;" in shown

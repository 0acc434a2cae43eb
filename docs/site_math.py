"""Formulas: TeX in the pages, as GitHub reads it; MathML on the website, made at build time, so that no script runs.

`pymdownx.arithmatex` finds the formulas and latex2mathml converts them. latex2mathml copies what it does not know, so
`mathml` looks at the result, and a formula that would be shown broken stops the build with its page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from xml.etree import ElementTree

_FOUND = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.S
)  # what arithmatex leaves behind: \(…\) in a line, \[…\] in a block
_INLINE = re.compile(r"(?<![\\$\w])\$(?![\s$])([^$\n]*?[^$\s\\])\$(?![$\w])")
_BLOCK = re.compile(r"^\$\$\n(.*?)\n\$\$$", re.M | re.S)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
_PARTS = {"mfrac": 2, "msub": 2, "msup": 2, "mover": 2, "munder": 2, "mroot": 2, "msubsup": 3, "munderover": 3}
_TABLES = {"split", "aligned", "cases", "array", "matrix", "pmatrix", "bmatrix"}
_MATHML = "{http://www.w3.org/1998/Math/MathML}"


class FormulaError(ValueError):
    """A formula that cannot be shown."""


def formulas(prose: str) -> Iterator[tuple[str, bool]]:
    """The (TeX, is it in a line of text) of a page's ``$…$`` and ``$$…$$``. prose: the page without its fences."""
    bare = _CODE.sub("", prose)
    for match in _BLOCK.finditer(bare):
        yield match[1], False
    for match in _INLINE.finditer(_BLOCK.sub("", bare)):
        yield match[1], True


def mathml(tex: str, inline: bool) -> str:
    """The formula as an element ``<math>``. Raises FormulaError with what is wrong with it."""
    from latex2mathml.converter import convert

    if re.sub(r"\\.", "", tex).count("{") != re.sub(r"\\.", "", tex).count("}"):
        raise FormulaError("its braces do not match")
    if strange := set(re.findall(r"\\begin\{([^}]*)\}", tex)) - _TABLES:
        raise FormulaError(f"the environment {strange.pop()} is not known")
    known = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{split}", tex)  # the same table under the name it knows
    try:
        text = convert(known, display="inline" if inline else "block")
        tree = ElementTree.fromstring(text)
    except Exception as error:  # its errors have no common base
        raise FormulaError(f"{type(error).__name__} {error}".strip()) from error
    for node in tree.iter():
        name, words = node.tag.removeprefix(_MATHML), node.text or ""
        if "\\" in words:
            raise FormulaError(f"{words} is not known")
        if name in _PARTS and len(node) != _PARTS[name]:
            raise FormulaError(f"a part of a {name} is missing")
    return text


def github_trouble(tex: str) -> str:
    """Why GitHub would show a formula between dollars wrongly, in a few words; empty where it would not.

    Markdown comes first there: it takes the backslash before punctuation and reads stars. A ``math`` fence is safe.
    """
    if match := re.search(r"\\[!-/:-@\[-`{-~]", tex):
        return f"{match[0]} loses its backslash"
    if "*" in tex:
        return "a star may become emphasis"
    if re.search(r"<\S", tex):
        return "put a space behind <"
    return macro_trouble(tex)


def macro_trouble(tex: str) -> str:
    """As `github_trouble`, for macros that GitHub refuses everywhere."""
    return "GitHub refuses \\operatorname; use \\text" if "\\operatorname" in tex else ""


def render_formulas(html: str, page: str) -> str:
    """Each formula of a page's HTML as MathML. Raises FormulaError that names ``page`` and the formula."""

    def shown(match: re.Match[str]) -> str:
        tex, inline = unescape(match["tex"]).strip(), match["tag"] == "span"
        try:
            element = mathml(tex, inline)
        except FormulaError as error:
            raise FormulaError(f"{page}: formula {tex!r}: {error}") from error
        return element if inline else f'<div class="formula">{element}</div>'

    return _FOUND.sub(shown, html)

"""What the website adds to a page that GitHub does not show: links to the pinned release, tooltips, tags, pictures.

Pure functions from text to text; `docs/site_hooks.py` calls them at the right moment of the build.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from html import escape, unescape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from course.labs import all_labs  # noqa: E402
from course.pages.markdown import read, slug  # noqa: E402
from course.upstream.fetch import PIN  # noqa: E402

TAG_WORDS = {
    "CPU-OK": "runs anywhere",
    "GPU-OPT": "better on a GPU; has a way without one",
    "GPU-REQ": "real CUDA kernels; a captured run to read without a GPU",
}
WIDGETS = {
    "engine": "scheduler.js live.js engine.js",
    "scheduler": "scheduler.js",
    "kv-memory": "arithmetic.js",
    "roofline": "arithmetic.js",
    "sampler": "sampler.js",
}
PLAYGROUNDS = {"play-score": "core.js"} | {
    f"play-{name}": f"{name}.js"
    for name in ("tokenizer", "attention", "life", "paged", "softmax", "launch", "bits", "router", "encoder")
}
"""Modules in ``docs/play/``."""
_MARKER = re.compile(r"^<!-- widget: (?P<name>[a-z-]+)(?: \| (?P<scene>[^|>]+?))? -->$", re.M)
_STILL = re.compile(r"^!\[[^\]\n]*\]\(play/stills/[\w-]+\.webp\)\n\n(?=<!-- widget: play-)", re.M)
"""A playground's still picture, for GitHub: on the website the playground stands in its place."""
_EXCERPT = re.compile(r"^(?P<indent>[ ]*)<!-- upstream: (?P<path>\S+?):(?P<first>\d+)(?:-(?P<last>\d+))? -->$", re.M)
_PLACE = re.compile(
    r"<(?P<block>p|table|h[1-6]|ul|ol)\b[^>]*>"
    r"|<code>(?:upstream/(?P<path>[\w./-]+))?:(?P<first>\d+)(?:-(?P<last>\d+))?</code>"
)
_TAG = re.compile(rf"<code>\[({'|'.join(TAG_WORDS)})\]</code>")
_PIECE = re.compile(r"(<!--.*?-->|<[^>]+>)", re.S)
_QUIET = {"a", "abbr", "button", "code", "math", "pre", "script", "style", "summary", "svg"}
_QUIET |= {f"h{level}" for level in range(1, 7)}
MAX_TOOLTIP = 240
FILTER = (
    '<p class="glossary-filter" hidden><label for="glossary-filter">Show terms with</label> '
    '<input id="glossary-filter" type="search" autocomplete="off"> <output for="glossary-filter"></output></p>'
)
"""The glossary's box; `docs/site.js` shows it."""
NO_BREAK = "\u2011"
"""A hyphen at which no line is broken."""


def blob_url(path: str, first: str, last: str | None) -> str:
    """Where a line of the pinned release stands on the web."""
    lines = f"#L{first}" + (f"-L{last}" if last else "")
    return f"{PIN.repository.removesuffix('.git')}/blob/{PIN.tag}/{path}{lines}"


def link_citations(html: str) -> str:
    """`upstream/PATH:LINE` becomes a link, and so does a short `:LINE` after it in the same block."""
    path = ""

    def linked(match: re.Match[str]) -> str:
        nonlocal path
        if match["block"]:
            path = ""
            return match[0]
        path = match["path"] or path
        if not path:
            return match[0]
        url = blob_url(path, match["first"], match["last"])
        title = f"open {path.rsplit('/', 1)[-1]} of {PIN.tag} at this line"
        return f'<a class="cite" href="{url}" title="{title}">{match[0]}</a>'

    return _PLACE.sub(linked, html)


def link_excerpts(markdown: str) -> str:
    """Put a line with the place, as a link, above each excerpt of the pinned release."""

    def linked(match: re.Match[str]) -> str:
        url = blob_url(match["path"], match["first"], match["last"])
        lines = match["first"] + (f"–{match['last']}" if match["last"] else "")
        link = f'<a class="cite" href="{url}">{match["path"]}, lines {lines}</a>'
        return f'{match["indent"]}<p class="excerpt">{link}</p>\n'

    return _EXCERPT.sub(linked, markdown)


_NEIGHBOURS = re.compile(r"^(?=.*\]\([^)]*README\.md\))(?:previous: |\[course home\]\().*$\n?", re.M | re.I)
_CONTENTS = re.compile(r"^## Contents$.*?(?=^#|^---$)|^Sections: \[.*?(?=^$)", re.M | re.S)


def without_doubles(markdown: str) -> str:
    """Without what the website shows beside every page, and GitHub does not: neighbours, and a guide's contents."""
    return _CONTENTS.sub("", _NEIGHBOURS.sub("", markdown))


def breakable(html: str) -> str:
    """Places in code where a line may end, behind a dot, a slash or an underscore: in tables, and in long paths."""
    places = re.compile(r"([._/])(?=\w)")

    def cell(match: re.Match[str]) -> str:
        return re.sub(r"(?<=<code>)[^<]+", lambda code: places.sub(r"\1<wbr>", code[0]), match[0])

    html = re.sub(r"<td\b.*?</td>", cell, html, flags=re.S)
    return re.sub(r"(?<=<code>)[\w.:-]+/[\w./:-]{24,}(?=</code>)", lambda code: places.sub(r"\1<wbr>", code[0]), html)


_BLOCK = re.compile(r'<div class="(?P<kind>[^"]*\bhighlight)"><pre>(?P<code>.*?)</pre>', re.S)
_ART = re.compile("[\u2190-\u21ff\u2500-\u25ff]")
"""Arrows, lines, boxes and shades: a drawing, whose lines must not be broken."""


def fitted(html: str) -> str:
    """Blocks of code that are drawings get their width in characters, from which the style sheet makes letters that
    fit; lines of all others may be broken."""

    def block(match: re.Match[str]) -> str:
        text = unescape(re.sub(r"<[^>]+>", "", match["code"]))
        if sum(bool(_ART.search(line)) for line in text.splitlines()) < 2:
            return match[0]
        width = max(map(len, text.splitlines()))
        return f'<div class="{match["kind"]} art" style="--w:{width}"><pre>{match["code"]}</pre>'

    return _BLOCK.sub(block, html)


def tag_pills(html: str) -> str:
    """`[CPU-OK]` and its sisters as small labels that say what they mean."""
    return _TAG.sub(lambda m: pill(m[1]), html)


def pill(tag: str) -> str:
    """One label."""
    return f'<span class="tag tag-{tag.lower()}" title="{TAG_WORDS[tag]}">{tag}</span>'


def labs_page(titles: Mapping[str, str]) -> str:
    """A page of all labs by hardware, from ``course/labs.toml``. titles: folder -> heading of its README."""
    lines = ["# Labs by hardware", "", "From the table that the course's commands read, `course/labs.toml`. "]
    lines += ["Minutes are an estimate: words to read, lines to write, tests to understand. "]
    lines += ["A lab with a *place in the engine* can serve a real model: `mini-vllm generate --with-labs`.", ""]
    labs = [lab for lab in all_labs() if f"{lab.phase}/labs/{lab.slug}" in titles]
    for tag, words in TAG_WORDS.items():
        chosen = [lab for lab in labs if lab.tag == tag]
        hours = sum(lab.minutes for lab in chosen) / 60
        lines += [f"## {tag}", "", f"`[{tag}]` {words}. {len(chosen)} labs, {hours:.0f} hours.", ""]
        lines += ["| Lab | Minutes | After | Place in the engine |", "|---|--:|---|---|"]
        for lab in chosen:
            folder = f"{lab.phase}/labs/{lab.slug}"
            title = re.sub(r"^Lab[\s\d-]+[—·:-]\s*|\s*\[[A-Z-]+\]", "", titles[folder])
            plug = f"`{lab.plug[0].removeprefix('mini_vllm.')}`" if lab.plug else ""
            after = ", ".join(name.replace("-", NO_BREAK) for name in lab.prerequisites)
            link = f"[{lab.name[:5].replace('-', NO_BREAK)} {title}]({folder}/README.md)"
            lines.append(f"| {link} | {lab.minutes} | {after} | {plug} |")
        lines.append("")
    return "\n".join(lines)


def place_widgets(markdown: str, to_root: str) -> str:
    """`<!-- widget: NAME -->`, or `<!-- widget: scheduler | SCENE -->`, becomes the interactive picture.

    to_root: path from the page's address to the site's root, such as "../../". Raises ValueError for another name.
    """
    names = [match["name"] for match in _MARKER.finditer(markdown)]
    for name in names:
        if name not in {**WIDGETS, **PLAYGROUNDS}:
            raise ValueError(f"widget {name!r} does not exist; there are {', '.join([*WIDGETS, *PLAYGROUNDS])}")
    if not names:
        return markdown

    def element(match: re.Match[str]) -> str:
        scene = f' data-scene="{escape(match["scene"])}"' if match["scene"] else ""
        words = "An interactive picture stands here; it needs JavaScript."
        if (name := match["name"]) in PLAYGROUNDS:
            return f'<div id="{name}"><{name}></{name}><noscript>{words}</noscript></div>'
        return f"<div><mv-{name}{scene}></mv-{name}><noscript>{words}</noscript></div>"

    files = list(dict.fromkeys(file for name in names if name in WIDGETS for file in WIDGETS[name].split()))
    files = ["core.js", "ui.js", *files] if files else []
    scripts = [f'<script defer src="{to_root}widgets/{file}"></script>' for file in files]
    scripts += [
        f'<script type="module" src="{to_root}play/{PLAYGROUNDS[name]}"></script>'
        for name in dict.fromkeys(names)
        if name in PLAYGROUNDS
    ]
    style = f'<link rel="stylesheet" href="{to_root}widgets/widgets.css">'
    return f"{_MARKER.sub(element, _STILL.sub('', markdown))}\n\n" + "\n".join([style, *scripts]) + "\n"


def glossary(path: Path = ROOT / "GLOSSARY.md") -> dict[str, tuple[str, str]]:
    """Term in lower case -> (anchor, first paragraph as plain text)."""
    page, found = read(path), {}
    lines = page.text.splitlines()
    for line, level, title in page.headings():
        if level != 3:
            continue
        words: list[str] = []
        for text in lines[line:]:
            if words and (not text.strip() or text.startswith("#")):
                break
            words += [text.strip()] if text.strip() else []
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(words))
        found[re.sub(r"[`*]", "", title).lower()] = (slug(title), shortened(re.sub(r"[`*]", "", plain)))
    return found


def shortened(text: str) -> str:
    """At most ``MAX_TOOLTIP`` characters, cut after a sentence where that leaves enough."""
    if len(text) <= MAX_TOOLTIP:
        return text
    head = text[:MAX_TOOLTIP]
    end = head.rfind(". ")
    return head[: end + 1] if end > 60 else head.rsplit(" ", 1)[0] + " …"


def add_tooltips(html: str, terms: Mapping[str, tuple[str, str]], glossary_url: str) -> str:
    """Give links into the glossary their definition, and mark the first bare use of each further term of two words
    or more; single words, such as "step", are too common to mark without a link."""
    by_anchor = dict(terms.values())

    def titled(match: re.Match[str]) -> str:
        text = by_anchor.get(match[2])
        return f'{match[1]} title="{escape(text)}"' if text else match[0]

    html = re.sub(rf'(<a href="{re.escape(glossary_url)}#([^"]+)")', titled, html)
    linked = set(re.findall(rf'<a href="{re.escape(glossary_url)}#([^"]+)"', html))
    return _mark_terms(html, {t: v for t, v in terms.items() if " " in t and v[0] not in linked}, glossary_url)


def _mark_terms(html: str, left: dict[str, tuple[str, str]], glossary_url: str) -> str:
    """A link, not an ``<abbr>``: the Tab key reaches it, and so does a finger."""
    if not left:
        return html
    names = "|".join(re.escape(term) for term in sorted(left, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])({names})(?![\w-])", re.I)

    def marked(match: re.Match[str]) -> str:
        if (found := left.pop(match[0].lower(), None)) is None:
            return match[0]
        return f'<a class="term" href="{glossary_url}#{found[0]}" title="{escape(found[1])}">{match[0]}</a>'

    pieces, quiet = _PIECE.split(html), 0
    for at, piece in enumerate(pieces):
        if at % 2 == 0:
            pieces[at] = piece if quiet else pattern.sub(marked, piece)
        elif (tag := re.match(r"<(/?)([a-z][a-z0-9-]*)", piece, re.I)) and tag[2].lower() in _QUIET:
            quiet = max(0, quiet + (-1 if tag[1] else 1))
    return "".join(pieces)


_KEPT = re.compile(r"(<(pre|script|textarea)\b.*?</\2>)", re.S)


def without_gaps(html: str) -> str:
    """Without the empty lines and indents of the theme's templates, a tenth of a page; code stays as it is."""
    pieces = _KEPT.split(html)  # text, element, its name, text, …
    return "".join(
        re.sub(r"\s*\n\s*", "\n", piece) if at % 3 == 0 else piece if at % 3 == 1 else ""
        for at, piece in enumerate(pieces)
    )


def name_landmarks(html: str) -> str:
    """Names that the theme's markup leaves out or gives twice, for readers who hear the page instead of seeing it."""
    search = 'data-md-component="search" role="dialog"'
    html = html.replace(search, f'{search} aria-label="Search"')
    contents = 'aria-label="Table of contents"'  # stands in the navigation, for phones, and beside the page
    return html.replace(contents, 'aria-label="On this page"', 1) if html.count(contents) > 1 else html

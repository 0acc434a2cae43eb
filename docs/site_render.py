"""What the website adds to a page that GitHub does not show: links to the pinned release, tooltips, tags, pictures.

Pure functions from text to text; `docs/site_hooks.py` calls them at the right moment of the build.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from course.labs import all_labs  # noqa: E402
from course.markdown import read, slug  # noqa: E402
from course.upstream import PIN  # noqa: E402

TAG_WORDS = {
    "CPU-OK": "runs anywhere",
    "GPU-OPT": "better on a GPU; has a way without one",
    "GPU-REQ": "real CUDA kernels; a captured run to read without a GPU",
}
WIDGETS = {
    "scheduler": "scheduler.js",
    "kv-memory": "arithmetic.js",
    "roofline": "arithmetic.js",
    "sampler": "sampler.js",
}
_MARKER = re.compile(r"^<!-- widget: (?P<name>[a-z-]+)(?: \| (?P<scene>[^|>]+?))? -->$", re.M)
_EXCERPT = re.compile(r"^(?P<indent>[ ]*)<!-- upstream: (?P<path>\S+?):(?P<first>\d+)(?:-(?P<last>\d+))? -->$", re.M)
_PLACE = re.compile(
    r"<(?P<block>p|table|h[1-6]|ul|ol)\b[^>]*>"
    r"|<code>(?:upstream/(?P<path>[\w./-]+))?:(?P<first>\d+)(?:-(?P<last>\d+))?</code>"
)
_TAG = re.compile(rf"<code>\[({'|'.join(TAG_WORDS)})\]</code>")
_PIECE = re.compile(r"(<!--.*?-->|<[^>]+>)", re.S)
_QUIET = {"a", "abbr", "button", "code", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "script", "style", "summary", "svg"}
MAX_TOOLTIP = 240
MAX_INDEXED = 700
"""Characters of a section that search looks into; its heading is always there."""


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


def tag_pills(html: str) -> str:
    """`[CPU-OK]` and its sisters as small labels that say what they mean."""
    return _TAG.sub(lambda m: pill(m[1]), html)


def pill(tag: str) -> str:
    """One label."""
    return f'<span class="tag tag-{tag.lower()}" title="{TAG_WORDS[tag]}">{tag}</span>'


def labs_page(titles: Mapping[str, str]) -> str:
    """A page of all labs by hardware, from ``course/labs.toml``. titles: folder -> heading of its README."""
    lines = ["# Labs by hardware", "", "From the table that the course's commands read, `course/labs.toml`.", ""]
    labs = [lab for lab in all_labs() if f"{lab.phase}/labs/{lab.slug}" in titles]
    for tag, words in TAG_WORDS.items():
        chosen = [lab for lab in labs if lab.tag == tag]
        lines += [f"## {tag}", "", f"{words[0].upper()}{words[1:]}. {len(chosen)} labs.", ""]
        lines += ["| Lab | Minutes | After | Plugs into |", "|---|---|---|---|"]
        for lab in chosen:
            folder = f"{lab.phase}/labs/{lab.slug}"
            title = re.sub(r"^Lab[\s\d-]+[—·:-]\s*|\s*\[[A-Z-]+\]", "", titles[folder])
            plug = f"`{lab.plug}`" if lab.plug else "–"
            after = ", ".join(lab.prerequisites) or "–"
            link = f"[{lab.name[:5]} {title}]({folder}/README.md)"
            lines.append(f"| {link} | {lab.minutes} | {after} | {plug} |")
        lines.append("")
    return "\n".join(lines)


def place_widgets(markdown: str, to_root: str) -> str:
    """`<!-- widget: NAME -->`, or `<!-- widget: scheduler | SCENE -->`, becomes the interactive picture.

    to_root: path from the page's address to the site's root, such as "../../". Raises ValueError for another name.
    """
    names = [match["name"] for match in _MARKER.finditer(markdown)]
    for name in names:
        if name not in WIDGETS:
            raise ValueError(f"widget {name!r} does not exist; there are {', '.join(WIDGETS)}")
    if not names:
        return markdown

    def element(match: re.Match[str]) -> str:
        scene = f' data-scene="{escape(match["scene"])}"' if match["scene"] else ""
        name = f"mv-{match['name']}"
        words = "An interactive picture stands here; it needs JavaScript."
        return f"<div><{name}{scene}></{name}><noscript>{words}</noscript></div>"

    files = ["core.js", "ui.js", *dict.fromkeys(WIDGETS[name] for name in names)]
    scripts = "\n".join(f'<script defer src="{to_root}widgets/{file}"></script>' for file in files)
    return f"{_MARKER.sub(element, markdown)}\n\n{scripts}\n"


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
    left = {term: text for term, (anchor, text) in terms.items() if " " in term and anchor not in linked}
    return _mark_terms(html, left)


def _mark_terms(html: str, left: dict[str, str]) -> str:
    if not left:
        return html
    names = "|".join(re.escape(term) for term in sorted(left, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])({names})(?![\w-])", re.I)

    def marked(match: re.Match[str]) -> str:
        text = left.pop(match[0].lower(), None)
        return f'<abbr title="{escape(text)}">{match[0]}</abbr>' if text else match[0]

    pieces, quiet = _PIECE.split(html), 0
    for at, piece in enumerate(pieces):
        if at % 2 == 0:
            pieces[at] = piece if quiet else pattern.sub(marked, piece)
        elif (tag := re.match(r"<(/?)([a-z][a-z0-9-]*)", piece, re.I)) and tag[2].lower() in _QUIET:
            quiet = max(0, quiet + (-1 if tag[1] else 1))
    return "".join(pieces)


def smaller_index(text: str) -> str:
    """The search index without code blocks and marks, and with ``MAX_INDEXED`` characters of each section."""
    index = json.loads(text)
    for entry in index["docs"]:
        prose = re.sub(r"<pre.*?</pre>", " ", entry["text"], flags=re.S)
        entry["text"] = " ".join(re.sub(r"<[^>]+>", " ", prose).split())[:MAX_INDEXED]
    return json.dumps(index, ensure_ascii=False, separators=(",", ":"))

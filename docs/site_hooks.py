"""Hooks for `mkdocs build`: gather the repository's pages, in their order, and render them as on GitHub.

No page is copied for the website. Pages, pictures, and the files that pages link to are taken from where they are, so
that every relative link is the same on GitHub and on the website. What the website adds (links to the pinned release,
tooltips, tags, interactive pictures, edit links) is in `site_render.py`; two pages, labs and boxes, are made here.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import site_fill  # noqa: E402
import site_map  # noqa: E402
import site_phone  # noqa: E402
import site_quiz  # noqa: E402
import site_render as render  # noqa: E402
from site_math import FormulaError, render_formulas  # noqa: E402

from course.labs import all_labs, lab_folders, tomllib  # noqa: E402
from course.pages.markdown import files as find  # noqa: E402
from course.pages.markdown import read  # noqa: E402

HOME = "README.md"
FRONT = ("SETUP.md", "docs/evening.md", "docs/paths.md", "docs/play.md", "docs/browser.md")
PARTS = ROOT / "docs" / "parts.toml"
LABS_PAGE = "labs.md"
MAP_PAGE = "map.md"
MADE = {LABS_PAGE: "Labs by hardware", MAP_PAGE: "The engine, box by box"}
"""Pages that are made here, and what the navigation calls them."""
GLOSSARY = "GLOSSARY.md"
NOT_PUBLISHED = ("__pycache__/", "overrides/")
CHECKPOINT = {ROOT / "models/pocket" / name for name in ("config.json", "tokenizer.json", "model.safetensors")}
"""What the engine in the browser fetches, on a click."""
FACE = {ROOT / "docs/img" / name for name in ("logo.svg", "card.png")}
"""The icon of every page, and what others show of one that is shared (`card.svg`, 1200 by 630)."""
REFERENCE = (
    GLOSSARY,
    LABS_PAGE,
    MAP_PAGE,
    "docs/engine.md",
    "docs/corridor.md",
    "docs/places.md",
    "docs/serving.md",
    "docs/multimodal.md",
    "docs/distributed.md",
    "docs/disaggregation.md",
    "docs/tuning.md",
    "docs/gpu.md",
    "docs/add-a-model.md",
    "docs/plugins.md",
    "docs/parity.md",
    "docs/structured-outputs.md",
    "docs/parsers.md",
    "docs/milestones.md",
    "docs/coverage.md",
    "docs/grading.md",
    "docs/upstream-tests.md",
)
STOP_WORDS = {"all", "to"}
"""Words of terms that the search leaves out of its index; a term of such words alone gets another to be found by."""
FOLDERS = {"benchmarks": "Benchmarks", "models": "Models", "examples": "Examples"}
BACK = ("CAREER.md", "CONTRIBUTING.md", "UPSTREAM_PIN.md", "PUBLISHING.md")
GUIDE = "00-guide.md"
PHASE_PAGES = {
    GUIDE: "Guide",
    "01-deep-dive.md": "Deep dive",
    "02-mini-build.md": "Mini-build",
    "EXERCISES.md": "Exercises",
    "INTERVIEW.md": "Interview",
    "CHEATSHEET.md": "Cheatsheet",
}


def pages() -> list[Path]:
    """Every page of the repository."""
    return find(ROOT, ".md")


def title(path: Path) -> str:
    """A page's first heading without marks, or its name."""
    return next((re.sub(r"[`*]", "", text) for _, level, text in read(path).headings() if level == 1), path.stem)


def assets() -> set[Path]:
    """Files in the repository that pages link to or show, pages left out."""
    found = set()
    for page in pages():
        for _, target in read(page).links():
            if re.match(r"[a-z][a-z0-9+.-]*:|//|#", target, re.I):
                continue
            path = (page.parent / target.partition("#")[0]).resolve()
            if path.is_file() and path.suffix != ".md" and ROOT in path.parents:
                found.add(path)
    return found


def lab_label(readme: Path) -> str:
    """``Lab 03-03 — The hit rate [GPU-OPT]`` is ``03-03 The hit rate · GPU-OPT`` beside the page."""
    words = re.sub(r"^Lab\s+([\d-]+)\s*[—·:-]\s*", r"\1 ", title(readme)).replace(" [CPU-OK]", "")
    return re.sub(r"\s*\[([A-Z-]+)\]", r" · \1", words)


def phase_nav(folder: Path) -> dict[str, Any]:
    """One phase: its guide as the section's own page, its other pages, and its labs in their order."""
    entries: list[Any] = []
    for name, label in PHASE_PAGES.items():
        if (folder / name).is_file():
            page = f"{folder.name}/{name}"
            entries.append(page if name == GUIDE else {label: page})
        if name == "01-deep-dive.md" and (folder / "labs" / "README.md").is_file():
            labs = sorted((folder / "labs").glob("lab-*/README.md"))
            rows: list[Any] = [{"Overview": f"{folder.name}/labs/README.md"}]
            rows += [{lab_label(lab): lab.relative_to(ROOT).as_posix()} for lab in labs]
            entries.append({"Labs": rows})
    number = folder.name[6:8]
    words = title(folder / "00-guide.md").partition("—")[2].strip(" ⭐")
    return {f"{number} {words}": entries}


def label(name: str) -> str:
    """What the navigation calls a page outside the phases. Where pages share a heading, their file says which."""
    if name in MADE:
        return MADE[name]
    same = [page for page in (ROOT / name).parent.glob("*.md") if title(page) == title(ROOT / name)]
    which = f" ({Path(name).stem.rpartition('-')[2]})" if len(same) > 1 else ""
    return title(ROOT / name) + which


def parts_nav() -> list[dict[str, Any]]:
    """The parts of the course that have phases, with these and their further pages; a phase of no part stands alone."""
    left = {int(p.name[6:8]): p for p in sorted(ROOT.glob("phase-[0-9][0-9]-*")) if (p / GUIDE).is_file()}
    found: list[dict[str, Any]] = []
    for part in tomllib.loads(PARTS.read_text(encoding="utf-8"))["part"]:
        phases = [phase_nav(left.pop(number)) for number in part["phases"] if number in left]
        if phases:
            found.append({part["title"]: [*phases, *({label(name): name} for name in part["pages"])]})
    return found + [phase_nav(folder) for folder in left.values()]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation, a tab each: home, front pages, the parts of the course, reference, everything else."""
    parts = parts_nav()
    placed = {name for part in tomllib.loads(PARTS.read_text(encoding="utf-8"))["part"] for name in part["pages"]}
    every = [path.relative_to(ROOT).as_posix() for path in pages()]
    named = [HOME, *FRONT, *REFERENCE, *placed]
    left = [name for name in dict.fromkeys([*BACK, *every]) if name not in named and not name.startswith("phase-")]

    def group(names: list[str]) -> list[Any]:
        return [{label(name): name} for name in names]

    folders = {words: group([n for n in left if n.startswith(f"{top}/")]) for top, words in FOLDERS.items()}
    rest = group([name for name in left if name.partition("/")[0] not in FOLDERS])
    more = [*group(list(REFERENCE)), *({words: found} for words, found in folders.items() if found)]
    config.nav = [{"Home": HOME}, {"Start": group(list(FRONT))}, *parts, {"Reference": more}, {"More": rest}]
    config.watch = [str(path) for path in pages()]
    return config


def on_nav(nav: Any, **_: Any) -> Any:
    """A guide is the page of its phase's section; the theme takes for this what is called index."""
    for page in nav.pages:
        if page.file.src_uri.endswith(f"/{GUIDE}"):
            page.file.url, page.file.dest_uri  # noqa: B018  both follow the name, and are kept once they are asked for
            page.file.name = "index"
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Puts the repository's pages, and what they link to, in the place of the contents of ``docs/``."""
    left_out = (".md", ".py", ".svg", ".png", ".toml")
    kept = [f for f in files if not f.src_uri.endswith(left_out) and not any(x in f.src_uri for x in NOT_PUBLISHED)]
    gathered = [
        File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
        for path in [*pages(), *sorted(assets() | CHECKPOINT | FACE | site_map.files())]
    ]
    titles = {
        folder.relative_to(ROOT).as_posix(): title(folder / "README.md")
        for folder in lab_folders(ROOT)
        if (folder / "README.md").is_file()
    }
    gathered.append(File.generated(config, LABS_PAGE, content=render.labs_page(titles)))
    gathered.append(File.generated(config, MAP_PAGE, content=site_map.page_markdown()))
    return Files([*kept, *gathered])


def repository(env: Any = os.environ) -> str:
    """Address of the repository for edit links: ``SITE_REPO_URL``, or where GitHub Actions runs; else empty."""
    actions = f"{env['GITHUB_SERVER_URL']}/{env['GITHUB_REPOSITORY']}" if "GITHUB_REPOSITORY" in env else ""
    return env.get("SITE_REPO_URL", actions).rstrip("/")


def on_pre_page(page: Page, **_: Any) -> Page:
    """Edit links. Not by ``repo_url``, with which the theme would ask GitHub for stars at run time."""
    if (url := repository()) and page.file.src_uri not in MADE:
        page.edit_url = f"{url}/edit/main/{page.file.src_uri}"
    return page


def hero(to_root: str) -> str:
    """The block of the landing page under the README's first sentence."""
    labs = [lab for lab in all_labs() if lab.folder.is_dir()]
    values = {
        "root": to_root,
        "phases": len(list(ROOT.glob("phase-[0-9][0-9]-*/00-guide.md"))),
        "labs": len(labs),
        "cpu": sum(lab.tag == "CPU-OK" for lab in labs),
        "terms": len(glossary()),
        "tag": render.PIN.tag,
        "map": site_map.map_html("" if to_root == "./" else to_root, "map/"),
        "fill": site_fill.fill_html(),
    }
    text = (ROOT / "docs" / "overrides" / "hero.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{ (\w+) \}\}", lambda m: str(values[m[1]]), text)


@functools.cache
def glossary() -> dict[str, tuple[str, str]]:
    """The terms, read once a build."""
    return render.glossary()


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Pictures, excerpts' places, and Markdown inside ``<details>`` rendered as GitHub does."""
    to_root = get_relative_url("", page.url).rstrip("/") + "/"
    markdown = site_quiz.with_questions(markdown, page.file.src_uri)
    if page.file.abs_src_path and page.file.src_uri != HOME:  # "Guide" is enough in the navigation, not on a tab
        page.meta.setdefault("title", title(Path(page.file.abs_src_path)))
    if page.file.src_uri == HOME:
        page.meta["hide"] = ["navigation", "toc"]
        heading, promise, _recording, rest = markdown.split("\n\n", 3)  # the real things follow in its place
        markdown = "\n\n".join([heading, promise, hero(to_root), rest])
    if page.file.src_uri == GLOSSARY:
        markdown = markdown.replace("\n## ", f"\n{render.FILTER}\n\n## ", 1)
    markdown = render.place_widgets(render.link_excerpts(render.without_doubles(markdown)), to_root)
    return re.sub(r"<(details|summary)>", r'<\1 markdown="1">', markdown)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Formulas, links to the pinned release, tags, tooltips."""
    try:
        html = render_formulas(html, page.file.src_uri)
    except FormulaError as error:
        raise PluginError(str(error)) from error
    if page.file.src_uri == HOME:
        html = html.replace("<img ", '<img loading="lazy" ')  # below the first screen
    html = render.fitted(render.tag_pills(render.link_citations(html)))
    html = site_phone.figures(site_phone.cards(render.breakable(html)), page.url)
    if page.file.src_uri == GLOSSARY:
        return html
    return render.add_tooltips(html, glossary(), get_relative_url("GLOSSARY/", page.url))


def finished(html: str) -> str:
    """What the theme's markup leaves out for readers who do not see it; the search has `docs/search-worker.js`."""
    worker = r"assets/javascripts/workers/(search\.\w+\.min\.js)"
    html, found = re.subn(worker, r"search-worker.js?\1", html)
    if found != 1:
        raise PluginError(
            f"the theme names its search worker {found} times in a page, not once: see docs/search-worker.js"
        )
    return render.without_gaps(render.name_landmarks(html))


def on_post_page(output: str, **_: Any) -> str:
    """Every page but the one for missing addresses."""
    return finished(output)


def on_post_build(config: MkDocsConfig) -> None:
    """A term of words that the search leaves out is found as one word; the order of what is found is the worker's."""
    path = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    for entry in index["docs"]:
        if entry["location"].startswith("GLOSSARY/#"):
            words = re.findall(r"\w+", re.sub(r"<[^>]+>", "", entry["title"]).lower())
            if set(words) <= STOP_WORDS:
                entry["tags"] = ["".join(words)]
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """The page for missing addresses is a template."""
    return finished(output_content) if template_name == "404.html" else output_content

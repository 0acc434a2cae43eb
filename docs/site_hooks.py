"""Hooks for `mkdocs build`: gather the repository's pages, in their order, and render them as on GitHub.

No page is copied or written for the website. Pages, pictures, and the files that pages link to are taken from where
they are, so that every relative link is the same on GitHub and on the website.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from course.markdown import files as find  # noqa: E402
from course.markdown import read  # noqa: E402

FRONT = ("README.md", "SETUP.md", "GLOSSARY.md", "docs/engine.md", "docs/milestones.md")
BACK = ("CAREER.md", "CONTRIBUTING.md", "UPSTREAM_PIN.md", "PUBLISHING.md")
PHASE_PAGES = {
    "00-guide.md": "Guide",
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


def phase_nav(folder: Path) -> dict[str, Any]:
    """One phase: its pages, and its labs in their order."""
    entries: list[Any] = []
    for name, label in PHASE_PAGES.items():
        if (folder / name).is_file():
            entries.append({label: f"{folder.name}/{name}"})
        if name == "02-mini-build.md" and (folder / "labs" / "README.md").is_file():
            labs = sorted((folder / "labs").glob("lab-*/README.md"))
            rows: list[Any] = [{"Overview": f"{folder.name}/labs/README.md"}]
            rows += [{title(lab): lab.relative_to(ROOT).as_posix()} for lab in labs]
            entries.append({"Labs": rows})
    number = folder.name[6:8]
    words = title(folder / "00-guide.md").partition("—")[2].strip(" ⭐")
    return {f"{number} {words}": entries}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation: front pages, the phases that exist, back pages."""
    phases = [phase_nav(p) for p in sorted(ROOT.glob("phase-[0-9][0-9]-*")) if p.is_dir()]
    front = [{title(ROOT / name): name} for name in FRONT if (ROOT / name).is_file()]
    rest = [name for path in pages() if not (name := path.relative_to(ROOT).as_posix()).startswith("phase-")]
    back = [{title(ROOT / name): name} for name in dict.fromkeys([*BACK, *rest]) if name not in FRONT]
    config.nav = [*front, *phases, {"More": back}]
    config.watch = [str(path) for path in pages()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Puts the repository's pages, and what they link to, in the place of the contents of ``docs/``."""
    kept = [file for file in files if not file.src_uri.endswith((".md", ".py", ".svg", ".png"))]
    gathered = [
        File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
        for path in [*pages(), *sorted(assets())]
    ]
    return Files([*kept, *gathered])


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lets Markdown inside ``<details>`` be rendered, as GitHub does."""
    return re.sub(r"<(details|summary)>", r'<\1 markdown="1">', markdown)

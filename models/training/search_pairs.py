"""Questions made from the course's sections, by rules: what pocket-embed is trained on.

A pair is (question, section, whether the question's words may also stand on the section's side). The course's own
questions (quizzes, interviews, check yourself) are pairs too, and so is a sentence with the section that it links. No
question of `models/pocket-embed/questions.toml` is: those were written apart, and `test_search.py` compares.
"""

from __future__ import annotations

import posixpath
import random
import re
import subprocess
import tempfile
from pathlib import Path

from models.search.sections import Section, anchor, plain, read_sections, spaced

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_CHECK = re.compile(r"<summary><b>[^<]*</b>\s*(.*?)</summary>", re.S)
_BECAUSE = re.compile(r"^(.{25,160}?),? (?:because|since) (.{15,})$")
_SO_THAT = re.compile(r"^(.{25,160}?),? so that (.{15,})$")
_WHEN = re.compile(r"^(?:When|If|Where) (.{10,100}?), (.{20,})$")
_LINKED = re.compile(r"\[([^\]\n]+)\]\(([^)\s#]*)(?:#([^)\s]+))?\)")
_TERM = ("what is {}", "what does {} mean", "explain {}", "{}", "define {}", "what is meant by {}", "how does {} work")
_TITLE = ("{}", "{}", "how does {} work", "where is {} explained", "tell me about {}", "what about {}")


def snapshot(root: Path, commit: str) -> Path:
    """The pages as they were at a commit, in a folder of their own."""
    folder = Path(tempfile.mkdtemp(prefix="course-snapshot-"))
    archive = subprocess.run(["git", "-C", str(root), "archive", commit], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def made_from(section: Section) -> list[tuple[str, bool]]:
    """Questions of one section by rules over its title and its sentences. True: the words stand in the text too."""
    title = section.title
    found = [(form.format(title), False) for form in (_TERM if section.file == "GLOSSARY.md" else _TITLE)]
    found += [(f"{section.page}: {title}", False)] * 2
    for sentence in _SENTENCE.split(section.text):
        if not 30 < len(sentence) < 260:
            continue
        sentence = sentence.rstrip(" .")
        found.append((sentence, True))
        for pattern, form in ((_BECAUSE, "why {}?"), (_SO_THAT, "why {}?"), (_WHEN, "what happens when {}?")):
            if match := pattern.match(sentence):
                found.append((form.format(match[1][0].lower() + match[1][1:]), True))
        found += [("why is it that " + sentence[0].lower() + sentence[1:] + "?", True)] if len(sentence) < 90 else []
    return found


def asked_in(root: Path, sections: list[Section]) -> list[tuple[str, int]]:
    """The course's own questions: of "Check yourself" and of `quiz.toml`, with the section in which each stands."""
    found = []
    by_file: dict[str, list[int]] = {}
    for i, section in enumerate(sections):
        by_file.setdefault(section.file, []).append(i)
    for file, places in by_file.items():
        text = (root / file).read_text(encoding="utf-8")
        for match in _CHECK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            before = [i for i in places if sections[i].line <= line]
            if before and len(match[1]) > 12:
                found.append((plain(match[1]), before[-1]))
    for quiz in root.glob("phase-*/quiz.toml"):
        raw = quiz.read_text(encoding="utf-8")
        at = {re.sub(r"^\d+", "", anchor(sections[i].title)): i for i in by_file[f"{quiz.parent.name}/00-guide.md"]}
        for place, ask in re.findall(r'section = "\d*-?([^"]+)"\nask = "(.*?)"\n', raw):
            if (i := at.get(re.sub(r"[^a-z0-9]+", "-", place.lower()).strip("-"))) is not None:
                found.append((plain(ask), i))
    return found


def _bare(name: str) -> str:
    """A heading, or the anchor that a link gives it, without what the two write differently."""
    return re.sub(r"[^a-z0-9]+", "", name.lower()).lstrip("0123456789")


def linked_in(root: Path, sections: list[Section]) -> list[tuple[str, int]]:
    """Sentences that link a section, with its place. Half of them lose the words of the link."""
    place = {(s.file, _bare(s.title)): i for i, s in enumerate(sections)}
    found = []
    for file in sorted({s.file for s in sections}):
        text = (root / file).read_text(encoding="utf-8")
        for row in re.split(r"\n\s*\n|\n(?=[-|#])", text):
            for sentence in _SENTENCE.split(row):
                for shown, path, name in _LINKED.findall(sentence):
                    target = posixpath.normpath(posixpath.join(posixpath.dirname(file), path)) if path else file
                    i = place.get((target, _bare(name)))
                    words = plain(sentence.replace(shown, " ") if len(found) % 2 else sentence)
                    if i is not None and 30 < len(words) < 300 and not words.startswith("New words"):
                        found.append((words, i))
    return found


class Pairs:
    """All pairs of a snapshot, drawn in batches whose sections differ.

    Args:
        root: the snapshot. seed: of the draws.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.sections = read_sections(root)
        self.rng = random.Random(seed)
        self.questions: list[list[tuple[str, bool]]] = [made_from(s) for s in self.sections]
        self.asked: list[list[str]] = [[] for _ in self.sections]
        self.links: list[list[str]] = [[] for _ in self.sections]
        for question, i in asked_in(root, self.sections):
            self.asked[i].append(question)
        for sentence, i in linked_in(root, self.sections):
            self.links[i].append(sentence)
        self.folders: dict[str, list[int]] = {}
        for i, section in enumerate(self.sections):
            self.folders.setdefault(section.file.split("/")[0], []).append(i)

    @property
    def count(self) -> int:
        """Questions in all."""
        return sum(len(each) for rows in (self.questions, self.asked, self.links) for each in rows)

    def batch(self, size: int) -> list[tuple[str, str, int]]:
        """(question, text, section): half from anywhere, half from three folders, which are alike."""
        near = [i for name in self.rng.sample(sorted(self.folders), 3) for i in self.folders[name]]
        chosen = self.rng.sample(range(len(self.sections)), size // 2) + self.rng.sample(
            near, min(len(near), size // 2)
        )
        return [(*self.one(i), i) for i in dict.fromkeys(chosen)]

    def one(self, i: int) -> tuple[str, str]:
        """A question of section `i`, and a part of its text (without the question's words, where they stand there)."""
        section, rng = self.sections[i], self.rng
        if self.asked[i] and rng.random() < 0.5:
            question, inside = rng.choice(self.asked[i]), False
        elif self.links[i] and rng.random() < 0.4:
            question, inside = rng.choice(self.links[i]), False
        else:
            question, inside = rng.choice(self.questions[i])
        text = section.text
        if inside:
            core = question.removeprefix("why is it that ").removeprefix("what happens when ").removeprefix("why ")
            text = text.replace(core.rstrip("?"), " ") if rng.random() < 0.8 else text
        head = f"{section.page}: {section.title}. " if (inside or rng.random() < 0.6) else ""
        words = text.split()
        start = 0 if rng.random() < 0.5 else rng.randrange(max(1, len(words) - 40))
        return spaced(_noisy(question, rng)), spaced(head + " ".join(words[start : start + 90]))


def _noisy(question: str, rng: random.Random) -> str:
    """Some words left out, so that no single one is enough."""
    words = question.split()
    if len(words) > 6 and rng.random() < 0.5:
        words = [word for word in words if rng.random() > 0.2] or words
    return " ".join(words)

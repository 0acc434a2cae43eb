"""What a learner wrote in earlier phases goes with her into the next workspace.

A file that she edited is taken as it is, helpers and imports included; a function in it that she has not written yet
is filled with the engine's own. Then the new phase takes out its bodies. Where the engine's file has changed since her
workspace was made, or stands elsewhere now, or was cut in two, what is hers is put into the new file or files
(``course.workspace.graft``). What cannot be carried is named: nothing of hers is dropped without a word."""

import ast
from dataclasses import dataclass, field, replace
from pathlib import Path

from course.labs import LabError
from course.loop import gitwork
from course.loop.outcomes import digest
from course.loop.relocate import rewrite
from course.workspace.graft import NOTES, Graft
from course.workspace.members import members, with_member
from mini_vllm.moved import Moves, read

ENGINE = "mini_vllm/"
MADE = ("conftest.py",)


@dataclass
class Carried:
    """Earlier work, ready for a new workspace.

    Attributes:
        files: path in the workspace -> source.
        written: functions that are hers, "module:name". filled: those that she had not written: the engine's stand in.
        also: what else of hers went along: helpers, constants, imports, functions that no phase teaches.
        own: files of hers that the engine does not have.
        left: what was not carried, with the reason.
    """

    files: dict[str, str] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def told(self, kept: str) -> list[str]:
        """Lines for the learner; ``kept`` is the path of her former workspace."""
        rows = (
            ("Yours, carried over", self.written),
            ("Not written yet, so ours", self.filled),
            ("Yours besides, carried over too", self.also),
            ("Your own files, copied", self.own),
        )
        lines = [f"{words}: {', '.join(names)}" for words, names in rows if names]
        if self.left:
            lines += ["Not carried over; your text is in the copy, put it in by hand if you need it:"]
        return lines + [f"  {kept}/{each}" for each in self.left]


def carry(
    workspace: Path, edited: list[str], taught: dict[str, list[str]], made_from: dict[str, str], root: Path
) -> Carried:
    """Collect earlier work out of ``workspace``: of its files ``edited``, where ``taught`` says which functions of a
    file of the engine, as it is now, phases up to hers teach, and ``made_from`` the `digest` of the engine's text when
    the workspace was made. Raises :class:`LabError` where a file of hers is not Python, with file and line."""
    moves = read(root / "mini_vllm")
    texts = {name: text for name in edited if (text := _read(workspace, name)) is not None}
    names = dict(moves.names)  # what is hers of a former module is to be imported from where it goes
    first = _Way(root, taught, made_from, moves, Carried())
    for name, hers in texts.items():
        if (places := first.places(name)) and places != [name]:
            homes = first.into(name, hers, places)
            names |= {(_module(name), each): _module(path) for each, path in homes.items()}
    way, changed = _Way(root, taught, made_from, replace(moves, names=names), Carried()), []
    gone = (name for name in edited if name not in texts and name in made_from)
    way.carried.left += [f"{name}: you removed it; the engine's is there again" for name in gone]
    for name, hers in texts.items():
        places = way.places(name)
        if places == [name] and made_from.get(name) == digest(way.engine(name)):
            way.whole(name, hers)
        elif places:
            changed.append((name, hers, places))
        else:
            way.own(name, hers)
    for name, hers, places in changed:  # last: a file of hers that was cut may go to one that was taken whole
        way.into(name, hers, places)
    return way.carried


def _read(workspace: Path, name: str) -> str | None:
    path = workspace / name
    try:
        text = path.read_text(encoding="utf-8-sig") if path.is_file() else None
        ast.parse(text or "")
    except SyntaxError as error:
        raise LabError(f"workspace/{name}, line {error.lineno}: {error.msg}; mend it before you go on") from None
    except ValueError as error:
        raise LabError(f"workspace/{name} is not a Python text file ({error}); mend it before you go on") from None
    return text


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass
class _Way:
    """From one workspace to the next; the attributes as in `carry`."""

    root: Path
    taught: dict[str, list[str]]
    made_from: dict[str, str]
    moves: Moves
    carried: Carried

    def engine(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    def places(self, name: str) -> list[str]:
        """Files of the engine that now hold what ``name`` held; empty for a file that the engine does not have."""
        module, here = _module(name), (self.root / name).is_file()
        if not name.startswith(ENGINE) or not (here or name in self.made_from or module in self.moves.modules):
            return []
        own, *others = self.moves.places(module)
        found = [self.root / name if here else self.moves.file(own), *map(self.moves.file, others)]
        return [path.relative_to(self.root).as_posix() for path in found if path is not None]

    def follow(self, name: str, source: str, leaves: bool = False, noted: bool = True) -> str:
        """``source`` with its imports of former places put right; what is left to do is noted."""
        package = _module(name) if name.endswith("/__init__.py") else _module(name).rpartition(".")[0]
        made = rewrite(source, self.moves, False, package, leaves)
        self.carried.left += [f"{name}, {note}" for note in made.notes if noted]
        return made.text

    def whole(self, name: str, hers: str) -> None:
        """Her file, in which the functions that she has not written are the engine's."""
        hers = self.follow(name, hers)
        mine, theirs = members(hers), members(self.engine(name))
        for function in self.taught.get(name, []):
            if function not in mine or function not in theirs or mine[function].text == theirs[function].text:
                continue
            symbol = f"{name.removesuffix('.py').replace('/', '.')}:{function}"
            if mine[function].stub is None:
                self.carried.written.append(symbol)
                continue
            self.carried.filled.append(symbol)
            if mine[function].around(theirs[function].text):
                self.carried.left.append(f"{name}: {function}: {NOTES}")
            hers = with_member(hers, function, theirs[function].text)
        self.carried.files[name] = hers

    def own(self, name: str, hers: str) -> None:
        """A file that the engine does not have, or has no longer."""
        inside = name.startswith(ENGINE)
        if name in MADE:
            self.carried.left.append(f"{name}: `course build` makes it anew")
        elif name in self.made_from and inside:
            self.carried.left.append(f"{name}: the engine has no such file any more")
        elif inside and (self.root / name).with_suffix("").is_dir():
            self.carried.left.append(f"{name}: the engine has a folder of that name now")
        else:
            self.carried.files[name] = self.follow(name, hers)
            self.carried.own.append(name)

    def into(self, name: str, hers: str, places: list[str]) -> dict[str, str]:
        """What is hers in a file goes into the file or files that hold the rest of it now; where her own names went."""
        leaves = places != [name]
        before = gitwork.former(self.root, name, self.made_from.get(name, ""))
        if before is not None:
            before = self.follow(name, before, leaves, noted=False)
        texts = {path: self.carried.files.get(path) or self.engine(path) for path in places}
        graft = Graft(self.follow(name, hers, leaves), before, texts, self.taught, self.carried)
        graft.run(lambda wanted: self.moves.place(_module(name), wanted), self.moves)
        self.carried.files |= {path: text for path, text in graft.texts.items() if text != texts[path]}
        self.carried.left += [f"{name}: {each}" for each in graft.left]
        return graft.homes

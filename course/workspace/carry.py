"""What a learner wrote in earlier phases goes with her into the next workspace.

A file that she edited is taken as it is, helpers and imports included; a function in it that she has not written yet
is filled with the engine's own. Then the new phase takes out its bodies. Where the engine's file has changed since her
workspace was made, or stands elsewhere now, or was cut in two, what is hers is put into the new file or files
(``course.workspace.graft``). What cannot be carried is named: nothing of hers is dropped without a word.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from pathlib import Path

from course.labs import LabError
from course.loop import gitwork
from course.loop.outcomes import digest
from course.loop.relocate import rewrite
from course.workspace.graft import Graft
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
    workspace: Path,
    edited: list[str],
    taught: dict[str, list[str]],
    made_from: dict[str, str],
    root: Path,
    moves: Moves | None = None,
) -> Carried:
    """Collect earlier work.

    Args:
        workspace: hers, of an earlier phase.
        edited: files there that are not as they were made.
        taught: file of the engine as it is now -> functions in it that phases up to hers teach.
        made_from: file -> `digest` of the text of the engine's file when the workspace was made.
        root: the repository.
        moves: where the engine's files stood and stand; left out: the engine's own table.

    Raises:
        LabError: a file of hers is not Python; it names the file and the line.
    """
    moves = moves or read(root / "mini_vllm")
    texts = {name: _read(workspace, name) for name in edited}
    names = dict(moves.names)  # what is hers of a former module is to be imported from where it goes
    for name, hers in texts.items():
        places = _places(name, made_from, moves, root)
        if hers is not None and places and places != [name]:
            homes = _into(name, hers, places, taught, made_from, root, moves, Carried())
            names |= {(_module(name), each): _module(path) for each, path in homes.items()}
    moves = replace(moves, names=names)
    carried, changed = Carried(), []
    for name, hers in texts.items():
        if hers is None:
            if name in made_from:
                carried.left.append(f"{name}: you removed it; the engine's is there again")
            continue
        engine = root / name
        places = _places(name, made_from, moves, root)
        if places == [name] and made_from.get(name) == digest(engine.read_text(encoding="utf-8")):
            _whole(name, _follow(name, hers, moves, carried), engine.read_text(encoding="utf-8"), taught, carried)
        elif places:
            changed.append((name, hers, places))
        else:
            _own(name, hers, name in made_from, moves, root, carried)
    for name, hers, places in changed:  # last: a file of hers that was cut may go to one that was taken whole
        _into(name, hers, places, taught, made_from, root, moves, carried)
    return carried


def _read(workspace: Path, name: str) -> str | None:
    path = workspace / name
    if not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
        ast.parse(text)
    except SyntaxError as error:
        raise LabError(f"workspace/{name}, line {error.lineno}: {error.msg}; mend it before you go on") from None
    except ValueError as error:
        raise LabError(f"workspace/{name} is not a Python text file ({error}); mend it before you go on") from None
    return text


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _places(name: str, made_from: dict[str, str], moves: Moves, root: Path) -> list[str]:
    """Files of the engine that now hold what ``name`` held; empty for a file that the engine does not have."""
    module, here = _module(name), (root / name).is_file()
    if not name.startswith(ENGINE) or not (here or name in made_from or module in moves.modules):
        return []
    own, *others = moves.places(module)
    found = [root / name if here else moves.file(own), *map(moves.file, others)]
    return [path.relative_to(root).as_posix() for path in found if path is not None]


def _follow(name: str, source: str, moves: Moves, carried: Carried, leaves: bool = False) -> str:
    """``source`` with its imports of former places put right; what is left to do is noted."""
    package = _module(name) if name.endswith("/__init__.py") else _module(name).rpartition(".")[0]
    made = rewrite(source, moves, False, package, leaves)
    carried.left += [f"{name}, {note}" for note in made.notes]
    return made.text


def _whole(name: str, hers: str, engine: str, taught: dict[str, list[str]], carried: Carried) -> None:
    """Her file, in which the functions that she has not written are the engine's."""
    mine, theirs = members(hers), members(engine)
    for function in taught.get(name, []):
        if function not in mine or function not in theirs or mine[function].text == theirs[function].text:
            continue
        symbol = f"{name.removesuffix('.py').replace('/', '.')}:{function}"
        if mine[function].stub is None:
            carried.written.append(symbol)
        else:
            carried.filled.append(symbol)
            if mine[function].around(theirs[function].text):
                said = "your notes or decorators; it is not written yet, so ours stands there"
                carried.left.append(f"{name}: {function}: {said}")
            hers = with_member(hers, function, theirs[function].text)
    carried.files[name] = hers


def _own(name: str, hers: str, gone: bool, moves: Moves, root: Path, carried: Carried) -> None:
    """A file that the engine does not have, or has no longer."""
    inside = name.startswith(ENGINE)
    if name in MADE:
        carried.left.append(f"{name}: `course build` makes it anew")
    elif gone and inside:
        carried.left.append(f"{name}: the engine has no such file any more")
    elif inside and (root / name).with_suffix("").is_dir():
        carried.left.append(f"{name}: the engine has a folder of that name now")
    else:
        carried.files[name] = _follow(name, hers, moves, carried)
        carried.own.append(name)


def _into(
    name: str,
    hers: str,
    places: list[str],
    taught: dict[str, list[str]],
    made_from: dict[str, str],
    root: Path,
    moves: Moves,
    carried: Carried,
) -> dict[str, str]:
    """What is hers in a file goes into the file or files that hold the rest of it now; where her own names went."""
    leaves = places != [name]
    before = gitwork.former(root, name, made_from.get(name, ""))
    if before is not None:
        before = _follow(name, before, moves, Carried(), leaves)
    texts = {path: carried.files.get(path) or (root / path).read_text(encoding="utf-8") for path in places}
    graft = Graft(_follow(name, hers, moves, carried, leaves), before, texts, taught)
    graft.run(lambda wanted: moves.place(_module(name), wanted), moves)
    for path, text in graft.texts.items():
        if text != texts[path]:
            carried.files[path] = text
    carried.written += graft.written
    carried.filled += graft.filled
    carried.also += graft.also
    carried.left += [f"{name}: {each}" for each in graft.left]
    return graft.homes

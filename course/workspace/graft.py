"""What a learner changed in a file of the engine, put into the file or files that hold it now.

Three texts are compared part by part (``course.workspace.members``): the file as the engine had it, hers, and the
present ones.
Where the former text is not known, only what a phase teaches and what the engine lacks is taken for hers."""

import ast
import builtins
from collections.abc import Callable, Iterator
from typing import Any

from course.workspace import members as m
from mini_vllm.moved import Moves

Place = Callable[[str], tuple[str, str]]
Taught = dict[str, list[str]]
NOTES = "your notes or decorators; it is not written yet, so ours stands there"


class Graft:
    """One file of hers on its way.

    Attributes:
        texts: path -> present source, the file's own place first; `run` puts her parts in.
        carried: of which `written`, `filled` and `also` grow. left: what was not carried, with the reason.
        homes: name that the engine lacks -> path where it went.
    """

    def __init__(self, hers: str, former: str | None, texts: dict[str, str], taught: Taught, carried: Any) -> None:
        self.source, self.former_source, self.texts, self.taught = hers, former, dict(texts), taught
        self.hers = m.members(hers)
        self.former = m.members(former) if former is not None else None
        self.pieces: dict[str, list[m.Member]] = {path: [] for path in texts}
        self.written, self.filled, self.also = carried.written, carried.filled, carried.also
        self.left: list[str] = []
        self.homes: dict[str, str] = {}

    def run(self, place: Place, moves: Moves) -> None:
        """Does it all. ``place`` says where a name of the file stands now."""
        engine = dict(self.texts)
        new = [each for each in self._changed() if not self._replace(each)]
        for each in [one for one in new if one.parent]:
            self._insert(each, self._holder(each.parent))
        self._insert_all([one for one in new if not one.parent])
        self._import(place, moves)
        self._note_removed()
        self._note_comments()
        for path, text in self.texts.items():
            try:
                ast.parse(text)
            except SyntaxError:  # nothing half done: the engine's file stands
                self.texts[path] = engine[path]
                self.left.append(f"what goes into {path} does not fit there")

    def _changed(self) -> Iterator[m.Member]:
        """Parts that are hers: changed, or not the engine's."""
        whole: set[str] = set()  # classes of hers, taken in one piece
        for key, mine in self.hers.items():
            old = self._before(key)
            if mine.parent in whole:
                whole |= {key} if mine.kind == "class" else set()
            elif mine.kind == "class" and old is None:
                whole.add(key)
                yield mine
            elif mine.kind == "class":
                if old is not None and old.head != mine.head:
                    self.left.append(f"{key}: the line of the class, a decorator or a comment there")
            elif mine.stub is not None and (old is not None or self._holder(key)):
                self._fill(mine, old)
            elif mine.kind == "docstring":
                if self.former is not None and (old is None or old.text != mine.text):
                    self.left.append(f"the docstring of {mine.parent or 'the file'}")
            elif m.is_typing(mine.node):
                self._note_typing(mine)
            elif (mine.kind != "import" or mine.parent) and (old is None or old.text != mine.text):
                yield mine

    def _before(self, key: str) -> m.Member | None:
        """The engine's part when her workspace was made; where that is not known, the present one."""
        if self.former is not None:
            return self.former.get(key)
        holder = self._holder(key)
        return m.members(self.texts[holder])[key] if holder else None

    def _holder(self, key: str) -> str:
        """Path of the present file that has a part; "" where none has."""
        return next((path for path, text in self.texts.items() if key in m.members(text)), "")

    def _symbol(self, path: str, key: str) -> str:
        return f"{path.removesuffix('.py').replace('/', '.')}:{key}"

    def _fill(self, mine: m.Member, old: m.Member | None) -> None:
        path = self._holder(mine.key)
        if path and mine.key in self.taught.get(path, []):
            self.filled.append(self._symbol(path, mine.key))
        elif old is None:
            self.left.append(f"{mine.key}: the engine has one of that name now")
        if self.former is not None and old is not None and mine.around(old.text):
            self.left.append(f"{mine.key}: {NOTES}")

    def _note_typing(self, mine: m.Member) -> None:
        known = self.former_source if self.former_source is not None else "".join(self.texts.values())
        for node in [*mine.node.body, *mine.node.orelse] if isinstance(mine.node, ast.If) else ():
            text = ast.unparse(node).splitlines()[0]
            if not isinstance(node, (ast.Import, ast.ImportFrom)) and text not in known:
                self.left.append(f"{text}: below `if TYPE_CHECKING:`")

    def _replace(self, mine: m.Member) -> bool:
        """Puts a part where the engine has one of that name; whether it was dealt with."""
        path, key = self._holder(mine.key), mine.key
        if not path:
            return self._homeless(mine)
        now, old = m.members(self.texts[path])[key], self._before(key)
        if now.text == mine.text:
            return True
        taught = mine.kind == "function" and key in self.taught.get(path, [])
        if not taught and self.former is None:
            self.left.append(f"{key}: it differs from the engine's, and no phase up to yours teaches it")
        elif not taught and old is None:
            self.left.append(f"{key}: the engine has one of that name now")
        elif not taught and old is not None and _bare(old.node) != _bare(now.node):
            self.left.append(f"{key}: no phase up to yours teaches it, and the engine's has changed")
        else:
            self.texts[path] = m.with_member(self.texts[path], key, mine.text)
            self.pieces[path].append(mine)
            (self.written if taught else self.also).append(self._symbol(path, key))
        return True

    def _homeless(self, mine: m.Member) -> bool:
        """Notes what has no place: a part that the engine no longer has, a statement in the place of another."""
        old = self.former.get(mine.key) if self.former is not None else None
        replaced = self.former is not None and any(
            each.kind == mine.kind == "statement" and each.parent == mine.parent and each.key not in self.hers
            for each in self.former.values()
        )
        if old is None and not replaced and (not mine.parent or self._holder(mine.parent)):
            return False
        why = "you changed this statement" if replaced and old is None else "the engine has it no longer"
        self.left.append(f"{mine.key.splitlines()[0]}: {why}")
        return True

    def _insert(self, mine: m.Member, path: str) -> None:
        """Puts a part that the engine lacks behind the one that it follows in her file."""
        if any((each.first, each.parent) == (mine.first, mine.parent) for each in self.pieces[path]):
            return  # a = 1; b = 2
        have = m.members(self.texts[path])
        siblings = [each for each in self.hers.values() if each.parent == mine.parent and each.first < mine.first]
        kinds = ("import", "docstring")
        after = next((s.key for s in reversed(siblings) if s.key in have and s.kind not in kinds), "")
        self.texts[path] = m.with_new(self.texts[path], mine, after)
        self.pieces[path].append(mine)
        self.also.append(self._symbol(path, mine.key.splitlines()[0]))

    def _insert_all(self, new: list[m.Member]) -> None:
        """Each new part goes to the file whose parts use it, in her order: of several files to one that the others
        import. One that nobody uses goes to the first file, a statement that names nothing to what it uses."""
        nodes = {path: [piece.node for piece in pieces] for path, pieces in self.pieces.items()}
        users = {path: set[str]().union(*map(m.used, mine)) for path, mine in nodes.items()}
        found: dict[str, list[str]] = {}
        for _ in new:  # a helper may be used by another helper
            for each in new:
                found[each.key] = [path for path, names in users.items() if names & set(each.names)]
                for path in found[each.key]:
                    users[path] |= m.used(each.node)
        for each in new:
            home = self._base(found[each.key] or [self.homes[n] for n in m.used(each.node) if n in self.homes])
            self.homes |= dict.fromkeys(each.names, home)
            self._insert(each, home)

    def _base(self, paths: list[str]) -> str:
        modules = {path: self._symbol(path, "")[:-1] for path in paths}
        low = (p for p in paths if any(f"from {modules[p]} import" in self.texts[q] for q in paths if q != p))
        return next(low, (paths or list(self.texts))[0])

    def _import(self, place: Place, moves: Moves) -> None:
        """Adds what the parts need and the files lack, and imports of hers that nothing seems to use."""
        mine = m.imported(self.source)
        given = m.bound(self.source if self.former_source is None else self.former_source)
        for path, pieces in self.pieces.items():
            needed = set[str]().union(*(m.used(piece.node) for piece in pieces))
            for name in sorted(needed - m.bound(self.texts[path]) - set(dir(builtins))):
                for each in [one for one in mine if one.name == name]:
                    self.texts[path] = m.with_import(self.texts[path], each)
                at, new = place(name)
                if name in self.homes:
                    at, new = self._symbol(self.homes[name], "")[:-1], name
                elif name in m.bound(self.texts[path]) or name not in given or not moves.stands(at, new):
                    continue
                if moves.file(at) != moves.package.parent / path:
                    text = f"from {at} import {new}" + (f" as {name}" if new != name else "")
                    self.texts[path] = m.with_import(self.texts[path], m.Imported(name, text, False))
        before = mine if self.former_source is None else m.imported(self.former_source)
        for each in mine:
            everywhere = {one.statement for text in self.texts.values() for one in m.imported(text)}
            if each.statement not in everywhere | {one.statement for one in before}:
                self._import_one(each, each.name in {one.name for one in before})

    def _import_one(self, mine: m.Imported, instead: bool) -> None:
        """An import of hers that no file has yet; ``instead`` of one of the engine's."""
        first = next(iter(self.texts))
        paths = [path for path, text in self.texts.items() if mine.name in {each.name for each in m.imported(text)}]
        beside = mine.statement.startswith("import ") and "." in mine.statement  # import xml.dom; import xml.sax
        if mine.name == "*":
            paths = [path for path, pieces in self.pieces.items() if pieces]
        elif not (instead and paths) and not beside and any(mine.name in m.bound(text) for text in self.texts.values()):
            self.left.append(f"{mine.statement}: the engine has one of that name now")
            return
        for path in paths or [first]:
            self.texts[path] = m.with_import(self.texts[path], mine)
            self.also.append(f"{self._symbol(path, mine.name)} (an import)")

    def _note_removed(self) -> None:
        for key, old in (self.former or {}).items():
            gone = key not in self.hers and old.kind in ("function", "class", "assignment")
            if gone and (not old.parent or old.parent in self.hers) and self._holder(key):
                self.left.append(f"{key}: you removed it; the engine's is there again")

    def _note_comments(self) -> None:
        """Names comments of hers that stand between the parts: they belong to none, and stay behind."""
        if self.former_source is None:
            return
        known = {line.strip() for line in m.lines_of(self.former_source)}
        spans = [range(one.first, one.last) for one in self.hers.values() if one.kind not in ("class", "import")]
        carried = {line.strip() for text in self.texts.values() for line in m.lines_of(text)}
        loose = [
            str(number + 1)
            for number, line in enumerate(m.lines_of(self.source))
            if line.lstrip().startswith("#") and line.strip() not in known | carried
            if not any(number in span for span in spans)
        ]
        if loose:
            self.left.append(f"comments of yours between the functions (line {', '.join(loose)})")


def _bare(node: ast.stmt) -> str:
    """What a part does; docstrings and layout aside."""
    if isinstance(node, m.Function) and ast.get_docstring(node, clean=False) is not None:
        copy = ast.parse(ast.unparse(node)).body[0]
        assert isinstance(copy, m.Function)
        copy.body = copy.body[1:] or [ast.Pass()]
        return ast.dump(copy)
    return ast.dump(node)

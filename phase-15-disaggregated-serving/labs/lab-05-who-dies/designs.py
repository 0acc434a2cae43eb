"""Given: three other controllers that pass, for the table of `show.py`. Open it when yours is green."""

from __future__ import annotations

from typing import Any, NamedTuple

Answer = tuple[Any, list[tuple[Any, ...]]]


class Memo(NamedTuple):
    attempt: int
    stage: str
    sent: int
    copy: bool = False  # P has this attempt's blocks, as far as anybody has said


class Rerun:
    """A second life begins at the prompt; what the client has already is swallowed, by its index."""

    def start(self) -> Answer:
        return Memo(1, "prefill", 0), [("prefill", 1, 0)]

    def again(self, memo: Memo, *before: tuple[Any, ...]) -> Answer:
        return Memo(memo.attempt + 1, "prefill", memo.sent), [*before, ("prefill", memo.attempt + 1, 0)]

    def handle(self, memo: Memo, event: tuple[Any, ...]) -> Answer:
        a, stage = memo.attempt, memo.stage
        if event == ("abort",):
            return self.abort(memo)
        if stage == "prefill" and event == ("prefilled", a):
            return memo._replace(stage="pull"), [("pull", a)]
        if stage == "prefill" and event == ("lost", "P"):
            return self.again(memo)
        if stage == "pull":
            return self.pull(memo, event)
        if stage == "decode" and event[:2] == ("token", a):
            return self.token(memo, event[2], event[3])
        if stage == "decode" and event == ("lost", "D"):
            return self.again(memo)
        if stage == "drain" and event in (("received", a), ("failed", a), ("lost", "D")):
            return memo._replace(stage="over"), [("release_d", a), ("release_p", a)]
        return memo, []

    def pull(self, memo: Memo, event: tuple[Any, ...]) -> Answer:
        a = memo.attempt
        if event == ("received", a):
            return memo._replace(stage="decode"), [("decode", a), ("release_p", a)]
        if event == ("failed", a):
            return self.again(memo, ("release_d", a))
        if event == ("lost", "D"):
            return self.again(memo, ("release_p", a))
        return memo, []

    def token(self, memo: Memo, index: int, token: int) -> Answer:
        new = [("emit", token)] if index == memo.sent else []
        memo = memo._replace(sent=max(memo.sent, index + 1))
        if index < 2:
            return memo, new
        return memo._replace(stage="over"), [*new, ("finish", "done"), *self.owed(memo)]

    def owed(self, memo: Memo) -> list[tuple[Any, ...]]:
        return [("release_d", memo.attempt)]

    def abort(self, memo: Memo) -> Answer:
        if memo.stage in ("over", "drain"):
            return memo, []
        if memo.stage == "pull":
            return memo._replace(stage="drain"), [("finish", "aborted")]
        owed = self.owed(memo) if memo.stage == "decode" else [("release_p", memo.attempt)]
        return memo._replace(stage="over"), [("finish", "aborted"), *owed]


class Keep(Rerun):
    """P keeps its copy to the end; where D dies, the next one reads it again, and decodes again."""

    def again(self, memo: Memo, *before: tuple[Any, ...]) -> Answer:
        return Memo(memo.attempt + 1, "prefill", memo.sent), [*before, ("prefill", memo.attempt + 1, memo.sent)]

    def handle(self, memo: Memo, event: tuple[Any, ...]) -> Answer:
        if event == ("lost", "P") and memo.stage in ("pull", "decode"):
            return memo._replace(copy=False), []
        if event == ("lost", "D") and memo.stage in ("pull", "decode") and memo.copy:
            return memo._replace(stage="pull"), [("pull", memo.attempt)]
        memo, commands = super().handle(memo, event)
        return memo._replace(copy=memo.copy or event[0] == "prefilled"), commands

    def pull(self, memo: Memo, event: tuple[Any, ...]) -> Answer:
        if event == ("received", memo.attempt):
            return memo._replace(stage="decode"), [("decode", memo.attempt)]
        return super().pull(memo, event)

    def owed(self, memo: Memo) -> list[tuple[Any, ...]]:
        return [("release_d", memo.attempt), ("release_p", memo.attempt)]


class Patient(Rerun):
    """After a failed read it waits for the notice of P's death, and sends nothing to a connection that is dead."""

    def again(self, memo: Memo, *before: tuple[Any, ...]) -> Answer:
        return Memo(memo.attempt + 1, "prefill", memo.sent), [*before, ("prefill", memo.attempt + 1, memo.sent)]

    def handle(self, memo: Memo, event: tuple[Any, ...]) -> Answer:
        if memo.stage == "wait":
            if event == ("lost", "P"):
                return self.again(memo)
            return self.abort(memo) if event == ("abort",) else (memo, [])
        if memo.stage == "pull" and event == ("lost", "P"):
            return memo._replace(copy=False), []
        if event == ("failed", memo.attempt) and memo.stage == "pull" and memo.copy:
            return memo._replace(stage="wait"), [("release_d", memo.attempt)]
        memo, commands = super().handle(memo, event)
        return memo._replace(copy=event[0] == "prefilled" or (memo.copy and memo.stage == "pull")), commands


DESIGNS = {"rerun": Rerun, "keep": Keep, "patient": Patient}

"""Given: P, D, the wires between them and the controller, and a walk through everything that may happen there.

A state is a value: what the controller remembers, what each engine holds, what is under way. A move leads from one
state to the next: an engine takes its next command, a read ends, D makes a token, the controller takes an event, the
client aborts, an engine dies. `walk.py` takes every move in every state, once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, NamedTuple

TOKENS = (11, 22, 33)  # what the request's output is
LENGTHS = {"prefill": 3, "release_p": 2, "pull": 2, "decode": 2, "release_d": 2, "emit": 2, "finish": 2}
ENDS = ("done", "aborted", "failed")


class Bad(Exception):
    """Something that must not happen; its text says what."""


class Engine(NamedTuple):
    """P or D. held: what it holds blocks for, as (attempt, first output token to make, state); P's state is always
    "ready", D's is "reading", "broken" (P died under the read), "received", "failed" or "decoding"."""

    alive: bool = True
    held: tuple[tuple[int, int, str], ...] = ()
    commands: tuple[tuple[Any, ...], ...] = ()  # under way to it, in order
    events: tuple[tuple[Any, ...], ...] = ()  # under way to the controller, in order

    def find(self, attempt: int) -> tuple[int, int, str] | None:
        """What it holds for an attempt."""
        return next((each for each in self.held if each[0] == attempt), None)

    def put(self, attempt: int, first: int, state: str) -> Engine:
        """Itself, with this for the attempt."""
        return self.drop(attempt)._replace(held=tuple(sorted((*self.drop(attempt).held, (attempt, first, state)))))

    def drop(self, attempt: int) -> Engine:
        """Itself, with nothing for the attempt."""
        return self._replace(held=tuple(each for each in self.held if each[0] != attempt))

    def tell(self, *event: Any) -> Engine:
        """Itself, with one more event under way."""
        return self._replace(events=(*self.events, event))


class State(NamedTuple):
    """All of the world at one moment."""

    memo: Hashable
    P: Engine = Engine()
    D: Engine = Engine()
    client: tuple[int, ...] = ()  # the tokens it was sent
    end: str = ""
    known: int = 0  # output tokens that the controller was told
    aborted: bool = False  # the controller was told so before the end
    kills: int = 0  # deaths so far
    aborts_left: int = 0


class World:
    """One request, two engines, one controller.

    max_kills: how many deaths there may be, of P and D together. abort: whether the client may abort, once.
    """

    def __init__(self, controller: Any, max_kills: int = 0, abort: bool = False) -> None:
        self.controller, self.max_kills, self.abort = controller, max_kills, abort
        self.calls: list[tuple[Any, tuple[Any, ...], Any]] = []  # (memo, event, answer) of each `handle`
        self.sent: dict[str, int] = {}  # commands of the last move, by name

    def start(self) -> State:
        """The first state: the request has come."""
        memo, commands = _pair(self.controller.start(), "start()")
        return self._send(State(memo, aborts_left=int(self.abort)), commands)

    def moves(self, state: State) -> Iterator[tuple[str, Callable[[], State]]]:
        """(words, how to make it) for each move that is possible now; deaths and the abort come last."""
        yield from self.own_moves(state)
        if state.aborts_left:
            after = state._replace(aborts_left=0, aborted=not state.end)
            yield "ABORT", partial(self._handle, after, ("abort",))
        if state.kills < self.max_kills:
            for name in ("P", "D"):
                if getattr(state, name).alive:
                    yield f"KILL {name}", partial(kill, state, name)

    def own_moves(self, state: State) -> Iterator[tuple[str, Callable[[], State]]]:
        """The moves without deaths and aborts: what is bound to happen."""
        for name in ("P", "D"):
            engine: Engine = getattr(state, name)
            if engine.commands:
                words = " ".join(map(str, engine.commands[0][:2]))
                yield f"{name} gets {words}", partial(_take_command, state, name)
            if engine.events:
                words = " ".join(map(str, [each for each in engine.events[0] if each not in TOKENS]))
                yield f"C gets {words}", partial(self._take_event, state, name)
        for attempt, first, doing in state.D.held:
            if doing in ("reading", "broken"):
                yield f"read {attempt} ends", partial(_read, state, attempt)
            if doing == "decoding" and first < len(TOKENS):
                yield f"D makes token {first}", partial(_decode, state, attempt)

    def _take_event(self, state: State, name: str) -> State:
        engine: Engine = getattr(state, name)
        event = engine.events[0]
        engine = engine._replace(events=engine.events[1:])
        if event[0] == "lost":
            engine = engine._replace(alive=True)  # a new one, empty; what is sent from now on reaches it
        if event[0] == "token":
            state = state._replace(known=max(state.known, event[2] + 1))
        return self._handle(_with(state, name, engine), event)

    def _handle(self, state: State, event: tuple[Any, ...]) -> State:
        answer = self.controller.handle(state.memo, event)
        self.calls.append((state.memo, event, answer))
        memo, commands = _pair(answer, f"handle(memo, {event})")
        return self._send(state._replace(memo=memo), commands)

    def _send(self, state: State, commands: Any) -> State:
        self.sent = {}
        for command in commands:
            name = str(command[0]) if isinstance(command, tuple) and command else ""
            if LENGTHS.get(name) != len(command):
                raise Bad(f"{command!r} is no command; there are {', '.join(LENGTHS)}, each a tuple with its arguments")
            self.sent[name] = self.sent.get(name, 0) + 1
            if name == "emit":
                state = _emit(state, command[1])
            elif name == "finish":
                state = _finish(state, command[1])
            else:
                if name == "prefill" and not 0 <= command[2] <= state.known:
                    raise Bad(f"{command}: the controller was told {state.known} output tokens, so k is at most that")
                to = "P" if name in ("prefill", "release_p") else "D"
                engine: Engine = getattr(state, to)
                if engine.alive:  # otherwise it is gone, and nobody says so
                    state = _with(state, to, engine._replace(commands=(*engine.commands, command)))
        return state


def kill(state: State, name: str) -> State:
    """P or D dies: its blocks and the commands under way are gone; what it has said still arrives, then `lost`."""
    engine: Engine = getattr(state, name)
    state = _with(state, name, Engine(False, (), (), (*engine.events, ("lost", name))))
    if name == "P":
        held = tuple((a, k, "broken" if doing == "reading" else doing) for a, k, doing in state.D.held)
        state = state._replace(D=state.D._replace(held=held))
    return state._replace(kills=state.kills + 1)


def check_rest(state: State) -> None:
    """Nothing is under way any more. Raises `Bad` where somebody still waits, or holds something."""
    if not state.end:
        raise Bad(f"nothing more will happen, and the client waits for ever; it has {list(state.client)}")
    for name in ("P", "D"):
        held = getattr(state, name).held
        if held:
            raise Bad(f"nothing more will happen, and {name} still holds the blocks of attempt {held[0][0]}: a leak")


def _pair(answer: Any, who: str) -> tuple[Hashable, Any]:
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], (list, tuple)):
        raise Bad(f"{who} gave {answer!r}, expected (memo, a list of commands)")
    try:
        hash(answer[0])
    except TypeError:
        raise Bad(f"{who} gave the memo {answer[0]!r}, which has no hash: use tuples or named tuples") from None
    return answer


def _with(state: State, name: str, engine: Engine) -> State:
    return state._replace(P=engine) if name == "P" else state._replace(D=engine)


def _take_command(state: State, name: str) -> State:
    engine: Engine = getattr(state, name)
    command, engine = engine.commands[0], engine._replace(commands=engine.commands[1:])
    what, attempt = command[0], command[1]
    here = engine.find(attempt)
    if what in ("prefill", "pull"):
        if here:
            raise Bad(f"{name} gets {what} {attempt} and still holds blocks of an attempt {attempt}")
        if what == "prefill":
            return _with(state, name, engine.put(attempt, command[2], "ready").tell("prefilled", attempt))
        doing = "reading" if state.P.alive else "broken"
        return _with(state, name, engine.put(attempt, 0, doing))
    if what == "decode":
        if here is None or here[2] != "received":
            found = f"it is {here[2]}" if here else "D holds nothing of it"
            raise Bad(f"D gets decode {attempt} without its KV ({found}): it would compute on what lies in the blocks")
        return _with(state, name, engine.put(attempt, here[1], "decoding"))
    if name == "D" and here and here[2] in ("reading", "broken"):
        raise Bad(
            f"D released attempt {attempt} while its read was in flight: the wire writes into blocks that are somebody "
            "else's now"
        )
    return _with(state, name, engine.drop(attempt))


def _read(state: State, attempt: int) -> State:
    """The read ends: well, where P has had the blocks all the time."""
    here, there = state.D.find(attempt), state.P.find(attempt)
    assert here is not None
    if there is None or here[2] == "broken":
        return state._replace(D=state.D.put(attempt, 0, "failed").tell("failed", attempt))
    return state._replace(D=state.D.put(attempt, there[1], "received").tell("received", attempt))


def _decode(state: State, attempt: int) -> State:
    here = state.D.find(attempt)
    assert here is not None
    at = here[1]
    return state._replace(D=state.D.put(attempt, at + 1, "decoding").tell("token", attempt, at, TOKENS[at]))


def _emit(state: State, token: int) -> State:
    if state.end:
        raise Bad(f"the client was sent {token} after its end, {state.end!r}")
    if state.aborted:
        raise Bad(f"the client was sent {token} after it had aborted")
    if token != dict(enumerate(TOKENS)).get(len(state.client)):
        what = "token doubled" if token in state.client else "a token is lost"
        raise Bad(f"the client has {list(state.client)} and was sent {token}: {what}")
    return state._replace(client=(*state.client, token))


def _finish(state: State, how: str) -> State:
    if state.end:
        raise Bad(f"a second end, {how!r} after {state.end!r}")
    if how not in ENDS:
        raise Bad(f"an end is one of {', '.join(ENDS)}, got {how!r}")
    wanted = "aborted" if state.aborted else "done"
    if how != wanted and not (how == "failed" and state.kills > 2):
        after = "an abort" if state.aborted else f"{state.kills} death{'s' * (state.kills != 1)} and no abort"
        raise Bad(f"the request ended {how!r} after {after}, expected {wanted!r}")
    if how == "done" and state.client != TOKENS:
        raise Bad(f"the request ended 'done', and the client has {list(state.client)}")
    return state._replace(end=how)

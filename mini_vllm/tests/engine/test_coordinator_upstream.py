"""Our coordinator beside the pinned one: the same messages in, the same out. Needs the pinned tree."""

import ast
import copy
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm.engine import EngineCoreRequestType

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
from mini_vllm.engine.coordinator import CoordinatorState, DPCoordinator
from mini_vllm.engine.coordinator_links import COUNTS, FIRST_REQ, START_WAVE, WAVE_COMPLETE

UPSTREAM = Path(__file__).parents[3] / "upstream" / "vllm" / "v1" / "engine" / "coordinator.py"
pytestmark = pytest.mark.skipif(not UPSTREAM.is_file(), reason="the pinned tree is not here")


class End(Exception):
    """The script is at its end."""


class Socket:
    """A socket that has been told what it receives, and tells what was sent."""

    def __init__(self, sent):
        self.inbox, self.sent = [], sent

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def recv(self):
        return self.inbox.pop(0)

    def send(self, message):
        if message != b"READY":
            self.sent.append(("published", copy.deepcopy(message)))

    def send_multipart(self, frames):
        self.sent.append(("start", frames[1]))


def theirs(size, script):
    """What the pinned coordinator sends, where sockets, clock and codec are ours."""
    sent, events = [], iter(script)
    front, output, back = (Socket(sent) for _ in range(3))
    back.inbox = [b"\x01"] * size
    sockets = iter((front, output, back))

    class Poller:
        def register(self, *_):
            pass

        def poll(self, timeout):
            try:
                kind, *content = next(events)
            except StopIteration:
                raise End from None
            if kind == "tick":
                return []
            if kind == FIRST_REQ:
                front.inbox.append(tuple(content))
                return [(front, 1)]
            output.inbox.append(message(kind, *content))
            return [(output, 1)]

    zmq = SimpleNamespace(Poller=Poller, XPUB=0, PULL=0, POLLIN=1, LAST_ENDPOINT=0)
    same = SimpleNamespace(encode=lambda value: value, decode=lambda value: value)
    names = {
        "zmq": zmq, "msgspec": SimpleNamespace(msgpack=same), "MsgpackDecoder": lambda _: same, "copy": copy,
        "time": time, "logger": SimpleNamespace(**dict.fromkeys(("info", "debug", "warning", "error"), print)),
        "make_zmq_socket": lambda **_: next(sockets), "EngineCoreOutputs": None,
        "EngineCoreRequestType": EngineCoreRequestType,
    }  # fmt: skip
    tree = ast.parse(UPSTREAM.read_text(encoding="utf-8"))
    wanted = [node for node in tree.body if getattr(node, "name", "") in ("EngineState", "DPCoordinatorProc")]
    header = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module(header + wanted, []), str(UPSTREAM), "exec"), names)
    made = object.__new__(names["DPCoordinatorProc"])
    vars(made).update(ctx=None, engines=[names["EngineState"]() for _ in range(size)])
    vars(made).update(stats_update_interval_ms=100, enable_wave_coordination=True)
    with pytest.raises(End):
        made.process_input_socket("", "", "")
    return sent


def message(kind, engine, *content):
    stats = wave_complete = start_wave = None
    if kind == COUNTS:
        waiting, running, wave, step = content
        stats = SimpleNamespace(
            num_waiting_reqs=waiting, num_running_reqs=running, current_wave=wave, step_counter=step
        )
    elif kind == WAVE_COMPLETE:
        (wave_complete,) = content
    else:
        (start_wave,) = content
    return SimpleNamespace(
        outputs=[], utility_output=None, engine_index=engine, scheduler_stats=stats,
        wave_complete=wave_complete, start_wave=start_wave,
    )  # fmt: skip


def ours(size, script):
    sent = []
    made = object.__new__(DPCoordinator)
    made.state, made.addresses = CoordinatorState(size), SimpleNamespace(key=b"k")
    made._decoder = SimpleNamespace(decode=lambda value: value)
    made._encoder = SimpleNamespace(encode=lambda value: value)
    made._front = Socket(sent)
    made._identities = {rank: rank for rank in range(size)}
    made._engines = SimpleNamespace(send_multipart=lambda frames: frames[0] or sent.append(("start", frames[2])))
    for kind, *content in script:
        if kind == "tick":
            made._publish(made.state.take_to_publish())
        else:
            made._handle(b"k", [kind, *content])
    return sent


@pytest.mark.parametrize("seed", range(8))
def test_it_says_what_the_real_one_says(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 5))
    script, wave, step = [], 0, 0
    for _ in range(300):
        engine, near = int(rng.integers(size)), max(0, wave + int(rng.integers(-1, 2)))
        kind = ("tick", COUNTS, COUNTS, FIRST_REQ, WAVE_COMPLETE, START_WAVE)[int(rng.integers(6))]
        if kind == COUNTS:
            step += int(rng.integers(2))
            script.append((kind, engine, int(rng.integers(9)), int(rng.integers(9)), near, step))
        elif kind == "tick":
            script.append((kind,))
        else:
            script.append((kind, engine, near))
            wave += kind == WAVE_COMPLETE
    said = [(kind, list(content)) for kind, content in theirs(size, script)]
    assert said == [(kind, list(content)) for kind, content in ours(size, script)] and len(said) > 50

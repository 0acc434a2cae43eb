"""A core in a process of its own: how it starts, how it dies, and what is left behind: nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mini_vllm import LLM, EngineDeadError
from mini_vllm.engine.mp_client import PING
from mini_vllm.tests.engine.engines import TRIES, greedy, start
from mini_vllm.tests.engine.trapped import GatedToy, Trapped, stop

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


def slowly(*values):
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def gone(pid, seconds=120.0):
    """True as soon as no process has this id (a zombie whose parent is not we counts as gone)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):  # it may go between the opening and the reading
            pass
        time.sleep(0.02)
    return False


def run_five(engine):
    for at in range(5):
        engine.add_request(str(at), "~ slow", greedy(max_tokens=1000))
    engine.step()
    assert engine.get_num_unfinished_requests() == 5


def is_dead(engine, match):
    """Everything is refused with the same named error, and nothing is unfinished."""
    for call in (
        engine.step,
        lambda: engine.add_request("new", "x", greedy()),
        lambda: engine.stats,
        engine.reset_prefix_cache,
        engine.check_health,
    ):
        with pytest.raises(EngineDeadError, match=match):
            call()
    assert not engine.has_unfinished_requests() and engine.abort_request(["0", "new"]) == []


@posix
def test_a_killed_core_ends_all_requests_and_another_engine_can_be_made():
    engine = start(Trapped())
    run_five(engine)
    os.kill(engine.core_client.manager.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=r"was ended by SIGKILL\. Make a new engine"):
        while True:
            engine.step()
    is_dead(engine, r"EngineCore encountered an issue: its process \d+ was ended by SIGKILL")
    [output] = LLM(Trapped(), num_blocks=64, enable_multiprocessing=True).generate("x", greedy())
    assert len(output.outputs[0].token_ids) == 8
    engine.shutdown()
    engine.shutdown()


@posix
@pytest.mark.parametrize(
    ("prompt", "match"),
    [
        ("!", "EngineCore encountered an issue: ArithmeticError: the model broke"),
        ("#", "was ended by SIGKILL"),
        ("$", "EngineCore encountered an issue: SystemExit: 3"),
        ("%", "was ended by SIGSEGV"),
        ("&", "ended with exit code 7"),
    ],
    ids=["raise", "kill -9", "sys.exit", "segfault", "os._exit"],
)
def test_a_core_that_dies_in_a_step_says_how(prompt, match):
    llm = LLM(Trapped(), num_blocks=64, enable_multiprocessing=True)
    with pytest.raises(EngineDeadError, match=match) as caught:
        llm.generate(["fine", prompt, "fine too"], greedy(max_tokens=100))
    if prompt == "!":
        assert "_raise" in str(caught.value.__cause__)  # where, in the other process
    is_dead(llm.llm_engine, match)
    assert gone(llm.llm_engine.core_client.manager.pid)


@pytest.mark.slow
@posix
@pytest.mark.parametrize("call", ["stats", "step", *slowly("abort", "health", "nothing")])
def test_a_death_that_nobody_was_waiting_for(call):
    """The next call says it, whichever it is."""
    engine = start(Trapped())
    engine.add_request("a", "~ slow", greedy(max_tokens=1000))
    engine.step()
    os.kill(engine.core_client.manager.pid, signal.SIGKILL)
    engine.core_client.manager.process.wait(120)
    if call != "nothing":
        time.sleep(0.2)  # by now the connection is known to be gone, or not: both are handled
        calls = {"stats": lambda: engine.stats, "step": engine.step, "health": engine.check_health}
        with pytest.raises(EngineDeadError, match="was ended by SIGKILL"):
            while True:
                calls.get(call, lambda: engine.abort_request("a") or engine.reset_prefix_cache())()
        is_dead(engine, "was ended by SIGKILL")
    engine.shutdown()


@pytest.mark.slow
@posix
def test_the_cores_own_words_count_more_than_the_monitors():
    engine = start(Trapped())
    engine.add_request("a", "!", greedy())
    engine.core_client._flush()
    assert gone(engine.core_client.manager.pid)
    engine.core_client.manager._monitor.join()
    with pytest.raises(EngineDeadError, match="ArithmeticError: the model broke"):  # in whatever order they arrive
        engine.step()


@pytest.mark.slow
@posix
def test_a_stopped_core_is_noticed(monkeypatch):
    monkeypatch.setenv("VLLM_ENGINE_ITERATION_TIMEOUT_S", "1")
    monkeypatch.setattr("mini_vllm.engine.sync_mp_client.SILENCE_S", 0.1)
    engine = start(Trapped())
    assert engine.core_client.iteration_timeout_s == 1
    engine.core_client.iteration_timeout_s = 60
    run_five(engine)  # a core that is only late has its time
    stop(engine.core_client.manager.pid)
    engine.core_client.iteration_timeout_s = 1
    match = r"has given no sign of life for 1 s \(VLLM_ENGINE_ITERATION_TIMEOUT_S\)"
    with pytest.raises(EngineDeadError, match=match):
        while True:
            engine.step()
    is_dead(engine, match)
    assert gone(engine.core_client.manager.pid)


@posix
def test_a_core_that_is_stopped_for_a_moment_too_long_is_noticed(monkeypatch):
    monkeypatch.setattr("mini_vllm.engine.sync_mp_client.SILENCE_S", 0.05)
    engine = start(Trapped())
    run_five(engine)
    stop(engine.core_client.manager.pid)
    engine.core_client.iteration_timeout_s = 0.1
    with pytest.raises(EngineDeadError, match=r"has given no sign of life for 0\.1 s"):
        while True:
            engine.step()
    assert gone(engine.core_client.manager.pid)


@pytest.mark.slow
@posix
def test_health_of_a_stopped_core_that_goes_on():
    engine = start()
    engine.check_health(timeout=60.0)
    pid = engine.core_client.manager.pid
    stop(pid)
    with pytest.raises(TimeoutError, match=rf"the engine core \(process {pid}\) gave no sign of life in 0.3 s"):
        engine.check_health(timeout=0.3)
    os.kill(pid, signal.SIGCONT)
    engine.check_health(timeout=60.0)
    engine.add_request("a", "x", greedy())
    while engine.has_unfinished_requests():
        engine.step()


@pytest.mark.slow
def test_a_long_step_is_a_sign_of_life(monkeypatch, tmp_path):
    """A step that takes until the core has answered twice."""
    monkeypatch.setattr("mini_vllm.engine.sync_mp_client.SILENCE_S", 0.05)
    engine, asked = start(GatedToy(tmp_path / "go")), []
    send = engine.core_client._send_utility

    def ask(method, args):
        asked.append(method)
        if len(asked) == 3:  # the next question comes after the answer to the one before
            (tmp_path / "go").touch()
        return send(method, args)

    engine.core_client._send_utility = ask
    engine.add_request("a", "x", greedy(max_tokens=1))
    while engine.has_unfinished_requests():
        engine.step()
    assert len(asked) >= 3 and set(asked) == {PING}


def test_shutdown_waits_and_ends_what_is_unfinished():
    for _ in range(TRIES):
        engine = start(Trapped())
        run_five(engine)
        pid = engine.core_client.manager.pid
        engine.shutdown()
        is_dead(engine, "it was shut down")
        assert gone(pid)
        if engine.core_client.manager.process.returncode == 0:
            break
    else:
        raise AssertionError("a core never ends by itself")


def test_an_engine_that_nobody_holds_takes_its_core_along():
    engine = start(Trapped())
    run_five(engine)
    pid = engine.core_client.manager.pid
    monitor = engine.core_client.manager._monitor
    del engine
    assert gone(pid)
    monitor.join(120)
    assert not monitor.is_alive()


def test_a_finalizer_that_the_monitors_thread_runs():
    """The garbage collector runs in any thread; that one must not wait for itself."""
    engine = start()
    client, done = engine.core_client, threading.Event()
    notice = client.manager.process.wait
    thread = threading.Thread(target=lambda: (notice(120), client.manager.shutdown(), done.set()))
    client.manager._monitor.join(0.0)
    client.manager._monitor = thread
    thread.start()
    client.manager.process.kill()
    assert done.wait(120)
    engine.shutdown()


SCRIPT = """
import os, sys, time
from mini_vllm import LLMEngine, SamplingParams
from mini_vllm.tests.engine.trapped import Trapped, stop
engine = LLMEngine(Trapped(), num_blocks=256, enable_multiprocessing=True)
engine.add_request("a", "~ slow", SamplingParams(max_tokens=1000, ignore_eos=True))
engine.step()
print(engine.core_client.manager.pid, flush=True)
"""


def script(more, **kwargs):
    """A front end of its own, from standard input: there is no main module that could be imported again."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=env, **kwargs,
    )  # fmt: skip
    process.stdin.write(SCRIPT + more)
    process.stdin.close()
    return process, int(process.stdout.readline())


@posix
@pytest.mark.parametrize("how", [signal.SIGKILL, *slowly(signal.SIGTERM)], ids=lambda s: s.name)
def test_a_front_end_that_dies_takes_its_core_along(how):
    process, pid = script("time.sleep(1000)")
    process.send_signal(how)
    process.wait()
    assert gone(pid)
    process.stdout.close()
    process.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize("more", ["os._exit(5)", "raise ValueError('x')", *slowly("", "sys.exit(3)")], ids=repr)
def test_a_front_end_that_ends_takes_its_core_along(more):
    process, pid = script(more)
    with process.stdout, process.stderr:
        noise = process.stderr.read()
    assert gone(pid) and process.wait() == {"": 0, "sys.exit(3)": 3, "os._exit(5)": 5}.get(more, 1)
    assert noise == "" or more.startswith("raise")


@posix
def test_an_interrupt_ends_a_step_and_neither_the_core_nor_the_engine():
    engine = start(Trapped())
    run_five(engine)
    os.kill(engine.core_client.manager.pid, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            engine.step()
    assert len(engine.abort_request([str(at) for at in range(5)])) == 5
    engine.add_request("b", "hi", greedy(max_tokens=3))
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert len(outputs[-1].outputs[0].token_ids) == 3
    engine.shutdown()


@pytest.mark.slow
@posix
def test_control_c_is_the_front_ends_business():
    """It goes to both processes, as from a terminal; the engine is usable after it."""
    process, pid = script(
        "try:\n"
        "    print('go', flush=True)\n"
        "    while True: engine.step()\n"
        "except KeyboardInterrupt:\n"
        "    engine.abort_request('a')\n"
        "    engine.add_request('b', 'hi', SamplingParams(max_tokens=3, ignore_eos=True, temperature=0))\n"
        "    while engine.has_unfinished_requests():\n"
        "        for output in engine.step():\n"
        "            last = output\n"
        "    print(len(last.outputs[0].token_ids), flush=True)\n",
        start_new_session=True,
    )
    assert process.stdout.readline() == "go\n"
    os.killpg(process.pid, signal.SIGINT)
    with process.stdout, process.stderr:
        assert (process.stdout.read(), process.stderr.read()) == ("3\n", "")
    assert process.wait() == 0 and gone(pid)

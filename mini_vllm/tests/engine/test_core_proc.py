"""A core in a process of its own: how it starts, how it dies, and what is left behind: nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mini_vllm import LLM, EngineDeadError, LLMEngine, SamplingParams
from mini_vllm.engine.utils import CoreSetup, EngineZmqAddresses
from mini_vllm.tests.engine.trapped import FailsToLoad, Trapped
from mini_vllm.toy_model import ToyModel

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


def greedy(**kwargs):
    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 8, **kwargs})


def start(model=None, **kwargs):
    return LLMEngine(model, **{"num_blocks": 256, "enable_multiprocessing": True, **kwargs})


def gone(pid, seconds=30.0):
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
        except FileNotFoundError:
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


@posix
def test_a_stopped_core_is_noticed(monkeypatch):
    monkeypatch.setenv("VLLM_ENGINE_ITERATION_TIMEOUT_S", "1")
    engine = start(Trapped())
    assert engine.core_client.iteration_timeout_s == 1
    run_five(engine)
    os.kill(engine.core_client.manager.pid, signal.SIGSTOP)
    match = r"has given no sign of life for 1 s \(VLLM_ENGINE_ITERATION_TIMEOUT_S\)"
    with pytest.raises(EngineDeadError, match=match):
        while True:
            engine.step()
    is_dead(engine, match)
    assert gone(engine.core_client.manager.pid)


@posix
def test_health_of_a_stopped_core_that_goes_on():
    engine = start()
    engine.check_health(timeout=60.0)
    pid = engine.core_client.manager.pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError, match=rf"the engine core \(process {pid}\) gave no sign of life in 0.3 s"):
        engine.check_health(timeout=0.3)
    os.kill(pid, signal.SIGCONT)
    engine.check_health(timeout=60.0)
    engine.add_request("a", "x", greedy())
    while engine.has_unfinished_requests():
        engine.step()


def test_a_long_step_is_a_sign_of_life(monkeypatch):
    monkeypatch.setattr("mini_vllm.engine.sync_mp_client.SILENCE_S", 0.05)
    engine = start(SlowToy())
    engine.core_client.iteration_timeout_s = 0.2
    engine.add_request("a", "x", greedy(max_tokens=1))
    engine.add_request("b", "x", greedy(max_tokens=1))
    while engine.has_unfinished_requests():
        engine.step()


class SlowToy(ToyModel):
    def forward(self, *args, **kwargs):
        time.sleep(1.0)
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5"])
def test_the_settings_are_whole_seconds(monkeypatch, value):
    monkeypatch.setenv("VLLM_ENGINE_ITERATION_TIMEOUT_S", value)
    with pytest.raises(ValueError, match="VLLM_ENGINE_ITERATION_TIMEOUT_S must be a whole number of seconds"):
        start()


def test_a_core_that_cannot_start_raises_as_in_process(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"], "model_type": "none"}')
    for args in (
        {"model": str(tmp_path)},
        {"model": str(tmp_path / "nothing")},
        {"max_model_len": 10**9},
        {"quantization": "int8"},
        {"kv_cache_memory_bytes": 1, "num_blocks": None, "model": "pocket"},
    ):
        if args.get("model") == "pocket":
            args["model"] = str(Path(__file__).resolve().parents[3] / "models" / "pocket")
        errors = []
        for elsewhere in (False, True):
            with pytest.raises((ValueError, OSError)) as caught:
                LLM(**{"num_blocks": 64, **args}, enable_multiprocessing=elsewhere)
            errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]


@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (KeyError("x"), KeyError, "x"),
        (ArithmeticError("odd size"), ArithmeticError, "^odd size$"),
        (SystemExit(4), RuntimeError, "SystemExit: 4"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), RuntimeError, "UnicodeDecodeError: 'utf-8' codec can't"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_at_the_start_keeps_class_and_text(error, kind, match):
    with pytest.raises(kind, match=match) as caught:
        start(FailsToLoad(error))
    assert "__setstate__" in str(caught.value.__cause__)


@posix
def test_a_core_that_dies_at_the_start_is_named(monkeypatch):
    monkeypatch.setattr("mini_vllm.engine.utils._START", "import os; os._exit(9)")
    with pytest.raises(EngineDeadError, match=r"its process \d+ ended with exit code 9"):
        start()
    monkeypatch.setattr("mini_vllm.engine.utils._START", "import time; time.sleep(100)")
    monkeypatch.setenv("VLLM_ENGINE_READY_TIMEOUT_S", "1")
    with pytest.raises(TimeoutError, match=r"not ready within 1 s \(VLLM_ENGINE_READY_TIMEOUT_S\)"):
        start()


def test_what_cannot_be_sent_is_refused_before_a_process_starts(monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)

    class Local(ToyModel):
        pass

    with pytest.raises(ValueError, match=r"cannot be sent to a core in a process of its own .*Local"):
        start(Local())
    main_model = type("MainModel", (ToyModel,), {"__module__": "__main__"})
    with pytest.raises(ValueError, match="model MainModel is defined in the main script"):
        start(main_model())


def test_shutdown_waits_and_ends_what_is_unfinished():
    engine = start(Trapped())
    run_five(engine)
    pid = engine.core_client.manager.pid
    engine.shutdown()
    assert gone(pid) and engine.core_client.manager.process.returncode == 0
    is_dead(engine, "it was shut down")


def test_an_engine_that_nobody_holds_takes_its_core_along():
    engine = start(Trapped())
    run_five(engine)
    pid = engine.core_client.manager.pid
    threads = threading.active_count()
    del engine
    assert gone(pid) and threading.active_count() == threads - 1


SCRIPT = """
import os, sys, time
from mini_vllm import LLMEngine, SamplingParams
from mini_vllm.tests.engine.trapped import Trapped
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
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_a_front_end_that_dies_takes_its_core_along(how):
    process, pid = script("time.sleep(1000)")
    process.send_signal(how)
    process.wait()
    assert gone(pid)
    process.stdout.close()
    process.stderr.close()


@pytest.mark.parametrize("more", ["", "sys.exit(3)", "raise ValueError('x')", "os._exit(5)"], ids=repr)
def test_a_front_end_that_ends_takes_its_core_along(more):
    process, pid = script(more)
    with process.stdout, process.stderr:
        noise = process.stderr.read()
    assert gone(pid) and process.wait() == {"": 0, "sys.exit(3)": 3, "os._exit(5)": 5}.get(more, 1)
    assert noise == "" or more.startswith("raise")


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


def test_a_strangers_messages_are_passed_over():
    import zmq

    engine = start()
    client = engine.core_client
    with zmq.Context() as context, context.socket(zmq.PUSH) as push, context.socket(zmq.DEALER) as dealer:
        push.connect(client._output.getsockopt_string(zmq.LAST_ENDPOINT))
        dealer.connect(client._input.getsockopt_string(zmq.LAST_ENDPOINT))
        push.send_multipart([b"core", b"ENGINE_CORE_DEAD", b"\xc0"])
        push.send(b"alone")
        dealer.send_multipart([b"READY", b"x"])
        engine.check_health(60.0)
        engine.add_request("a", "x", greedy())
        while engine.has_unfinished_requests():
            engine.step()


def test_a_message_that_the_core_cannot_read_is_a_fault_of_the_core():
    engine = start()
    engine.core_client._in_flight.add("a")
    engine.core_client._input.send_multipart((engine.core_client._identity, b"\x01", b"\xc1"))
    with pytest.raises(EngineDeadError, match="EngineCore encountered an issue"):
        engine.step()


def test_a_request_that_the_core_refuses_ends_with_the_reason():
    """The front end has checked; this is what a fault of the front end would give."""
    engine = start()
    engine.core_client.ready.fits_any = True
    engine.add_request("big", "x", greedy(max_tokens=8))
    for each in ("big", "x" * 3):
        request = engine.make_request(each, engine.process_inputs("y", greedy()), 0, None)
        engine.core_client.add_request(request)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[0].outputs[0].finish_reason == "error"
    assert "request_id 'big' belongs to an unfinished request" in outputs[0].outputs[0].stop_reason


def test_two_engines_at_once():
    first, second = start(), start()
    assert first.core_client.manager.pid != second.core_client.manager.pid
    for engine in (first, second, first):
        engine.add_request("a", "x", greedy())
        while engine.has_unfinished_requests():
            engine.step()
    second.shutdown()
    first.check_health(60.0)


def test_setup_is_what_it_says():
    assert CoreSetup(1, 2) == CoreSetup(1, 2, None)
    assert EngineZmqAddresses("a", "b", b"c").identity == b"c"

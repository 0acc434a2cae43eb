"""A core in a process of its own: its start, and what it makes of messages that no front end sends."""

import os
from pathlib import Path

import pytest

from mini_vllm import LLM, EngineDeadError
from mini_vllm.engine.utils import own_words_come
from mini_vllm.serial_utils import MsgpackEncoder
from mini_vllm.tests.engine.engines import greedy, start
from mini_vllm.tests.engine.trapped import FailsToLoad
from mini_vllm.toy_model import ToyModel

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
posix = pytest.mark.skipif(os.name != "posix", reason="signals")


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
        (ArithmeticError("odd size"), ArithmeticError, "^odd size$"),
        pytest.param(KeyError("x"), KeyError, "x", marks=pytest.mark.slow),
        pytest.param(SystemExit(4), RuntimeError, "SystemExit: 4", marks=pytest.mark.slow),
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


@pytest.mark.parametrize(("code", "said"), [(1, True), (9, False), (137, False)])
def test_the_own_words_of_a_core_are_waited_for_where_it_has_said_some(code, said):
    class Late:
        looks = 0

        def poll(self, milliseconds):
            self.looks += 1
            return self.looks > 3

    death = MsgpackEncoder().encode(["", f"its process 7 ended with exit code {code}", ""])
    assert own_words_come(Late(), death) == said


def test_what_cannot_be_sent_is_refused_before_a_process_starts(monkeypatch):
    monkeypatch.setattr("subprocess.Popen", None)

    class Local(ToyModel):
        pass

    with pytest.raises(ValueError, match=r"cannot be sent to a core in a process of its own .*Local"):
        start(Local())
    main_model = type("MainModel", (ToyModel,), {"__module__": "__main__"})
    with pytest.raises(ValueError, match="model MainModel is defined in the main script"):
        start(main_model())


@pytest.mark.slow
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


@pytest.mark.slow
def test_two_engines_at_once():
    first, second = start(), start()
    assert first.core_client.manager.pid != second.core_client.manager.pid
    for engine in (first, second, first):
        engine.add_request("a", "x", greedy())
        while engine.has_unfinished_requests():
            engine.step()
    second.shutdown()
    first.check_health(60.0)

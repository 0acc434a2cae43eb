"""Lab 01-05: exact ends, ties between them, the engine on your check, and a random comparison with mini_vllm."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import mini_vllm.core.sched.utils
from mini_vllm import LLMEngine, Request, RequestStatus, SamplingParams

EOS = 256
CONTEXT = 100
VERDICTS = json.loads((Path(__file__).with_name("captured") / "verdicts.json").read_text(encoding="utf-8"))["verdicts"]


class Stream:
    """Tokens of which no more than `most` may be taken: who reads the stream whole is told, and costs no memory."""

    def __init__(self, tokens, most):
        self.tokens, self.most, self.taken = iter(tokens), most, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.taken += 1
        if self.taken > self.most:
            raise EOFError(f"token {self.taken} was taken from the stream, and with token {self.most} it had ended")
        return next(self.tokens)


def make(max_tokens=5, prompt=3, eos=EOS, **params):
    """A request as the engine core holds it: its sampling parameters already carry the model's EOS."""
    sampling = SamplingParams(max_tokens=max_tokens, **params)
    sampling.update_from_generation_config(eos)
    return Request("r", list(range(1, prompt + 1)), sampling)


def after(request, tokens):
    """The request with these outputs appended, RUNNING, not judged yet."""
    request.status = RequestStatus.RUNNING
    for token in tokens:
        request.append_output_token_ids(token)
    return request


def hangs(verdict):
    """Nothing can follow in a full context, and yet the request has not ended."""
    return not verdict["ended"] and verdict["prompt"] + len(verdict["outputs"]) >= verdict["max_model_len"]


def alike(verdict, other):
    """The same tokens in the same context, whatever the sampling parameters."""
    return all(verdict[key] == other[key] for key in ("prompt", "outputs", "max_model_len"))


def test_your_prediction(impl):
    """Compared before any verdict of yours: it says how many are right, not which."""
    mine, theirs = impl.predicted_hangs(), {v["name"] for v in VERDICTS if hangs(v)}
    assert isinstance(mine, set), f"got {type(mine).__name__}, expected a set of names"
    unknown = mine - {v["name"] for v in VERDICTS}
    assert not unknown, f"got names that no captured verdict has, expected only those of the file: {sorted(unknown)}"
    right, wrong = len(mine & theirs), len(mine - theirs)
    if right < len(theirs) or wrong:
        pytest.fail(
            f"got {right} that hang and {wrong} that do not, expected all {len(theirs)} and no other: for each verdict "
            "ask what the scheduler can do in the next step",
            pytrace=False,
        )


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda v: v["name"])
def test_vllms_verdicts(impl, verdict):
    request = after(make(prompt=verdict["prompt"], **verdict["params"]), verdict["outputs"])
    ended = impl.check_stop(request, verdict["max_model_len"])
    assert type(ended) is bool, f"got {ended!r}, expected True or False: the caller may look at the value"
    if hangs(verdict):
        assert ended, f"{verdict['name']}: got False, expected an end: this looks like *A gate without the exception*"
        (verdict,) = (v for v in VERDICTS if alike(v, verdict) and "min_tokens" not in v["params"])
    mine = (ended, request.status.name, request.stop_reason)
    theirs = (verdict["ended"], verdict["status"], verdict["stop_reason"])
    assert mine == theirs, f"{verdict['name']} (ended, status, stop_reason): got {mine}, expected vLLM's {theirs}"


def test_every_request_comes_to_an_end(impl):
    """The engine with your check, and a request that has no room for its minimum."""
    engine = LLMEngine(max_model_len=32)
    engine.scheduler.check_stop = impl.check_stop
    params = SamplingParams(temperature=0.0, max_tokens=100, min_tokens=50, ignore_eos=True)
    engine.add_request("r", "x" * 10, params)
    request = engine.scheduler.requests["r"]
    for _ in range(60):
        if not engine.has_unfinished_requests():
            break
        engine.step()
    assert request.is_finished(), (
        f"got {request.status.name} with {request.num_tokens} of 32 tokens after 60 steps, expected an end: the "
        "scheduler cannot give it another token, and nobody asks your check again. "
        "This looks like *A gate without the exception*"
    )
    assert (impl.finish_reason(request), request.num_tokens) == ("length", 32), "it ends when the context is full"


def test_eos_stops_generation(impl):
    stream = Stream([10, 20, EOS, 30, 40], 3)
    request = impl.run_until_stop(make(max_tokens=10), stream, CONTEXT)
    assert request.output_token_ids == [10, 20, EOS], "EOS itself is an output token, and nothing comes after it"
    assert request.status is RequestStatus.FINISHED_STOPPED
    assert impl.finish_reason(request) == "stop"
    assert request.stop_reason is None, "stop_reason is for stop ids and stop strings; for EOS it stays None"
    assert stream.taken == 3, "tokens after the end must not even be taken from the stream"


def test_no_eos_hits_length_cap(impl):
    request = impl.run_until_stop(make(max_tokens=4), Stream(itertools.count(10), 4), CONTEXT)
    assert request.output_token_ids == [10, 11, 12, 13], "max_tokens=4 means four outputs, no more and no fewer"
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED
    assert impl.finish_reason(request) == "length"


def test_max_tokens_counts_outputs_only(impl):
    request = impl.run_until_stop(make(max_tokens=2, prompt=50), Stream(itertools.repeat(7), 2), CONTEXT)
    assert request.num_output_tokens == 2, "a prompt of 50 tokens takes nothing from max_tokens"


def test_full_context_ends_it_too(impl):
    request = impl.run_until_stop(make(max_tokens=50, prompt=6), Stream(itertools.repeat(7), 4), max_model_len=10)
    assert (request.num_tokens, request.num_output_tokens) == (10, 4), "6 + 4 = 10 fill the context"
    assert impl.finish_reason(request) == "length"


def test_one_token_before_the_caps_nothing_ends(impl):
    request = after(make(max_tokens=4, prompt=6), [7, 7, 7])
    assert impl.check_stop(request, max_model_len=10) is False, "9 of 10 tokens, 3 of 4 outputs: one more fits"
    assert request.status is RequestStatus.RUNNING and request.stop_reason is None, "False leaves the request as it was"


def test_eos_on_the_boundary_reports_stop(impl):
    request = impl.run_until_stop(make(max_tokens=3), [10, 20, EOS], CONTEXT)
    assert impl.finish_reason(request) == "stop", "EOS as the last allowed token: the answer is complete, not truncated"


def test_stop_token_on_the_boundary_reports_stop(impl):
    request = impl.run_until_stop(make(max_tokens=2, stop_token_ids=[42]), [10, 42], CONTEXT)
    assert impl.finish_reason(request) == "stop"
    assert request.stop_reason == 42


def test_stop_token_ids(impl):
    stream = Stream([1, 2, 43, 42, 3], 3)
    request = impl.run_until_stop(make(max_tokens=9, stop_token_ids=[42, 43]), stream, CONTEXT)
    assert request.output_token_ids == [1, 2, 43]
    assert request.status is RequestStatus.FINISHED_STOPPED
    assert request.stop_reason == 43, "stop_reason names the id that ended it"


def test_eos_comes_before_the_stop_list(impl):
    request = after(make(stop_token_ids=[EOS]), [EOS])
    assert impl.check_stop(request, CONTEXT) is True
    assert request.stop_reason is None, "an id that is EOS and in the list ends as EOS: no stop_reason"


def test_ignore_eos_runs_to_length_cap(impl):
    request = impl.run_until_stop(make(max_tokens=4, ignore_eos=True), [EOS, 1, EOS, EOS, 2], CONTEXT)
    assert request.output_token_ids == [EOS, 1, EOS, EOS]
    assert impl.finish_reason(request) == "length"


def test_ignore_eos_leaves_stop_ids_alone(impl):
    request = impl.run_until_stop(make(max_tokens=4, ignore_eos=True, stop_token_ids=[9]), [EOS, 9, 1], CONTEXT)
    assert request.output_token_ids == [EOS, 9], "ignore_eos switches off EOS, nothing else"


def test_eos_is_the_models_not_a_constant(impl):
    request = impl.run_until_stop(make(max_tokens=9, eos=2), [EOS, 5, 2, 5], CONTEXT)
    assert request.output_token_ids == [EOS, 5, 2], "this model's EOS is 2; 256 is an ordinary token for it"


def test_min_tokens_holds_back_eos_and_stop_ids(impl):
    params = {"max_tokens": 9, "min_tokens": 3, "stop_token_ids": [42]}
    request = impl.run_until_stop(make(**params), [EOS, 42, 7, EOS, 8], CONTEXT)
    assert request.output_token_ids == [EOS, 42, 7, EOS], "outputs 1 and 2 are below min_tokens=3, output 4 is not"
    assert request.stop_reason is None


def test_below_min_tokens_the_answer_is_false(impl):
    request = after(make(max_tokens=9, min_tokens=3), [1, EOS])
    assert impl.check_stop(request, CONTEXT) is False, "False, not None: the caller may look at the value"
    assert request.status is RequestStatus.RUNNING


def test_min_tokens_boundary(impl):
    request = impl.run_until_stop(make(max_tokens=9, min_tokens=3), [1, 2, EOS, 4], CONTEXT)
    assert request.output_token_ids == [1, 2, EOS], "the third output is allowed to end it: the gate is <, not <="


def test_min_tokens_cannot_outlive_the_context(impl):
    request = impl.run_until_stop(
        make(max_tokens=50, min_tokens=50, prompt=6), Stream(itertools.repeat(7), 4), max_model_len=10
    )
    assert request.num_tokens == 10, (
        "the 11th token has no place in the context: a request that goes on here never ends"
    )
    assert impl.finish_reason(request) == "length"


@pytest.mark.parametrize("status", [RequestStatus.WAITING, RequestStatus.RUNNING, RequestStatus.PREEMPTED])
def test_unfinished_request_has_no_reason(impl, status):
    request = make()
    request.status = status
    assert impl.finish_reason(request) is None


def test_every_end_has_its_word(impl):
    words = {}
    for status in RequestStatus:
        if status.name == "FINISHED_REPETITION":
            continue  # only for requests that ask for it, and not this lab's
        request = make()
        request.status = status
        words[status.name] = impl.finish_reason(request)
    ended = {name: word for name, word in words.items() if name.startswith("FINISHED")}
    assert ended == {
        "FINISHED_STOPPED": "stop",
        "FINISHED_LENGTH_CAPPED": "length",
        "FINISHED_ABORTED": "abort",
        "FINISHED_ERROR": "error",
    }


def test_it_is_the_same_request_and_runs_while_it_is_fed(impl, monkeypatch):
    request, seen = make(max_tokens=3), []
    real = impl.check_stop

    def spy(asked, max_model_len):
        seen.append((asked is request, asked.status.name, asked.num_output_tokens, max_model_len))
        return real(asked, max_model_len)

    monkeypatch.setattr(impl, "check_stop", spy)
    assert impl.run_until_stop(request, [5, 6, 7, 8], 77) is request, "the same request comes back"
    assert seen == [(True, "RUNNING", n, 77) for n in (1, 2, 3)], "asked after each token, with the request RUNNING"


def test_exhausted_stream_leaves_it_running(impl):
    empty = impl.run_until_stop(make(), [], CONTEXT)
    assert (empty.status, empty.output_token_ids) == (RequestStatus.RUNNING, []), "no token at all: RUNNING, no output"
    request = impl.run_until_stop(make(max_tokens=9), [1, 2], CONTEXT)
    assert request.status is RequestStatus.RUNNING
    assert request.output_token_ids == [1, 2]
    assert impl.finish_reason(request) is None


def test_agrees_with_mini_vllm_on_random_requests(impl):
    rng = np.random.default_rng(5)
    seen = set()
    for case in range(400):
        min_tokens = int(rng.integers(0, 4))
        options = {
            "max_tokens": int(rng.integers(max(1, min_tokens), 7)),
            "min_tokens": min_tokens,
            "prompt": int(rng.integers(1, 6)),
            "ignore_eos": bool(rng.integers(2)),
            "stop_token_ids": [3] if rng.integers(2) else [],
            "eos": int(rng.choice([0, 3])),
        }
        max_model_len = options["prompt"] + int(rng.integers(1, 7))
        tokens = rng.integers(0, 5, size=12).tolist()
        mine = impl.run_until_stop(make(**options), tokens, max_model_len)
        theirs = after(make(**options), [])
        for token in tokens:
            theirs.append_output_token_ids(token)
            if mini_vllm.core.sched.utils.check_stop(theirs, max_model_len):
                break
        facts = [(r.output_token_ids, r.status, r.stop_reason) for r in (mine, theirs)]
        assert facts[0] == facts[1], f"case {case}: {options}, max_model_len={max_model_len}, stream {tokens}"
        seen.add((mine.status, mine.stop_reason))
    assert len(seen) == 3, "the random cases must reach EOS, a stop id and a cap"


@pytest.mark.real_vllm
def test_live(real_run):
    """The captured verdicts are those of the release on this machine, too."""
    _, answers = real_run("none")
    assert answers["verdicts"] == VERDICTS


def test_the_engine_serves_with_your_check(impl):
    """Your function, in the place of the scheduler's own `check_stop`, ends the engine's requests."""
    asked = []

    def spy(request, max_model_len):
        asked.append(request.request_id)
        return impl.check_stop(request, max_model_len)

    engine = LLMEngine()
    engine.scheduler.check_stop = spy
    engine.add_request("a", "hello", SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True))
    engine.add_request("b", "hello", SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True))
    final = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                final[output.request_id] = output.outputs[0]
    assert {rid: (len(o.token_ids), o.finish_reason) for rid, o in final.items()} == {
        "a": (6, "length"),
        "b": (2, "length"),
    }
    assert sorted(asked) == ["a"] * 6 + ["b"] * 2, "one question per sampled token"

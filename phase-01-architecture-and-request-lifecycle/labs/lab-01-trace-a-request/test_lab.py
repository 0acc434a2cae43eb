"""Lab 01-01: exact traces of one request, and of several that share the engine."""

import itertools

import pytest

EOS_PROMPT = "ab"  # the toy model samples EOS for this prompt, see test_eos_does_not_end_the_trace


def facts(events):
    return [(e.status, e.num_computed_tokens, e.num_tokens) for e in events]


def test_snapshot_is_what_stands_now(impl):
    from mini_vllm import Request, RequestStatus, SamplingParams

    request = Request("some-id", [7, 8, 9], SamplingParams(max_tokens=5))
    assert impl.snapshot(request) == impl.Event("some-id", "WAITING", 0, 3)
    request.status, request.num_computed_tokens = RequestStatus.PREEMPTED, 2
    request.append_output_token_ids(1)
    before = impl.snapshot(request)
    assert before == impl.Event("some-id", "PREEMPTED", 2, 4), "the name of the status, then computed, then existing"
    request.num_computed_tokens = 4
    assert before.num_computed_tokens == 2, "an event must not change when the request does"
    assert (request.status, request.num_tokens) == (RequestStatus.PREEMPTED, 4), "looking changes nothing"
    request.status, request.num_computed_tokens = RequestStatus.RUNNING, 1
    assert impl.snapshot(request)[1:] == ("RUNNING", 1, 4), "back from preemption it runs, and is three tokens behind"


def test_first_event_is_running_after_prefill(impl):
    first = impl.trace_request("hello")[0]
    assert first.status == "RUNNING", "one step admits the request and computes its whole prompt: WAITING is never seen"
    assert first.num_computed_tokens == 5, "five bytes are five prompt tokens, all computed in step 1"
    assert first.num_tokens == 6, "step 1 also samples: the prompt's last row already predicts a token"


def test_the_whole_trace(impl):
    assert facts(impl.trace_request("hello", 4)) == [
        ("RUNNING", 5, 6),
        ("RUNNING", 6, 7),
        ("RUNNING", 7, 8),
        ("FINISHED_LENGTH_CAPPED", 8, 9),
    ]


def test_events_carry_the_request(impl):
    events = impl.trace_request("hello", 2)
    assert [e.request_id for e in events] == ["req-0", "req-0"]
    assert events[0] == impl.Event("req-0", "RUNNING", 5, 6), "an Event is a plain tuple of four"


def test_default_is_four_tokens(impl):
    assert len(impl.trace_request("hello")) == 4
    assert len(impl.trace_requests(["hello"])) == 4


@pytest.mark.parametrize(
    ("prompt", "max_tokens"), [("a", 1), ("a", 7), ("hello", 1), ("Tell me a joke", 9), ("x" * 40, 3)]
)
def test_counters_monotonic_and_decode_by_one(impl, prompt, max_tokens):
    events = impl.trace_request(prompt, max_tokens)
    assert len(events) == max_tokens, "one step per output token: the first comes with the prefill"
    computed = [e.num_computed_tokens for e in events]
    tokens = [e.num_tokens for e in events]
    assert computed[0] == len(prompt)
    assert [b - a for a, b in itertools.pairwise(computed)] == [1] * (max_tokens - 1), (
        "a decode step computes one token"
    )
    assert [t - c for t, c in zip(tokens, computed, strict=True)] == [1] * max_tokens, (
        "after a sampling step exactly one token is uncomputed"
    )


def test_finishes_at_length_cap(impl):
    last = impl.trace_request("hello", 4)[-1]
    assert last.status == "FINISHED_LENGTH_CAPPED", (
        "the last event is the finished request: look at it after its last step"
    )
    assert (last.num_computed_tokens, last.num_tokens) == (8, 9), (
        "the last token is never computed: nobody needs its KV"
    )


def test_chunked_prefill_delays_the_first_token(impl):
    events = impl.trace_request("0123456789", 4, long_prefill_token_threshold=2)
    assert facts(events) == [
        ("RUNNING", 2, 10),
        ("RUNNING", 4, 10),
        ("RUNNING", 6, 10),
        ("RUNNING", 8, 10),
        ("RUNNING", 10, 11),
        ("RUNNING", 11, 12),
        ("RUNNING", 12, 13),
        ("FINISHED_LENGTH_CAPPED", 13, 14),
    ], "chunks of 2: four steps without a token, the fifth completes the prompt and samples"


def test_eos_does_not_end_the_trace(impl):
    from mini_vllm import LLMEngine, SamplingParams

    engine = LLMEngine()
    engine.add_request("probe", EOS_PROMPT, SamplingParams(max_tokens=2000, temperature=0.0))
    request = engine.scheduler.requests["probe"]
    while engine.has_unfinished_requests():
        engine.step()
    natural = request.num_output_tokens
    assert request.status.name == "FINISHED_STOPPED", "this prompt must meet EOS, or the test shows nothing"
    events = impl.trace_request(EOS_PROMPT, natural + 3)
    assert len(events) == natural + 3, f"the model samples EOS as output {natural}; with ignore_eos the trace goes on"


def test_two_requests_side_by_side(impl):
    steps = impl.trace_requests(["hello", "hi"], 2)
    assert [facts(step) for step in steps] == [
        [("RUNNING", 5, 6), ("RUNNING", 2, 3)],
        [("FINISHED_LENGTH_CAPPED", 6, 7), ("FINISHED_LENGTH_CAPPED", 3, 4)],
    ]
    assert [e.request_id for e in steps[0]] == ["req-0", "req-1"], "events stand in the order of the prompts"


def test_twelve_requests_keep_their_order(impl):
    prompts = ["x" * n for n in range(12, 0, -1)]
    kept = list(prompts)
    steps = impl.trace_requests(prompts, 2)
    assert prompts == kept, "the caller's list of prompts was changed"
    for step in steps:
        assert [e.request_id for e in step] == [f"req-{i}" for i in range(12)], (
            "req-10 comes after req-9, not after req-1"
        )
    assert [e.num_computed_tokens for e in steps[0]] == list(range(12, 0, -1)), "each event is of its own prompt"


def test_waiting_is_seen_when_there_is_one_seat(impl):
    steps = impl.trace_requests(["hello", "hi"], 2, max_num_seqs=1)
    assert [facts(step) for step in steps] == [
        [("RUNNING", 5, 6), ("WAITING", 0, 2)],
        [("FINISHED_LENGTH_CAPPED", 6, 7), ("WAITING", 0, 2)],
        [("FINISHED_LENGTH_CAPPED", 6, 7), ("RUNNING", 2, 3)],
        [("FINISHED_LENGTH_CAPPED", 6, 7), ("FINISHED_LENGTH_CAPPED", 3, 4)],
    ], "finished requests stay in the picture; the second is admitted one step after the seat is free"


def test_preemption_is_seen_when_blocks_run_out(impl):
    steps = impl.trace_requests(["aaaa", "bbbb"], 5, block_size=4, num_blocks=4, enable_prefix_caching=False)
    second = [facts(step)[1] for step in steps]
    assert second == [
        ("RUNNING", 4, 5),
        ("PREEMPTED", 0, 5),
        ("PREEMPTED", 0, 5),
        ("PREEMPTED", 0, 5),
        ("PREEMPTED", 0, 5),
        ("RUNNING", 5, 6),
        ("RUNNING", 6, 7),
        ("RUNNING", 7, 8),
        ("FINISHED_LENGTH_CAPPED", 8, 9),
    ], "preempted: the counter is back at 0, its one output token is kept, and it is prefilled again as 5 tokens"


def test_no_prompt_no_steps(impl):
    assert impl.trace_requests([], 4) == []


def test_decoding_is_greedy(impl, monkeypatch):
    from mini_vllm import LLMEngine

    seen, original = [], LLMEngine.add_request

    def add_request(self, request_id, prompt, params, *args, **kwargs):
        seen.append((request_id, params.temperature, params.max_tokens, params.ignore_eos))
        return original(self, request_id, prompt, params, *args, **kwargs)

    monkeypatch.setattr(LLMEngine, "add_request", add_request)
    impl.trace_requests(["hello", "hi"], 2)
    assert seen == [("req-0", 0.0, 2, True), ("req-1", 0.0, 2, True)], "(id, temperature, max_tokens, ignore_eos)"

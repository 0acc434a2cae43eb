"""Lab 01-03: the layout of a step, and your step in the engine's place."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm import LLMEngine, Sampler, SamplingParams, ToyModel

PROMPTS = ["hello", "Tell me a joke", "x", "abcdefghijkl"]


def engine_with(prompts, max_tokens=4, **kwargs):
    engine = LLMEngine(**kwargs)
    for i, prompt in enumerate(prompts):
        engine.add_request(f"r{i}", prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True))
    return engine


def finish(engine, step):
    """Run `step` until nothing is left; returns each request's output tokens."""
    requests = dict(engine.scheduler.requests)
    for _ in range(300):
        if not engine.scheduler.has_unfinished_requests():
            return {rid: r.output_token_ids for rid, r in requests.items()}
        step()
    raise AssertionError(f"not finished after 300 steps: {list(engine.scheduler.requests.values())}")


def reference(prompts, **kwargs):
    engine = engine_with(prompts, **kwargs)
    return finish(engine, engine.engine_core.step)


def by_hand(impl, prompts, **kwargs):
    engine = engine_with(prompts, **kwargs)
    model, sampler = ToyModel(), Sampler()
    return finish(engine, lambda: impl.engine_step(engine.scheduler, model, sampler))


def test_batch_of_a_prefill_step(impl):
    engine = engine_with(["hello", "hi"])
    output = engine.scheduler.schedule()
    batch = impl.build_batch(output, engine.scheduler.requests)
    assert batch.req_ids == ["r0", "r1"]
    assert batch.input_ids.tolist() == [*b"hello", *b"hi"], "all scheduled tokens in one row, request after request"
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1], "positions count within each request"
    assert batch.logits_indices.tolist() == [4, 6], "each request's last token: 5 - 1, and 5 + 2 - 1"
    assert batch.due == [True, True]
    assert {a.dtype for a in (batch.input_ids, batch.positions, batch.logits_indices)} == {np.dtype(np.int64)}


def test_batch_of_a_chunk_beside_a_decode(impl):
    engine = engine_with(["ab", "0123456789"], max_num_batched_tokens=6, max_num_seqs=2)
    engine.step()  # ab: 2 tokens, then 4 of the ten
    sampled = engine.scheduler.requests["r0"].output_token_ids
    output = engine.scheduler.schedule()  # one decode, and 5 more of the ten
    batch = impl.build_batch(output, engine.scheduler.requests)
    assert output.num_scheduled_tokens == {"r0": 1, "r1": 5}
    assert batch.input_ids.tolist() == [*sampled, *b"45678"], (
        "tokens 4..8: schedule() has already moved the counter to 9"
    )
    assert batch.positions.tolist() == [2, 4, 5, 6, 7, 8]
    assert batch.logits_indices.tolist() == [0, 5]
    assert batch.due == [True, False], "9 of 10 tokens: this request has not caught up"


def test_batch_of_an_empty_plan(impl):
    engine = engine_with([])
    batch = impl.build_batch(engine.scheduler.schedule(), engine.scheduler.requests)
    assert batch.req_ids == [] and batch.due == []
    assert [a.shape for a in (batch.input_ids, batch.positions, batch.logits_indices)] == [(0,)] * 3
    for name in ("input_ids", "positions", "logits_indices"):
        assert getattr(batch, name).dtype == np.int64, f"{name}: an empty array must still be of integers"


def test_order_of_the_plan_and_nothing_changed(impl):
    """Eleven requests whose ids do not sort as they were scheduled."""
    engine = LLMEngine()
    for i in (10, 2, 1, 9, 0, 8, 3, 7, 4, 6, 5):
        engine.add_request(f"r{i}", "x" * (i + 1), SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True))
    output, requests = engine.scheduler.schedule(), engine.scheduler.requests
    plan, texts = dict(output.num_scheduled_tokens), {rid: list(r.all_token_ids) for rid, r in requests.items()}
    batch = impl.build_batch(output, requests)
    assert batch.req_ids == list(plan), "rows stand in the order of scheduling, not in that of the names"
    lengths = np.diff(batch.logits_indices, prepend=-1).tolist()
    assert lengths == list(plan.values()), f"each request ends where its share ends: {lengths}, planned {plan}"
    batch.req_ids.clear()
    assert list(output.num_scheduled_tokens.items()) == list(plan.items()), "the plan was changed"
    assert {rid: list(r.all_token_ids) for rid, r in requests.items()} == texts, "the requests were changed"


def test_single_request_matches_reference(impl):
    assert by_hand(impl, ["hello"]) == reference(["hello"])


def test_batch_matches_reference(impl):
    mine = by_hand(impl, PROMPTS)
    assert mine == reference(PROMPTS)
    assert len({tuple(v) for v in mine.values()}) == 4, (
        "four prompts with four different answers, or a swap would not show"
    )


@pytest.mark.parametrize("threshold", [0, 1, 3])
@pytest.mark.parametrize("budget", [4, 5, 9])
def test_matches_under_chunked_prefill(impl, threshold, budget):
    kwargs = {"max_num_batched_tokens": budget, "max_num_seqs": 3, "long_prefill_token_threshold": threshold}
    assert by_hand(impl, PROMPTS, **kwargs) == reference(PROMPTS), "how the prompt is cut must not change the answer"


@pytest.mark.parametrize("threshold", [0, 1, 3])
def test_matches_under_preemption(impl, threshold):
    """Who comes back computes its outputs again as well, perhaps in pieces."""
    kwargs = {"block_size": 4, "num_blocks": 8, "max_tokens": 9, "long_prefill_token_threshold": threshold}
    mine, theirs = by_hand(impl, PROMPTS, **kwargs), reference(PROMPTS, max_tokens=9)
    assert mine == theirs, f"pieces of {threshold or 'any size'}: got {mine}, expected {theirs}"


def test_mid_prefill_chunk_emits_no_token(impl):
    engine = engine_with(["abcdefghijkl"], long_prefill_token_threshold=4)
    request = engine.scheduler.requests["r0"]
    seen = []
    for _ in range(4):
        outputs = impl.engine_step(engine.scheduler, ToyModel(), Sampler())
        seen.append((request.num_computed_tokens, request.num_output_tokens, len(outputs)))
    assert seen == [(4, 0, 0), (8, 0, 0), (12, 1, 1), (13, 2, 1)], "(computed, outputs, reports) after each step"


def test_outputs_of_a_step(impl):
    engine = engine_with(["hello", "hi"], max_tokens=2)
    first = impl.engine_step(engine.scheduler, ToyModel(), Sampler())
    second = impl.engine_step(engine.scheduler, ToyModel(), Sampler())
    assert [(o.request_id, len(o.new_token_ids), o.finished) for o in first] == [("r0", 1, False), ("r1", 1, False)]
    assert [(o.request_id, len(o.new_token_ids), o.finished) for o in second] == [("r0", 1, True), ("r1", 1, True)]


def test_each_row_is_sampled_with_its_own_parameters(impl):
    engine = LLMEngine()
    free = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    bound = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True, allowed_token_ids=[65])
    engine.add_request("free", "same", free)
    engine.add_request("bound", "same", bound)

    class Noting(Sampler):
        """Notes whose parameters it was given."""

        def sample(self, logits, params, rng=None):
            given.append(params.allowed_token_ids)
            return super().sample(logits, params, rng)

    given: list = []
    impl.engine_step(engine.scheduler, ToyModel(), Noting())
    assert given == [None, [65]], "row i is sampled with request i's parameters, once"
    assert engine.scheduler.requests["bound"].output_token_ids == [65], "and the answer is that request's"
    given.clear()
    engine = LLMEngine()
    engine.add_request("bound", "alone", bound)
    impl.engine_step(engine.scheduler, ToyModel(), Noting())
    assert given == [[65]], "a row that is alone has parameters, too"


def test_model_runs_once_a_step_over_the_scheduled_tokens_only(impl):
    calls = []

    class Counting(ToyModel):
        def forward(self, input_ids, positions, attn=None):
            calls.append(len(input_ids))
            return super().forward(input_ids, positions, attn)

        def compute_logits(self, hidden):
            rows.append(len(hidden))
            return super().compute_logits(hidden)

    rows: list[int] = []
    engine = engine_with(["hello", "hi"], max_tokens=3)
    for _ in range(3):
        impl.engine_step(engine.scheduler, Counting(), Sampler())
    assert calls == [7, 2, 2], "one forward pass a step: 5 + 2 prompt tokens, then one token each"
    assert rows == [2, 2, 2], "logits for one row per request, not for every token"
    calls.clear(), rows.clear()
    engine = engine_with(["ab", "0123456789"], max_num_batched_tokens=6, max_num_seqs=2)
    for _ in range(2):
        impl.engine_step(engine.scheduler, Counting(), Sampler())
    assert calls == [6, 6] and set(rows) <= {1, 2}, f"a decode beside a chunk: {calls} tokens, logits of {rows} rows"


def test_every_step_is_reported_to_the_scheduler(impl):
    engine = engine_with(["abcdefgh"], long_prefill_token_threshold=4, max_tokens=1)
    scheduler, reports = engine.scheduler, []
    original = scheduler.update_from_output

    def update_from_output(output, model_output):
        reports.append((model_output.req_ids, [len(ids) for ids in model_output.sampled_token_ids]))
        return original(output, model_output)

    scheduler.update_from_output = update_from_output
    for _ in range(3):
        impl.engine_step(scheduler, ToyModel(), Sampler())
    assert reports == [(["r0"], [0]), (["r0"], [1]), ([], [])], "a chunk, the first token, and an empty plan: all three"


def test_what_comes_back_is_what_the_scheduler_says(impl):
    scheduler = engine_with(["hello"]).scheduler
    original, said = scheduler.update_from_output, [SimpleNamespace(request_id="r0", new_token_ids=[], finished=False)]
    scheduler.update_from_output = lambda *args: [*original(*args), *said]
    got = impl.engine_step(scheduler, ToyModel(), Sampler())
    assert got[1:] == said, "a report without tokens is a report, too: return what update_from_output returns"


def test_empty_schedule_returns_no_outputs(impl):
    scheduler, plans = engine_with([]).scheduler, []
    original = scheduler.schedule
    scheduler.schedule = lambda: plans.append(original()) or plans[-1]
    assert impl.engine_step(scheduler, ToyModel(), Sampler()) == []
    assert len(plans) == 1, f"one step asks for one plan, also where it is empty; yours asked {len(plans)} times"


def test_the_engine_runs_on_your_step(impl):
    """Your function in the place of `EngineCore.step`: the same text comes out."""
    texts, calls = [], []

    def my_step(engine):
        calls.append(1)
        return impl.engine_step(engine.scheduler, engine.model, engine.sampler)

    for mine in (False, True):
        engine = engine_with(PROMPTS, max_tokens=6)
        if mine:
            engine.engine_core.step_fn = functools.partial(my_step, engine)
        final = {}
        while engine.has_unfinished_requests():
            final.update({o.request_id: o.outputs[0].text for o in engine.step() if o.finished})
        texts.append(final)
    assert texts[0] == texts[1] and len(texts[0]) == 4
    assert len(calls) == 6, "six tokens, six of your steps"

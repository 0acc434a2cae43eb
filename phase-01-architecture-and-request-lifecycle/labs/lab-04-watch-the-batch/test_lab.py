"""Lab 01-04: the probe, and what the batches of a step are made of."""

from types import SimpleNamespace

import pytest

A, B = "hello world", "goodbye"  # 11 and 7 tokens


def named(ids, steps):
    """The record with the request ids replaced by A, B, ..."""
    letters = dict(zip(ids, "ABCDEFGH", strict=False))
    return [{letters[rid]: n for rid, n in step.items()} for step in steps]


class Fake:
    """A scheduler that reuses one dict for all its plans, as a careful engine might."""

    def __init__(self, plans):
        self.plans = iter(plans)
        self.output = SimpleNamespace(num_scheduled_tokens={})
        self.calls = 0

    def schedule(self):
        self.calls += 1
        self.output.num_scheduled_tokens.clear()
        self.output.num_scheduled_tokens.update(next(self.plans))
        return self.output


def test_probe_copies_and_hands_on(impl):
    scheduler = Fake([{"a": 3}, {"a": 1, "b": 2}])
    steps = impl.attach_probe(scheduler)
    assert steps == [] and scheduler.calls == 0, "attaching the probe plans nothing"
    first = scheduler.schedule()
    assert first is scheduler.output, "the engine must get the very plan that the scheduler made"
    assert steps == [{"a": 3}]
    scheduler.schedule()
    assert steps == [{"a": 3}, {"a": 1, "b": 2}], "an entry must be a copy: the scheduler may reuse its dict"
    assert scheduler.calls == 2, "one call of the original for each call of the wrapper"


def test_probe_leaves_out_empty_plans(impl):
    scheduler = Fake([{"a": 1}, {}, {"a": 1}])
    steps = impl.attach_probe(scheduler)
    assert scheduler.schedule() is scheduler.schedule() is scheduler.schedule() is scheduler.output
    assert steps == [{"a": 1}, {"a": 1}]


def test_probe_is_on_one_object_only(impl):
    watched, other = Fake([{"a": 1}]), Fake([{"b": 1}])
    steps = impl.attach_probe(watched)
    other.schedule()
    assert steps == [], "wrap the method of this object, not of its class"


def test_two_probes_and_an_exception(impl):
    scheduler = Fake([{"a": 2}])
    first, second = impl.attach_probe(scheduler), impl.attach_probe(scheduler)
    assert scheduler.schedule() is scheduler.output
    assert (first, second, scheduler.calls) == ([{"a": 2}], [{"a": 2}], 1), "two probes, one plan, made once"
    first[0]["a"] = 99
    assert second == [{"a": 2}], "each probe has a record of its own"
    with pytest.raises(StopIteration, match=r"^$"):
        scheduler.schedule()  # the scheduler has no more plans: its own error, not the probe's
    assert second == [{"a": 2}], "what was not planned is not recorded"


def test_ample_budget_prefills_everyone_in_step_one(impl):
    ids, steps = impl.trace_batches([A, B])
    assert named(ids, steps) == [{"A": 11, "B": 7}, {"A": 1, "B": 1}, {"A": 1, "B": 1}, {"A": 1, "B": 1}]
    assert len(set(ids)) == 2, "two requests, two ids"


def test_tight_budget_chunks_and_defers(impl):
    ids, steps = impl.trace_batches([A, B], max_num_batched_tokens=8)
    assert named(ids, steps) == [
        {"A": 8},
        {"A": 3, "B": 5},
        {"A": 1, "B": 2},
        {"A": 1, "B": 1},
        {"A": 1, "B": 1},
        {"B": 1},
    ]


@pytest.mark.parametrize("budget", [2, 3, 8, 64])
@pytest.mark.parametrize("max_tokens", [1, 4])
def test_token_conservation_per_request(impl, budget, max_tokens):
    prompts = [A, B, "x"]
    ids, steps = impl.trace_batches(prompts, max_tokens, max_num_batched_tokens=budget)
    for rid, prompt in zip(ids, prompts, strict=True):
        total = sum(step.get(rid, 0) for step in steps)
        assert total == len(prompt) + max_tokens - 1, f"{prompt!r}: P + n - 1, because the last token is never computed"


def test_ids_stand_in_the_order_of_the_prompts(impl):
    prompts = ["x" * n for n in range(1, 12)]
    kept = list(prompts)
    ids, steps = impl.trace_batches(prompts, 1)
    assert prompts == kept, "the caller's list of prompts was changed"
    assert [steps[0][rid] for rid in ids] == list(range(1, 12)), "the eleventh id is that of the eleventh prompt"
    ids, steps = impl.trace_batches(["same", "same"], 2)
    assert len(set(ids)) == 2 and [len(step) for step in steps] == [2, 2], "equal prompts are two requests"


@pytest.mark.parametrize("budget", [1, 5, 8, 13])
def test_budget_is_never_exceeded(impl, budget):
    _, steps = impl.trace_batches([A, B, A + B], 6, max_num_batched_tokens=budget)
    loads = [sum(step.values()) for step in steps]
    assert max(loads) == budget and min(loads) >= 1


def test_budget_sweep_has_a_knee(impl):
    counts = [len(impl.trace_batches([A, B], max_num_batched_tokens=b)[1]) for b in (1, 2, 4, 8, 16, 32, 64)]
    assert counts == [24, 14, 8, 6, 5, 4, 4], "once both prompts fit one step, more budget buys nothing"


def test_mixed_batches_exist_under_load(impl):
    _, steps = impl.trace_batches([A, B], max_num_batched_tokens=8)
    assert impl.mixed_steps(steps) == [2], "step 3 of the table: A decodes while B finishes its prompt"
    _, calm = impl.trace_batches([A, B])
    assert impl.mixed_steps(calm) == [], "with an ample budget prefill and decode never meet"


def test_mixed_steps_by_hand(impl):
    steps = [{"a": 5, "b": 7}, {"a": 1, "b": 1}, {"a": 1}, {"a": 1, "b": 2}, {"a": 9}, {"a": 9, "b": 1, "c": 1}]
    kept = [dict(step) for step in steps]
    assert impl.mixed_steps(steps) == [3, 5]
    assert steps == kept, "judging the steps changed them"
    assert impl.mixed_steps([]) == []


def test_engine_arguments_reach_the_engine(impl):
    ids, steps = impl.trace_batches([A, B], 2, max_num_seqs=1)
    assert named(ids, steps) == [{"A": 11}, {"A": 1}, {"B": 7}, {"B": 1}], "one seat: one request after the other"


def test_eos_does_not_end_a_trace(impl):
    _, steps = impl.trace_batches(["we"], 6)
    assert len(steps) == 6, "the toy model's third token is EOS; with ignore_eos the lengths stay exact"


def test_answers_are_unharmed_by_the_probe(impl):
    from mini_vllm import LLMEngine, SamplingParams

    answers = []
    for probed in (False, True):
        engine = LLMEngine(max_num_batched_tokens=8)
        if probed:
            impl.attach_probe(engine.scheduler)
        for rid, prompt in (("a", A), ("b", B)):
            engine.add_request(rid, prompt, SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
        final = {}
        while engine.has_unfinished_requests():
            final.update({o.request_id: o.outputs[0].token_ids for o in engine.step() if o.finished})
        answers.append(final)
    assert answers[0] == answers[1] and len(answers[0]) == 2


def test_decoding_is_greedy(impl, monkeypatch):
    from mini_vllm import LLMEngine

    seen, original = [], LLMEngine.add_request

    def add_request(self, request_id, prompt, params, *args, **kwargs):
        seen.append((request_id, params.temperature, params.max_tokens, params.ignore_eos))
        return original(self, request_id, prompt, params, *args, **kwargs)

    monkeypatch.setattr(LLMEngine, "add_request", add_request)
    impl.trace_batches(["hello", "hi"], 2)
    assert [row[1:] for row in seen] == [(0.0, 2, True)] * 2, "(temperature, max_tokens, ignore_eos) of each request"

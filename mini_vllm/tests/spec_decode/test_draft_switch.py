"""`disable_when_slower`: drafts where they pay, by a clock that the test turns; and the same tokens with it on."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.speculative import METHODS, SpeculativeConfig
from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.outputs import ModelRunnerOutput
from mini_vllm.spec_decode.draft_switch import DraftSwitch
from mini_vllm.tests.helpers import MODELS


class Engine:
    """One request after the other, `batch` at a time: a step costs 1, and `row` for each draft; of k drafts `right` are
    accepted in each step."""

    def __init__(self, row: float, right: int, k: int = 4, batch: int = 1, keeps_state: bool = False) -> None:
        self.now, self.row, self.right, self.k, self.batch, self.steps = 0.0, row, right, k, batch, 0
        self.switch = DraftSwitch(k, keeps_state, lambda: self.now)
        self.tokens = 0

    def run(self, name: str, num_tokens: int) -> float:
        """Time of this many tokens for each request of a batch."""
        start, names, drafts, left = self.now, [f"{name}{i}" for i in range(self.batch)], {}, num_tokens
        fresh = True
        while left > 0:
            shares = {each: (10 if fresh else 1) + len(drafts.get(each, ())) for each in names}
            plan = SchedulerOutput([], None, shares, sum(shares.values()), scheduled_spec_decode_tokens=drafts)
            self.switch.begin_step(plan)
            self.now += 1 + self.row * sum(map(len, drafts.values()))
            made = [[7] * (1 + (self.right if each in drafts else 0)) for each in names]
            asked = self.switch.choose(ModelRunnerOutput(names, made))
            self.switch.end_step()
            left -= min(map(len, made))
            given = [] if asked is None else [n for n, ids in zip(names, asked.sampled_token_ids, strict=True) if ids]
            drafts, fresh = {each: [1] * self.k for each in given}, False
        return self.now - start


@pytest.mark.parametrize("keeps_state", [False, True])
def test_drafts_that_pay_go_on(keeps_state: bool) -> None:
    engine = Engine(row=0.1, right=3, keeps_state=keeps_state)
    engine.run("warm", 64)
    assert 64 / engine.run("a", 64) > 2.3 and 64 / engine.run("b", 64) > 2.3  # 4 tokens for 1.4
    assert engine.switch.break_even() == pytest.approx(0.1)


@pytest.mark.parametrize("keeps_state", [False, True])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("row", [0.1, 0.3, 0.6])
def test_drafts_that_lose_end_and_stay_ended(row: float, batch: int, keeps_state: bool) -> None:
    engine = Engine(row, right=0, batch=batch, keeps_state=keeps_state)
    spent = [engine.run(str(number), 64) for number in range(30)]
    assert sum(spent) < 30 * 64 / 0.95, f"{sum(spent) / 30:.1f} for 64 tokens, as against 64 without drafts"
    assert sum(spent[5:]) < 25 * 64 / 0.95


def test_the_price_is_that_of_the_batch() -> None:
    """Half of the drafts are right. At 1 request a row costs a tenth of a step, at 16 each row a tenth still: 16
    requests share the step, so a draft costs more than it saves."""
    alone, many = Engine(0.1, right=2), Engine(0.1, right=2, batch=16)
    for engine in (alone, many):
        for number in range(4):
            engine.run(str(number), 64)
    assert alone.switch.break_even() == pytest.approx(0.1) and many.switch.break_even() == pytest.approx(1.6)
    assert alone.switch.num_asked > 4 * alone.switch.num_silent
    assert many.switch.num_silent > 4 * many.switch.num_asked


def test_a_request_is_judged_by_its_own_drafts() -> None:
    engine = Engine(row=0.15, right=4)
    engine.run("good", 100)
    engine.right = 0
    bad = engine.run("bad", 100)
    assert bad < 100 + 8, "traffic was good, this request is not: a few steps tell"
    engine.right = 4
    assert engine.run("good again", 200) < 200 and engine.run("and again", 200) < 80, "tried again now and then"


def test_a_slow_minute_is_no_price() -> None:
    engine = Engine(row=0.1, right=3)
    engine.run("warm", 64)
    engine.now, before = engine.now, engine.switch.break_even()
    engine.switch.begin_step(SchedulerOutput([], None, {"x": 5}, 5, scheduled_spec_decode_tokens={"x": [1] * 4}))
    engine.now += 500
    engine.switch.choose(ModelRunnerOutput(["x"], [[7]]))
    engine.switch.end_step()
    after = engine.switch.break_even()
    assert before is not None and after is not None and after < 1.5 * before


def test_greedy_tokens_are_the_same_with_it_on() -> None:
    """Under a clock for which drafts are dear every second time it is asked, so that they come and go."""
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    switched = LLM(speculative_config={**config, "disable_when_slower": True})
    switch = switched.llm_engine.engine_core.model_runner.drafts.switch
    ticks = iter(range(10**9))
    switch.clock = lambda: float((tick := next(ticks)) + 40 * (tick // 300 % 2) * (tick % 2))
    prompts = [{"prompt_token_ids": [10 + i, 20, 30] * (4 + i)} for i in range(6)]
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    told = [
        [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)] for llm in (LLM(), switched)
    ]
    assert told[0] == told[1] and switch.num_asked and switch.num_silent


COSTS = json.loads((MODELS.parent / "phase-08-speculative-decoding/captured/pocket-cpu.json").read_text())
MAKERS = {
    "ngram": {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "draft_model": {"model": "models/pocket-draft", "num_speculative_tokens": 3},
    "eagle": {"model": "models/pocket-eagle", "num_speculative_tokens": 3},
    "medusa": {"model": "models/pocket-medusa", "num_speculative_tokens": 3},
}


class PocketClock:
    """Milliseconds that pocket's steps took when they were measured, by requests and rows, and its proposers."""

    def __init__(self, llm: LLM, method: str, dearer: float) -> None:
        self.runner, self.now, self.plain = llm.llm_engine.engine_core.model_runner, 0.0, 0.0
        self.switch = self.runner.drafts.switch
        told = [arms[method] for arms in COSTS["gains"].values()]
        self.proposing = dearer * 1e3 * sum(arm["proposing"] for arm in told) / sum(arm["steps"] for arm in told)
        self.begin, self.choose = self.switch.begin_step, self.switch.choose
        self.switch.clock = lambda: self.now
        self.switch.begin_step, self.switch.choose = self.begin_step, self.chosen

    def cost(self, requests: int, rows: float) -> float:
        table = {int(size): costs for size, costs in COSTS["rows"].items()}
        costs = table[max(size for size in table if size <= max(requests, 1))]
        counts = sorted(map(int, costs))
        return float(np.interp(rows / requests, counts, np.maximum.accumulate([costs[str(c)] for c in counts])))

    def begin_step(self, plan: SchedulerOutput) -> None:
        self.begin(plan)
        requests = len(plan.num_scheduled_tokens)
        drafts = sum(map(len, plan.scheduled_spec_decode_tokens.values()))
        self.now += self.cost(requests, requests + drafts)

    def chosen(self, output: ModelRunnerOutput) -> ModelRunnerOutput | None:
        self.plain += sum(self.cost(len(output.req_ids), len(output.req_ids)) / len(output.req_ids) * len(ids)
                          for ids in output.sampled_token_ids)  # fmt: skip
        asked = self.choose(output)
        self.now += 0.0 if asked is None else self.proposing
        return asked


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "dearer"), [(1, 1.0), (1, 3.0), (4, 1.0)])
@pytest.mark.parametrize("method", MAKERS)
def test_it_never_loses_a_twentieth_on_pocket(method: str, batch: int, dearer: float) -> None:
    """Real drafts and what became of them; time as it was captured, drafts at their price and at three times that."""
    spec = {"method": method, "disable_when_slower": True, **MAKERS[method]}
    llm = LLM("models/pocket", num_blocks=512, max_model_len=512, speculative_config=spec)
    clock = PocketClock(llm, method, dearer)
    asked = [
        f"Tell me a story about a {a} and a {b}." for a, b in (("lamp", "boat"), ("fox", "river"), ("bell", "boat"))
    ]
    asked += [f"What is {17 + 9 * i} + {25 + 4 * i}?" for i in range(3)]
    asked += [f"What is meant by {term}?" for term in ("Prefill", "Decode")]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    for first in range(0, len(asked), batch):
        llm.generate(asked[first : first + batch], params, use_tqdm=False)
    assert clock.plain / clock.now > 0.95, f"{clock.plain:.0f} ms without drafts, {clock.now:.0f} with them"


def test_who_keeps_state_is_known_by_the_slots_it_writes_into() -> None:
    """Every method, so that a new one cannot be left out: a request passed over once has a hole in its drafter's
    cache, if the drafter has one."""
    told = {
        method: SpeculativeConfig(2, method, None if method == "ngram" else "models/pocket-draft") for method in METHODS
    }
    assert {method: config.keeps_state for method, config in told.items()} == {
        "ngram": False, "draft_model": True, "eagle": True, "medusa": False, "custom_class": False,
    }  # fmt: skip
    assert all(config.keeps_state == (config.num_lookahead_tokens > 0) for config in told.values())


def test_the_runners_switch_follows_the_drafter() -> None:
    for method, model in (("medusa", "pocket-medusa"), ("eagle", "pocket-eagle")):
        config = {"method": method, "model": f"models/{model}", "num_speculative_tokens": 2}
        llm = LLM("models/pocket", speculative_config={**config, "disable_when_slower": True})
        switch = llm.llm_engine.engine_core.model_runner.drafts.switch
        assert switch.keeps_state == (method == "eagle")


@pytest.mark.parametrize("others", [{"tensor_parallel_size": 2}, {"async_scheduling": True}])
def test_refused_where_there_are_two_clocks_or_none(others: dict[str, object]) -> None:
    config = {"method": "draft_model", "model": "models/pocket-draft", "num_speculative_tokens": 2}
    with pytest.raises(ValueError, match="disable_when_slower must be False with async_scheduling"):
        LLM("models/pocket", speculative_config={**config, "disable_when_slower": True}, **others)


def test_refused_unless_a_truth_value() -> None:
    with pytest.raises(ValueError, match="disable_when_slower"):
        LLM(speculative_config={"method": "ngram", "num_speculative_tokens": 2, "disable_when_slower": "yes"})

"""The same outputs, whatever client: the core as an object or in a process of its own, in steps or in an event loop."""

import asyncio

import pytest

from mini_vllm import LLM, AsyncLLM, LLMEngine, RequestOutputKind, SamplingParams
from mini_vllm.tests.engine.engines import greedy
from mini_vllm.tests.engine.trapped import Trapped
from mini_vllm.tests.helpers import POCKET

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
BOTH = pytest.mark.parametrize("elsewhere", [False, True], ids=["in-process", "own-process"])
SHARED = "the same long beginning for all, "


def workload():
    """Prompts and parameters of every kind; one meets its stop string in the middle."""
    yield SHARED + "one", greedy(max_tokens=20, logprobs=3)
    yield SHARED + "two", greedy(max_tokens=20, logprobs=0)
    yield SHARED + "three", SamplingParams(temperature=0.9, seed=2**63 - 1, top_p=0.9, n=3, max_tokens=6, logprobs=1)
    yield SHARED + "four?", greedy()  # NaN in its logits
    yield SHARED + "five", greedy(max_tokens=30, stop=["never", "\x1c", "\ud800"], min_tokens=2)
    yield SHARED + "six", SamplingParams(temperature=0.7, seed=3, max_tokens=2**62, min_p=0.1, frequency_penalty=0.5)
    yield {"prompt_token_ids": [1, 2, 3, 4, 5], "cache_salt": "é"}, greedy(logit_bias={7: 5.0}, detokenize=False)
    yield "z", greedy(bad_words=["x"], allowed_token_ids=[97, 98, 120])
    yield SHARED * 3, SamplingParams(temperature=1.0, seed=0, max_tokens=4, repetition_penalty=1.3)


def jobs(nan=True, stop=True):
    return [job for job in workload() if (nan or "?" not in job[0]) and (stop or not job[1].stop)]


def seen(output):
    """What a user can see of a request, less its times."""
    return (
        output.request_id, output.prompt, output.prompt_token_ids, output.finished, output.num_cached_tokens,
        [vars(completion) for completion in sorted(output.outputs, key=lambda c: c.index)],
    )  # fmt: skip


SETTINGS = {
    "roomy": {"num_blocks": 256, "block_size": 4, "max_model_len": 200},
    "tight": {"num_blocks": 30, "block_size": 4, "max_model_len": 112, "max_num_batched_tokens": 16},
    "async": {"num_blocks": 64, "block_size": 8, "max_model_len": 200, "async_scheduling": True},
}


@pytest.fixture(scope="module")
def engines():
    """Elsewhere or not -> an engine for all tests that leave it idle."""
    made = {at: LLMEngine(Trapped(), enable_multiprocessing=at, **SETTINGS["roomy"]) for at in (False, True)}
    yield made
    for engine in made.values():
        engine.shutdown()


@pytest.fixture
def pair(engines):
    """Both, idle and with nothing in their caches."""
    for engine in engines.values():
        empty(engine)
    yield list(engines.values())
    for engine in engines.values():
        empty(engine)


@pytest.fixture
def engine(engines, elsewhere):
    empty(engines[elsewhere])
    yield engines[elsewhere]
    empty(engines[elsewhere])


def empty(engine):
    """A core elsewhere may be in the midst of a step of what has been aborted."""
    assert not engine.has_unfinished_requests()
    while not engine.reset_prefix_cache():
        engine.step()


@pytest.mark.parametrize("name", SETTINGS)
def test_generate_gives_the_same_outputs_and_the_same_counts(name):
    results, counts = [], []
    for elsewhere in (False, True):
        llm = LLM(Trapped(), enable_multiprocessing=elsewhere, **SETTINGS[name])
        prompts, params = zip(*jobs(nan=name != "async", stop=name == "roomy"), strict=True)
        results.append([seen(o) for _ in range(2) for o in llm.generate(list(prompts), list(params))])
        stats = llm.llm_engine.stats
        assert llm.llm_engine.reset_prefix_cache() is True
        # A core elsewhere goes on while the front end looks for stop strings.
        num_tokens = 0 if name == "roomy" else stats.num_scheduled_tokens
        counts.append((stats.prefix_cache, num_tokens, stats.num_preemptions, stats.finished))
        assert stats.num_steps > 10
        llm.llm_engine.shutdown()
    assert results[0] == results[1]
    assert counts[0] == counts[1] and counts[0][0].hits > 0
    assert counts[0][3].get("error", 0) == (0 if name == "async" else 2)
    stopped = {output[5][0]["stop_reason"] for output in results[0] if output[5][0]["finish_reason"] == "stop"}
    assert stopped == ({"\x1c", None} if name == "roomy" else {None})


@pytest.mark.usefixtures("core_elsewhere")
@pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
def test_a_checkpoint_gives_the_same_outputs_and_defaults():
    results = []
    for elsewhere in (False, True):
        llm = LLM(POCKET, enable_multiprocessing=elsewhere, num_blocks=64)
        conversation = [{"role": "user", "content": "What is a KV block?"}]
        outputs = llm.chat(conversation, greedy(max_tokens=12, logprobs=2))
        outputs += llm.generate(["Hello", "A"], [SamplingParams(seed=1, max_tokens=9), greedy(stop=[" "])])
        results.append(([seen(o) for o in outputs], llm.get_default_sampling_params(), llm.get_tokenizer().encode("é")))
        llm.llm_engine.shutdown()
    assert results[0] == results[1]


def stream(engine, kind):
    for at, (prompt, params) in enumerate(jobs()):
        engine.add_request(str(at), prompt, params, output_kind=kind)
    outputs = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def test_steps_give_the_same_streams(pair):
    for kind in RequestOutputKind:
        here, there = (stream(engine, kind) for engine in pair)
        assert list(here) == list(there)
        for request_id, outputs in here.items():
            assert [seen(o) for o in outputs] == [seen(o) for o in there[request_id]]
        assert all(engine.reset_prefix_cache() for engine in pair)


@BOTH
def test_the_event_loop_gives_what_generate_gives(elsewhere):
    settings = {"num_blocks": 256, "block_size": 4, "max_model_len": 200, "enable_prefix_caching": False}
    prompts, params = zip(*jobs(), strict=True)
    expected = LLM(Trapped(), **settings).generate(list(prompts), list(params))

    async def one(llm, at, prompt, params):
        async for output in llm.generate(prompt, params, str(at), output_kind=RequestOutputKind.FINAL_ONLY):
            last = output
        return last

    async def main():
        llm = AsyncLLM(Trapped(), enable_multiprocessing=elsewhere, **settings)
        outputs = await asyncio.gather(*(one(llm, at, *job) for at, job in enumerate(jobs())))
        llm.shutdown()
        return outputs

    for got, wanted in zip(asyncio.run(main()), expected, strict=True):
        assert seen(got)[1:] == seen(wanted)[1:]


@BOTH
def test_priorities_are_obeyed(elsewhere):
    llm = LLM(num_blocks=64, max_num_seqs=1, scheduling_policy="priority", enable_multiprocessing=elsewhere)
    engine, order = llm.llm_engine, []
    for name, priority in (("later", 10**30), ("urgent", -(10**30)), ("normal", 0), ("normal-2", 0)):
        engine.add_request(name, "hi", greedy(max_tokens=2), priority=priority, arrival_time=1.0)
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == ["urgent", "normal", "normal-2", "later"]


@BOTH
def test_aborts_in_mid_stream_and_the_id_in_use_again(elsewhere):
    """A step takes 20 ms: a core elsewhere must not come to the end of them all while this process has to wait."""
    sizes = {"num_blocks": 1024, "block_size": 4, "max_model_len": 2000}
    engine = LLMEngine(Trapped(slow=True), enable_multiprocessing=elsewhere, **sizes)
    expected = LLM(Trapped(), num_blocks=64).generate("other", greedy(max_tokens=5))[0].outputs[0].token_ids
    for turn in range(5):
        for name in "abc":
            engine.add_request(name, "hello", greedy(max_tokens=1900))
        while engine.get_num_unfinished_requests() == 3 and not engine.step():
            pass
        outputs = engine.abort_request(["b", "nobody", "a"])
        assert [o.outputs[0].finish_reason for o in outputs] == ["abort", "abort"]
        engine.add_request("b", "other", greedy(max_tokens=5))  # while tokens of the old one are on their way
        done = {}
        while "b" not in done:
            done.update({o.request_id: o for o in engine.step() if o.finished})
        assert done["b"].outputs[0].token_ids == expected, turn
        engine.abort_request("c")
        assert not engine.has_unfinished_requests() and engine.step() == []
    assert engine.reset_prefix_cache()  # nobody holds a block
    assert engine.stats.finished["abort"] == 15


@BOTH
def test_aborting_a_parent_ends_its_children(engine):
    engine.add_request("p", "hello", SamplingParams(n=3, max_tokens=1000, ignore_eos=True, seed=1))
    engine.step()
    assert engine.get_num_unfinished_requests() == 1 and len(engine.output_processor.request_states) == 3
    outputs = engine.abort_request("p")
    assert [o.finished for o in outputs] == [False, False, True] and not engine.has_unfinished_requests()


@BOTH
def test_the_same_errors(elsewhere):
    engine = LLMEngine(num_blocks=8, block_size=4, max_model_len=100, enable_multiprocessing=elsewhere)
    with pytest.raises(ValueError, match=r"prompt of 40 tokens with max_tokens=8 needs room for 47 tokens, but the KV"):
        engine.add_request("a", "x" * 40, greedy())
    with pytest.raises(ValueError, match="prompt has 100 tokens; it must be shorter than max_model_len = 100"):
        engine.add_request("a", "x" * 100, greedy())
    with pytest.raises(TypeError, match="request_id must be a string, got int: 7"):
        engine.add_request(7, "x", greedy())
    engine.add_request("a", "x", greedy())
    with pytest.raises(ValueError, match="request_id 'a' belongs to an unfinished request"):
        engine.add_request("a", "x", greedy())
    assert engine.get_num_unfinished_requests() == 1
    assert engine.reset_prefix_cache() in (True, False)
    with pytest.raises(AttributeError, match="no_such_call"):
        engine.core_client.call_utility("no_such_call")
    engine.shutdown()


@BOTH
def test_nothing_to_do_is_an_empty_list(engine):
    assert engine.step() == [] and engine.step() == [] and engine.abort_request("nobody") == []
    engine.check_health(timeout=60.0)


def test_the_parts_are_open_in_process_and_refused_elsewhere():
    here = LLMEngine(num_blocks=8)
    assert here.engine_core.scheduler is here.scheduler and here.engine_core.model_runner.model is here.model
    assert here.sampler is here.engine_core.sampler and here.core_client.engine_core is here.engine_core
    there = LLMEngine(num_blocks=8, enable_multiprocessing=True)
    for name in ("engine_core", "scheduler", "model", "sampler"):
        with pytest.raises(RuntimeError, match=rf"LLMEngine.{name} is not here: the core runs in a process of its own"):
            getattr(there, name)
    assert there.core_client.engine_core is None and there.stats.num_steps == 0


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_the_switch_takes_true_or_false(value):
    with pytest.raises(ValueError, match="enable_multiprocessing must be True or False"):
        LLM(num_blocks=8, enable_multiprocessing=value)

"""The engine from the outside: steps, streams, several completions, aborts, faults, statistics."""

import subprocess
import sys

import numpy as np
import pytest

from mini_vllm import LLM, LLMEngine, RequestOutputKind, SamplingParams
from mini_vllm.kv_oracle import KVMismatchError, KVOracle, OracleRow
from mini_vllm.toy_model import ToyModel


def greedy(**kwargs):
    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 4, **kwargs})


def drain(engine):
    done = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output
    return done


def test_import_needs_numpy_alone():
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import mini_vllm\n"
        "allowed = {'mini_vllm', 'numpy'} | set(sys.stdlib_module_names)\n"
        "names = {name.split('.')[0] for name in sys.modules}\n"
        "print([n for n in names - allowed if getattr(sys.modules.get(n), '__file__', None)])"
    )
    result = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_trace_of_one_request():
    engine = LLMEngine(num_blocks=64, block_size=4)
    engine.add_request("req-0", "hello", greedy())
    request = engine.scheduler.requests["req-0"]
    assert (request.status.name, request.num_computed_tokens, request.num_tokens) == ("WAITING", 0, 5)
    seen = []
    while engine.has_unfinished_requests():
        [output] = engine.step()
        seen.append((request.status.name, request.num_computed_tokens, request.num_tokens))
    assert seen == [("RUNNING", 5, 6), ("RUNNING", 6, 7), ("RUNNING", 7, 8), ("FINISHED_LENGTH_CAPPED", 8, 9)]
    assert output.finished and output.outputs[0].finish_reason == "length" and output.prompt == "hello"
    assert engine.step() == [] and engine.scheduler.finished_req_ids == set()


def test_cumulative_delta_and_final_outputs_agree():
    texts = {}
    for kind in RequestOutputKind:
        engine = LLMEngine(num_blocks=64)
        engine.add_request("a", "hello", greedy(max_tokens=20), output_kind=kind)
        outputs = []
        while engine.has_unfinished_requests():
            outputs += engine.step()
        pieces = [output.outputs[0].text for output in outputs]
        tokens = [output.outputs[0].token_ids for output in outputs]
        texts[kind] = "".join(pieces) if kind is RequestOutputKind.DELTA else pieces[-1]
        assert len(outputs) == (1 if kind is RequestOutputKind.FINAL_ONLY else 20)
        assert sum(map(len, tokens)) == {"CUMULATIVE": 210, "DELTA": 20, "FINAL_ONLY": 20}[kind.name]
    assert len(set(texts.values())) == 1


def test_generate_keeps_the_order_of_the_prompts():
    llm = LLM(num_blocks=64, max_num_seqs=2)
    prompts = ["a", {"prompt_token_ids": [98, 99]}, {"prompt": "long " * 20}, "d"]
    limits = [9, 2, 5, 1]
    outputs = llm.generate(prompts, [greedy(max_tokens=n) for n in limits])
    assert [len(output.outputs[0].token_ids) for output in outputs] == limits
    assert [output.request_id for output in outputs] == ["0", "1", "2", "3"]
    assert outputs[1].prompt is None and outputs[1].prompt_token_ids == [98, 99]
    assert llm.generate("one", greedy())[0].request_id == "4"
    assert llm.generate([]) == []


def test_several_completions_share_the_prompt_and_differ():
    llm = LLM(num_blocks=64, block_size=4)
    [output] = llm.generate("a prompt of some length", SamplingParams(n=3, seed=1, max_tokens=6, ignore_eos=True))
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 3
    children = [SamplingParams(seed=1 + i, max_tokens=6, ignore_eos=True) for i in range(3)]
    singles = llm.generate(["a prompt of some length"] * 3, children)
    assert [c.token_ids for c in output.outputs] == [s.outputs[0].token_ids for s in singles]


def test_stop_string_ends_the_request_in_the_core_too():
    llm = LLM(num_blocks=64)
    [plain] = llm.generate("hello", greedy(max_tokens=30, seed=0))
    text = plain.outputs[0].text
    stop = text[8:10]
    [output] = llm.generate("hello", greedy(max_tokens=30, stop=[stop]))
    completion = output.outputs[0]
    assert completion.finish_reason == "stop" and completion.stop_reason == stop
    assert completion.text == text[: text.index(stop)] and len(completion.token_ids) < 30
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.llm_engine.engine_core.kv_cache_manager.usage == 0.0


def test_eos_and_stop_ids():
    llm = LLM(num_blocks=64)
    [plain] = llm.generate("hello", greedy(max_tokens=8))
    third = plain.outputs[0].token_ids[2]
    [output] = llm.generate("hello", greedy(max_tokens=8, stop_token_ids=[third]))
    assert output.outputs[0].token_ids == plain.outputs[0].token_ids[:3]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", third)
    engine = LLMEngine(ToyModel(eos_token_ids=(third,)), num_blocks=64)
    engine.add_request("a", {"prompt_token_ids": list(b"hello")}, SamplingParams(temperature=0, max_tokens=8))
    completion = drain(engine)["a"].outputs[0]
    assert completion.finish_reason == "stop" and completion.token_ids[-1] == third


def test_context_length_caps_the_output():
    llm = LLM(num_blocks=64, max_model_len=10)
    [output] = llm.generate("hello", greedy(max_tokens=None))
    assert len(output.outputs[0].token_ids) == 5 and output.outputs[0].finish_reason == "length"
    [output] = llm.generate("hello", greedy(max_tokens=100))
    assert len(output.outputs[0].token_ids) == 5


def test_abort_frees_everything_and_reports_what_there_was():
    engine = LLMEngine(num_blocks=64)
    for name in "abc":
        engine.add_request(name, "hello", greedy(max_tokens=50))
    engine.step()
    engine.step()
    [output] = engine.abort_request("b")
    assert output.finished and output.outputs[0].finish_reason == "abort" and len(output.outputs[0].token_ids) == 2
    assert engine.abort_request(["b", "nobody"]) == []
    assert set(drain(engine)) == {"a", "c"}
    assert engine.engine_core.kv_cache_manager.usage == 0.0
    engine.add_request("b", "hello", greedy())
    assert set(drain(engine)) == {"b"}


def test_prefix_cache_saves_tokens_and_says_so():
    llm = LLM(num_blocks=64, block_size=4)
    prompt = "The same long beginning, again and again"
    first, second = (llm.generate(prompt, greedy())[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, (len(prompt) - 1) // 4 * 4)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    stats = llm.llm_engine.stats
    assert stats.num_cached_tokens == second.num_cached_tokens and stats.num_prompt_tokens == 2 * len(prompt)
    assert stats.prefix_cache_hit_rate == second.num_cached_tokens / (2 * len(prompt))
    assert llm.llm_engine.reset_prefix_cache() and llm.generate(prompt, greedy())[0].num_cached_tokens == 0
    salted = {"prompt": prompt, "cache_salt": "other tenant"}
    assert llm.generate(salted, greedy())[0].num_cached_tokens == 0


def test_statistics_and_metrics():
    llm = LLM(num_blocks=13, block_size=4, enable_prefix_caching=False, disable_log_stats=False)
    outputs = llm.generate(["hello world"] * 4, greedy(max_tokens=20))
    stats = llm.llm_engine.stats
    assert stats.num_generation_tokens == 80 and stats.finished == {"length": 4}
    assert stats.num_preemptions == sum(output.metrics.num_preemptions for output in outputs) > 0
    assert stats.num_scheduled_tokens > 4 * (11 + 20 - 1)  # some were computed twice
    for output in outputs:
        assert output.metrics.ttft > 0 and output.metrics.itl > 0 and output.metrics.num_generation_tokens == 20
        assert output.metrics.finished_time >= output.metrics.last_token_time


def test_priority_policy_serves_the_urgent_first():
    engine = LLMEngine(num_blocks=64, max_num_seqs=1, scheduling_policy="priority")
    for name, priority in (("later", 5), ("urgent", -1), ("normal", 0)):
        engine.add_request(name, "hi", greedy(max_tokens=2), priority=priority)
    assert list(drain(engine)) == ["urgent", "normal", "later"]


def test_async_scheduling_gives_the_same_tokens_and_wastes_a_step_at_eos():
    prompts = ["hello", "a longer prompt than that", "x"]
    [plain] = LLM(num_blocks=64).generate("hello", greedy(max_tokens=8))
    stop = plain.outputs[0].token_ids[3]
    params = [greedy(max_tokens=8, stop_token_ids=[stop]), greedy(max_tokens=20), greedy(max_tokens=1)]
    results, tokens = {}, {}
    for is_async in (False, True):
        llm = LLM(num_blocks=16, block_size=4, max_num_batched_tokens=8, max_num_seqs=4, async_scheduling=is_async)
        outputs = llm.generate(prompts, params)
        results[is_async] = [(o.outputs[0].token_ids, o.outputs[0].finish_reason) for o in outputs]
        tokens[is_async] = llm.llm_engine.stats.num_scheduled_tokens
        assert not llm.llm_engine.engine_core.batch_queue and not llm.llm_engine.has_unfinished_requests()
    assert results[True] == results[False] and results[True][0][1] == "stop"
    assert tokens[True] == tokens[False] + 1  # the step after the stop token, whose result was dropped


def test_async_abort_and_reuse_of_the_id():
    engine = LLMEngine(num_blocks=64, async_scheduling=True)
    engine.add_request("a", "hello", greedy(max_tokens=50))
    for _ in range(4):
        engine.step()
    engine.abort_request("a")
    engine.add_request("a", "other", greedy(max_tokens=5))
    tokens = drain(engine)["a"].outputs[0].token_ids
    assert tokens == LLM(num_blocks=64).generate("other", greedy(max_tokens=5))[0].outputs[0].token_ids


def test_nan_ends_one_request_with_an_error():
    class Poisoned(ToyModel):
        def compute_logits(self, hidden):
            logits = super().compute_logits(hidden)
            logits[hidden[:, 0] == ord("!")] = np.nan
            return logits

    llm = LLM(Poisoned(), num_blocks=64)
    good, bad = llm.generate(["fine", "bad!"], greedy(max_tokens=6))
    assert good.outputs[0].finish_reason == "length" and len(good.outputs[0].token_ids) == 6
    assert bad.outputs[0].finish_reason == "error" and "NaN" in bad.outputs[0].stop_reason
    assert llm.llm_engine.stats.finished == {"length": 1, "error": 1}
    assert llm.generate("fine", greedy())[0].outputs[0].finish_reason == "length"


def test_a_model_that_raises_leaves_the_engine_usable():
    class Flaky(ToyModel):
        fail = True

        def forward(self, input_ids, positions, attn=None):
            if self.fail:
                raise ArithmeticError("the model broke")
            return super().forward(input_ids, positions, attn)

    model = Flaky()
    llm = LLM(model, num_blocks=64, block_size=4)
    with pytest.raises(ArithmeticError, match="the model broke"):
        llm.generate(["one prompt that fills blocks", "two"], greedy())
    assert not llm.llm_engine.has_unfinished_requests()
    model.fail = False
    [output] = llm.generate("one prompt that fills blocks", greedy())
    assert output.num_cached_tokens == 0 and len(output.outputs[0].token_ids) == 4


def test_oracle_catches_a_wrong_block_and_a_wrong_history():
    oracle = KVOracle(num_blocks=8, block_size=4)
    oracle.on_step([OracleRow("a", list(range(6)), 0, 6, [1, 2])])
    oracle.on_step([OracleRow("a", list(range(7)), 6, 1, [1, 2])])
    with pytest.raises(KVMismatchError, match="request 'a' would read foreign keys and values at position 4: block 3"):
        oracle.on_step([OracleRow("a", list(range(8)), 7, 1, [1, 3])])
    with pytest.raises(KVMismatchError, match="position 0"):
        oracle.on_step([OracleRow("b", [9, 1, 2, 3, 4], 4, 1, [1, 4])])


def test_oracle_watches_the_toy_engine(monkeypatch):
    assert LLMEngine(num_blocks=8).engine_core.model_runner.kv_oracle is not None
    monkeypatch.setattr("mini_vllm.core.kv_cache_utils.hash_block_tokens", lambda parent, ids, extra=None: bytes(ids))
    llm = LLM(num_blocks=32, block_size=4)
    with pytest.raises(KVMismatchError, match="foreign keys and values"):
        llm.generate(["aaaabbbbc", "bbbbcccc"], greedy())

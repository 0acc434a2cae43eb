"""`LLM` beside upstream's: its methods, and what `EngineArgs` takes and refuses."""

import ast
import dataclasses
import json
import shutil
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from mini_vllm import LLM, EngineArgs, LLMEngine, RequestOutputKind, SamplingParams, TextPrompt, TokensPrompt
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

UPSTREAM = Path(__file__).resolve().parents[3] / "upstream" / "vllm"
OK = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
needs_tree = pytest.mark.skipif(not UPSTREAM.is_dir(), reason="upstream/ is absent: run `course upstream`")


def ids(outputs):
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="module")
def toy():
    return LLM(num_blocks=64, max_model_len=256)


def test_every_form_of_a_prompt_is_the_same_prompt(toy):
    text = "hello"
    forms = [text, list(b"hello"), TextPrompt(prompt=text), TokensPrompt(prompt_token_ids=list(b"hello")),
             {"prompt": text, "multi_modal_data": None}, np.array(list(b"hello"))]  # fmt: skip
    first, *others = ids(toy.generate(forms, OK, use_tqdm=False))
    assert all(other == first for other in others)
    assert ids(toy.generate(list(b"hello"), OK)) == [first]  # one prompt, not five
    assert ids(toy.generate([list(b"hello"), list(b"hi")], OK))[0] == first


def test_what_is_enqueued_waits_and_comes_back_in_order(toy):
    assert toy.wait_for_completion() == []
    queued = toy.enqueue(["a", "b"], OK) + toy.enqueue("c", OK)
    assert toy.llm_engine.get_num_unfinished_requests() == 3
    between = toy.generate("d", OK)  # runs them too, and keeps them
    assert [output.prompt for output in between] == ["d"]
    done = toy.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in done] == queued and [output.prompt for output in done] == ["a", "b", "c"]
    assert toy.wait_for_completion() == [] and not toy.llm_engine.has_unfinished_requests()


@pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
def test_a_conversation_that_is_enqueued_is_the_one_that_chat_answers():
    llm = LLM(str(POCKET), num_blocks=64)
    messages = [[{"role": "user", "content": text}] for text in ("What is a KV block?", "Who are you?")]
    expected = [output.outputs[0].token_ids for output in llm.chat(messages, OK, use_tqdm=False)]
    queued = llm.enqueue_chat(messages, OK, use_tqdm=False)
    done = llm.wait_for_completion(use_tqdm=False)
    assert [output.request_id for output in done] == queued
    assert [output.outputs[0].token_ids for output in done] == expected


def test_a_bar_of_the_callers_own_counts_requests(toy):
    class Bar:
        made: ClassVar[list] = []

        def __init__(self, total, desc):
            self.total, self.count, self.closed = total, 0, False
            Bar.made.append(self)

        def update(self, n):
            self.count += n

        def close(self):
            self.closed = True

    toy.generate(["a", "b"], OK, use_tqdm=Bar)
    assert [(bar.total, bar.count, bar.closed) for bar in Bar.made] == [(2, 2, True)]


def test_reset_prefix_cache_with_running_requests():
    engine = LLMEngine(num_blocks=32, block_size=4)
    engine.add_request("a", "0123456789abcdef", SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))
    engine.step()
    assert not engine.reset_prefix_cache()
    assert engine.reset_prefix_cache(reset_running_requests=True)
    assert engine.scheduler.requests["a"].num_computed_tokens == 0
    assert not engine.reset_prefix_cache(reset_connector=True)  # there is none


def test_output_kind_of_the_parameters_is_the_streams():
    def stream(**given):
        engine = LLMEngine(num_blocks=32)
        engine.add_request("a", "hi", SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True, **given))
        found = []
        while engine.has_unfinished_requests():
            found += [len(output.outputs[0].token_ids) for output in engine.step()]
        return found

    assert stream() == [1, 2, 3]
    assert stream(output_kind=RequestOutputKind.DELTA) == [1, 1, 1]
    assert stream(output_kind=RequestOutputKind.FINAL_ONLY) == [3]


@pytest.mark.parametrize("flat", [False, True])
def test_deltas_added_up_are_the_whole(flat):
    whole = LLM(num_blocks=32).generate("hi", SamplingParams(max_tokens=5, seed=1, logprobs=2, flat_logprobs=flat))[0]
    engine = LLMEngine(num_blocks=32)
    delta = SamplingParams(max_tokens=5, seed=1, logprobs=2, flat_logprobs=flat, output_kind=RequestOutputKind.DELTA)
    engine.add_request("a", "hi", delta)
    total = None
    while engine.has_unfinished_requests():
        for output in engine.step():
            if total is None:
                total = output
            else:
                total.add(output, aggregate=True)
    mine, theirs = total.outputs[0], whole.outputs[0]
    assert total.finished and (mine.text, mine.token_ids) == (theirs.text, theirs.token_ids)
    assert list(mine.logprobs) == list(theirs.logprobs) and mine.cumulative_logprob == theirs.cumulative_logprob
    later = dataclasses.replace(
        total, outputs=[dataclasses.replace(mine, text="new"), dataclasses.replace(mine, index=1)]
    )
    total.add(later, aggregate=False)
    assert [(c.index, c.text) for c in total.outputs] == [(0, "new"), (1, mine.text)]


def test_metrics_of_a_request_have_upstreams_names_and_order():
    metrics = LLM(num_blocks=32, disable_log_stats=False).generate("hi", OK)[0].metrics
    assert metrics.queued_ts <= metrics.scheduled_ts <= metrics.first_token_ts <= metrics.last_token_ts
    assert metrics.queued_ts > 0 and metrics.num_generation_tokens == 4 and metrics.first_token_latency > 0
    assert metrics.ttft == metrics.first_token_latency and metrics.arrival_time > 1e9
    silent = LLM(num_blocks=32)
    assert silent.llm_engine.config.disable_log_stats is True  # of `LLM` alone, as upstream
    assert LLM.from_engine_args(EngineArgs(num_blocks=32)).llm_engine.config.disable_log_stats is False
    assert LLMEngine(num_blocks=32).config.disable_log_stats is False
    assert silent.generate("hi", OK)[0].metrics is None
    with pytest.raises(ValueError, match="disable_log_stats must be False, got True"):
        silent.get_metrics()


@needs_tree
def test_the_fields_of_a_requests_metrics_are_upstreams():
    from mini_vllm import RequestStateStats

    tree = ast.parse((UPSTREAM / "v1/metrics/stats.py").read_text())
    body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "RequestStateStats").body
    theirs = [n.target.id for n in body if isinstance(n, ast.AnnAssign)]
    assert [f.name for f in dataclasses.fields(RequestStateStats)][: len(theirs)] == theirs


def test_n_completions_are_counted_once():
    llm = LLM(num_blocks=64, disable_log_stats=False)
    llm.generate("hi", SamplingParams(n=3, max_tokens=4, seed=1))
    found = {m.name: m for m in llm.get_metrics()}
    params_n = found["vllm:request_params_n"]
    assert params_n.count == 1 and params_n.sum == 3 and found["vllm:request_prompt_tokens"].count == 3


def test_later_arguments_and_methods_name_their_phase(toy):
    for name, value, words in [("default_mm_loras", {"image": "a"}, "adapters are of the language model alone"),
                               ("spec_method", "ngram", "give it as `speculative_config="),
                               ("data_parallel_start_rank", 2, "all `data_parallel_size` replicas stand behind"),
                               ("mamba_backend", "x", "no architecture here keeps a state"),
                               ("hf_overrides", {"a": 1}, "config.json")]:  # fmt: skip
        with pytest.raises(ValueError, match=f"engine argument {name} must be .*{words}"):
            LLM(num_blocks=8, **{name: value})
    LLM(num_blocks=8, enable_lora=False, pipeline_parallel_size=1, speculative_config=None, runner="auto", swap_space=4)
    with pytest.raises(ValueError, match="runner='pooling' cannot be had of ToyModel"):
        LLM(num_blocks=8, runner="pooling")
    with pytest.raises(ValueError, match="only supported for pooling models"):
        toy.embed(["a"])
    with pytest.raises(ValueError, match="ToyModel has no projection that can have adapters"):
        LLM(num_blocks=8, enable_lora=True)
    with pytest.raises(ValueError, match="thinking_token_budget is set but reasoning_config is not configured"):
        toy.generate("a", SamplingParams(thinking_token_budget=5))
    assert toy.generate("a", OK, lora_request=None, use_tqdm=False)


def test_max_logprobs_is_upstreams_bound():
    llm = LLM(num_blocks=16)
    with pytest.raises(ValueError, match="Requested sample logprobs of 21, which is greater than max allowed: 20"):
        llm.generate("a", SamplingParams(logprobs=21))
    [output] = LLM(num_blocks=16, max_logprobs=-1).generate("a", SamplingParams(logprobs=-1, max_tokens=1))
    assert len(output.outputs[0].logprobs[0]) == 257


@pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
def test_whose_generation_settings_count(tmp_path):
    folder = tmp_path / "pocket"
    shutil.copytree(POCKET, folder)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "top_k": 7, "max_new_tokens": 9}))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "generation_config.json").write_text(json.dumps({"top_p": 0.25, "eos_token_id": [5, 6]}))

    def defaults(**given):
        llm = LLM(str(folder), num_blocks=16, max_model_len=64, load_format="dummy", **given)
        p = llm.get_default_sampling_params()
        return (p.temperature, p.top_k, p.top_p, p.max_tokens), llm.llm_engine.input_processor.eos_token_ids

    own = defaults()[1]
    assert defaults() == ((0.5, 7, 1.0, 9), own)
    assert defaults(generation_config="vllm") == ((1.0, 0, 1.0, 16), own)
    assert defaults(generation_config=str(tmp_path / "other")) == ((1.0, 0, 0.25, 16), [5, 6])
    assert defaults(override_generation_config={"top_k": 3})[0] == (0.5, 3, 1.0, 9)
    assert defaults(generation_config="vllm", override_generation_config={"top_k": 3})[0] == (1.0, 3, 1.0, 16)
    with pytest.raises(FileNotFoundError, match="generation_config='/nope' must be 'auto', 'vllm', or a folder"):
        defaults(generation_config="/nope")
    with pytest.raises(ValueError, match="override_generation_config must be a dict with some of"):
        defaults(override_generation_config={"topk": 3})


def test_dummy_weights_need_no_weights(tmp_path):
    folder = save_tiny("llama", tmp_path / "llama")
    (folder / "model.safetensors").unlink()
    runs = [
        ids(LLM(str(folder), load_format="dummy", num_blocks=32).generate({"prompt_token_ids": [1, 2]}, OK))
        for _ in "ab"
    ]
    assert runs[0] == runs[1] and len(runs[0][0]) == 4
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        LLM(str(folder))


@pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
def test_without_a_tokenizer_ids_come_out():
    llm = LLM(str(POCKET), num_blocks=32, max_model_len=64, skip_tokenizer_init=True)
    done = llm.generate([1, 2, 3], OK)[0].outputs[0]
    assert done.text == "" and len(done.token_ids) == 4 and llm.get_tokenizer() is None
    with pytest.raises(ValueError, match="needs a tokenizer"):
        llm.generate("text", OK)
    with pytest.raises(ValueError, match="skip_tokenizer_init=True"):
        llm.llm_engine.get_tokenizer()


def test_tokenization_kwargs_and_the_models_of_this_process(toy):
    assert toy.generate("hi", OK, tokenization_kwargs={"add_special_tokens": False})
    with pytest.raises(ValueError, match="tokenization_kwargs must be a dict with 'add_special_tokens' at most"):
        toy.generate("hi", OK, tokenization_kwargs={"truncation": True})
    assert toy.apply_model(lambda model: model.vocab_size) == [257] and toy.get_world_size() == 1
    assert toy.get_tokenizer() is toy.llm_engine.get_tokenizer()

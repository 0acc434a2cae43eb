"""What the device counts is what phase 00 computes, from the config of the model and the lengths of the prompts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams

PROMPTS = [list(range(5, 25)), list(range(40, 47)), list(range(100, 135))]
NEW = 6
Engine = Callable[..., Any]


@pytest.fixture(scope="module")
def engine(model: str) -> Engine:
    """Makes an engine on the device."""
    return lambda **settings: LLM(model, **{"device": "refacc", "kv_cache_memory_bytes": 64 << 20, **settings})


@pytest.fixture(scope="module")
def config(model: str) -> dict[str, int]:
    """The model's numbers, as its config.json has them."""
    read = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    heads, kv_heads, dim = read["num_attention_heads"], read["num_key_value_heads"], read["head_dim"]
    hidden, layers = read["hidden_size"], read["num_hidden_layers"]
    attention = hidden * dim * (heads + 2 * kv_heads) + heads * dim * hidden
    return {
        "layers": layers, "heads": heads, "dim": dim, "hidden": hidden,
        "matrices": layers * (attention + 3 * hidden * read["intermediate_size"]),
        "head": read["vocab_size"] * hidden,
        "norms": (2 * layers + 1) * hidden,
        "kv_per_token": 2 * layers * kv_heads * dim * 8,
    }  # fmt: skip


def generate(llm: Any, prompts: list[list[int]], new: int = NEW) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def steps_of(llm: Any) -> list[Any]:
    """The record of the one rank."""
    (steps,) = llm.llm_engine.collective_rpc("get_steps")
    return steps


def flops(step: Any) -> int:
    """With weights."""
    return step.kinds["projections"].flops + step.kinds["logits"].flops


def test_tokens_are_those_of_the_cpu_in_float64(engine: Engine) -> None:
    on_the_cpu = engine(device="cpu", dtype="float64", enforce_eager=True)
    assert generate(engine(), PROMPTS) == generate(on_the_cpu, PROMPTS)


def test_a_decode_step_is_two_operations_for_each_weight_and_token(engine: Engine, config: dict[str, int]) -> None:
    """And reads every weight once, with the whole cache of each request."""
    llm = engine()
    generate(llm, PROMPTS)
    steps = steps_of(llm)
    assert len(steps) == NEW
    parameters = config["matrices"] + config["head"] + config["norms"]
    for number, step in enumerate(steps[1:], start=1):
        contexts = [len(prompt) + number for prompt in PROMPTS]
        assert flops(step) == 2 * (parameters - config["norms"]) * len(PROMPTS)
        assert flops(step) == pytest.approx(2 * parameters * len(PROMPTS), rel=1e-3)
        assert step.total("weight_bytes") - step.kinds["embedding"].weight_bytes == parameters * 8
        assert step.total("kv_read") == sum(contexts) * config["kv_per_token"]
        assert step.total("kv_written") == len(PROMPTS) * config["kv_per_token"]
        of_one_key = 4 * config["heads"] * config["dim"] * config["layers"]
        assert step.kinds["attention"].flops == sum(contexts) * of_one_key


def test_a_prompt_is_as_many_weights_and_a_triangle_of_attention(engine: Engine, config: dict[str, int]) -> None:
    llm = engine()
    generate(llm, PROMPTS, new=1)
    (step,) = steps_of(llm)
    lengths = [len(prompt) for prompt in PROMPTS]
    assert flops(step) == 2 * (config["matrices"] * sum(lengths) + config["head"] * len(PROMPTS))
    pairs = sum(n * (n + 1) // 2 for n in lengths)
    assert step.kinds["attention"].flops == 4 * config["heads"] * config["dim"] * config["layers"] * pairs
    assert step.total("kv_read") == step.total("kv_written") == sum(lengths) * config["kv_per_token"]


def test_the_weights_are_read_once_for_a_batch(engine: Engine) -> None:
    alone, together = engine(), engine()
    generate(alone, PROMPTS[:1])
    generate(together, PROMPTS[:1] * 4)
    one, four = steps_of(alone)[-1], steps_of(together)[-1]
    assert flops(four) == 4 * flops(one)
    assert four.kinds["projections"].weight_bytes == one.kinds["projections"].weight_bytes


def test_a_chunk_that_ends_before_the_prompt_reads_no_output_embedding(engine: Engine, config: dict[str, int]) -> None:
    llm = engine(max_num_batched_tokens=16, max_num_seqs=4)
    generate(llm, PROMPTS[2:], new=1)
    first, second, third = steps_of(llm)
    assert [step.query_lens for step in (first, second, third)] == [[16], [16], [3]]
    assert (first.sampled, third.sampled, first.to_host) == (0, 1, 0) and "logits" not in first.kinds
    assert third.kinds["logits"].weight_bytes == config["head"] * 8
    pairs = sum(step.kinds["attention"].flops for step in (first, second, third))
    assert pairs == 4 * config["heads"] * config["dim"] * config["layers"] * (35 * 36 // 2)


def test_what_the_prefix_cache_has_is_not_computed_again(engine: Engine) -> None:
    llm = engine()
    generate(llm, PROMPTS[2:], new=1)
    generate(llm, PROMPTS[2:], new=1)
    first, again = steps_of(llm)
    assert (first.num_tokens, again.num_tokens) == (35, 3) and first.seq_lens == again.seq_lens == [35]
    assert again.total("kv_read") == first.total("kv_read") and again.total("kv_written") < first.total("kv_written")


def test_two_engines_have_a_record_each(engine: Engine) -> None:
    one, other = engine(), engine()
    generate(one, PROMPTS[:1], new=2)
    generate(other, PROMPTS[1:2], new=3)
    generate(one, PROMPTS[1:2], new=1)
    assert [step.query_lens for step in steps_of(one)] == [[20], [1], [7]]
    assert [step.query_lens for step in steps_of(other)] == [[7], [1], [1]]


def test_the_report_says_that_both_are_equal(engine: Engine) -> None:
    llm = engine()
    assert llm.llm_engine.collective_rpc("get_report") == ["refacc:0: no steps"]
    generate(llm, PROMPTS)
    (text,) = llm.llm_engine.collective_rpc("get_report")
    assert "counted and computed from the lengths: equal in every step" in text
    steps_of(llm)[2].kinds["projections"].flops += 1
    (text,) = llm.llm_engine.collective_rpc("get_report")
    assert "counted and computed from the lengths: not equal in steps [2]" in text

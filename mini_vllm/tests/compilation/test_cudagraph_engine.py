"""Graphs in the engine: captured at the start, replayed for every batch, and not one token is another."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.attention.selector import PRIORITIES
from mini_vllm.compilation.cpu_fused import FusedDecoder
from mini_vllm.compilation.cudagraph.buffers import InputBuffers
from mini_vllm.config.compilation import CUDAGraphMode
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.tests.models.test_golden_vllm import checkpoint, compare, load
from mini_vllm.tests.models.tiny_checkpoints import save_tiny
from mini_vllm.tests.test_equivalence import POCKET, SETTINGS, engines, workloads

pytest.importorskip("hypothesis", reason="hypothesis is in the extra `test`")
from hypothesis import given, settings
from hypothesis import strategies as st

MODES = list(CUDAGraphMode.__members__)


@pytest.fixture(scope="module")
def pocket() -> Any:
    return load_model(POCKET, "float64")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_model(save_tiny("mistral-window", tmp_path_factory.mktemp("tiny")), "float64")


def make(model: Any, **args: Any) -> LLM:
    """An engine whose graphs check at each replay that their inputs lie where they lay."""
    llm = LLM(model, **args)
    graphs = llm.llm_engine.engine_core.model_runner.graphs
    for wrapper in graphs.wrappers.values() if graphs else ():
        wrapper.debug = True
    return llm


def generate(llm: LLM, prompts: list[list[int]], params: Any) -> list[list[int]]:
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def ragged(seed: int, vocab: int = 4000) -> tuple[list[list[int]], list[SamplingParams]]:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(10, vocab, int(n)).tolist() for n in rng.integers(1, 50, 7)]
    return prompts, [greedy(int(n)) for n in rng.integers(2, 20, 7)]


@pytest.mark.slow
@settings(max_examples=12, **SETTINGS)
@given(data=st.data())
def test_tokens_do_not_depend_on_the_backend_nor_on_the_graphs(pocket: Any, data: Any) -> None:
    prompts, params = data.draw(workloads())
    longest = max(len(p) + q.max_tokens for p, q in zip(prompts, params, strict=True)) - 1
    expected = generate(LLM(pocket, num_blocks=256, enable_prefix_caching=False), prompts, params)
    for backend in PRIORITIES:
        args = data.draw(engines(longest))
        args["cudagraph_mode"] = data.draw(st.sampled_from(MODES))
        if backend == "dense" and args["cudagraph_mode"] == "FULL":
            args["cudagraph_mode"] = "NONE"
        sizes = st.lists(st.integers(1, args["max_num_batched_tokens"]), min_size=1, max_size=4)
        args["cudagraph_capture_sizes"] = data.draw(st.none() | sizes)
        assert generate(make(pocket, attention_backend=backend, **args), prompts, params) == expected, (backend, args)


CHUNKS: dict[str, Any] = {"num_blocks": 200, "block_size": 5, "max_num_seqs": 8, "max_num_batched_tokens": 32}


@pytest.fixture(scope="module")
def without_graphs(tiny: Any) -> list[list[int]]:
    return generate(LLM(tiny, **CHUNKS), *ragged(1, vocab=500))


@pytest.mark.parametrize("backend", PRIORITIES)
@pytest.mark.parametrize("mode", MODES)
def test_every_pair_of_backend_and_mode(tiny: Any, without_graphs: Any, backend: str, mode: str) -> None:
    """A model with a sliding window, prompts in chunks, blocks of five."""
    args, expected = CHUNKS, without_graphs
    prompts, params = ragged(1, vocab=500)
    if (backend, mode) == ("dense", "FULL"):
        with pytest.raises(ValueError, match="not supported with dense backend"):
            make(tiny, attention_backend=backend, cudagraph_mode=mode, **args)
        return
    llm = make(tiny, attention_backend=backend, cudagraph_mode=mode, **args)
    assert generate(llm, prompts, params) == expected
    stats = llm.llm_engine.stats
    if mode == "NONE":
        assert stats.cudagraph is None
        return
    assert stats.cudagraph is not None
    assert stats.cudagraph.num_steps == stats.num_steps
    assert stats.cudagraph.num_tokens == stats.num_scheduled_tokens
    assert sum(stats.cudagraph.replays.values()) > 0


@pytest.mark.parametrize("family", ["opt", "qwen3", "llama"])
def test_other_families(family: str, tmp_path: Any) -> None:
    model = load_model(save_tiny(family, tmp_path), "float64")
    prompts, params = ragged(2, vocab=500)
    args = {"num_blocks": 200, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    expected = generate(LLM(model, **args), prompts, params)
    assert generate(make(model, cudagraph_mode="FULL_AND_PIECEWISE", **args), prompts, params) == expected


def test_experts_count_no_padding(tmp_path: Any) -> None:
    model = load_model(save_tiny("mixtral", tmp_path), "float64")
    prompts, params = ragged(6, vocab=500)
    args = {"num_blocks": 200, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    expected = generate(LLM(model, **args), prompts, params)
    counts = model.expert_load.counts.copy()
    model.expert_load.reset()
    llm = make(model, cudagraph_mode="FULL_AND_PIECEWISE", **args)
    assert generate(llm, prompts, params) == expected
    assert llm.llm_engine.stats.cudagraph.num_paddings > 0
    np.testing.assert_array_equal(model.expert_load.counts, counts)
    assert model.expert_load.num_tokens is None  # the next engine may be one without graphs


@pytest.mark.parametrize("backend", ["paged_online", "split_kv"])
def test_some_answers_are_those_of_real_vllm(backend: str, tmp_path: Any) -> None:
    """Every fifth, and graphs of the sizes of such a batch."""
    replay(backend, tmp_path, every=5, max_num_seqs=16)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["paged_online", "split_kv"])
def test_same_answers_as_real_vllm(backend: str, tmp_path: Any) -> None:
    replay(backend, tmp_path)


def replay(backend: str, tmp_path: Any, every: int = 1, **more: Any) -> None:
    """Recorded from the release; float32, so that a near tie may end a comparison (see `test_golden_vllm.py`)."""
    golden = load("llama")
    graphs = {"cudagraph_mode": "FULL_AND_PIECEWISE", "attention_backend": backend}
    llm = make(str(checkpoint("llama", tmp_path)), **{**golden["engine_args"], **graphs, **more})
    answers = golden["answers"][::every]
    params = [SamplingParams(**answer["params"]) for answer in answers]
    prompts = [{"prompt_token_ids": answer["prompt_token_ids"]} for answer in answers]
    compared = [
        compare(answer, output.outputs[0])
        for answer, output in zip(answers, llm.generate(prompts, params, use_tqdm=False), strict=True)
    ]
    steps, ties = (sum(column) for column in zip(*compared, strict=True))
    assert steps > 500 / every and ties <= 0.01 * steps
    assert llm.llm_engine.stats.cudagraph.num_paddings > 0


def test_the_toy_model_under_the_kv_oracle() -> None:
    prompts, params = ragged(3, vocab=256)
    args = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 16}
    expected = generate(LLM(**args), prompts, params)
    llm = make(None, cudagraph_mode="FULL_AND_PIECEWISE", **args)
    assert generate(llm, prompts, params) == expected
    stats = llm.llm_engine.stats.cudagraph
    assert stats.num_steps_without_graph > 0  # 16 tokens; the largest size is 8
    assert {mode for mode, *_ in stats.by_size()} == {"FULL", "PIECEWISE", "NONE"}


def test_what_a_workload_shows(tiny: Any) -> None:
    """Three prompts of five tokens in one step, then five decodes of three requests, padded to four."""
    llm = make(tiny, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64, cudagraph_mode="FULL_AND_PIECEWISE")
    generate(llm, [[5, 6, 7, 8, 9]] * 3, greedy(6))
    stats = llm.llm_engine.stats.cudagraph
    assert stats.by_size() == [("FULL", 4, 5, 15, 5), ("PIECEWISE", 16, 1, 15, 1)]
    layers = tiny.num_layers
    assert stats.launches == 5 + (layers + 1 + 2 * layers) and stats.eager_launches == 6 * (10 * layers + 2)
    assert stats.num_captured == {"PIECEWISE": 5, "FULL": 4}  # 1, 2, 4, 8, 16; a decode of 16 never comes
    assert stats.num_graphs == 5 * (layers + 1) + 4
    graphs = llm.llm_engine.engine_core.model_runner.graphs
    assert stats.memory_bytes == graphs.buffers.nbytes + 16 * tiny.config.hidden_size * 8
    assert stats.unshared_bytes == graphs.buffers.nbytes + (31 + 15) * tiny.config.hidden_size * 8


def test_sizes_above_the_budget_leave_no_graph(tiny: Any) -> None:
    args = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "cudagraph_capture_sizes": [65]}
    llm = make(tiny, num_blocks=64, cudagraph_mode="FULL_AND_PIECEWISE", **args)
    generate(llm, [[5, 6, 7]], greedy(3))
    stats = llm.llm_engine.stats.cudagraph
    assert stats.by_size() == [("NONE", 0, 3, 5, 0)] and stats.num_graphs == 0 and stats.launch_ratio == 1.0


def test_full_decode_only_leaves_mixed_steps_without_a_graph(tiny: Any) -> None:
    llm = make(tiny, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=64, cudagraph_mode="FULL_DECODE_ONLY")
    generate(llm, [[5, 6, 7, 8, 9]] * 3, greedy(6))
    assert llm.llm_engine.stats.cudagraph.by_size() == [("FULL", 4, 5, 15, 5), ("NONE", 0, 1, 15, 0)]


def test_one_token_prompts_count_as_decodes(tiny: Any) -> None:
    llm = make(tiny, num_blocks=64, max_num_seqs=8, cudagraph_mode="FULL_AND_PIECEWISE")
    generate(llm, [[5], [6]], greedy(3))
    assert llm.llm_engine.stats.cudagraph.by_size() == [("FULL", 2, 3, 6, 0)]


@pytest.mark.slow
def test_capture_of_every_size_writes_nothing_to_the_kv_cache(tiny: Any) -> None:
    capture_writes_nothing(tiny)


def test_capture_writes_nothing_to_the_kv_cache(tiny: Any) -> None:
    capture_writes_nothing(tiny, max_num_seqs=8, max_num_batched_tokens=64)


def capture_writes_nothing(tiny: Any, **limits: Any) -> None:
    for backend in ("paged_gather", "paged_online", "split_kv"):
        llm = make(tiny, num_blocks=64, cudagraph_mode="FULL_AND_PIECEWISE", attention_backend=backend, **limits)
        assert llm.llm_engine.stats.cudagraph.num_graphs > 0
        assert not llm.llm_engine.engine_core.model_runner.kv_cache.data.any()


def test_a_replay_of_padding_leaves_the_null_block_alone(tiny: Any) -> None:
    llm = make(tiny, num_blocks=64, max_num_seqs=8, cudagraph_mode="FULL_AND_PIECEWISE", cudagraph_capture_sizes=[8])
    generate(llm, [[5, 6, 7], [8, 9, 10]], greedy(9))
    assert llm.llm_engine.stats.cudagraph.num_paddings > 0
    assert not llm.llm_engine.engine_core.model_runner.kv_cache.data[:, 0].any()


def test_stale_slots_in_the_padding_would_change_tokens(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slot -1 is what keeps padding out of the cache: with an old slot it writes over somebody's key."""
    args = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "cudagraph_capture_sizes": [8]}
    args |= {"cudagraph_mode": "FULL_DECODE_ONLY", "attention_backend": "paged_online"}
    prompts, params = [[5, 6, 7], [8, 9, 10], [11, 12, 13]], greedy(20)
    expected = generate(make(tiny, **args), prompts, params)
    load = InputBuffers.load_metadata

    def load_but_keep_old_slots(buffers: InputBuffers, step: Any, key: Any) -> None:
        load(buffers, step, key)
        buffers.slot_mapping[step.num_tokens : key.num_tokens] = step.slot_mapping[1] - 1

    monkeypatch.setattr(InputBuffers, "load_metadata", load_but_keep_old_slots)
    tokens = generate(make(tiny, **args), prompts, params)
    assert tokens[1] != expected[1] and tokens[0] == expected[0]


def test_nothing_is_captured_after_the_start(tiny: Any) -> None:
    llm = make(tiny, num_blocks=64, max_num_seqs=8, cudagraph_mode="FULL_AND_PIECEWISE")
    graphs = llm.llm_engine.engine_core.model_runner.graphs
    before = {mode: set(wrapper.entries) for mode, wrapper in graphs.wrappers.items()}
    generate(llm, *ragged(4, vocab=500))
    assert before == {mode: set(wrapper.entries) for mode, wrapper in graphs.wrappers.items()}
    assert before == graphs.dispatcher.cudagraph_keys
    graphs.wrappers[CUDAGraphMode.FULL].entries.clear()
    with pytest.raises(RuntimeError, match="inappropriate time"):
        generate(llm, [[5, 6, 7]], greedy(4))


def test_stepping_down_is_said(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        llm = make(tiny, num_blocks=64, max_num_seqs=8, cudagraph_mode="FULL", attention_backend="split_kv")
    graphs = llm.llm_engine.engine_core.model_runner.graphs
    assert graphs.mode is CUDAGraphMode.FULL_AND_PIECEWISE and graphs.asked_mode is CUDAGraphMode.FULL
    assert graphs.warnings == [record.getMessage() for record in caplog.records]
    assert graphs.warnings == [
        "CUDAGraphMode.FULL is not supported with split_kv backend (support: AttentionCGSupport.UNIFORM_BATCH); "
        "setting cudagraph_mode=FULL_AND_PIECEWISE"
    ]


def test_eager_wins_over_any_mode(tiny: Any) -> None:
    llm = make(tiny, num_blocks=64, cudagraph_mode="FULL", enforce_eager=True, attention_backend="dense")
    assert llm.llm_engine.engine_core.model_runner.graphs is None and llm.llm_engine.stats.cudagraph is None


def test_an_eight_bit_cache_goes_with_graphs(tiny: Any) -> None:
    args = {"num_blocks": 64, "max_num_seqs": 8, "kv_cache_dtype": "int8"}
    prompts, params = ragged(5, vocab=500)
    expected = generate(make(tiny, **args), prompts, params)
    assert generate(make(tiny, cudagraph_mode="FULL_AND_PIECEWISE", **args), prompts, params) == expected


def test_a_nan_in_one_request_ends_that_request_alone(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = FusedDecoder.forward

    def poisoned(self: Any, input_ids: Any, positions: Any, attn: Any) -> Any:
        hidden = original(self, input_ids, positions, attn)
        hidden[np.asarray(input_ids) == 499] = np.nan
        return hidden

    monkeypatch.setattr(FusedDecoder, "forward", poisoned)
    llm = make(tiny, num_blocks=64, max_num_seqs=8, cudagraph_mode="FULL_AND_PIECEWISE")
    good, bad = llm.generate([{"prompt_token_ids": [5, 6, 7]}, {"prompt_token_ids": [5, 6, 499]}], greedy(4))
    assert good.outputs[0].finish_reason == "length" and bad.outputs[0].finish_reason == "error"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"cudagraph_mode": "FULLEST"}, "cudagraph_mode must be one of NONE"),
        ({"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [0]}, "cudagraph_capture_sizes must hold whole numbers"),
        ({"max_cudagraph_capture_size": 0}, "max_cudagraph_capture_size must be at least 1"),
        ({"cudagraph_mode": "FULL", "cudagraph_capture_sizes": [2], "max_cudagraph_capture_size": 4}, "contradicts"),
    ],
)
def test_bad_settings_are_errors_at_the_door(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LLM(**args)

"""Drafts change no token, however they are scheduled: greedy tokens of pocket in float64 with and without them."""

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.parts import EngineParts
from mini_vllm.kv_oracle import KVOracle
from mini_vllm.tests.helpers import MODELS, POCKET, check_pool
from mini_vllm.toy_model import ToyModel

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
DRAFT = {"method": "draft_model", "model": str(MODELS / "pocket-draft"), "num_speculative_tokens": 3}
DRAWN = {**DRAFT, "draft_sample_method": "probabilistic"}
TINY = {"max_num_batched_tokens": 24, "max_num_seqs": 4}
TIGHT = {"block_size": 4, "num_blocks": 40, "max_model_len": 128, "scheduler_reserve_full_isl": False}
PROMPTS = [
    "What is a KV block?",
    "one two three four one two three four one two three",
    "Tell me a story about a dragon and a lamp. The dragon and the lamp",
    'Continue: {"name": "a", "size": 1}, {"name": "b", "size": 2}, {"name": "c",',
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
needs_pocket = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")


class Periodic(ToyModel):
    """Says a token that depends on the one before alone, so that its text repeats."""

    def compute_logits(self, hidden):
        logits = np.zeros((len(hidden), self.vocab_size), np.float32)
        logits[np.arange(len(hidden)), (hidden[:, 0].astype(int) * 7 + 3) % 11] = 1
        return logits


def run(prompts, params, model=str(POCKET), spec=None, **engine_args):
    if model == str(POCKET):
        engine_args = {"dtype": "float64", "num_blocks": 128, "max_model_len": 512, **engine_args}
    llm = LLM(model, speculative_config=spec, **engine_args)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [output.outputs[0] for output in outputs], llm


@pytest.fixture(scope="module")
def expected():
    return [o.token_ids for o in run(PROMPTS, GREEDY)[0]]


WAYS = {
    "chunked": (NGRAM, TINY, "chunks"),
    "chunked, drafted": (DRAFT, TINY, "chunks"),
    "preempted": (NGRAM, TIGHT, "preemptions"),
    "preempted, drafted": (DRAFT, TIGHT, "preemptions"),
    "ahead of the results": (DRAFT, {"async_scheduling": True}, ""),
    "ahead, chunked, preempted": (DRAFT, {**TINY, **TIGHT, "async_scheduling": True}, "preemptions"),
    "eager": (DRAFT, {"enforce_eager": True}, ""),
    "one draft": ({**DRAFT, "num_speculative_tokens": 1}, {}, ""),
    "drawn drafts": (DRAWN, {}, ""),
    "threshold": (DRAFT, {"long_prefill_token_threshold": 3}, "chunks"),
    "simulated graphs": (NGRAM, {"cudagraph_mode": "FULL_AND_PIECEWISE", "max_num_seqs": 8}, ""),
    "simulated graphs, drafted": (DRAFT, {"cudagraph_mode": "FULL_AND_PIECEWISE", "max_num_seqs": 8}, ""),
}
QUICK = ("chunked, drafted", "preempted", "ahead, chunked, preempted")


def check_way(name, expected):
    spec, args, wanted = WAYS[name]
    outputs, llm = run(PROMPTS, GREEDY, spec=spec, **args)
    assert [o.token_ids for o in outputs] == expected
    stats = llm.llm_engine.stats
    assert stats.spec_decoding.num_accepted_tokens > 5
    assert wanted != "preemptions" or stats.num_preemptions > 0
    manager = llm.llm_engine.scheduler.kv_cache_manager
    check_pool(manager.block_pool)
    assert manager.block_pool.get_num_free_blocks() == manager.block_pool.num_gpu_blocks - 1


@needs_pocket
@pytest.mark.parametrize("name", QUICK)
def test_greedy_tokens_do_not_depend_on_drafts(name, expected):
    check_way(name, expected)


@needs_pocket
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WAYS if name not in QUICK])
def test_greedy_tokens_do_not_depend_on_drafts_in_any_way_of_scheduling(name, expected):
    check_way(name, expected)


@needs_pocket
@pytest.mark.slow
@pytest.mark.parametrize("spec", [NGRAM, DRAFT], ids=["ngram", "draft_model"])
@pytest.mark.parametrize(
    "args", [{"quantization": "int8"}, {"quantization": "int4"}, {"kv_cache_dtype": "fp8"}], ids=str
)
def test_quantized_targets_too(spec, args):
    """Compared with themselves: a quantized product has the same sums for one row and for four in float64."""
    plain = [o.token_ids for o in run(PROMPTS, GREEDY, **args)[0]]
    assert [o.token_ids for o in run(PROMPTS, GREEDY, spec=spec, **args)[0]] == plain


@needs_pocket
@pytest.mark.slow
def test_a_batch_in_which_everybody_has_drafts_replays_a_full_graph(expected):
    args = {"cudagraph_mode": "FULL_AND_PIECEWISE", "max_num_seqs": 8, "attention_backend": "paged_online"}
    outputs, llm = run(PROMPTS, GREEDY, spec=DRAFT, **args)
    assert [o.token_ids for o in outputs] == expected
    graphs = llm.llm_engine.engine_core.model_runner.graphs
    assert graphs.dispatcher.uniform_decode_query_len == 4 and all(s % 4 == 0 for s in graphs.dispatcher.capture_sizes)
    replays = llm.llm_engine.stats.cudagraph.replays
    assert sum(count for (mode, size), count in replays.items() if mode == "FULL") > 3


@needs_pocket
@pytest.mark.slow
@pytest.mark.parametrize("spec", [NGRAM, DRAFT], ids=["ngram", "draft_model"])
def test_two_ranks(spec, expected):
    outputs, llm = run(PROMPTS, GREEDY, spec=spec, tensor_parallel_size=2)
    assert [o.token_ids for o in outputs] == expected and llm.llm_engine.stats.spec_decoding.num_accepted_tokens > 5
    llm.llm_engine.shutdown()


@needs_pocket
@pytest.mark.usefixtures("core_elsewhere")
def test_a_core_in_a_process_of_its_own(expected):
    outputs, llm = run(PROMPTS, GREEDY, spec=DRAFT, enable_multiprocessing=True)
    assert [o.token_ids for o in outputs] == expected and llm.llm_engine.stats.spec_decoding.num_accepted_tokens > 5
    llm.llm_engine.shutdown()


@needs_pocket
def test_the_prefix_cache_holds_no_draft(expected):
    """The same prompts again, longer by what was said: hits, and the same tokens. Nobody's drafts are found."""
    spec, args = DRAFT, {"block_size": 4, "num_blocks": 200}
    llm = LLM(str(POCKET), speculative_config=spec, dtype="float64", max_model_len=512, **args)
    first = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in first] == expected
    longer = [{"prompt_token_ids": o.prompt_token_ids + o.outputs[0].token_ids[:-4]} for o in first]
    short = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    again = llm.generate(longer, short, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in again] == [tokens[-4:] for tokens in expected]
    assert all(o.num_cached_tokens >= len(o.prompt_token_ids) - 4 for o in again)


@needs_pocket
def test_every_parameter_and_every_end(expected):
    """Penalties, bias, min tokens, bad words, stop ids and strings, log-probabilities: as without drafts."""
    prompt, told = PROMPTS[2], expected[2]
    params = [
        SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, repetition_penalty=1.3, presence_penalty=0.4),
        SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logit_bias={told[3]: -5.0}, logprobs=2),
        SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=[told[9]], min_tokens=4),
        SamplingParams(temperature=0.0, max_tokens=20, stop=["a", "the"], min_tokens=3, logprobs=0),
        SamplingParams(temperature=0.0, max_tokens=7, ignore_eos=True, allowed_token_ids=told[:6]),
    ]
    prompts = [prompt] * len(params)
    plain, _ = run(prompts, params)
    drafted, llm = run(prompts, params, spec=DRAFT)
    for ours, theirs in zip(drafted, plain, strict=True):
        assert (ours.token_ids, ours.text, ours.finish_reason) == (theirs.token_ids, theirs.text, theirs.finish_reason)
        assert ours.stop_reason == theirs.stop_reason
        for a, b in zip(ours.logprobs or [], theirs.logprobs or [], strict=True):
            assert a.keys() == b.keys()
            assert all(abs(a[t].logprob - b[t].logprob) < 1e-9 and a[t].rank == b[t].rank for t in a)
    assert llm.llm_engine.stats.spec_decoding.num_accepted_tokens > 10


@needs_pocket
@pytest.mark.parametrize("spec", [NGRAM, DRAFT], ids=["ngram", "draft_model"])
def test_grammars_and_drafts(spec):
    """A draft that the grammar forbids is not scheduled, or rejected: the answer is the one without drafts."""
    from mini_vllm import StructuredOutputsParams

    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}
    grammars = [
        StructuredOutputsParams(json=schema),
        StructuredOutputsParams(regex=r"(ab|cd){6}"),
        StructuredOutputsParams(choice=["one two three", "one two four"]),
    ]
    params = [SamplingParams(temperature=0.0, max_tokens=40, structured_outputs=g) for g in grammars]
    params.append(SamplingParams(temperature=0.0, max_tokens=12))
    prompts = ["Give me an object.", "ab cd ab cd", "one two three or one two four?", PROMPTS[1]]
    plain = [o.text for o in run(prompts, params)[0]]
    assert [o.text for o in run(prompts, params, spec=spec)[0]] == plain
    if spec is DRAFT:
        outputs, _ = run(prompts, params, spec=spec, async_scheduling=True)
        assert [o.text for o in outputs] == plain


@needs_pocket
def test_seeded_tokens_come_again_and_neighbours_do_not_matter():
    params = [SamplingParams(temperature=0.9, seed=i, max_tokens=16, ignore_eos=True) for i in range(4)]
    for spec in (DRAFT, DRAWN):
        together = [o.token_ids for o in run(PROMPTS, params, spec=spec)[0]]
        alone = [run([p], [q], spec=spec)[0][0].token_ids for p, q in zip(PROMPTS[:2], params[:2], strict=True)]
        assert together[:2] == alone


@pytest.mark.parametrize("args", [{}, {"block_size": 4, "num_blocks": 30}, {"max_num_batched_tokens": 16}], ids=str)
def test_the_oracle_watches_drafts_too(args):
    """Every key that a verified step reads is the one of that history; and drafts save steps where text repeats."""
    prompts = [{"prompt_token_ids": [1, 2, 3, 4, 5, 6, 7] * n} for n in (1, 2, 5, 9)]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    for model in (Periodic(), ToyModel()):
        plain, without = run(prompts, params, model=model, **args)
        drafted, llm = run(prompts, params, model=model, spec=NGRAM, **args)
        assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]
        assert isinstance(llm.llm_engine.engine_core.model_runner.kv_oracle, KVOracle)
        if isinstance(model, Periodic):
            assert llm.llm_engine.stats.num_steps < 0.75 * without.llm_engine.stats.num_steps


def test_a_request_ends_at_its_length_whatever_is_accepted():
    prompts = [{"prompt_token_ids": [1, 2, 3] * 20}] * 3
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (1, 6, 200)]
    outputs, _ = run(prompts, params, model=Periodic(), spec=NGRAM, max_model_len=100)
    assert [len(o.token_ids) for o in outputs] == [1, 6, 40]
    assert [o.finish_reason for o in outputs] == ["length"] * 3


def test_synthetic_acceptance_has_the_rate_that_was_asked_for():
    spec = {**NGRAM, "num_speculative_tokens": 3, "rejection_sample_method": "synthetic"}
    prompts = [{"prompt_token_ids": [1, 2, 3, 4] * 8}] * 4
    params = SamplingParams(temperature=0.0, max_tokens=300, ignore_eos=True)
    _, llm = run(
        prompts, params, model=Periodic(), spec={**spec, "synthetic_acceptance_length": 2.5}, max_model_len=512
    )
    stats = llm.llm_engine.stats.spec_decoding
    assert abs(stats.mean_acceptance_length - 2.5) < 0.15
    assert stats.num_accepted_tokens_per_pos[0] > 0.95 * stats.num_drafts


def test_metrics_have_upstreams_names():
    prompts = [{"prompt_token_ids": [1, 2, 3, 4] * 8}]
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    _, llm = run(prompts, params, model=Periodic(), spec=NGRAM, disable_log_stats=False)
    found = {metric.name: metric for metric in llm.get_metrics()}
    stats = llm.llm_engine.stats.spec_decoding
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert found[f"vllm:spec_decode_{name}"].value == getattr(stats, name) > 0
    per_position = found["vllm:spec_decode_num_accepted_tokens_per_pos"].values
    assert per_position == stats.num_accepted_tokens_per_pos and sum(per_position) == stats.num_accepted_tokens
    assert not [m for m in LLM(disable_log_stats=False).get_metrics() if "spec_decode" in m.name]


@pytest.mark.parametrize("more", [{}, {"stop_token_ids": [8]}, {"max_tokens": 2}, {"logprobs": 0}], ids=str)
def test_a_nan_ends_its_own_request_alone_and_where_it_ended_without_drafts(more):
    """Not where it stands behind a draft that is rejected, nor where the request had ended before."""

    class Sick(Periodic):
        def compute_logits(self, hidden):
            logits = super().compute_logits(hidden)
            logits[hidden[:, 0] == 9] = np.nan
            return logits

    sequences = [[1, 10, 7, 8, 9, 1, 10], [5, 9, 4, 5], [1, 2, 3] * 6 + [9, 1, 2, 3], [9] * 4, [0, 3, 2, 6] * 3]
    prompts = [{"prompt_token_ids": each} for each in sequences]
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, **more})
    plain, _ = run(prompts, params, model=Sick())
    outputs, llm = run(prompts, params, model=Sick(), spec=NGRAM)
    assert outputs == plain
    assert outputs[3].finish_reason == "error" and "NaN in the logits" in outputs[3].stop_reason
    assert outputs[1].finish_reason == "length" and llm.llm_engine.stats.spec_decoding.num_draft_tokens > 3


def test_a_sampler_of_ones_own_is_refused():
    class Mine:
        def forward(self, logits, metadata):
            raise AssertionError

    with pytest.raises(ValueError, match="a sampler of your own needs speculative_config=None"):
        LLM(speculative_config=NGRAM, with_labs=EngineParts(sampler=Mine))

"""EAGLE and Medusa: tokens do not depend on them, drafts do not depend on the way of scheduling, damage is refused."""

import functools
import json
import shutil

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.model_loader.random_checkpoint import write_safetensors
from mini_vllm.model_loader.safetensors_reader import SINGLE_NAME, STORED, Checkpoint
from mini_vllm.tests.helpers import MODELS, POCKET, check_pool
from mini_vllm.tests.spec_decode.test_engine import GREEDY, PROMPTS, TIGHT, TINY, run

EAGLE = {"method": "eagle", "model": str(MODELS / "pocket-eagle"), "num_speculative_tokens": 3}
MEDUSA = {"method": "medusa", "model": str(MODELS / "pocket-medusa"), "num_speculative_tokens": 3}
BOTH = pytest.mark.parametrize("spec", [EAGLE, MEDUSA], ids=["eagle", "medusa"])
pytestmark = pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")


def counts(llm):
    stats = llm.llm_engine.stats.spec_decoding
    return [stats.num_drafts, stats.num_draft_tokens, *stats.num_accepted_tokens_per_pos]


@pytest.fixture(scope="module")
def expected():
    return [o.token_ids for o in run(PROMPTS, GREEDY)[0]]


@functools.cache
def usual_counts(method):
    """Of the same prompts, scheduled in the usual way."""
    return counts(run(PROMPTS, GREEDY, spec=EAGLE if method == "eagle" else MEDUSA)[1])


WAYS = {
    "chunked": (EAGLE, TINY, "the same drafts"),
    "chunked, medusa": (MEDUSA, TINY, "the same drafts"),
    "eager": (EAGLE, {"enforce_eager": True}, "the same drafts"),
    "eager, medusa": (MEDUSA, {"enforce_eager": True}, "the same drafts"),
    "preempted": (EAGLE, TIGHT, "preemptions"),
    "preempted, medusa": (MEDUSA, {**TIGHT, "num_blocks": 33}, "preemptions"),
    "ahead of the results": (EAGLE, {"async_scheduling": True}, ""),
    "ahead, chunked, preempted": (EAGLE, {**TINY, **TIGHT, "async_scheduling": True}, "preemptions"),
    "threshold": (EAGLE, {"long_prefill_token_threshold": 5}, "the same drafts"),
    "no prefix cache": (EAGLE, {"enable_prefix_caching": False}, "the same drafts"),
    "simulated graphs": (EAGLE, {"cudagraph_mode": "FULL_AND_PIECEWISE", "max_num_seqs": 8}, "the same drafts"),
    "simulated graphs, medusa": (MEDUSA, {"cudagraph_mode": "FULL_AND_PIECEWISE", "max_num_seqs": 8}, ""),
    "drawn drafts": ({**EAGLE, "draft_sample_method": "probabilistic"}, {}, ""),
    "two ranks": (EAGLE, {"tensor_parallel_size": 2}, "the same drafts"),
    "two ranks, medusa": (MEDUSA, {"tensor_parallel_size": 2}, "the same drafts"),
}
QUICK = ("chunked", "preempted, medusa")


def check_way(name, expected):
    spec, args, wanted = WAYS[name]
    outputs, llm = run(PROMPTS, GREEDY, spec=spec, **args)
    assert [o.token_ids for o in outputs] == expected
    assert llm.llm_engine.stats.spec_decoding.num_accepted_tokens > 20
    if wanted == "the same drafts":
        assert counts(llm) == usual_counts(spec["method"])
    assert wanted != "preemptions" or llm.llm_engine.stats.num_preemptions > 0
    if "tensor_parallel_size" not in args:
        check_pool(llm.llm_engine.scheduler.kv_cache_manager.block_pool)
    llm.llm_engine.shutdown()


@pytest.mark.parametrize("name", QUICK)
def test_greedy_tokens_do_not_depend_on_heads(name, expected):
    check_way(name, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WAYS if name not in QUICK])
def test_greedy_tokens_do_not_depend_on_heads_in_any_way_of_scheduling(name, expected):
    check_way(name, expected)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(
    "args", [{"quantization": "int8"}, {"quantization": "int4"}, {"kv_cache_dtype": "fp8"}], ids=str
)
def test_quantized_targets_too(spec, args):
    plain = [o.token_ids for o in run(PROMPTS, GREEDY, **args)[0]]
    outputs, llm = run(PROMPTS, GREEDY, spec=spec, **args)
    assert [o.token_ids for o in outputs] == plain and llm.llm_engine.stats.spec_decoding.num_accepted_tokens > 20


@pytest.mark.slow
@BOTH
def test_a_core_in_a_process_of_its_own(spec, expected):
    pytest.importorskip("zmq", reason="pyzmq is in the extra `serve`")
    pytest.importorskip("msgspec", reason="msgspec is in the extra `serve`")
    outputs, llm = run(PROMPTS, GREEDY, spec=spec, enable_multiprocessing=True)
    assert [o.token_ids for o in outputs] == expected and llm.llm_engine.stats.spec_decoding.num_accepted_tokens > 20
    llm.llm_engine.shutdown()


@pytest.mark.slow
@BOTH
def test_every_parameter_and_grammars(spec):
    from mini_vllm import StructuredOutputsParams

    params = [
        SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, repetition_penalty=1.3, logprobs=1),
        SamplingParams(temperature=0.0, max_tokens=20, stop=["a", "the"], min_tokens=3),
        SamplingParams(temperature=0.0, max_tokens=30, structured_outputs=StructuredOutputsParams(regex="(ab|cd){6}")),
        SamplingParams(temperature=0.9, seed=3, max_tokens=16, ignore_eos=True),
    ]
    plain = run(PROMPTS, [*params[:3], GREEDY])[0]
    drafted = run(PROMPTS, [*params[:3], GREEDY], spec=spec)[0]
    assert [(o.text, o.finish_reason) for o in drafted] == [(o.text, o.finish_reason) for o in plain]
    seeded = [run(PROMPTS[:n], params[3], spec=spec)[0][0].token_ids for n in (1, 3)]
    assert seeded[0] == seeded[1]


def logits_of_drafts(llm, prompts):
    """What the drafter computed while these prompts were answered, one array a draft."""
    drafter, seen = llm.llm_engine.engine_core.model_runner.drafts.drafter, []
    sample = type(drafter)._sample_draft_tokens
    drafter._sample_draft_tokens = lambda logits, rows: seen.append(logits.copy()) or sample(drafter, logits, rows)
    answers = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True), use_tqdm=False)
    return np.concatenate(seen), answers


@pytest.mark.parametrize("drops", [True, False], ids=["as it is", "with the last block kept"])
def test_a_prefix_hit_leaves_its_last_block_out(drops):
    """Two prompts part exactly behind a block. What the drafter has in that block's last slot was made of the first
    one's next token: whoever takes the block over drafts from a key that was never its own."""
    args = {"block_size": 4, "num_blocks": 64, "max_model_len": 128, "dtype": "float64"}
    shared = list(range(300, 312))
    first, second = ([{"prompt_token_ids": [*shared, token, 77, 78]}] for token in (900, 901))
    llm = LLM(str(POCKET), speculative_config=EAGLE, **args)
    llm.llm_engine.scheduler.kv_cache_manager.coordinator.use_eagle = drops
    llm.generate(first, GREEDY, use_tqdm=False)
    found, [answer] = logits_of_drafts(llm, second)
    alone = LLM(str(POCKET), speculative_config=EAGLE, enable_prefix_caching=False, **args)
    wanted, [same] = logits_of_drafts(alone, second)
    assert answer.outputs[0].token_ids == same.outputs[0].token_ids
    assert answer.num_cached_tokens == (8 if drops else 12)
    off = np.abs(found[: len(wanted)] - wanted[: len(found)]).max()
    assert off < 1e-9 if drops else off > 1e-4


def test_medusa_keeps_whole_hits():
    llm = LLM(str(POCKET), speculative_config=MEDUSA, block_size=4, num_blocks=64, max_model_len=128)
    for cached in (0, 12):
        [answer] = llm.generate([{"prompt_token_ids": list(range(300, 315))}], GREEDY, use_tqdm=False)
        assert answer.num_cached_tokens == cached


def test_what_the_drafter_reads():
    """Position i goes with token i + 1 and hidden state i, whatever was rejected; then a draft at each next position,
    with the state before it."""
    llm = LLM(str(POCKET), speculative_config=EAGLE, dtype="float64", num_blocks=64, max_model_len=128)
    runner = llm.llm_engine.engine_core.model_runner
    drafter, target, hidden_at = runner.drafts.drafter, runner.forward, {}
    run_head, passes = drafter._forward, []

    def forward(ids, positions, attn):
        hidden = target(ids, positions, attn)
        hidden_at.update(zip(positions.tolist(), hidden.copy(), strict=True))
        return hidden

    def head(ids, positions, attn, hidden):
        passes.append((positions.copy(), ids.copy(), hidden.copy(), dict(hidden_at)))
        return run_head(ids, positions, attn, hidden)

    runner.forward, drafter._forward = forward, head
    [answer] = llm.generate([PROMPTS[3]], GREEDY, use_tqdm=False)
    text = [*answer.prompt_token_ids, *answer.outputs[0].token_ids]
    firsts, lengths = passes[::3], set()
    for positions, ids, hidden, seen in firsts[:-1]:
        assert ids.tolist() == [text[p + 1] for p in positions]
        assert all((row == seen[p]).all() for p, row in zip(positions.tolist(), hidden, strict=True))
        lengths.add(len(positions))
    assert len(lengths) > 2  # steps in which different numbers of drafts were accepted
    covered = [p for positions, *_ in firsts for p in positions.tolist()]
    assert covered == sorted(set(covered)) and covered[0] == 0  # each position once, in order
    for (before, *_), (second, *_), (third, *_) in zip(passes[::3], passes[1::3], passes[2::3], strict=True):
        assert (second[0], third[0]) == (before[-1] + 1, before[-1] + 2)


def test_a_nan_leaves_nothing_in_the_drafters_cache(expected):
    llm = LLM(str(POCKET), speculative_config=EAGLE, dtype="float64", num_blocks=128, max_model_len=512)
    runner = llm.llm_engine.engine_core.model_runner
    forward, steps = runner.forward, iter(range(1000))

    def sick(ids, positions, attn):
        hidden = forward(ids, positions, attn)
        if next(steps) == 3:
            hidden[runner.last_metadata.query_start_loc[1] :] = np.nan
        return hidden

    runner.forward = sick
    outputs = llm.generate(PROMPTS[:2], GREEDY, use_tqdm=False)
    assert outputs[0].outputs[0].token_ids == expected[0]
    assert outputs[1].outputs[0].finish_reason == "error"
    assert not np.isnan(runner.drafts.drafter.kv_cache.data).any()


def copy_of(name, folder, tensors=None, **config):
    """A head like the committed one, with some tensors or settings changed; a tensor given as None is left out."""
    shutil.copytree(MODELS / name, folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    if tensors is not None:
        with Checkpoint(MODELS / name) as checkpoint:
            kept = {key: checkpoint.read_stored(key, STORED) for key in checkpoint.names()} | tensors
        write_safetensors(folder / SINGLE_NAME, {k: v for k, v in kept.items() if v is not None})
    return str(folder)


def test_a_head_may_bring_an_embedding_and_an_output_matrix(tmp_path):
    """Where they are the target's, they are shared; other ones make other drafts, and the same tokens."""
    with Checkpoint(POCKET) as checkpoint:
        rows = checkpoint.read("model.embed_tokens.weight")
    same = copy_of("pocket-eagle", tmp_path / "a", {"embed_tokens.weight": rows, "lm_head.weight": rows})
    other = copy_of("pocket-eagle", tmp_path / "b", {"lm_head.weight": np.roll(rows, 1, axis=0)})
    seen = []
    for model in (EAGLE["model"], same, other):
        outputs, llm = run(PROMPTS[:1], GREEDY, spec={**EAGLE, "model": model})
        drafter = llm.llm_engine.engine_core.model_runner.drafts.drafter.model
        seen.append(([o.token_ids for o in outputs], counts(llm)))
        target = llm.llm_engine.engine_core.model
        assert drafter.model.embed_tokens is target.model.embed_tokens
        assert (drafter.lm_head is target.lm_head) == (model is not other)
    assert seen[0] == seen[1] and seen[0][0] == seen[2][0] and sum(seen[2][1][2:]) == 0


@pytest.mark.parametrize("layout", ["prefix", "a matrix each"])
def test_layouts_of_medusa_heads(layout, tmp_path):
    """`medusa_heads.` before each name, or an output matrix for each head: the same drafts."""
    with Checkpoint(MODELS / "pocket-medusa") as checkpoint:
        tensors = {name: checkpoint.read_stored(name, STORED) for name in checkpoint.names()}
    changed = dict.fromkeys(tensors)
    if layout == "prefix":
        changed["token_map"] = tensors.pop("token_map")
        changed["medusa_heads.lm_heads.0.weight"] = tensors.pop("lm_head.weight")
        changed |= {f"medusa_heads.{name}": tensor for name, tensor in tensors.items()}
        model = copy_of("pocket-medusa", tmp_path / "m", changed)
    else:
        changed |= {**tensors, "lm_head.weight": None}
        changed |= {f"lm_heads.{i}.weight": tensors["lm_head.weight"] for i in range(3)}
        settings = {"original_lm_head": False, "num_heads": None, "medusa_num_heads": 3}
        model = copy_of("pocket-medusa", tmp_path / "m", changed, **settings)
    both = [run(PROMPTS[:2], GREEDY, spec={**MEDUSA, "model": m}) for m in (MEDUSA["model"], model)]
    assert counts(both[0][1]) == counts(both[1][1])
    assert [o.token_ids for o in both[0][0]] == [o.token_ids for o in both[1][0]]


ZERO = np.zeros((2, 2), np.float16)
BAD = [
    ("pocket-eagle", {}, {"vocab_size": 5000}, "a vocabulary of 5000 tokens, the target one of 4096"),
    ("pocket-medusa", {}, {"vocab_size": 5000}, "a vocabulary of 5000 tokens, the target one of 4096"),
    ("pocket-eagle", {}, {"hidden_size": 128}, "reads hidden states of 128 numbers, the target has 256"),
    ("pocket-medusa", {}, {"hidden_size": 128}, "reads hidden states of 128 numbers, the target has 256"),
    ("pocket-eagle", {"fc.weight": None}, {}, "tensor 'fc.weight' is missing"),
    ("pocket-eagle", {"fc.weight": ZERO}, {}, r"'fc.weight' has shape \(2, 2\), expected \(256, 512\)"),
    ("pocket-eagle", {"fc.bias": ZERO}, {}, "that EagleLlamaForCausalLM does not use, first 'fc.bias'"),
    ("pocket-medusa", {"blocks.1.layers.0.weight": None}, {}, "'blocks.1.layers.0.weight' is missing"),
    ("pocket-medusa", {"token_map": None}, {}, "'token_map' is missing"),
    ("pocket-medusa", {"token_map": np.arange(2048) + 3000}, {}, "token_map must hold 2048 token ids below 4096"),
    ("pocket-medusa", {}, {"num_heads": 2}, "num_speculative_tokens must be at most 2, the heads of"),
    ("pocket-medusa", {}, {"truncated_vocab_size": 5000}, "truncated_vocab_size must be at most vocab_size=4096"),
    ("pocket-medusa", {}, {"medusa_fc_bias": "yes"}, "medusa_fc_bias must be true or false"),
    ("pocket-medusa", {}, {"hidden_act": "gelu"}, "unknown key 'hidden_act' = 'gelu'"),
    ("pocket-medusa", {}, {"num_heads": 0}, "num_heads must be a whole number of at least 1"),
    ("pocket-eagle", {}, {"architectures": ["Qwen3ForCausalLM"]}, "the architecture of an EAGLE head must be Llama"),
]


@pytest.mark.parametrize(("name", "tensors", "config", "message"), BAD, ids=[each[3][:40] for each in BAD])
def test_heads_that_cannot_be_are_a_sentence(name, tensors, config, message, tmp_path):
    spec = EAGLE if name == "pocket-eagle" else MEDUSA
    model = copy_of(name, tmp_path / name, tensors or None, **config)
    with pytest.raises(ValueError, match=message):
        LLM(str(POCKET), speculative_config={**spec, "model": model}, num_blocks=40, max_model_len=128)


@BOTH
def test_settings_that_cannot_be_are_a_sentence(spec, tmp_path):
    named = spec["method"]
    for change, message in (
        ({"num_speculative_tokens": 0}, "num_speculative_tokens must be at least 1, got 0"),
        ({"model": None}, f"method '{named}' needs model, the folder or name of"),
        ({"prompt_lookup_max": 3}, f"are of 'ngram', not of '{named}'"),
    ):
        with pytest.raises(ValueError, match=message):
            EngineConfig.from_args(speculative_config={**spec, **change})
    with pytest.raises(FileNotFoundError):
        LLM(str(POCKET), speculative_config={**spec, "model": str(tmp_path / "none")}, num_blocks=40)
    with pytest.raises(ValueError, match=f"method '{named}' needs a target that is read from a folder"):
        LLM(speculative_config=spec)


def test_methods_and_what_they_need():
    eagle, medusa = SpeculativeConfig.of(EAGLE), SpeculativeConfig.of(MEDUSA)
    assert (eagle.use_eagle(), eagle.num_lookahead_tokens, eagle.max_num_new_slots_for_drafting) == (True, 3, 0)
    assert (medusa.use_eagle(), medusa.num_lookahead_tokens, medusa.max_num_new_slots_for_drafting) == (False, 0, 0)
    assert SpeculativeConfig.of({"model": MEDUSA["model"], "num_speculative_tokens": 1}).method == "medusa"
    assert SpeculativeConfig.of({"model": "org/EAGLE-llama", "num_speculative_tokens": 1}).method == "eagle"
    with pytest.raises(ValueError, match="method 'eagle3' is not here"):
        SpeculativeConfig.of({"model": "org/eagle3-llama", "num_speculative_tokens": 1})
    assert EngineConfig.from_args(speculative_config=EAGLE, async_scheduling=True).async_scheduling
    with pytest.raises(ValueError, match="async_scheduling must be False with speculative_config method 'medusa'"):
        EngineConfig.from_args(speculative_config=MEDUSA, async_scheduling=True)


def test_dummy_heads_draft_too():
    for spec in (EAGLE, MEDUSA):
        _, llm = run(PROMPTS[:1], GREEDY, spec=spec, load_format="dummy")
        assert counts(llm)[0] > 0


def test_a_request_near_the_end_of_the_context_gets_no_drafts():
    for spec in (EAGLE, MEDUSA):
        outputs, llm = run([{"prompt_token_ids": [5] * 40}], GREEDY, spec={**spec, "max_model_len": 42})
        assert counts(llm)[0] == 0 and len(outputs[0].token_ids) == 24

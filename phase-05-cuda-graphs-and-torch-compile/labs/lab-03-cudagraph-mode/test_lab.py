"""Lab 05-03: every answer is compared with the pinned release's own, recorded by real_run.py."""

from __future__ import annotations

import copy
import json
import lzma
import random
from pathlib import Path

import pytest

import mini_vllm
from mini_vllm import LLM, SamplingParams

CAPTURED = json.loads(lzma.decompress((Path(__file__).parent / "captured" / "cpu-decisions.json.xz").read_bytes()))
MODES = ["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
DEFAULT = "FULL_AND_PIECEWISE"
SETUPS = [(s["mode"], s["sizes"], s["max_num_seqs"], s["query_len"]) for s in CAPTURED["dispatch"]]


def call(function, *args, **kwargs):
    """What the function returns; its arguments must come out as they went in."""
    before = copy.deepcopy(args)
    out = function(*args, **kwargs)
    assert args == before, "the arguments stay as they were"
    return out


def ids(setup):
    return f"{setup['mode']}-{setup['max_num_seqs']}x{setup['query_len']}"


# ---- the setting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "decode", "mixed", "pieces"),
    [
        ("NONE", "NONE", "NONE", False),
        ("PIECEWISE", "PIECEWISE", "PIECEWISE", True),
        ("FULL", "FULL", "FULL", False),
        ("FULL_DECODE_ONLY", "FULL", "NONE", False),
        ("FULL_AND_PIECEWISE", "FULL", "PIECEWISE", True),
    ],
)
def test_the_table(impl, mode, decode, mixed, pieces):
    assert impl.decode_mode(mode) == decode and impl.mixed_mode(mode) == mixed
    assert impl.requires_piecewise_compilation(mode) is pieces
    assert impl.runtime_mode_for(mode, is_decode=True) == decode
    assert impl.runtime_mode_for(mode, is_decode=False) == mixed


@pytest.mark.parametrize("row", CAPTURED["modes"], ids=lambda row: row["mode"])
def test_methods_of_the_real_enum(impl, row):
    mode = row["mode"]
    assert impl.separate_routine(mode) is row["separate_routine"]
    assert impl.has_full_cudagraphs(mode) is row["has_full_cudagraphs"]
    assert impl.requires_piecewise_compilation(mode) is row["requires_piecewise_compilation"]
    assert {target: impl.has_mode(mode, target) for target in row["has_mode"]} == row["has_mode"]


def test_a_pair_is_no_target(impl):
    for target in ("FULL_DECODE_ONLY", DEFAULT, "full"):
        with pytest.raises(ValueError, match="not a concrete mode"):
            impl.has_mode(DEFAULT, target)


# ---- the backend has a word ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "support", "resolved"),
    [
        ("FULL", "ALWAYS", "FULL"),
        ("FULL", "UNIFORM_BATCH", "FULL_AND_PIECEWISE"),
        ("FULL_AND_PIECEWISE", "UNIFORM_SINGLE_TOKEN_DECODE", "FULL_AND_PIECEWISE"),
        ("FULL_AND_PIECEWISE", "NEVER", "PIECEWISE"),
        ("FULL_DECODE_ONLY", "NEVER", "PIECEWISE"),
        ("PIECEWISE", "NEVER", "PIECEWISE"),
        ("NONE", "NEVER", "NONE"),
    ],
)
def test_downgrades(impl, mode, support, resolved):
    assert impl.resolve(mode, support) == resolved


def test_full_for_everything_is_refused_not_downgraded(impl):
    with pytest.raises(ValueError, match="is not supported"):
        impl.resolve("FULL", "NEVER")
    assert impl.resolve("FULL_DECODE_ONLY", "NEVER", attention_split=False) == "NONE", "decode-only falls silently"
    with pytest.raises(ValueError, match="is not supported"):
        impl.resolve(DEFAULT, "NEVER", attention_split=False)


@pytest.mark.parametrize("query_len", [2, 3, 8])
def test_any_number_of_drafts(impl, query_len):
    """More than one token in a decode is speculation, whether there is one draft or seven."""
    assert impl.resolve(DEFAULT, "UNIFORM_SINGLE_TOKEN_DECODE", True, query_len) == "PIECEWISE"
    assert impl.resolve("FULL_DECODE_ONLY", "UNIFORM_SINGLE_TOKEN_DECODE", False, query_len) == "NONE"
    assert impl.resolve(DEFAULT, "UNIFORM_BATCH", True, query_len) == DEFAULT
    assert impl.is_uniform_decode([query_len] * 3, query_len) and not impl.is_uniform_decode([1] * 3, query_len)
    sizes = [1, 2, 4, 8, 16, 24]
    wanted = [size for size in sizes if query_len <= size <= 3 * query_len]
    assert impl.full_sizes(DEFAULT, sizes, 3, query_len) == wanted


@pytest.mark.parametrize("mode", MODES)
def test_resolve_as_the_real_release(impl, mode):
    """Sixteen rows a mode: four supports, attention cut out or not, decodes of one token or of four."""
    rows = [row for row in CAPTURED["resolve"] if row["mode"] == mode]
    assert len(rows) == 16
    for row in rows:
        arguments = (mode, row["support"], row["attention_split"], row["query_len"])
        if row["resolved"] == "ValueError":
            with pytest.raises(ValueError, match="is not supported"):
                impl.resolve(*arguments)
        else:
            assert impl.resolve(*arguments) == row["resolved"], arguments


# ---- this step -------------------------------------------------------------------------------------------------------


def test_uniform_decode(impl):
    assert impl.is_uniform_decode([1, 1, 1]) and impl.is_uniform_decode([4, 4], query_len=4)
    assert not impl.is_uniform_decode([1, 1, 30]), "one chunk of a prompt makes the step a mixed one"
    assert not impl.is_uniform_decode([2, 2]) and not impl.is_uniform_decode([3, 5], query_len=4)
    for shares, query_len, answer in CAPTURED["uniform"]:
        assert call(impl.is_uniform_decode, shares, query_len) is answer


def test_a_last_chunk_of_one_token_counts_as_decode(impl):
    """Nothing asks whether the token is prompt or output; the arithmetic is the same."""
    assert impl.is_uniform_decode([1]), "a prompt of 17 tokens, 16 of them cached: its one missing token"


def test_which_sizes_get_a_full_graph(impl):
    sizes = [1, 2, 4, 8, 16]
    assert call(impl.full_sizes, DEFAULT, sizes, 10) == [1, 2, 4, 8], "16 requests never decode at once: 10 seats"
    assert impl.full_sizes(DEFAULT, sizes, 16) == sizes and impl.full_sizes("FULL", sizes, 10) == sizes
    for mode in (DEFAULT, "FULL"):
        impl.full_sizes(mode, sizes, 16).clear()
        assert sizes == [1, 2, 4, 8, 16], "the list that comes back is not the caller's"
    assert impl.full_sizes("PIECEWISE", sizes, 10) == impl.full_sizes("NONE", sizes, 10) == []
    assert impl.full_sizes("FULL_DECODE_ONLY", [1, 2, 4, 8, 12], 2, query_len=4) == [4, 8], "4 is one request"


def test_seats_off_the_ladder_lose_the_full_graph(impl):
    """max_num_seqs=10: nine or ten decodes pad to 16, for which no decode graph exists. They run in pieces."""
    sizes = [1, 2, 4, 8, 16]
    assert impl.dispatch(DEFAULT, sizes, 10, 8, True) == ("FULL", impl.BatchDescriptor(8, 8, True))
    for n in (9, 10):
        assert impl.dispatch(DEFAULT, sizes, 10, n, True) == ("PIECEWISE", impl.BatchDescriptor(16))
        assert impl.dispatch("FULL_DECODE_ONLY", sizes, 10, n, True) == ("NONE", impl.BatchDescriptor(n))
        assert impl.dispatch(DEFAULT, sizes, 16, n, True) == ("FULL", impl.BatchDescriptor(16, 16, True))


def test_one_step_each(impl):
    sizes = [1, 2, 4, 8, 16]
    assert impl.dispatch(DEFAULT, sizes, 16, 3, True) == ("FULL", impl.BatchDescriptor(4, 4, True))
    assert impl.dispatch(DEFAULT, sizes, 16, 3, False) == ("PIECEWISE", impl.BatchDescriptor(4))
    assert impl.dispatch(DEFAULT, sizes, 16, 17, False) == ("NONE", impl.BatchDescriptor(17)), "above the top rung"
    assert impl.dispatch("FULL", sizes, 16, 3, True) == ("FULL", impl.BatchDescriptor(4, 4, False)), "one graph for all"
    assert impl.dispatch("FULL_DECODE_ONLY", sizes, 16, 3) == ("NONE", impl.BatchDescriptor(3)), "no graph, no padding"
    assert impl.dispatch("NONE", [], 16, 3, True) == ("NONE", impl.BatchDescriptor(3))
    cascade = impl.dispatch(DEFAULT, sizes, 16, 3, True, full_allowed=False)
    assert cascade == ("PIECEWISE", impl.BatchDescriptor(4))


@pytest.mark.parametrize("setup", CAPTURED["dispatch"], ids=ids)
def test_dispatch_as_the_real_release(impl, setup):
    mode, sizes, seats, query_len = (setup[name] for name in ("mode", "sizes", "max_num_seqs", "query_len"))
    for num_tokens, uniform, no_full, *expected in setup["decisions"]:
        found, key = call(impl.dispatch, mode, sizes, seats, num_tokens, uniform, query_len, not no_full)
        assert [found, key.num_tokens, key.num_reqs, key.uniform] == expected, (num_tokens, uniform, no_full)


@pytest.mark.parametrize("setup", CAPTURED["second runner"], ids=ids)
def test_the_second_runner_decides_the_same(impl, setup):
    """Other code, candidates in place of keys; asked the same questions it gives the same answers."""
    mode, sizes, seats, query_len = (setup[name] for name in ("mode", "sizes", "max_num_seqs", "query_len"))
    for num_tokens, uniform, *expected in setup["decisions"]:
        found, key = impl.dispatch(mode, sizes, seats, num_tokens, uniform, query_len)
        assert [found, key.num_tokens] == expected, (num_tokens, uniform)


@pytest.mark.parametrize("setup", CAPTURED["dispatch"], ids=ids)
def test_capture_order_as_the_real_release(impl, setup):
    mode, sizes, seats, query_len = (setup[name] for name in ("mode", "sizes", "max_num_seqs", "query_len"))
    plan = call(impl.capture_plan, mode, sizes, seats, query_len)
    assert plan == [(found, num_tokens) for found, num_tokens, _, _ in setup["capture"]]


def test_defaults(impl):
    """Unless told otherwise: a mixed step, and decodes of one token."""
    assert impl.dispatch(DEFAULT, [1, 2, 4], 2, 1) == ("PIECEWISE", impl.BatchDescriptor(1))
    assert impl.capture_plan("FULL_DECODE_ONLY", [1, 2, 4], 2) == [("FULL", 2), ("FULL", 1)]


def test_every_dispatch_was_captured(impl):
    """After the start nothing may be recorded, so whatever dispatch answers must be in the plan, or be NONE."""
    for mode, sizes, seats, query_len in SETUPS:
        plan = set(impl.capture_plan(mode, sizes, seats, query_len))
        for num_tokens in range(1, sizes[-1] + 4):
            for uniform in (False, True):
                found, key = impl.dispatch(
                    mode, sizes, seats, num_tokens, uniform and num_tokens % query_len == 0, query_len
                )
                assert found == "NONE" or (found, key.num_tokens) in plan
                assert key.num_tokens >= num_tokens


def test_dispatch_as_the_engine(impl):
    """Random ladders and seats: the same decisions as mini_vllm's dispatcher."""
    rng = random.Random(5)
    for _ in range(60):
        sizes, seats = sorted(rng.sample(range(1, 40), rng.randint(1, 8))), rng.randint(1, 40)
        mode = mini_vllm.CUDAGraphMode[rng.choice(MODES)]
        engine = mini_vllm.CudagraphDispatcher(mode, sizes, seats)
        for num_tokens in range(1, sizes[-1] + 3):
            for uniform in (False, True) if num_tokens <= seats else (False,):
                theirs, key = engine.dispatch(num_tokens, uniform)
                mine, my_key = impl.dispatch(mode.name, sizes, seats, num_tokens, uniform)
                assert (mine, my_key.num_tokens, my_key.num_reqs) == (theirs.name, key.num_tokens, key.num_reqs)
                assert my_key.uniform == key.uniform


def served(dispatch=None):
    """Tokens and statistics of a small workload on the toy model, with a dispatch of our own if given."""
    llm = LLM(cudagraph_mode=DEFAULT, max_num_seqs=10, max_num_batched_tokens=64)
    graphs = llm.llm_engine.engine_core.model_runner.graphs
    if dispatch:
        graphs.dispatcher.dispatch = dispatch
    prompts = ["a" * n for n in (3, 9, 30, 1, 1, 2, 5, 40, 3, 8, 2)]
    params = [SamplingParams(temperature=0.0, max_tokens=4 + n % 7, ignore_eos=True) for n in range(len(prompts))]
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)], graphs.stats.by_size()


def test_your_dispatch_runs_the_engine(impl):
    """The engine asks you in every step, and replays what you name. An unknown key would raise: capture is over."""
    asked = []

    def dispatch(num_tokens, uniform_decode=False):
        mode, key = impl.dispatch(DEFAULT, mini_vllm.default_capture_sizes(20), 10, num_tokens, uniform_decode)
        asked.append(mode)
        return mini_vllm.CUDAGraphMode[mode], mini_vllm.BatchDescriptor(key.num_tokens, key.num_reqs, key.uniform)

    tokens, by_size = served(dispatch)
    assert (tokens, by_size) == served()
    assert set(asked) == {"NONE", "PIECEWISE", "FULL"}, "all three occur in this workload"


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """Some ten seconds: asks the installed vLLM again."""
    _, answers = real_run("none")
    assert answers == CAPTURED
    assert impl.decode_mode(DEFAULT) == answers["modes"][-1]["decode_mode"]

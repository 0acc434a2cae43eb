"""Lab 09-05: a batch in one pass, against one row at a time."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from course.labs import load
from mini_vllm import LLM, EngineParts, SamplingParams

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
given = load(HERE / "given.py")
PRICES = json.loads((HERE / "captured" / "prices.json").read_text(encoding="utf-8"))
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
DTYPES = {"temperature": np.float64, "top_k": np.int64, "top_p": np.float64, "min_p": np.float64}


def arrays(rows):
    """Settings, one dict a row, as the four arrays."""
    full = [{**OFF, **row} for row in rows]
    return {name: np.array([row[name] for row in full], dtype) for name, dtype in DTYPES.items()}


def streams(rows, seed=0):
    """A generator for each row that draws."""
    return [np.random.default_rng([seed, i]) if {**OFF, **row}["temperature"] else None for i, row in enumerate(rows)]


def run(impl, logits, rows, seed=0):
    return impl.sample_batch(np.asarray(logits), **arrays(rows), generators=streams(rows, seed))


def support(impl, probs, row, draws=400):
    """The tokens that come at all."""
    logits = np.log(np.broadcast_to(np.asarray(probs), (draws, len(probs))))
    return set(run(impl, logits, [row] * draws).tolist())


def random_case(seed, whole_numbers=False):
    rng = np.random.default_rng(seed)
    vocab = int(rng.choice([7, 50, 512]))
    logits = rng.normal(size=(int(rng.integers(1, 10)), vocab)) * 3
    rows = [
        {
            "temperature": rng.choice([0.0, 0.3, 0.7, 1.0, 2.0]), "min_p": rng.choice([0.0, 0.02, 0.1]),
            "top_k": rng.choice([0, -1, -5, 1, 2, 5, vocab, vocab + 9]), "top_p": rng.choice([1.0, 0.95, 0.9, 0.5]),
        }
        for _ in logits
    ]  # fmt: skip
    return (np.round(logits) if whole_numbers else logits), rows


def same_as_alone(impl, logits, rows, seed=0):
    """Every row of the batch gets what the reference gives it alone."""
    got = run(impl, logits, rows, seed)
    alone = [
        given.sample_row(scores, **{**OFF, **row}, generator=stream)
        for scores, row, stream in zip(logits, rows, streams(rows, seed), strict=True)
    ]
    wrong = [row for row, (a, b) in enumerate(zip(got.tolist(), alone, strict=True)) if a != b]
    used = [name for name in OFF if wrong and all({**OFF, **rows[row]}[name] != OFF[name] for row in wrong)]
    row = wrong[0] if wrong else 0
    settings = ", ".join(f"{name}={value}" for name, value in rows[row].items())
    assert got[row] == alone[row], (
        f"row {row} ({settings}): got token {got[row]}, expected {alone[row]}, as alone; {len(wrong)} of {len(rows)} "
        f"rows are wrong, and all of them use {used or 'no filter'}"
    )


# ---- the same tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(4))
def test_rows_equal(impl, part):
    for seed in range(15 * part, 15 * part + 15):
        same_as_alone(impl, *random_case(seed), seed)


def test_ties(impl):
    """Whole numbers, so that many logits are equal at every edge."""
    for seed in range(40):
        same_as_alone(impl, *random_case(seed, whole_numbers=True), seed)


def test_what_comes_back(impl):
    got = run(impl, np.zeros((3, 5), np.float32), [{"temperature": 0.0}, {}, {"top_k": 2}])
    assert got.dtype == np.int64 and got.shape == (3,), f"int64[3], got {got.dtype} {got.shape}"
    assert got[0] == 0, "greedy, all equal: the lowest id"
    for row in ({"temperature": 0.0}, {}):
        assert run(impl, [[0.0, 3.0, 1.0]], [{**row, "top_k": 1}]).tolist() == [1]


def test_neighbours(impl):
    """Each row alone in a batch, and among the others."""
    logits, rows = random_case(59)
    together = run(impl, logits, rows)
    for row, stream in enumerate(streams(rows)):
        one = {name: values[row : row + 1] for name, values in arrays(rows).items()}
        (alone,) = impl.sample_batch(logits[row : row + 1], **one, generators=[stream])
        assert together[row] == alone, f"row {row} gets {together[row]} in company, {alone} alone. *One stream for all*"


def test_greedy_draws_nothing(impl):
    rows = [{"temperature": 0.0, "top_k": 3}, {"temperature": 0.7}, {"temperature": 0.0, "min_p": 0.5}]
    generators = [np.random.default_rng(i) for i in range(3)]
    before = [generator.bit_generator.state for generator in generators]
    with np.errstate(all="raise"):
        got = impl.sample_batch(np.array([[1.0, 5.0, 5.0]] * 3), **arrays(rows), generators=generators)
    same = [generator.bit_generator.state == state for generator, state in zip(generators, before, strict=True)]
    assert got[0] == got[2] == 1, f"greedy rows take the largest logit, the lowest id: 1, got {got[[0, 2]]}"
    assert same == [True, False, True], f"streams untouched: {same}, wanted [True, False, True]. *Drawing for greedy*"


@pytest.mark.parametrize("row", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"masked": True}])
def test_v_numbers_each(impl, row):
    """Whatever the filters leave, the stream moves by the whole vocabulary."""
    logits = np.random.default_rng(4).normal(size=(1, 40))
    if row.pop("masked", False):
        logits[0, 3:] = -np.inf
    mine, reference = np.random.default_rng(9), np.random.default_rng(9)
    impl.sample_batch(logits, **arrays([row]), generators=[mine])
    reference.standard_exponential(40)
    assert mine.bit_generator.state == reference.bit_generator.state, (
        f"settings {row}: the stream does not stand where 40 exponentials leave it. *Noise for the survivors*"
    )


def test_input_untouched(impl):
    for dtype in (np.float32, np.float64):
        logits, rows = random_case(58)
        logits, settings, generators = logits.astype(dtype), arrays(rows), streams(rows)
        logits[0, 1] = -np.inf
        before, kept, listed = logits.copy(), {name: values.copy() for name, values in settings.items()}, [*generators]
        impl.sample_batch(logits, **settings, generators=generators)
        assert np.array_equal(logits, before), "the logits were changed. *In place*"
        assert all(np.array_equal(settings[name], kept[name]) for name in kept), "an array of settings was changed"
        assert all(a is b for a, b in zip(generators, listed, strict=True)) and len(generators) == len(listed)


# ---- the filters ---------------------------------------------------------------------------------------------------


def test_order_of_the_filters(impl):
    """Of [.4, .3, .15, .05, .05, .05] min-p .3 leaves three; 0.8 of *their* mass are two of them."""
    got = support(impl, [0.4, 0.3, 0.15, 0.05, 0.05, 0.05], {"top_p": 0.8, "min_p": 0.3})
    assert got == {0, 1}, f"min-p comes before top-p: tokens 0 and 1, got {sorted(got)}. *Min-p last*"
    got = support(impl, [0.4, 0.3, 0.2, 0.1], {"top_k": 2, "top_p": 0.5})
    assert got == {0}, f"top-k comes before top-p, which sees 0.571 and 0.429: token 0 alone, got {sorted(got)}"
    got = support(impl, [0.5, 0.3, 0.15, 0.05], {"temperature": 2.0, "top_p": 0.75})
    assert got == {0, 1, 2}, f"temperature comes first: three tokens reach 0.75, got {sorted(got)}"


def test_the_crossing_token_stays(impl):
    got = support(impl, [0.5, 0.3, 0.15, 0.05], {"top_p": 0.6})
    assert got == {0, 1}, f"0.5 is not enough for 0.6, 0.8 is: tokens 0 and 1, got {sorted(got)}"
    for p in (1e-9, 1e-17):
        assert support(impl, [0.5, 0.3, 0.2], {"top_p": p}) == {0}, f"top_p {p}: one token always stays"


def test_min_p_is_a_share_of_the_likeliest(impl):
    for probs, want in (([0.9, 0.05, 0.03, 0.02], {0}), ([0.3, 0.25, 0.25, 0.2], {0, 1, 2, 3})):
        got = support(impl, probs, {"min_p": 0.1})
        assert got == want, f"min_p 0.1 of {probs}: {sorted(want)}, got {sorted(got)}. *Min-p on logits*"
    for least, want in ((1.0, {1}), (0.5, {0, 1, 2})):  # exact in binary
        got = set(run(impl, [[0.0, 1.0, 0.0]] * 200, [{"temperature": 1 / np.log(2), "min_p": least}] * 200).tolist())
        assert got == want, f"weights 1/2, 1, 1/2 and min_p {least}: {want} stay, got {got}"
    got = support(impl, [0.5, 0.3, 0.15, 0.05], {"temperature": 3.0, "min_p": 0.55})
    assert got == {0, 1, 2}, f"at T = 3 the third has 0.67 of the first: three tokens, got {sorted(got)}"


NEAR = 1e-9
CLOSE = {
    "top_k": ([1 - NEAR, 1.0], {"top_k": 1}, {1}),
    "top_p, dropped": ([0.5 - NEAR, 0.5 + NEAR], {"top_p": 0.5 + NEAR / 2}, {1}),
    "top_p, the other dropped": ([0.5 + NEAR, 0.5 - NEAR], {"top_p": 0.5 + NEAR / 2}, {0}),
    "top_p, kept": ([0.5 - NEAR, 0.5 + NEAR], {"top_p": 0.5 + 2 * NEAR}, {0, 1}),
    "min_p, dropped": ([0.5 - NEAR, 1.0], {"min_p": 0.5}, {1}),
    "min_p, kept": ([0.5, 1.0], {"min_p": 0.5 - NEAR}, {0, 1}),
}


@pytest.mark.parametrize("name", CLOSE)
def test_float64_inside(impl, name):
    probs, row, kept = CLOSE[name]
    got = support(impl, probs, row)
    assert got == kept, f"{name}: {probs} with {row} are numbers that float32 cannot tell apart. *In float32*"


def test_masked_input(impl):
    """A grammar has left one token, or two."""
    logits = np.full((5, 30), -np.inf, np.float32)
    logits[:, 17], logits[4, 3] = -4.0, -4.0
    rows = [{"top_p": 0.5}, {"top_k": 9, "top_p": 0.9}, {"min_p": 0.9}, {"temperature": 0.0}, {"top_k": 5}]
    with np.errstate(all="raise"):
        got = run(impl, logits, rows)
    assert got[:4].tolist() == [17] * 4 and got[4] in (3, 17), f"token 17 is all that is left, got {got}"


# ---- one pass ------------------------------------------------------------------------------------------------------


USED = {
    "temperature": {"temperature": 0.8},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.1},
    "all of them": {"temperature": 0.8, "top_k": 9, "top_p": 0.8, "min_p": 0.1},
}


class Counted(np.ndarray):
    """Counts what numpy computes with it, and with what comes of it."""

    count = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **more):
        Counted.count += 1
        arrays = [np.asarray(each) if isinstance(each, Counted) else each for each in inputs]
        if out:
            getattr(ufunc, method)(*arrays, out=tuple(map(np.asarray, out)), **more)
            return out[0]
        result = getattr(ufunc, method)(*arrays, **more)
        return result.view(Counted) if isinstance(result, np.ndarray) else result


def work(impl, num_rows, row):
    """Of a batch of such rows: instructions of Python in the learner's file, calls anywhere, operations on arrays."""
    rng, file = np.random.default_rng(0), impl.__file__
    rows, logits, count = [row] * num_rows, rng.normal(size=(num_rows, 64)), np.zeros(3, dtype=np.int64)
    run(impl, logits, rows)  # so that numpy has imported what it needs
    arguments, before = {**arrays(rows), "generators": streams(rows)}, (sys.gettrace(), sys.getprofile())
    logits, at_first = logits.view(Counted), Counted.count

    def trace(frame, event, arg):
        if frame.f_code.co_filename != file:
            return None
        frame.f_trace_opcodes = True
        count[0] += event == "opcode"
        return trace

    def profile(frame, event, arg):
        count[1] += event in ("call", "c_call") and frame.f_code.co_name != "__array_ufunc__"

    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        impl.sample_batch(logits, **arguments)
    finally:
        sys.setprofile(before[1])
        sys.settrace(before[0])
    count[2] = Counted.count - at_first
    return count


@pytest.fixture(scope="module")
def a_draw(impl):
    """What 32 more rows without any setting cost."""
    work(impl, 4, {})  # Python 3.12 counts instructions from the second time on
    return work(impl, 36, {}) - work(impl, 4, {})


def test_a_row_is_drawn_and_nothing_else(a_draw):
    steps, calls, operations = a_draw / 32
    assert steps <= 60 and calls <= 4 and operations < 0.5, (
        f"each further row runs {steps:.0f} instructions, {calls:.0f} calls, {operations:.0f} operations on arrays; "
        "a draw explains four calls and no operation. This looks like *A loop over rows*"
    )


@pytest.mark.parametrize("name", USED)
def test_no_loop_over_rows(impl, a_draw, name):
    more = (work(impl, 36, USED[name]) - work(impl, 4, USED[name]) - a_draw) / 32
    assert more.max() < 0.5, (
        f"{name}: each further row runs {more[0]:.1f} instructions, {more[1]:.1f} calls, {more[2]:.1f} operations on "
        "arrays more than one without a setting. This looks like *A loop over rows*"
    )


def test_the_price_as_predicted(impl):
    predicted, ratio = impl.predicted_ratio(), PRICES["partition"]["ratio"]
    assert ratio / 3 <= predicted <= ratio * 3, (
        f"you predicted {predicted}; captured: {ratio:.1f} times as long, {PRICES['partition']['fresh']:.2f} ms for "
        f"fresh rows and {PRICES['partition']['masked']:.2f} ms for masked ones. `python measure.py` asks your machine"
    )


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*OFF, "generators"])
def test_lengths_are_checked(impl, name):
    rows = [{}] * 4
    arguments = {**arrays(rows), "generators": streams(rows)}
    arguments[name] = arguments[name][:3]
    with pytest.raises(ValueError, match=f"^{name} must have 4 entries, one a row, got 3$"):
        impl.sample_batch(np.zeros((4, 6)), **arguments)


BAD = {
    "nan": ({3: np.nan}, (), "row 3 has a NaN in its logits"),
    "masked": ({3: -np.inf, 1: 0.0}, (), "row 3 has no token to sample: all logits are -inf"),
    "masked, greedy": ({4: -np.inf}, (), "row 4 has no token to sample: all logits are -inf"),
    "the first": ({1: -np.inf, 3: np.nan}, (), "row 1 has no token to sample: all logits are -inf"),
    "no stream, and then a nan": ({3: np.nan}, (2,), "row 2 samples at random but has no generator."),
    "a nan, and then no stream": ({1: np.nan}, (2,), "row 1 has a NaN in its logits"),
    "no stream, and then masked": ({3: -np.inf}, (0,), "row 0 samples at random but has no generator."),
    "no stream": ({}, (2, 3), "row 2 samples at random but has no generator."),
}


@pytest.mark.parametrize("case", BAD)
def test_refusals(impl, case):
    fill, without, message = BAD[case]
    logits, rows = np.zeros((5, 6)), [{}, {}, {}, {"temperature": 1.0}, {"temperature": 0.0}]
    for row, value in fill.items():
        logits[row] = value
    generators = [None if i in without else np.random.default_rng(i) for i in range(5)]
    before = [generator and generator.bit_generator.state for generator in generators]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        impl.sample_batch(logits, **arrays(rows), generators=generators)
    after = [generator and generator.bit_generator.state for generator in generators]
    assert after == before, "a batch that is refused has drawn for some of its rows. *Refusing half-way*"


def test_one_nan_is_enough(impl):
    """Beside larger numbers, and in a greedy row."""
    for row in ({}, {"temperature": 0.0}):
        logits = np.array([[0.0, np.nan, 9.0]])
        with pytest.raises(ValueError, match=r"^row 0 has a NaN in its logits$"):
            run(impl, logits, [row])


# ---- pocket --------------------------------------------------------------------------------------------------------


def test_it_serves_pocket(impl):
    """Six requests with six settings in one batch: the engine's own tokens."""
    plug = load(HERE / "plug.py")
    watch = SimpleNamespace(call=lambda function, *args: function(*args), require=lambda holds, text: None)
    settings = [
        {"temperature": 0.0}, {"temperature": 0.7}, {"temperature": 1.0, "top_k": 20},
        {"temperature": 1.3, "top_p": 0.9}, {"temperature": 1.6, "min_p": 0.05},
        {"temperature": 2.0, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    ]  # fmt: skip
    params = [SamplingParams(**each, seed=i, max_tokens=7, ignore_eos=True) for i, each in enumerate(settings)]
    texts = []
    for parts in (EngineParts(sampler=plug.fit(impl, watch)), None):
        llm = LLM(str(POCKET), dtype="float64", with_labs=parts)
        texts.append([o.outputs[0].text for o in llm.generate(["Tell me a story."] * 6, params, use_tqdm=False)])
    for i, (mine, ours) in enumerate(zip(*texts, strict=True)):
        assert mine == ours, f"{settings[i]}: yours writes {mine!r}, the engine {ours!r}"
    assert len(set(texts[0])) == 6, "six settings, six texts"

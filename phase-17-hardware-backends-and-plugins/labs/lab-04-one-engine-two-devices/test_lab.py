"""Lab 17-04. Numbers of a device come from `captured/`, synthetic logits from seeds 0 to 5."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
given = load(HERE / "given.py")


# ---- gaps ----------------------------------------------------------------------------------------------------------


def test_gap_by_hand(impl):
    found = impl.top2_gap(np.array([[3.0, 1.0, 2.0], [5.0, 5.0, 0.0], [1.0, 7.0, 7.5]]))
    assert list(found) == [1.0, 0.0, 0.5], (
        f"got {list(found)}, expected [1.0, 0.0, 0.5]: two equal best have a gap of 0"
    )


def test_gap_is_taken_in_float64(impl):
    logits = np.array([[30.000002, 30.0], [1e8, 1.0]], np.float32)
    found = impl.top2_gap(logits)
    assert found.dtype == np.float64, f"got {found.dtype}, expected float64"
    expected = [float(logits[0, 0]) - 30.0, 99999999.0]
    assert list(found) == expected, f"got {list(found)}, expected {expected}: what float32 holds, subtracted exactly"
    half = np.array([[2048.0, 2046.0, 1.0], [60000.0, -60000.0, 0.0]], np.float16)
    found = impl.top2_gap(half)
    assert list(found) == [2.0, 60000.0], f"of float16: got {list(found)}, expected {[2.0, 60000.0]}"
    with np.errstate(over="ignore"):
        found = impl.gap_error(half, -half)
    assert list(found) == [-4.0, -120000.0], f"of float16: got {list(found)}, expected {[-4.0, -120000.0]}"


def test_negative_logits(impl):
    found = impl.top2_gap(np.array([[-5.0, -1.0, -2.0], [-3.0, -9.0, -4.5]]))
    assert list(found) == [1.0, 1.5], f"got {list(found)}, expected [1.0, 1.5]"


def test_input_is_left_alone(impl):
    ref, dev = given.synthetic(0, rows=5)
    before = ref.copy(), dev.copy()
    impl.top2_gap(ref)
    impl.gap_error(ref, dev)
    assert np.array_equal(ref, before[0]) and np.array_equal(dev, before[1]), "the caller's logits were changed"


def test_the_gap_of_the_same_two(impl):
    ref = np.array([[3.0, 2.0, 0.0], [1.0, 4.0, 3.5], [5.0, 5.0, 1.0], [0.0, 2.0, 2.0]])
    dev = np.array([[2.5, 2.75, 9.0], [0.0, 4.0, 3.0], [5.5, 5.0, 1.0], [0.0, 2.0, 3.0]])
    found = impl.gap_error(ref, dev)
    assert found.dtype == np.float64, f"got {found.dtype}, expected float64"
    expected = [-1.25, 0.5, 0.5, -1.0]
    assert list(found) == expected, (
        f"got {list(found)}, expected {expected}: the device's gap between the reference's two best, less the "
        "reference's; of equals the smaller id is the better"
    )


def test_of_many_equals_the_smaller_ids(impl):
    ref, dev = np.zeros((2, 500)), np.tile(np.arange(500.0), (2, 1))
    ref[1, [90, 210, 400]] = 5.0
    found = impl.gap_error(ref, dev)
    assert list(found) == [-1.0, -120.0], (
        f"got {list(found)}, expected [-1.0, -120.0]: of 500 equals the two are 0 and 1, of three best they are 90 and "
        "210; a sort that is not stable takes any"
    )


def test_doors(impl):
    good = np.ones((3, 8))
    for wrong in (np.ones(64), np.ones((3, 1)), np.ones((2, 3, 4))):
        text = "^" + re.escape(f"logits must be [R, V] with V >= 2, got shape {wrong.shape}") + "$"
        with pytest.raises(ValueError, match=text):
            impl.top2_gap(wrong)
        with pytest.raises(ValueError, match=text):
            impl.gap_error(wrong, wrong)
    assert impl.top2_gap(np.ones((1, 2))).tolist() == [0.0], "a vocabulary of two has a gap"
    nan = good.copy()
    nan[1, 3] = np.nan
    with pytest.raises(ValueError, match=r"^logits hold a NaN$"):
        impl.top2_gap(nan)
    for ref, dev in ((nan, good), (good, nan)):
        with pytest.raises(ValueError, match=r"^logits hold a NaN$"):
            impl.gap_error(ref, dev)
    with pytest.raises(ValueError, match=r"^logits of the two devices must have one shape, got \(3, 8\) and \(3, 9\)$"):
        impl.gap_error(good, np.ones((3, 9)))
    with pytest.raises(ValueError, match=r"^errors must hold at least one number$"):
        impl.expected_flips(np.ones(3), np.ones(0))


# ---- a forecast ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_prediction_within_noise(impl, seed):
    (ref, dev), (known, seen_there) = given.synthetic(seed), given.synthetic(seed + 100)
    seen = int(np.sum(np.argmax(ref, axis=1) != np.argmax(dev, axis=1)))
    found = impl.expected_flips(impl.top2_gap(ref), impl.gap_error(known, seen_there))
    assert abs(found - seen) <= 3 * seen**0.5, (
        f"{found:.0f} flips predicted, {seen} seen, expected within {3 * seen**0.5:.0f}: how often is the error larger "
        "than the gap, and in the wrong direction?"
    )


def test_far_from_ties_nothing(impl):
    found = impl.expected_flips(np.full(1000, 5.0), np.random.default_rng(0).normal(0, 0.01, 500))
    assert 0 <= found < 1e-6, f"gaps of 5, errors of 0.01: got {found} flips, expected none"


def test_prediction_scales_with_the_error(impl):
    rng = np.random.default_rng(1)
    gaps, errors = rng.uniform(0, 10, 4000), rng.normal(0, 0.05, 2000)
    once, twice = impl.expected_flips(gaps, errors), impl.expected_flips(gaps, 2 * errors)
    assert once > 0, f"4,000 gaps from 0 to 10, errors of 0.05: got {once} flips, expected about 8"
    assert 1.7 <= twice / once <= 2.3, (
        f"errors twice as large: got {twice / once:.2f} times the flips, expected about 2"
    )
    half = impl.expected_flips(gaps[:2000], errors)
    assert 0.3 <= half / once <= 0.7, (
        f"half of the decisions: got {half / once:.2f} of the flips, expected about a half"
    )


def test_an_error_without_a_direction(impl):
    """Errors all of one sign: a device that is off in one direction here may be off in the other elsewhere."""
    gaps, errors = np.full(100, 1.0), np.full(50, 3.0)
    for sign in (1, -1):
        found = impl.expected_flips(gaps, sign * errors)
        assert 30 <= found <= 60, f"each error is {3 * sign}, each gap 1: got {found} of 100 flips, expected 30 to 60"


def test_the_arrays_are_the_callers(impl):
    gaps, errors = np.array([0.3, 0.1]), np.array([-0.2, 0.1, 0.05])
    kept = gaps.copy(), errors.copy()
    impl.expected_flips(gaps, errors)
    assert np.array_equal(gaps, kept[0]) and np.array_equal(errors, kept[1]), "the caller's arrays were changed"


# ---- verdicts ------------------------------------------------------------------------------------------------------


def test_first_parting(impl):
    for a, b, expected in (
        ([1, 2, 3], [1, 2, 3], None), ([], [], None), ([1, 2, 3], [1, 9, 3], 1), ([4], [5], 0),
        ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1], 1), ([1, 5, 6], [1, 7], 1), ([], [0], 0),
    ):  # fmt: skip
        found = impl.first_parting(a, b)
        assert found == expected and type(found) is type(expected), f"{a} and {b}: got {found!r}, expected {expected!r}"


def test_verdict_tells_bug_from_tie(impl):
    cases = [
        ([1, 2, 3], [1, 2, 3], [9.0, 9.0, 0.0], ("equal", None, None)),
        ([1, 2, 3], [1, 7, 3], [9.0, 3.0, 9.0], ("bug", 1, 3.0)),
        ([1, 2, 3], [1, 7, 3], [9.0, 0.02, 9.0], ("near tie", 1, 0.02)),
        ([1, 2, 3], [1, 7, 8], [9.0, 0.3, 9.0], ("near tie", 1, 0.3)),
        ([1, 2, 3], [1, 7, 8], [0.0, 0.31, 0.0], ("bug", 1, 0.31)),
        ([1, 2, 3], [8, 7, 8], [0.0, 9.0, 9.0], ("near tie", 0, 0.0)),
        ([1, 2, 3], [1, 7], [9.0, 0.2, 9.0], ("near tie", 1, 0.2)),
    ]
    for a, b, gaps, expected in cases:
        kept = list(a), list(b), list(gaps)
        found = impl.verdict(a, b, gaps, 0.3)
        got = found.kind, found.index, found.gap
        assert got == expected, f"{a} and {b}, gaps {gaps}, tolerance 0.3: got {got}, expected {expected}"
        assert (a, b, gaps) == kept, f"the caller's lists became {(a, b, gaps)}, expected {kept}"


def test_no_rounding_ends_a_request(impl):
    for a, b, gaps in (([1, 2, 3], [1, 2], [9.0, 9.0, 0.0]), ([1, 2], [1, 2, 3], [0.0, 0.0])):
        found = impl.verdict(a, b, gaps, 0.3)
        got, expected = (found.kind, found.index, found.gap), ("bug", 2, None)
        assert got == expected, f"{a} and {b}: got {got}, expected {expected}: all tokens are equal, and one goes on"


def test_doors_of_the_verdict(impl):
    for wrong in (0, -0.5, float("nan")):
        with pytest.raises(ValueError, match=rf"^tolerance must be positive, got {wrong}$"):
            impl.verdict([1], [1], [0.1], wrong)
    for gaps in ([0.1, 0.2], [0.1, 0.2, 0.3, 0.4]):
        with pytest.raises(
            ValueError, match=rf"^gaps must have one for each token of tokens_a, got {len(gaps)} for 3$"
        ):
            impl.verdict([1, 2, 3], [1, 2, 3], gaps, 0.3)


# ---- decisions of the scheduler ------------------------------------------------------------------------------------


def test_first_decision_by_hand(impl):
    one = [{"a": [4, ([1],)], "b": [2, ([2],)]}, {"a": [1, None], "b": [1, None]}]
    cases = [
        (one, one, None), ([], [], None), (one, one[:1], (1, "a")), (one[:1], one, (1, "a")),
        (one, [{"a": [4, ([1],)], "b": [2, ([3],)]}, one[1]], (0, "b")),
        (one, [one[0], {"a": [1, None], "b": [1, ([5],)]}], (1, "b")),
        (one, [{"a": [4, ([1],)], "b": [2, ([2], [3])]}], (0, "b")),
        ([{"a": [4, ([1], [2, 3])]}], [{"a": [4, ([1], [3, 2])]}], (0, "a")),
        (one, [one[0], {"a": [2, None], "b": [2, None]}], (1, "a")),
        (one, [{"b": [1, ([2],)], "a": [3, ([1],)]}], (0, "a")), ([{"b": [1, None], "a": [1, None]}], [], (0, "a")),
        (one, [{"a": [4, ([1],)]}, one[1]], (0, "b")), ([{"a": [4, ([1],)]}], one[:1], (0, "b")),
    ]  # fmt: skip
    for a, b, expected in cases:
        kept = copy.deepcopy((a, b))
        found = impl.first_decision(a, b)
        assert found == expected, f"{a} beside {b}: got {found}, expected {expected}"
        assert (a, b) == kept, f"the caller's plans became {(a, b)}, expected {kept}"


def judge_plans(impl, one, other):
    found = impl.first_decision(one[0], other[0])
    assert found is None, (
        f"plans part in step {found[0]} with request {found[1]}: {one[0][found[0]]} and {other[0][found[0]]}. The "
        "scheduler sees lengths, not logits"
    )
    assert len(one[0]) > 12, f"{len(one[0])} steps, expected chunks of prompts and 12 tokens each"


def test_decisions_are_equal(impl):
    """The engine in two arithmetics on this CPU: float64, and float32 with another attention."""
    other = given.plans("cpu", "float32", attention_backend="split_kv")
    judge_plans(impl, given.plans("cpu", "float64"), other)
    changed = [dict(step) for step in other[0]]
    changed[-1][max(changed[-1])] = [1, ([999],)]
    found = impl.first_decision(other[0], changed)
    assert found == (len(changed) - 1, max(changed[-1])), f"the last step was changed by hand: got {found}"


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("device", "dtype"),
    [("torch", "float32"), ("torch", "bfloat16"), pytest.param("cuda", "bfloat16", marks=pytest.mark.gpu)],
)
def test_decisions_are_equal_on_another_device(impl, device, dtype):
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    judge_plans(impl, given.plans("cpu", "float64"), given.plans(device, dtype))


# ---- what was captured ---------------------------------------------------------------------------------------------


def test_your_predictions(impl):
    mine = impl.predicted_flips()
    assert sorted(mine) == ["bfloat16", "float16", "float32"], f"got {sorted(mine)}, expected three kinds of numbers"
    for numbers, said in mine.items():
        seen = given.flips(numbers)
        assert seen / 2 - 2 <= said <= 2 * seen + 2, (
            f"{numbers}: you said {said}, it is {seen}. How many gaps are smaller than a rounding of the logits, which "
            "are numbers between 8 and 32?"
        )


def forecast(impl, device, kind, numbers):
    """Flips forecast with the errors of the other kind of text, flips seen, and what a bound names."""
    data, other = given.captured(device), next(each for each in given.KINDS if each != kind)
    errors, gaps = data[f"{other}/{numbers}"] - data[f"{other}/gaps"], data[f"{kind}/gaps"]
    bound = int(np.sum(gaps < 2 * np.abs(errors).max()))
    return impl.expected_flips(gaps, errors), int(data[f"{kind}/{numbers}/flips"].sum()), bound


@pytest.mark.parametrize("device", ["torch", "cuda"])
@pytest.mark.parametrize("kind", given.KINDS)
def test_float32_parts_nowhere(impl, device, kind):
    found, seen, _ = forecast(impl, device, kind, "float32")
    assert (found < 0.5, seen) == (True, 0), f"{kind}: got {found:.3f} flips forecast, {seen} seen, expected none"


@pytest.mark.parametrize("device", ["torch", "cuda"])
@pytest.mark.parametrize("kind", given.KINDS)
def test_a_forecast_for_bfloat16(impl, device, kind):
    found, seen, bound = forecast(impl, device, kind, "bfloat16")
    assert abs(found - seen) <= 3 * max(seen, 1) ** 0.5, (
        f"{kind} on {device}: {found:.1f} flips forecast, {seen} seen, expected within {3 * max(seen, 1) ** 0.5:.1f}"
    )
    assert found < bound / 2, f"{kind} on {device}: {found:.1f} forecast; a bound names {bound}, a forecast far fewer"

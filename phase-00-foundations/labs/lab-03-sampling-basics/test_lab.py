"""Lab 00-03: softmax, greedy, top-k, top-p, temperature, seeds, and agreement with the engine's sampler."""

from __future__ import annotations

import numpy as np
import pytest

from course.fixtures import close
from mini_vllm import Sampler, SamplingParams

PROBS = np.array([0.5, 0.3, 0.15, 0.05])
LOGITS = np.log(PROBS)


def kept(logits: np.ndarray) -> set[int]:
    """The ids whose logit is not -inf."""
    return set(np.flatnonzero(np.isfinite(logits)).tolist())


def drawn(impl, logits: np.ndarray, **knobs) -> set[int]:
    """Every id that 400 seeds produce."""
    return {impl.sample(logits, seed=seed, **knobs) for seed in range(400)}


def test_softmax_is_a_distribution_and_is_stable(impl) -> None:
    close(impl.softmax(LOGITS), PROBS, "softmax(log(p)) must give p back")
    for base in (1000.0, -1000.0):
        probs = impl.softmax(base + np.array([0.0, 1.0, -1.0]))
        assert np.isfinite(probs).all(), (
            f"logits near {base:.0f} gave {probs}. README, 'Background': e^1000 is no float"
        )
        close(probs, impl.softmax(np.array([0.0, 1.0, -1.0])), f"the same distances at {base:.0f}")
    assert probs[1] > probs[0] > probs[2], "order of the logits = order of the probabilities"
    assert impl.softmax(np.random.default_rng(0).standard_normal(5000)).sum() == pytest.approx(1.0, abs=1e-12)
    got = impl.softmax(np.array([0.0, -np.inf, 0.0]))
    close(got, np.array([0.5, 0.0, 0.5]), "-inf must become probability 0 exactly", 0)


def test_softmax_works_on_float32_and_lists(impl) -> None:
    for logits in (np.array([1, 2], dtype=np.float32), [1, 2]):
        close(impl.softmax(logits), np.array([0.2689414214, 0.7310585786]), "probabilities, in float64", 1e-9)


def test_filters_take_lists_and_give_float64(impl) -> None:
    want = np.array([3.0, -np.inf, 2.0])
    for logits in ([3, 1, 2], np.array([3, 1, 2]), np.array([3, 1, 2], dtype=np.float32)):
        close(impl.apply_top_k(logits, 2), want, "top-k 2 of 3, 1, 2", 0)
        close(impl.apply_top_k(logits, 0), np.array([3.0, 1.0, 2.0]), "top-k switched off", 0)
        close(impl.apply_top_p(logits, 0.9), want, "top-p 0.9 of logits 3, 1, 2", 0)
        close(impl.apply_top_p(logits, 1.0), np.array([3.0, 1.0, 2.0]), "top-p switched off", 0)
    masked = np.array([0.0, -np.inf, 1.0, -np.inf])
    close(impl.apply_top_k(masked, 3), masked, "top-k 3 of two tokens that are left", 0)
    close(impl.apply_top_p(masked, 0.99), masked, "top-p of two tokens that are left, both needed", 0)
    assert impl.sample([0.0, 9.0, 1.0], temperature=0.0) == 1, "sample takes a list too"


def test_greedy_is_argmax_and_ignores_every_other_knob(impl) -> None:
    logits = np.array([0.1, 2.0, 1.9, -3.0])
    for knobs in ({}, {"top_k": 1}, {"top_k": 3, "top_p": 0.2}, {"top_p": 0.01}):
        assert drawn(impl, logits, temperature=0.0, **knobs) == {1}, (
            f"temperature 0 with {knobs} must give argmax, id 1"
        )
    assert impl.sample(np.array([1.0, 7.0, 7.0]), temperature=0.0) == 1, "equal logits: the lowest index wins"
    rng = np.random.default_rng(3)
    before = rng.bit_generator.state
    impl.sample(logits, temperature=0.0, seed=rng)
    assert rng.bit_generator.state == before, "greedy draws nothing: the generator must not advance"


def test_top_k_keeps_exactly_k(impl) -> None:
    logits = np.array([3.0, -1.0, 2.0, 0.5, 1.0])
    for k, ids in [(1, {0}), (2, {0, 2}), (3, {0, 2, 4}), (4, {0, 2, 3, 4})]:
        out = impl.apply_top_k(logits, k)
        assert kept(out) == ids, f"k={k}: expected ids {ids} to survive, got {kept(out)}"
        assert (out[[i for i in range(5) if i not in ids]] == -np.inf).all(), "README: the others become -inf, not 0"
        assert all(out[i] == logits[i] for i in ids), "survivors keep their logits"
    for k in (0, -1, 5, 6):
        close(impl.apply_top_k(logits, k), logits, f"k={k} switches top-k off", 0)


def test_top_k_on_a_whole_vocabulary(impl) -> None:
    rng = np.random.default_rng(5)
    for k in (1, 7, 50, 499):
        logits = rng.standard_normal(500)
        expected = set(np.argsort(logits)[-k:].tolist())
        assert kept(impl.apply_top_k(logits, k)) == expected, f"500 distinct logits, k={k}: not the {k} largest"


def test_top_k_keeps_all_ties_at_the_border(impl) -> None:
    out = impl.apply_top_k(np.array([2.0, 1.0, 1.0, 0.0]), 2)
    assert kept(out) == {0, 1, 2}, f"ids 1 and 2 tie for second place, both stay, as upstream: got {kept(out)}"


def test_top_p_keeps_the_smallest_sufficient_nucleus(impl) -> None:
    # p is kept away from every partial sum (0.5, 0.8, 0.95): there, float rounding would decide.
    for p, ids in [
        (0.0, {0}),
        (0.01, {0}),
        (0.45, {0}),
        (0.55, {0, 1}),
        (0.75, {0, 1}),
        (0.9, {0, 1, 2}),
        (0.97, {0, 1, 2, 3}),
    ]:
        out = impl.apply_top_p(LOGITS, p)
        assert kept(out) == ids, (
            f"p={p}: expected {ids}, got {kept(out)}. README, 'Background': the token that crosses p belongs to the set"
        )
        assert all(out[i] == LOGITS[i] for i in ids), "survivors keep their logits"
    close(impl.apply_top_p(LOGITS, 1.0), LOGITS, "p=1 switches top-p off", 0)
    tail = np.array([0.0, -100.0])
    close(impl.apply_top_p(tail, 1.0), tail, "p=1 keeps even a probability of 4e-44", 0)
    assert kept(impl.apply_top_p(np.log(np.array([0.2, 0.4, 0.4])), 0.5)) == {1, 2}, "[0.2, 0.4, 0.4], p=0.5: keep two"
    shuffled = impl.apply_top_p(LOGITS[[2, 0, 3, 1]], 0.75)
    assert kept(shuffled) == {1, 3}, (
        f"the order of the vocabulary must not matter: expected {{1, 3}}, got {kept(shuffled)}"
    )
    # Two equal halves are exact in binary: one of them reaches p = 0.5 by itself, so the other is not needed.
    halves = kept(impl.apply_top_p(np.array([0.0, 0.0]), 0.5))
    assert len(halves) == 1, f"mass 0.5 is enough for p=0.5, the smallest set has one token: got {halves}"


def test_filters_return_new_arrays(impl) -> None:
    for call in (
        lambda x: impl.apply_top_k(x, 2),
        lambda x: impl.apply_top_p(x, 0.5),
        impl.softmax,
        lambda x: impl.apply_top_k(x, 0),
        lambda x: impl.apply_top_p(x, 1.0),
    ):
        logits = LOGITS.copy()
        out = call(logits)
        out[:] = 99.0
        np.testing.assert_array_equal(
            logits, LOGITS, err_msg="README, 'Common mistakes': the argument was changed in place"
        )
    logits = LOGITS.copy()
    impl.sample(logits, temperature=0.5, top_k=2, top_p=0.7, seed=0)
    np.testing.assert_array_equal(logits, LOGITS, err_msg="sample() changed its argument")


def test_temperature_sharpens_or_flattens(impl) -> None:
    shares = []
    for temperature in (0.5, 1.0, 2.0):
        rng = np.random.default_rng(1)
        tokens = [impl.sample(LOGITS, temperature=temperature, seed=rng) for _ in range(2000)]
        share = tokens.count(0) / len(tokens)
        expected = float((PROBS ** (1 / temperature) / (PROBS ** (1 / temperature)).sum())[0])
        assert share == pytest.approx(expected, abs=0.035), (
            f"T={temperature}: token 0 should be drawn with probability {expected:.3f}, share was {share:.3f}"
        )
        shares.append(share)
    assert shares == sorted(shares, reverse=True), f"hotter must be flatter: shares of the top token were {shares}"


def test_tiny_temperatures_count_as_one_hundredth(impl) -> None:
    logits = np.array([0.0, 0.005, 0.01])
    for seed in range(50):
        assert impl.sample(logits, temperature=1e-9, seed=seed) == impl.sample(logits, temperature=0.01, seed=seed), (
            "README, 'Background': 0 < T < 0.01 is raised to 0.01, as upstream does"
        )
    assert drawn(impl, logits, temperature=1e-9) == {0, 1, 2}, "a clamped temperature still draws; only T = 0 is greedy"
    hot = [impl.sample(logits, temperature=0.02, seed=seed) for seed in range(400)]
    cold = [impl.sample(logits, temperature=0.01, seed=seed) for seed in range(400)]
    assert hot != cold, "0.02 is above the floor and must not be changed"


def test_order_is_temperature_then_top_k_then_top_p(impl) -> None:
    assert drawn(impl, LOGITS, temperature=2.0, top_p=0.75) == {0, 1, 2}, (
        "at T=2 the probabilities are 0.379, 0.294, 0.208, 0.120: three tokens are needed for 0.75. "
        "README, 'Background': temperature comes before top-p"
    )
    assert drawn(impl, LOGITS, top_k=2, top_p=0.6) == {0}, (
        "after top-k 2 the probabilities are 0.625 and 0.375, so one token reaches 0.6. "
        "README, 'Background': top-p sees what top-k left"
    )


def test_seeded_sampling_is_reproducible(impl) -> None:
    logits = np.random.default_rng(0).standard_normal(50)
    first = [impl.sample(logits, seed=s) for s in range(30)]
    assert first == [impl.sample(logits, seed=s) for s in range(30)], "the same seed must give the same token"
    assert len(set(first)) > 5, f"different seeds must give different tokens, got {sorted(set(first))}"
    assert all(type(token) is int for token in first), "a token id is a plain int"
    rng = np.random.default_rng(7)
    stream = [impl.sample(logits, seed=rng) for _ in range(30)]
    assert len(set(stream)) > 5, "a Generator is one stream: each call must advance it"
    np.random.seed(0)
    unseeded = {impl.sample(logits) for _ in range(60)}
    assert len(unseeded) > 5 and unseeded <= set(range(50)), "seed=None must draw fresh randomness each time"


def test_draw_is_the_exponential_race(impl) -> None:
    logits = np.random.default_rng(2).standard_normal(40)
    probs = np.exp(logits) / np.exp(logits).sum()
    for seed in range(40):
        expected = int(np.argmax(probs / np.random.default_rng(seed).exponential(size=40)))
        got = impl.sample(logits, seed=seed)
        assert got == expected, (
            f"seed {seed}: expected {expected}, got {got}. README, 'Background': the largest of p / e, with one draw"
        )
        filtered = np.where(np.isin(np.arange(40), np.argsort(logits)[-5:]), probs, 0.0)
        ref, mine = np.random.default_rng(seed), np.random.default_rng(seed)
        expected = int(np.argmax(filtered / ref.exponential(size=40)))
        got = impl.sample(logits, top_k=5, seed=mine)
        assert got == expected and mine.bit_generator.state == ref.bit_generator.state, (
            f"seed {seed}, top_k 5: expected {expected} and one draw of 40 numbers, got {got}. "
            "README, 'Background': those that were filtered out run too"
        )


def test_frequencies_follow_the_probabilities(impl) -> None:
    rng = np.random.default_rng(11)
    counts = np.bincount([impl.sample(LOGITS, seed=rng) for _ in range(4000)], minlength=4)
    sigma = np.sqrt(4000 * PROBS * (1 - PROBS))
    assert (np.abs(counts - 4000 * PROBS) < 4 * sigma).all(), f"expected about {4000 * PROBS}, got {counts}"


def test_bad_knobs_are_refused(impl) -> None:
    for bad in (-0.1, float("nan")):
        with pytest.raises(ValueError, match=rf"^temperature must be 0 or more, got {bad}$"):
            impl.sample(LOGITS, temperature=bad)
    for bad in (0.0, -0.5, 1.5, float("nan")):
        for temperature in (1.0, 0.0):
            with pytest.raises(ValueError, match=rf"^top_p must be in \(0, 1\], got {bad}$"):
                impl.sample(LOGITS, temperature=temperature, top_p=bad)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 1.0), (0, 0.9), (10, 0.8), (1, 1.0)])
def test_agrees_with_mini_vllm_sampler(impl, temperature: float, top_k: int, top_p: float) -> None:
    engine_sampler = Sampler()
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    for seed in range(8):
        logits = np.random.default_rng(100 + seed).standard_normal(64) * 2
        mine = impl.sample(logits, temperature, top_k, top_p, seed=np.random.default_rng(seed))
        engines = engine_sampler.sample(logits, params, np.random.default_rng(seed))
        assert mine == engines, (
            f"T={temperature}, top_k={top_k}, top_p={top_p}, seed {seed}: you chose {mine}, the engine {engines}. "
            "README, 'What you should see': same logits, same generator, same token"
        )

"""Lab 07-04: loads, what unevenness costs a group of devices, and which remedy helps."""

import importlib.util
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from course.fixtures import close

HOT = np.array([1040, 80, 80, 80, 80, 80, 80, 80])  # 1,600 assignments, 65 % of them to expert 0


def uniform(rng, tokens=800, k=2, num_experts=8):
    """k distinct experts for each token, all equally likely."""
    return np.argsort(rng.random((tokens, num_experts)), axis=1)[:, :k]


def hot(rng, tokens=800, share=0.6, num_experts=8):
    """Each choice by itself: `share` of them expert 0, the others even. No real router can be this uneven at k = 2."""
    ids = rng.integers(0, num_experts, (tokens, 2))
    ids[rng.random((tokens, 2)) < share] = 0
    return ids


# ---- loads ---------------------------------------------------------------------------------------------------------


def test_loads_count_assignments(impl):
    assert impl.expert_loads(np.array([[0, 2], [2, 1], [2, 2]]), 5).tolist() == [1, 1, 4, 0, 0]
    assert impl.expert_loads(np.array([[0]]), 3).tolist() == [1, 0, 0], "as many as there are experts"
    rng = np.random.default_rng(0)
    assert impl.expert_loads(uniform(rng), 8).sum() == 1600, "tokens times k, whatever the router does"


def test_imbalance(impl):
    assert impl.imbalance(np.array([5, 5, 5, 5])) == 1.0
    assert impl.imbalance(np.array([8, 0, 0, 0])) == 4.0, "all to one: E times the fair share"
    assert impl.imbalance(np.array([6, 2, 2, 2])) == 2.0
    assert impl.imbalance(np.array([0, 0, 0])) == 0.0, "no work, no figure"


def test_uniform_routing_is_nearly_balanced(impl):
    found = [impl.imbalance(impl.expert_loads(uniform(np.random.default_rng(s)), 8)) for s in range(50)]
    assert 1.0 < max(found) < 1.3 and np.mean(found) == pytest.approx(1.10, abs=0.03)


def test_hot_expert_blows_up_imbalance(impl):
    found = [impl.imbalance(impl.expert_loads(hot(np.random.default_rng(s)), 8)) for s in range(20)]
    assert min(found) > 3 and np.mean(found) == pytest.approx((0.6 + 0.4 / 8) * 8, abs=0.1), "5.2"


def test_small_batches_are_lumpy_by_arithmetic(impl):
    """A perfectly fair router, 64 experts, k = 2: eight tokens are not enough to be even."""
    mean = {}
    for tokens in (8, 64, 512, 4096):
        loads = [impl.expert_loads(uniform(np.random.default_rng(s), tokens, 2, 64), 64) for s in range(20)]
        mean[tokens] = np.mean([impl.imbalance(each) for each in loads])
    assert mean[8] > 7 and 2.5 < mean[64] < 3.7 and 1.4 < mean[512] < 1.8 and mean[4096] < 1.3
    excess = [mean[t] - 1 for t in (64, 512, 4096)]
    assert all(2 < a / b < 4 for a, b in pairwise(excess)), "8 times the batch: about 1/sqrt(8)"


# ---- what it costs -------------------------------------------------------------------------------------------------


def test_ep_step_time_is_the_max_device(impl):
    loads = np.array([10, 20, 30, 40])
    assert impl.ep_step_time(loads, 4) == 40 and impl.ep_step_time(loads, 1) == 100
    assert impl.ep_step_time(loads, 2) == 60, "experts 1 and 3 share a device: their loads add"
    assert impl.ep_step_time(loads, 2, np.array([0, 1, 1, 0])) == 50
    assert impl.ep_step_time(loads, 8) == 40, "devices without experts wait, too"
    assert impl.ep_step_time(np.array([7, 7, 7]), 4, np.array([3, 3, 3])) == 21


def test_efficiency(impl):
    assert impl.efficiency(np.array([10, 20, 30, 40]), 2) == pytest.approx(100 / 120)
    assert impl.efficiency(np.array([5, 5, 5, 5]), 4) == 1.0 and impl.efficiency(np.zeros(4), 2) == 0.0
    assert impl.efficiency(np.full(4, 1e-12), 2) == pytest.approx(1.0), "little work is work"
    assert impl.efficiency(HOT, 8) == pytest.approx(1600 / (8 * 1040)), "19 %"
    assert impl.efficiency(np.array([3, 3, 1, 1]), 2, np.array([0, 1, 0, 1])) == 1.0


def test_imbalance_burns_parallel_efficiency(impl):
    for seed in range(20):
        fair = impl.expert_loads(uniform(np.random.default_rng(seed)), 8)
        skewed = impl.expert_loads(hot(np.random.default_rng(seed)), 8)
        assert fair.sum() == skewed.sum() == 1600, "the same work"
        assert impl.ep_step_time(skewed, 8) > 2.5 * impl.ep_step_time(fair, 8)
        assert impl.efficiency(skewed, 8) < 0.25 < 0.8 < impl.efficiency(fair, 8)


def test_one_expert_a_device_is_imbalance_upside_down(impl):
    loads = np.array([9, 4, 4, 3])
    assert impl.efficiency(loads, 4) == pytest.approx(1 / impl.imbalance(loads))


# ---- capacity ------------------------------------------------------------------------------------------------------


def test_capacity_drops_only_the_overflow(impl):
    loads = np.array([100, 28, 0, 0])
    assert impl.dropped_tokens(loads, 1.0) == 68, "capacity 128 / 4 = 32: expert 0 loses 68, expert 1 nothing"
    assert impl.dropped_tokens(loads, 2.0) == 36 and impl.dropped_tokens(loads, 0.5) == 84 + 12
    assert impl.dropped_tokens(loads, 3.125) == impl.dropped_tokens(loads, 100) == 0


def test_capacity_is_rounded_up(impl):
    assert impl.dropped_tokens(np.array([4, 3, 3]), 1.0) == 0, "10 / 3 is 4 places"
    assert impl.dropped_tokens(np.array([5, 3, 2]), 1.0) == 1
    assert impl.dropped_tokens(np.array([5, 5, 0]), 1.0) == 2, "four places each: one and one too many"


# ---- remedies ------------------------------------------------------------------------------------------------------


def test_packing_balances_what_can_be_divided(impl):
    loads = np.array([9, 1, 8, 2, 7, 3, 6, 4])
    placement = impl.balanced_packing(loads, 4)
    assert np.bincount(placement).tolist() == [2, 2, 2, 2], "two places a device"
    assert impl.ep_step_time(loads, 4, placement) == 10 and impl.ep_step_time(loads, 4) == 16


def test_packing_fills_every_place(impl):
    for loads, devices in (([9, 1, 1, 1], 2), ([2, 2, 2, 2], 2), ([5, 4, 3], 3), ([0, 0, 0, 0], 2), ([3.0] * 64, 8)):
        placement = impl.balanced_packing(np.array(loads), devices)
        places = [len(loads) // devices] * devices
        assert np.bincount(placement, minlength=devices).tolist() == places, "the lightest device may be full"
    with pytest.raises(ValueError, match="equal numbers"):
        impl.balanced_packing(np.ones(7), 2)


def test_placement_cannot_fix_a_single_hot_expert(impl):
    best = impl.balanced_packing(HOT, 4)
    assert impl.ep_step_time(HOT, 4, best) == impl.ep_step_time(HOT, 4) == 1120, "an expert cannot be cut in two"


@pytest.mark.parametrize(("extra", "step"), [(0, 1120.0), (4, 496.0), (8, 1040 / 3 + 80)])
def test_replication_can(impl, extra, step):
    phy2log, copies = impl.replicate_experts(HOT, 8 + extra)
    assert copies.tolist() == [1 + extra, *[1] * 7]
    per_copy = (HOT / copies)[phy2log]
    assert per_copy.sum() == pytest.approx(1600), "the same work, spread over more places"
    assert impl.ep_step_time(per_copy, 4, impl.balanced_packing(per_copy, 4)) == pytest.approx(step), "ideal: 400"


def test_who_gets_a_copy(impl):
    phy2log, copies = impl.replicate_experts(np.array([10, 40, 30, 20]), 8)
    assert phy2log.tolist() == [0, 1, 2, 3, 1, 2, 1, 3] and copies.tolist() == [1, 3, 2, 2]
    assert impl.replicate_experts(np.array([1, 2]), 2)[0].tolist() == [0, 1]
    assert impl.replicate_experts(np.array([4, 4]), 3)[0].tolist() == [0, 1, 0], "ties: the smaller id"
    assert impl.replicate_experts(np.array([1, 2]), 3)[1].dtype.kind == "i", "copies are counted"
    for experts in (4, 6):
        with pytest.raises(ValueError, match=f"at least {experts}"):
            impl.replicate_experts(np.ones(experts), experts - 1)


def test_arguments_stay(impl):
    loads, ids, placement = np.array([3.0, 9.0, 1.0, 7.0]), np.array([[0, 2], [2, 1]]), np.array([0, 1, 1, 0])
    given = [each.copy() for each in (loads, ids, placement)]
    impl.expert_loads(ids, 4)
    impl.imbalance(loads), impl.dropped_tokens(loads, 1.0)
    impl.balanced_packing(loads, 2), impl.replicate_experts(loads, 6)
    impl.efficiency(loads, 2, placement), impl.ep_step_time(loads, 2, placement)
    for name, now, then in zip(("loads", "ids", "placement"), (loads, ids, placement), given, strict=True):
        close(now, then, f"{name} after the calls", 0)


# ---- against the engine --------------------------------------------------------------------------------------------


def test_the_engine_counts_and_replicates_the_same_and_packs_no_better(impl):
    """mini_vllm.distributed.eplb does it for all layers at once; here they are compared row by row."""
    import mini_vllm

    rng = np.random.default_rng(21)
    for experts, devices in ((8, 4), (16, 4), (64, 8), (6, 6)):
        ids = uniform(rng, 50, 2, experts)
        loads = impl.expert_loads(ids, experts)
        assert (mini_vllm.expert_loads(ids, experts) == loads).all()
        assert mini_vllm.imbalance(loads) == pytest.approx(impl.imbalance(loads))
        weights = rng.random((3, experts)) * 100  # no ties: their order is the sort's own affair
        packs, _ = mini_vllm.balanced_packing(weights, devices)
        phy2log, copies = mini_vllm.replicate_experts(weights, experts + 5)
        for row in range(3):
            mine = impl.balanced_packing(weights[row], devices)
            share = impl.efficiency(weights[row], devices, mine)
            assert np.bincount(mine, minlength=devices).tolist() == [experts // devices] * devices
            steps = [impl.ep_step_time(weights[row], devices, each) for each in (mine, packs[row])]
            assert steps[0] <= steps[1] * (1 + 1e-12), "the engine's packing has a shorter step"
            assert share == pytest.approx(
                mini_vllm.balancedness(mini_vllm.device_loads(weights[row], mine, devices)[None])
            )
            mine_phy2log, mine_copies = impl.replicate_experts(weights[row], experts + 5)
            assert (mine_phy2log == phy2log[row]).all() and (mine_copies == copies[row]).all()


# ---- a real router -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pocket():
    """Assignments [layers, experts] of models/pocket-moe for three kinds of text."""
    path = Path(__file__).with_name("routing_of_pocket.py")
    spec = importlib.util.spec_from_file_location("routing_of_pocket", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not module.POCKET_MOE.is_dir():
        pytest.skip("models/pocket-moe is not here")
    return module.loads_of_pocket()


def test_the_routing_of_pocket_moe(impl, pocket):
    def mean_imbalance(rows):
        return np.mean([impl.imbalance(row) for row in rows])

    for rows in pocket.values():
        assert len({int(row.sum()) for row in rows}) == 1, "each layer gets each token, twice"
        assert max(impl.imbalance(row) for row in rows) <= 4, "k = 2 of 8: no expert can have more than half"
    together = mean_imbalance(sum(pocket.values()))
    assert together < 1.3 < min(mean_imbalance(rows) for rows in pocket.values()), "even as trained: over the mixture"
    assert mean_imbalance(pocket["sums"]) > 1.8, "specialists"
    for rows in pocket.values():
        for row in rows:
            plain, packed = (impl.efficiency(row, 4, p) for p in (None, impl.balanced_packing(row, 4)))
            phy2log, copies = impl.replicate_experts(row, 12)
            per_copy = (row / copies)[phy2log]
            assert packed >= plain and impl.efficiency(per_copy, 4, impl.balanced_packing(per_copy, 4)) > 0.85
    for_words = [impl.balanced_packing(row, 4) for row in pocket["words"]]
    own = [impl.efficiency(r, 4, impl.balanced_packing(r, 4)) for r in pocket["stories"]]
    borrowed = [impl.efficiency(r, 4, p) for r, p in zip(pocket["stories"], for_words, strict=True)]
    assert np.mean(borrowed) < np.mean(own) - 0.05, "another kind of traffic, another packing"

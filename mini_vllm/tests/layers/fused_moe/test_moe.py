"""Mixture of experts: grouped against token by token, alignment, ranks, loads, balancing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.compilation.cudagraph.runners import LaunchCounter
from mini_vllm.distributed.eplb.eplb_state import EplbState, compute_logical_maps, map_to_physical
from mini_vllm.distributed.eplb.policy.default import balanced_packing, rebalance_experts, replicate_experts
from mini_vllm.layers.fused_moe.expert_load import balancedness, device_loads, expert_loads, imbalance, padded_rows
from mini_vllm.layers.fused_moe.expert_parallel import (
    ExpertPlacement,
    all2all_bytes,
    determine_expert_map,
    dispatch_matrix,
    ep_forward,
    ep_forward_all2all,
)
from mini_vllm.layers.fused_moe.fused_moe import fused_experts, moe_forward_naive, moe_forward_reference
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.layers.fused_moe.moe_align_block_size import moe_align_block_size
from mini_vllm.layers.fused_moe.routing import fused_topk, grouped_topk, route


def layer(seed: int, num_experts: int, top_k: int, tokens: int = 17) -> tuple[Any, ...]:
    """x, w13, w2, weights, ids in float64."""
    rng = np.random.default_rng(seed)
    w13, w2 = rng.normal(size=(num_experts, 12, 10)), rng.normal(size=(num_experts, 10, 6))
    weights, ids = fused_topk(rng.normal(size=(tokens, num_experts)), top_k, renormalize=True)
    return rng.normal(size=(tokens, 10)), w13, w2, weights, ids


class TestExperts:
    @pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (4, 1), (4, 2), (4, 4), (8, 2), (8, 8), (64, 2)])
    def test_grouped_is_token_by_token(self, num_experts: int, top_k: int) -> None:
        """With 64 experts and 34 assignments, many have no work."""
        args = layer(num_experts, num_experts, top_k)
        np.testing.assert_allclose(fused_experts(*args), moe_forward_reference(*args), atol=1e-12)

    def test_one_token_and_none(self) -> None:
        x, w13, w2, weights, ids = layer(0, 4, 2)
        one = fused_experts(x[:1], w13, w2, weights[:1], ids[:1])
        np.testing.assert_allclose(one, fused_experts(x, w13, w2, weights, ids)[:1], atol=1e-12)
        assert fused_experts(x[:0], w13, w2, weights[:0], ids[:0]).shape == (0, 10)

    def test_an_expert_named_twice_counts_twice(self) -> None:
        x, w13, w2, _, _ = layer(1, 4, 2, tokens=3)
        ids, weights = np.array([[1, 1], [0, 1], [3, 3]]), np.full((3, 2), 0.5)
        expected = moe_forward_reference(x, w13, w2, weights, ids)
        np.testing.assert_allclose(fused_experts(x, w13, w2, weights, ids), expected, atol=1e-12)

    def test_launches_do_not_grow_with_the_tokens(self) -> None:
        x, w13, w2, weights, ids = layer(2, 8, 2)
        fused, naive = LaunchCounter(), LaunchCounter()
        fused_experts(x, w13, w2, weights, ids, launches=fused)
        moe_forward_naive(x, w13, w2, weights, ids, naive)
        assert (fused.n, naive.n) == (5, 17 * 2 * 2)

    def test_fused_moe_is_route_then_experts(self) -> None:
        x, w13, w2, _, _ = layer(3, 8, 2)
        fused = FusedMoE(8, 2, hidden=10, inter=6, renormalize=False, dtype=np.float64)
        assert fused.w13.shape == w13.shape and fused.w2.shape == w2.shape
        fused.w13, fused.w2 = w13, w2
        logits = np.random.default_rng(3).normal(size=(17, 8))
        weights, ids = fused_topk(logits, 2, renormalize=False)
        expected = moe_forward_reference(x, w13, w2, weights, ids)
        np.testing.assert_allclose(fused.forward(x, logits), expected, atol=1e-12)
        with pytest.raises(ValueError, match=r"top_k must be in 1\.\.8 \(num_experts\), got 9"):
            FusedMoE(8, 9, hidden=10, inter=6)


class TestRouting:
    def test_renormalized_is_softmax_over_the_chosen(self) -> None:
        logits = np.random.default_rng(0).normal(size=(50, 8)) * 3
        weights, ids = fused_topk(logits, 2, renormalize=True)
        chosen = np.exp(np.take_along_axis(logits, ids.astype(np.int64), 1))
        np.testing.assert_allclose(weights, chosen / chosen.sum(1, keepdims=True))
        raw, _ = fused_topk(logits, 2, renormalize=False)
        assert (raw.sum(1) < 1).all() and ids.dtype == np.int32

    def test_equal_scores_go_to_the_smaller_id(self) -> None:
        assert fused_topk(np.zeros((1, 6)), 3, True)[1].tolist() == [[0, 1, 2]]
        assert fused_topk(np.array([[0.0, 1.0, 1.0, 0.0]]), 3, True)[1].tolist() == [[1, 2, 0]]

    def test_route_of_the_labs_is_the_same_choice(self) -> None:
        rng = np.random.default_rng(1)
        x, w_gate = rng.normal(size=(9, 5)), rng.normal(size=(6, 5))
        ids, weights = route(x, w_gate, 2)
        other, same = fused_topk(x @ w_gate.T, 2, renormalize=True)
        assert (ids == same).all() and (weights == other).all()

    def test_groups_bound_the_choice(self) -> None:
        """Expert 5 is second best of all, but its group is not among the best."""
        logits = np.array([[9.0, 0.0, 0.0, 0.0, 0.0, 8.0, 7.5, 7.4]])
        _, ids = grouped_topk(logits, 3, True, num_expert_group=4, topk_group=2)
        assert ids.tolist() == [[0, 5, 1]]
        bias = np.array([0, 0, 0, 0, 0, 0, 5.0, 5.0])
        weights, ids = grouped_topk(logits, 2, True, 4, 1, "sigmoid", 2.0, bias)
        assert ids.tolist() == [[6, 7]] and weights.sum() == pytest.approx(2.0)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"top_k": 9}, r"top_k must be in 1\.\.8"),
            ({"top_k": 0}, r"top_k must be in 1\.\.8"),
            ({"top_k": 1, "scoring_func": "tanh"}, "scoring_func must be one of softmax, sigmoid, got 'tanh'"),
        ],
    )
    def test_bad_arguments(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            fused_topk(np.zeros((2, 8)), renormalize=True, **arguments)
        with pytest.raises(ValueError, match="num_expert_group=3 must divide the number of experts, 8"):
            grouped_topk(np.zeros((2, 8)), 2, True, 3, 1)
        with pytest.raises(ValueError, match=r"topk_group must be in 1\.\.4, got 5"):
            grouped_topk(np.zeros((2, 8)), 2, True, 4, 5)


class TestAlignment:
    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 9), st.integers(1, 40), st.integers(1, 4), st.integers(1, 12), st.integers(1, 20))
    def test_every_block_has_one_expert(self, seed: int, tokens: int, top_k: int, experts: int, block: int) -> None:
        ids = np.random.default_rng(seed).integers(0, experts + 1, (tokens, top_k))  # one id too many: passed over
        sorted_ids, expert_ids, num = moe_align_block_size(ids, block, experts)
        flat = ids.reshape(-1)
        assert num % block == 0 and len(sorted_ids) >= num
        real = sorted_ids[:num].reshape(-1, block)
        for row, expert in zip(real, expert_ids, strict=False):
            places = row[row < flat.size]
            assert len(places) and (flat[places] == expert).all() and (np.diff(places) > 0).all()
        assert sorted(real[real < flat.size].tolist()) == np.flatnonzero(flat < experts).tolist()
        assert (sorted_ids[num:] == flat.size).all() and (expert_ids[num // block :] == -1).all()
        assert num == padded_rows(expert_loads(flat[flat < experts], experts), block)

    def test_experts_of_other_ranks(self) -> None:
        """They keep blocks marked -1, or are left out before the sort."""
        ids, expert_map = np.array([[0, 3], [1, 2], [0, 3]]), np.array([-1, 0, -1, 1])
        kept, experts, num = moe_align_block_size(ids, 2, 4, expert_map)
        assert kept[:num].tolist() == [0, 4, 2, 6, 3, 6, 1, 5] and experts[: num // 2].tolist() == [-1, 0, -1, 1]
        left, experts, num = moe_align_block_size(ids, 2, 4, expert_map, ignore_invalid_experts=True)
        assert left[:num].tolist() == [2, 6, 1, 5] and experts[: num // 2].tolist() == [0, 1]
        with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
            moe_align_block_size(ids, 0, 4)

    def test_padding_of_a_decode_step_is_most_of_it(self) -> None:
        """Eight tokens with six of 64 experts each, all different, in blocks of 16."""
        loads = np.array([1] * 36 + [0] * 22 + [2] * 6)
        assert (loads.sum(), padded_rows(loads, 16)) == (48, 42 * 16)


class TestRanks:
    @pytest.mark.parametrize("strategy", ["linear", "round_robin"])
    @pytest.mark.parametrize("ep_size", [1, 2, 3, 4, 8])
    def test_ranks_add_up_to_one_process(self, ep_size: int, strategy: str) -> None:
        """With and without an all-to-all; eight ranks hold one expert each."""
        x, w13, w2, weights, ids = args = layer(ep_size, 8, 2)
        expected = fused_experts(*args)
        together = ep_forward(x, w13, w2, weights, ids, ep_size, strategy)
        np.testing.assert_allclose(together, expected, atol=1e-12)
        cuts = np.linspace(0, len(x), ep_size + 1).astype(int)[1:-1]
        home = [np.split(part, cuts) for part in (x, weights, ids)]
        out = ep_forward_all2all(home[0], w13, w2, home[1], home[2], strategy)
        np.testing.assert_allclose(np.concatenate(out), expected, atol=1e-12)

    def test_first_ranks_take_the_rest(self) -> None:
        placement = ExpertPlacement(3, 8)
        assert [placement.local_experts(r).tolist() for r in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
        assert ExpertPlacement(3, 8, "round_robin").rank_of.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
        assert ExpertPlacement(1, 4).rank_of.tolist() == [0, 0, 0, 0]
        with pytest.raises(ValueError, match="strategy must be one of linear, round_robin, got 'random'"):
            determine_expert_map(2, 0, 8, "random")
        with pytest.raises(ValueError, match=r"ep_rank must be in 0\.\.1 \(ep_size 2\), got 2"):
            determine_expert_map(2, 2, 8)

    def test_what_travels(self) -> None:
        """Two ranks, four experts: a row with both experts over there goes over once."""
        ids = [np.array([[0, 1], [2, 3], [1, 2]]), np.array([[0, 3]])]
        matrix = dispatch_matrix(ids, num_experts=4)
        assert matrix.tolist() == [[2, 2], [1, 1]]
        assert all2all_bytes(matrix, hidden=4096) == 3 * 4096 * 4


class TestLoads:
    def test_figures(self) -> None:
        loads = expert_loads(np.array([[0, 1], [0, 2], [0, 0]]), 4)
        assert loads.tolist() == [4, 1, 1, 0] and imbalance(loads) == pytest.approx(4 / 1.5)
        assert imbalance(np.zeros(4)) == 0.0 and balancedness(np.zeros((2, 2))) == 0.0
        devices = device_loads(loads, ExpertPlacement(2, 4).rank_of, 2)
        assert devices.tolist() == [5, 1] and balancedness(devices[None]) == pytest.approx(0.6)

    def test_replicas_help_where_placement_cannot(self) -> None:
        """One expert has 1040 of 1600 assignments: four devices at best 1120, with replicas the ideal 400 is near."""
        loads = np.array([[1040.0] + [80.0] * 7])

        def busiest(phy2log: np.ndarray) -> float:
            count = np.bincount(phy2log[0], minlength=8)
            return float((loads[0] / count)[phy2log[0]].reshape(4, -1).sum(1).max())

        assert busiest(rebalance_experts(loads, 8, 1, 1, 4)) == 1120
        assert busiest(rebalance_experts(loads, 12, 1, 1, 4)) < 500
        assert busiest(rebalance_experts(loads, 16, 1, 1, 4)) < 430

    def test_a_hot_expert_is_found_and_replicated(self) -> None:
        rng = np.random.default_rng(0)
        state = EplbState(2, 8, num_ranks=4, num_redundant=4, window_size=3, step_interval=5)
        balance = []
        for _ in range(10):
            for index in range(2):
                logits = rng.normal(size=(200, 8))
                logits[:, index] += 4
                ids = fused_topk(logits, 2, True)[1]
                physical = state.route(index, ids)
                assert (state.phy2log[index][physical] == ids).all()
            balance.append(state.step())
        assert state.num_rearrangements == 2
        assert [np.bincount(row).argmax() for row in state.phy2log] == [0, 1]
        assert max(balance[:5]) < 0.75 < min(balance[5:])

    def test_the_token_number_picks_the_replica(self) -> None:
        """Upstream's hash, worked out for the first tokens: (i * 2654435769 mod 2^32) mod 3."""
        log2phy, count = compute_logical_maps(np.array([[0, 1, 1, 1]]), 2)
        physical = map_to_physical(np.ones((6, 1), int), log2phy[0], count[0])
        expected = [1 + ((i * 2654435769) & 0xFFFFFFFF) % 3 for i in range(6)]
        assert physical[:, 0].tolist() == expected and len(set(expected)) == 3

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: balanced_packing(np.ones((1, 6)), 4), "num_packs=4 must divide the number of items, 6"),
            (lambda: replicate_experts(np.ones((1, 6)), 5), "at least the number of logical experts, 6"),
            (lambda: rebalance_experts(np.ones((1, 6)), 7, 1, 1, 2), "num_ranks=2 must divide num_replicas=7"),
            (lambda: EplbState(1, 6, 4), "num_ranks=4 must divide the physical experts, 6"),
        ],
    )
    def test_bad_arguments(self, call: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            call()

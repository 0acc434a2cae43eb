"""Replays what vLLM 0.22.1 computes around its experts (golden/record_moe.py, golden/moe.json.xz)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm.distributed.eplb.eplb_state import compute_logical_maps
from mini_vllm.distributed.eplb.policy.default import balanced_packing, rebalance_experts, replicate_experts
from mini_vllm.layers.fused_moe.expert_parallel import determine_expert_map
from mini_vllm.layers.fused_moe.moe_align_block_size import moe_align_block_size
from mini_vllm.layers.fused_moe.routing import fused_topk, grouped_topk
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN

RECORDED = read_packed(GOLDEN / "moe.json.xz")


def array_or_none(value: Any) -> Any:
    return None if value is None else np.array(value)


def test_provenance() -> None:
    assert RECORDED["provenance"]["vllm"] == "0.22.1"


def test_alignment_is_upstreams() -> None:
    """Every entry of both arrays, the unused ones too."""
    for case in RECORDED["align"]:
        sorted_token_ids, expert_ids, num = moe_align_block_size(
            np.array(case["topk_ids"]),
            case["block_size"],
            case["num_experts"],
            array_or_none(case["expert_map"]),
            case["pad"],
            ignore_invalid_experts=True,
        )
        assert num == case["num_tokens_post_padded"]
        assert sorted_token_ids.tolist() == case["sorted_token_ids"]
        assert expert_ids.tolist() == case["expert_ids"]
        assert sorted_token_ids.dtype == expert_ids.dtype == np.int32


def test_routing_is_upstreams() -> None:
    for case in RECORDED["routing"]:
        logits = np.array(case["logits"], np.float32)
        grouped = dict(case.get("grouped", {}))
        if grouped:
            grouped["e_score_correction_bias"] = array_or_none(grouped.pop("bias"))
            weights, ids = grouped_topk(logits, case["top_k"], case["renormalize"], **grouped)
        else:
            weights, ids = fused_topk(logits, case["top_k"], case["renormalize"])
        order = np.argsort(ids, axis=1)
        assert np.take_along_axis(ids, order, 1).tolist() == case["ids"]
        np.testing.assert_allclose(np.take_along_axis(weights, order, 1), case["weights"], rtol=2e-6)


def test_expert_maps_are_upstreams() -> None:
    for case in RECORDED["maps"]:
        count, found = determine_expert_map(case["ep_size"], case["rank"], case["num_experts"], case["strategy"])
        assert count == case["count"]
        assert (None if found is None else found.tolist()) == case["map"]


@pytest.mark.parametrize("case", RECORDED["balancing"], ids=lambda case: "-".join(map(str, case["args"])))
def test_balancing_is_upstreams(case: dict[str, Any]) -> None:
    loads, later = np.array(case["loads"], np.float32), np.array(case["later"], np.float32)
    slots, _, _, ranks = args = case["args"]
    experts = loads.shape[1]
    pack, place = balanced_packing(loads, ranks if experts % ranks == 0 else 1)
    assert pack.tolist() == case["pack"] and place.tolist() == case["place"]
    phy2log, logcnt = replicate_experts(loads, slots)
    assert logcnt.tolist() == case["logcnt"] and phy2log.tolist() == case["phy2log"]
    first = rebalance_experts(loads, *args)
    assert first.tolist() == case["first"]
    second = rebalance_experts(later, *args, first)
    assert second.tolist() == case["second"]
    log2phy, count = compute_logical_maps(second, experts)
    assert log2phy.tolist() == case["log2phy"] and count.tolist() == case["count"]

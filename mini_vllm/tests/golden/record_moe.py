"""Records what vLLM 0.22.1 computes around its experts, for `test_moe_golden.py`: routing, alignment, maps, balancing.

Run from the repository root with the python of a CPU build of the pinned release (`course vllm` makes one) and the
pinned tree in `upstream/`:

    TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=1 .venv-vllm/bin/python mini_vllm/tests/golden/record_moe.py

Alignment is a CUDA kernel; its judge is the torch version by which upstream tests that kernel.
"""

from __future__ import annotations

import importlib.util
import os
import platform
from pathlib import Path
from typing import Any

from mini_vllm.tests.golden.packed import write_packed

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import numpy as np
import torch
import vllm
from vllm.distributed.eplb.eplb_state import compute_logical_maps
from vllm.distributed.eplb.policy.default import DefaultEplbPolicy
from vllm.model_executor.layers.fused_moe.cpu_fused_moe import grouped_topk, select_experts
from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map

HERE = Path(__file__).resolve().parent
REFERENCE = HERE.parents[2] / "upstream" / "tests" / "kernels" / "moe" / "test_moe_align_block_size.py"


def reference_align() -> Any:
    """`torch_moe_align_block_size` of upstream's tests."""
    spec = importlib.util.spec_from_file_location("upstream_align_test", REFERENCE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.torch_moe_align_block_size


def record_align(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Ids of few and many tokens, with and without a map, which leaves out the experts of other ranks."""
    align, cases = reference_align(), []
    shapes = [
        (1, 2, 8, 16),
        (4, 3, 5, 4),
        (7, 2, 64, 16),
        (33, 1, 3, 8),
        (60, 6, 16, 16),
        (200, 2, 8, 32),
        (3, 4, 4, 1),
    ]
    for tokens, top_k, num_experts, block_size in shapes:
        ids = np.argsort(rng.random((tokens, num_experts)) * np.linspace(1, 3, num_experts), axis=1)[:, :top_k]
        for ep_size, strategy, pad in (
            (1, "linear", False),
            (1, "linear", True),
            (2, "linear", False),
            (3, "round_robin", False),
        ):
            if ep_size > num_experts:
                continue
            expert_map = determine_expert_map(ep_size, ep_size - 1, num_experts, strategy)[1]
            found = align(torch.from_numpy(ids.astype(np.int32)), block_size, num_experts, expert_map, pad)
            cases.append({
                "topk_ids": ids.tolist(), "block_size": block_size, "num_experts": num_experts, "pad": pad,
                "expert_map": None if expert_map is None else expert_map.tolist(),
                "sorted_token_ids": found[0].tolist(), "expert_ids": found[1].tolist(),
                "num_tokens_post_padded": found[2].item(),
            })  # fmt: skip
    return cases


def record_routing(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Plain and grouped top-k; ids sorted with their weights, since upstream's CPU path leaves the order open."""
    cases = []
    for num_experts, top_k, renormalize in ((8, 2, True), (8, 1, False), (64, 6, False), (16, 16, True)):
        logits = torch.from_numpy(rng.normal(size=(9, num_experts)).astype(np.float32))
        weights, ids = select_experts(logits, logits, top_k, False, renormalize)
        cases.append({"top_k": top_k, "renormalize": renormalize, "logits": logits.tolist(), **_sorted(weights, ids)})
    for groups, topk_group, scoring, factor, with_bias in (
        (4, 2, "softmax", 1.0, False), (8, 3, "sigmoid", 2.5, True), (2, 1, "softmax", 1.0, True),
        (4, 4, "sigmoid", 1.0, False),
    ):  # fmt: skip
        logits = torch.from_numpy(rng.normal(size=(9, 32)).astype(np.float32))
        bias = torch.from_numpy(rng.normal(size=32).astype(np.float32)) if with_bias else None
        weights, ids = grouped_topk(logits, logits, 4, True, groups, topk_group, scoring, factor, bias)
        grouped = {
            "num_expert_group": groups, "topk_group": topk_group, "scoring_func": scoring,
            "routed_scaling_factor": factor, "bias": bias.tolist() if bias is not None else None,
        }  # fmt: skip
        found = _sorted(weights, ids)
        cases.append({"top_k": 4, "renormalize": True, "logits": logits.tolist(), "grouped": grouped, **found})
    return cases


def _sorted(weights: torch.Tensor, ids: torch.Tensor) -> dict[str, Any]:
    order = ids.argsort(dim=-1)
    return {"ids": ids.gather(1, order).tolist(), "weights": weights.gather(1, order).tolist()}


def record_maps() -> list[dict[str, Any]]:
    """Every rank of several groups, both placements."""
    cases = []
    for num_experts, ep_size in ((8, 2), (8, 3), (10, 4), (5, 5), (64, 8), (3, 1)):
        for strategy in ("linear", "round_robin"):
            for rank in range(ep_size):
                count, found, _ = determine_expert_map(ep_size, rank, num_experts, strategy)
                cases.append({
                    "num_experts": num_experts, "ep_size": ep_size, "rank": rank, "strategy": strategy, "count": count,
                    "map": None if found is None else found.tolist(),
                })  # fmt: skip
    return cases


def record_balancing(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Loads of several layers -> packing, replicas, whole arrangements, also after an older one."""
    cases = []
    for experts, slots, groups, nodes, ranks in (
        (8, 8, 1, 1, 4), (8, 12, 1, 1, 4), (16, 24, 4, 2, 8), (12, 16, 3, 2, 4), (64, 72, 8, 4, 8), (4, 4, 1, 1, 4),
    ):  # fmt: skip
        loads = (rng.pareto(1.5, (3, experts)) * 1000 + rng.random((3, experts))).astype(np.float32)
        pack, place = DefaultEplbPolicy.balanced_packing(loads, ranks if experts % ranks == 0 else 1)
        phy2log, logcnt = DefaultEplbPolicy.replicate_experts(loads, slots)
        args = (slots, groups, nodes, ranks)
        first = DefaultEplbPolicy.rebalance_experts(torch.from_numpy(loads), *args)
        later = (loads * rng.random(loads.shape)).astype(np.float32)
        second = DefaultEplbPolicy.rebalance_experts(torch.from_numpy(later), *args, first)
        log2phy, count = compute_logical_maps(second, experts)
        cases.append({
            "loads": loads.tolist(), "later": later.tolist(), "args": args,
            "pack": pack.tolist(), "place": place.tolist(),
            "phy2log": phy2log.tolist(), "logcnt": logcnt.tolist(), "first": first.tolist(), "second": second.tolist(),
            "log2phy": log2phy.tolist(), "count": count.tolist(),
        })  # fmt: skip
    return cases


def main() -> None:
    rng = np.random.default_rng(7)
    document = {
        "provenance": {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "command": "record_moe.py",
            "align": "tests/kernels/moe/test_moe_align_block_size.py, torch_moe_align_block_size",
        },
        "align": record_align(rng),
        "routing": record_routing(rng),
        "maps": record_maps(),
        "balancing": record_balancing(rng),
    }
    size = write_packed(HERE / "moe.json.xz", document)
    print({key: len(value) for key, value in document.items()}, size, "bytes")


if __name__ == "__main__":
    main()

"""Who holds which replica: the policy of expert-parallel load balancing.

All arrays have a row per layer. Upstream twin: `vllm/distributed/eplb/policy/default.py`.
"""

from __future__ import annotations

import numpy as np

from mini_vllm.utils.arrays import Array


def balanced_packing(weight: Array, num_packs: int) -> tuple[Array, Array]:
    """Items into packs of equal count: heaviest first, each into the lightest pack that has room.

    Args:
        weight: [layers, items].

    Returns:
        pack_index, rank_in_pack: [layers, items] int64, the pack of every item and its place there.

    Upstream: upstream/vllm/distributed/eplb/policy/default.py:23 — `DefaultEplbPolicy.balanced_packing`.
    """
    num_layers, num_items = weight.shape
    if num_items % num_packs:
        raise ValueError(f"num_packs={num_packs} must divide the number of items, {num_items}")
    room = num_items // num_packs
    pack_index = np.tile(np.arange(num_items), (num_layers, 1))
    rank_in_pack = np.zeros_like(pack_index)
    if room == 1:
        return pack_index, rank_in_pack
    layers = np.arange(num_layers)
    load, filled = np.zeros((num_layers, num_packs)), np.zeros((num_layers, num_packs), np.int64)
    for item in np.argsort(-weight, axis=-1).T:  # the n-th heaviest item of every layer
        pack = np.argmin(np.where(filled < room, load, np.inf), axis=1)
        pack_index[layers, item], rank_in_pack[layers, item] = pack, filled[layers, pack]
        load[layers, pack] += weight[layers, item]
        filled[layers, pack] += 1
    return pack_index, rank_in_pack


def replicate_experts(weight: Array, num_phy: int) -> tuple[Array, Array]:
    """One replica after another for the expert whose replicas carry most each.

    Args:
        weight: [layers, logical experts]. num_phy: physical experts wanted in all.

    Returns:
        phy2log [layers, num_phy]: the logical expert of every physical one (the first are the experts themselves);
        logcnt [layers, logical experts]: replicas of each, itself included.

    Upstream: upstream/vllm/distributed/eplb/policy/default.py:76 — `DefaultEplbPolicy.replicate_experts`.
    """
    num_layers, num_log = weight.shape
    if num_phy < num_log:
        raise ValueError(f"num_phy={num_phy} must be at least the number of logical experts, {num_log}")
    phy2log = np.tile(np.arange(num_phy), (num_layers, 1))
    logcnt = np.ones((num_layers, num_log), np.int64)
    for slot in range(num_log, num_phy):
        hottest = np.argmax(weight / logcnt, axis=-1)
        phy2log[:, slot] = hottest
        logcnt[np.arange(num_layers), hottest] += 1
    return phy2log, logcnt


def rebalance_experts(
    weight: Array,
    num_replicas: int,
    num_groups: int,
    num_nodes: int,
    num_ranks: int,
    old_phy2log: Array | None = None,
) -> Array:
    """Which logical expert each slot is to hold, for these loads.

    Groups of experts are packed onto nodes, hot experts replicated inside their node, replicas packed onto its ranks.
    Where the groups do not divide among the nodes, all is one node and one group.

    Args:
        weight: [layers, logical experts], assignments measured. num_replicas: slots in all, a multiple of num_ranks.
        old_phy2log: the arrangement so far: an expert that stays on its rank then keeps its slot.

    Returns:
        phy2log [layers, num_replicas]; rank r has the slots from r * num_replicas / num_ranks on.

    Upstream: upstream/vllm/distributed/eplb/policy/default.py:275 — `DefaultEplbPolicy.rebalance_experts`.
    """
    if num_replicas % num_ranks or num_ranks % num_nodes:
        raise ValueError(
            f"num_ranks={num_ranks} must divide num_replicas={num_replicas} and be a multiple of num_nodes={num_nodes}"
        )
    if num_groups % num_nodes:
        num_groups = num_nodes = 1
    weight = np.asarray(weight, np.float32)
    phy2log = _rebalance_hierarchical(weight, num_replicas, num_groups, num_nodes, num_ranks)
    return phy2log if old_phy2log is None else preserve_slots(phy2log, num_ranks, old_phy2log)


def _rebalance_hierarchical(weight: Array, num_phy: int, num_groups: int, num_nodes: int, num_ranks: int) -> Array:
    """Upstream: upstream/vllm/distributed/eplb/policy/default.py:104 —
    `DefaultEplbPolicy.rebalance_experts_hierarchical`."""
    num_layers, num_log = weight.shape
    group_size, log_per_node = num_log // num_groups, num_log // num_nodes

    # 1. Groups onto nodes: a new order of the logical experts, node after node.
    node, place = balanced_packing(weight.reshape(num_layers, num_groups, group_size).sum(-1), num_nodes)
    first = (node * (num_groups // num_nodes) + place) * group_size
    by_node = _inverse((first[..., None] + np.arange(group_size)).reshape(num_layers, num_log))

    # 2. Replicas inside a node: from here on, a row is one node of one layer.
    node_weight = np.take_along_axis(weight, by_node, axis=1).reshape(-1, log_per_node)
    phy2log, logcnt = replicate_experts(node_weight, num_phy // num_nodes)

    # 3. Replicas onto the node's ranks; a replica carries its share of the expert's load.
    rank, slot = balanced_packing(np.take_along_axis(node_weight / logcnt, phy2log, axis=1), num_ranks // num_nodes)
    by_rank = np.take_along_axis(phy2log, _inverse(rank * (num_phy // num_ranks) + slot), axis=1)
    offset = np.arange(0, num_log, log_per_node)[:, None]
    by_rank = (by_rank.reshape(num_layers, num_nodes, -1) + offset).reshape(num_layers, -1)
    return np.take_along_axis(by_node, by_rank, axis=1)


def _inverse(permutation: Array) -> Array:
    """Row by row: where each number stands."""
    return np.argsort(permutation, axis=-1)


def preserve_slots(phy2log: Array, num_ranks: int, old_phy2log: Array) -> Array:
    """The same experts on every rank, but those that were there before in the slots that they had: no copy needed.

    Upstream: upstream/vllm/distributed/eplb/policy/default.py:192 — `DefaultEplbPolicy.preserve_intragpu_slots`.
    """
    new = phy2log.reshape(len(phy2log), num_ranks, -1)
    old = old_phy2log.reshape(new.shape)
    out = np.empty_like(new)
    for at in np.ndindex(new.shape[:2]):
        coming = new[at].tolist()
        kept = {}
        for slot, expert in enumerate(old[at].tolist()):
            if expert in coming:
                coming.remove(expert)
                kept[slot] = expert
        rest = iter(coming)
        out[at] = [kept[slot] if slot in kept else next(rest) for slot in range(new.shape[2])]
    return out.reshape(phy2log.shape)

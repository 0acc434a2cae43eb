"""The halves of the point-to-point connector by themselves, without a model: where tokens go, what is kept and told,
and when a lease ends."""

from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm.config.kv_transfer import KVTransferConfig
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.metadata import NixlConnectorMetadata
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.registered_cache import RegisteredCache, get_mapped_blocks
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.scheduler import NixlConnectorScheduler
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.tp_mapping import ReadSpec
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.utils import NixlSettings
from mini_vllm.distributed.kv_transfer.kv_connector.nixl.worker import NixlConnectorWorker
from mini_vllm.kv_cache_interface import FullAttentionSpec
from mini_vllm.request import RequestStatus
from mini_vllm.tests.helpers import make_request

BLOCK, HEADS, DIM = 4, 2, 3
CONFIG = SimpleNamespace(
    block_size=BLOCK, tensor_parallel_size=1, dtype="float32", kv_cache_dtype="auto",
    disable_hybrid_kv_cache_manager=True,
)  # fmt: skip
ADDRESS = {
    "do_remote_prefill": True, "remote_block_ids": [[9, 3]], "remote_engine_id": "P", "remote_request_id": "p-7",
    "remote_host": "localhost", "remote_port": 5600, "tp_size": 1,
}  # fmt: skip


def settings():
    return NixlSettings.of(KVTransferConfig("NixlConnector", kv_role="kv_both"))


def asked(name, prompt, params):
    return make_request(name, prompt, block_size=BLOCK, extra_args={"kv_transfer_params": params})


def blocks(*ids):
    return SimpleNamespace(get_block_ids=lambda: (list(ids),))


def cache(block_size, num_blocks=24, seed=0):
    shape = num_blocks, block_size, 2, HEADS, DIM
    return RegisteredCache({f"layer.{i}": np.random.default_rng(seed + i).normal(size=shape) for i in range(2)})


def rows(one, layer, ids, tokens):
    """The first tokens of a table, in their order."""
    return np.concatenate([one.layers[layer][i] for i in ids])[:tokens]


@pytest.mark.parametrize(("size_p", "size_d"), [(4, 4), (4, 8), (8, 4), (3, 8), (8, 3)])
def test_tokens_keep_their_order_between_pools_of_any_block_size(size_p, size_d):
    rng = np.random.default_rng(3)
    p, d, spec = cache(size_p, seed=5), cache(size_d, seed=9), ReadSpec(0, 0, 0, HEADS)
    for _ in range(40):
        tokens = int(rng.integers(1, 20))
        first = int(rng.integers(0, -(-tokens // size_d))) * size_d  # what D has already is whole blocks
        there = rng.permutation(np.arange(1, 24))[: -(-tokens // size_p)].tolist()
        here = rng.permutation(np.arange(1, 24))[: -(-tokens // size_d)].tolist()
        begin, stop = get_mapped_blocks(there, size_p, first, tokens)
        slots = d.slot_mapping(here[first // size_d :], first, tokens)
        for layer in range(2):
            before, others = rows(d, layer, here, first).copy(), sorted({*range(24)} - {*here})
            untouched = d.layers[layer][others].copy()
            freight = np.concatenate([p.layers[layer][i] for i in there[begin:stop]])
            d.scatter(layer, slots, spec, freight[first - begin * size_p :][: tokens - first])
            np.testing.assert_array_equal(rows(d, layer, here, tokens)[first:], rows(p, layer, there, tokens)[first:])
            np.testing.assert_array_equal(rows(d, layer, here, first), before)
            np.testing.assert_array_equal(d.layers[layer][others], untouched)


def test_d_reads_what_it_has_not_and_only_once():
    half, request = NixlConnectorScheduler(CONFIG, "D", settings()), asked("a", 8, ADDRESS)
    half.on_new_request(request)
    assert half.get_num_new_matched_tokens(request, 4) == (4, True)
    half.update_state_after_alloc(request, blocks(5, 2), 4)
    (meta,) = half._reqs_need_recv.values()
    assert meta.local_block_ids == [[2]] and (meta.first_token, meta.num_tokens) == (4, 8)
    assert meta.remote.block_ids == [[9, 3]] and meta.remote.request_id == "p-7"
    half._reqs_need_recv.clear()
    half.update_state_after_alloc(request, blocks(5, 2, 8), 0)  # the rest is given
    assert not half._reqs_need_recv and half.get_num_new_matched_tokens(request, 4) == (0, False)


def test_p_is_told_where_nothing_is_read():
    half = NixlConnectorScheduler(CONFIG, "D", settings())
    gone = asked("gone", 8, {**ADDRESS, "remote_request_id": "p-8"})
    for request in (asked("hit", 8, ADDRESS), gone):
        half.on_new_request(request)
    half.update_state_after_alloc(asked("hit", 8, ADDRESS), blocks(5, 2), 0)
    gone.status = RequestStatus.FINISHED_ABORTED
    assert half.request_finished(gone, [[]]) == (False, None)
    assert {name: meta.local_block_ids for name, meta in half._reqs_need_recv.items()} == {"hit": [], "gone": []}
    assert set(half._heartbeat_req_engine) == {"hit"}


@pytest.mark.parametrize(
    ("status", "kept"),
    [("LENGTH_CAPPED", True), ("STOPPED", True), ("ABORTED", False), ("ERROR", False)],
)
def test_p_keeps_what_ended_well_and_says_where_it_is(status, kept):
    half, request = NixlConnectorScheduler(CONFIG, "P", settings()), asked("a", 8, {"do_remote_decode": True})
    half.update_state_after_alloc(request, blocks(5, 2), 0)
    request.status, request.num_computed_tokens = getattr(RequestStatus, f"FINISHED_{status}"), 8
    is_kept, address = half.request_finished(request, [[5, 2]])
    assert is_kept is kept and ("a" in half._reqs_need_send) is kept
    if kept:
        assert address["do_remote_prefill"] and address["remote_block_ids"] == [[5, 2]]
        assert (address["remote_engine_id"], address["remote_request_id"], address["remote_num_tokens"]) == (
            "P",
            "a",
            8,
        )
    else:
        assert address is None and half._reqs_not_processed == {"a"}


@pytest.fixture
def p(clock):
    groups = [SimpleNamespace(kv_cache_spec=FullAttentionSpec(BLOCK, num_kv_heads=HEADS, head_size=DIM))]
    half = NixlConnectorWorker(CONFIG, "P", SimpleNamespace(kv_cache_groups=groups), settings())
    half.register_kv_caches({"layer.0": np.zeros((24, BLOCK, 2, HEADS, DIM), np.float32)})
    yield half
    half.shutdown()


def keep(half, clock, *names):
    """These requests have ended, now, on P; each has a lease of 30 seconds."""
    half.start_load_kv(NixlConnectorMetadata(reqs_in_batch={name: ("digest", [1]) for name in names}))
    half.start_load_kv(NixlConnectorMetadata(reqs_to_send=dict.fromkeys(names, clock.time + 30)))


def test_a_lease_ends_by_a_read_or_by_its_time(p, clock):
    keep(p, clock, "a", "b")
    assert p.get_finished() == (set(), set())
    p._offers.notify("a:1")
    assert p.get_finished() == ({"a"}, set())
    clock.time += 30
    assert p.get_finished() == ({"b"}, set()) and p.get_finished() == (set(), set())
    assert not p._offers._offers


def test_a_request_that_is_renewed_does_not_hide_one_that_is_not(p, clock):
    """The pinned release looks at the first lease, and stops where it is valid."""
    keep(p, clock, "a", "b")
    for _ in range(7):
        p._offers.notify("HB:a")
        ended = p.get_finished()[0]
        clock.time += 5
    assert ended == {"b"} and set(p._offers._offers) == {"a"}

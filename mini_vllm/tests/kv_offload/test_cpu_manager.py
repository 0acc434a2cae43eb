"""Which blocks are kept in the host's memory: as vLLM decides, question by question, and what must always hold."""

import pytest

from mini_vllm.kv_offload.base import ReqContext, get_offload_block_hash, get_offload_group_idx, make_offload_key
from mini_vllm.kv_offload.cpu.manager import CPUOffloadingManager
from mini_vllm.tests.golden.offload_workload import NUM_SEEDS, OffloadWorkload, packed, settings_of
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN

FOR = ReqContext("a")


@pytest.fixture(scope="module")
def recorded():
    return read_packed(GOLDEN / "offload.json.xz")


@pytest.mark.parametrize("policy", ["lru", "arc"])
@pytest.mark.parametrize("num_seeds", [40, pytest.param(NUM_SEEDS, marks=pytest.mark.slow)])
def test_every_answer_is_vllms(policy, num_seeds, recorded):
    assert len(recorded["traces"]) == NUM_SEEDS >= 200
    for seed, trace in enumerate(recorded["traces"][:num_seeds]):
        settings = settings_of(seed)
        if settings["cache_policy"] != policy:
            continue
        records = OffloadWorkload(CPUOffloadingManager(**settings), seed).run()
        for number, answer in enumerate(recorded["samples"].get(str(seed), ())):
            assert records[number][0] == answer, f"seed {seed}, question {number}"
        found = packed(records)
        at = next((i // 8 for i in range(0, len(trace), 8) if trace[i : i + 8] != found[i : i + 8]), None)
        assert found == trace, f"seed {seed}: question {at} is answered {records[at]}"


def test_the_recording_asks_for_all_that_there_is(recorded):
    asked = recorded["provenance"]["asked"]
    assert all(asked[kind] > 50 for kind in ("lookup", "touch", "store", "stored", "load", "loaded", "events", "reset"))
    assert asked["evicted"] > 1000 and asked["no room"] > 100
    assert recorded["provenance"]["vllm"] == "0.22.1"


def keys_of(*numbers):
    return [make_offload_key(bytes([number]) * 32, 0) for number in numbers]


def store(manager, *numbers):
    output = manager.prepare_store(keys_of(*numbers), FOR)
    manager.complete_store(output.keys_to_store, FOR)
    return output


def test_a_key_is_a_hash_and_a_group():
    key = make_offload_key(b"h" * 32, 258)
    assert get_offload_block_hash(key) == b"h" * 32 and get_offload_group_idx(key) == 258


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_nobody_finds_a_block_that_is_still_written_and_nobody_takes_one_that_is_read(policy):
    manager = CPUOffloadingManager(2, policy)
    first = manager.prepare_store(keys_of(1, 2), FOR)
    assert [manager.lookup(key, FOR) for key in keys_of(1, 2, 3)] == [None, None, False]
    assert manager.prepare_store(keys_of(3), FOR) is None
    manager.complete_store(first.keys_to_store, FOR)
    assert manager.lookup(keys_of(1)[0], FOR) is True
    assert manager.prepare_load(keys_of(1), FOR).block_ids.tolist() == [0]
    assert store(manager, 3).evicted_keys == keys_of(2)
    assert manager.prepare_store(keys_of(4, 5), FOR) is None, "block 1 is read"
    manager.complete_load(keys_of(1), FOR)
    assert set(store(manager, 4, 5).evicted_keys) == set(keys_of(1, 3))


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_the_end_of_a_prefix_goes_before_its_beginning(policy):
    manager = CPUOffloadingManager(4, policy)
    store(manager, 1, 2, 3, 4)
    manager.touch(keys_of(1, 2, 3, 4), FOR)
    assert store(manager, 9).evicted_keys == keys_of(4)
    assert [manager.lookup(key, FOR) for key in keys_of(1, 2, 3, 4)] == [True, True, True, False]


def test_a_store_that_failed_gives_its_places_back():
    manager = CPUOffloadingManager(2, enable_events=True)
    output = manager.prepare_store(keys_of(1, 2), FOR)
    manager.complete_store(output.keys_to_store, FOR, success=False)
    assert manager.lookup(keys_of(1)[0], FOR) is False and not list(manager.take_events())
    assert store(manager, 3, 4).evicted_keys == []


def test_what_a_request_with_a_fault_has_written_is_forgotten_unless_it_is_read():
    manager = CPUOffloadingManager(3, enable_events=True)
    store(manager, 1, 2, 3)
    manager.prepare_load(keys_of(2), FOR)
    manager.forget(keys_of(1, 2, 8), FOR)
    assert [manager.lookup(key, FOR) for key in keys_of(1, 2, 3)] == [False, True, True]
    assert [(event.keys, event.removed) for event in manager.take_events()] == [
        (keys_of(1, 2, 3), False),
        (keys_of(1), True),
    ]
    assert store(manager, 4).evicted_keys == []


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match=r"Unknown cache policy: 'fifo'. Supported: \['lru', 'arc'\]"):
        CPUOffloadingManager(2, "fifo")

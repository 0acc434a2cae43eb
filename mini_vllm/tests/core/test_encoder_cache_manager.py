"""The encoder's cache counts embeddings; the largest items decide how many there have to be."""

import pytest

from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.core.encoder_cache_manager import (
    EncoderCacheManager,
    EncoderDecoderCacheManager,
    compute_mm_encoder_budget,
)
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def request(name, *items):
    """items: identifier and length of each; they stand one behind the other."""
    features, offset = [], 0
    for identifier, length in items:
        features.append(MultiModalFeatureSpec(None, "image", identifier, PlaceholderRange(offset, length)))
        offset += length
    return Request(name, [0] * (offset + 1), SamplingParams(), mm_features=features)


def encode(manager, one):
    """As a step that encodes all items of a request."""
    for i in range(len(one.mm_features)):
        assert manager.can_allocate(one, i, 1_000, 0)
        manager.allocate(one, i)


def test_an_item_is_kept_after_its_request_and_found_by_another():
    manager, first, second = EncoderCacheManager(10), request("a", ("x", 4)), request("b", ("x", 4))
    encode(manager, first)
    manager.free(first)
    assert (manager.num_free_slots, manager.num_freeable_slots) == (6, 10)
    assert manager.check_and_update_cache(second, 0)
    assert manager.cached == {"x": {"b"}} and manager.num_freeable_slots == 6 and not manager.freeable


def test_what_nobody_needs_is_forgotten_the_oldest_first_and_only_as_much_as_is_needed():
    manager = EncoderCacheManager(10)
    for name, length in (("x", 3), ("y", 3), ("z", 3)):
        one = request(name, (name, length))
        encode(manager, one)
        manager.free(one)
    encode(manager, request("new", ("n", 6)))
    assert manager.get_freed_mm_hashes() == ["x", "y"] and list(manager.cached) == ["z", "n"]
    assert manager.get_freed_mm_hashes() == []


def test_what_is_needed_is_never_forgotten():
    manager, one = EncoderCacheManager(10), request("a", ("x", 8))
    encode(manager, one)
    assert not manager.can_allocate(request("b", ("y", 3)), 0, 1_000, 0)
    assert manager.can_allocate(request("b", ("y", 2)), 0, 1_000, 0) and manager.freed == []


def test_budget_and_what_is_planned_beside_it_count():
    manager, one = EncoderCacheManager(10), request("a", ("x", 4))
    assert not manager.can_allocate(one, 0, 3, 0) and manager.can_allocate(one, 0, 4, 6)
    assert not manager.can_allocate(one, 0, 4, 7)


def test_an_item_that_was_not_encoded_after_all_is_not_there():
    manager, one = EncoderCacheManager(10), request("a", ("x", 4))
    encode(manager, one)
    manager.forget(one, 0)
    manager.free(one)
    assert not manager.check_and_update_cache(one, 0) and manager.get_freed_mm_hashes() == []
    assert manager.num_free_slots == manager.num_freeable_slots == 10


def test_a_reset_forgets_everything():
    manager, one = EncoderCacheManager(10), request("a", ("x", 4), ("y", 4))
    encode(manager, one)
    manager.reset()
    manager.free(one)
    assert not manager.cached and not manager.freeable and manager.num_free_slots == manager.num_freeable_slots == 10


def test_an_encoder_decoder_gives_each_input_its_room_back_once():
    manager, one = EncoderDecoderCacheManager(10), request("a", ("x", 4))
    manager.free(one)
    assert manager.num_free_slots == 10
    encode(manager, one)
    assert manager.num_free_slots == 6 and not manager.can_allocate(request("b", ("x", 7)), 0, 1_000, 0)
    manager.free_encoder_input(one, 0)
    manager.free(one)
    assert manager.num_free_slots == 10
    assert [manager.get_freed_mm_hashes() for _ in range(3)] == [[], ["x"], []]


@pytest.mark.parametrize(
    ("largest", "budgets"), [({}, (0, 0)), ({"image": 5}, (64, 64)), ({"image": 5, "video": 70}, (70, 70))]
)
def test_there_is_room_for_the_largest_item(largest, budgets):
    assert compute_mm_encoder_budget(SchedulerConfig(max_num_batched_tokens=64), largest) == budgets


def test_an_item_that_may_not_be_cut_has_to_fit_a_step():
    limits = SchedulerConfig(max_num_batched_tokens=64, disable_chunked_mm_input=True)
    assert compute_mm_encoder_budget(limits, {"image": 64}) == (64, 64)
    with pytest.raises(ValueError, match="max_num_batched_tokens must be at least 65"):
        compute_mm_encoder_budget(limits, {"image": 65})


@pytest.mark.parametrize("size", [-1, 1.5, None, True])
def test_a_cache_of_no_size_is_refused(size):
    with pytest.raises(ValueError, match="cache_size must be a whole number"):
        EncoderCacheManager(size)


def test_an_item_that_can_never_be_encoded_is_refused_by_the_scheduler():
    from mini_vllm.core.sched.encoder_inputs import EncoderInputs

    encoder, one = EncoderInputs(EncoderCacheManager(10), 6), request("a", ("x", 6), ("y", 7))
    with pytest.raises(ValueError, match=r"image 1 of request 'a' has 7 embeddings.*at most 6"):
        encoder.check_fits(one)
    assert encoder.check_fits(request("b", ("x", 6))) == 0

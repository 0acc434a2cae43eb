"""Specs and managers of layers that keep a state, look at an encoder's output, or at a chunk of the text."""

import pytest

from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.chunked_local_attention_manager import ChunkedLocalAttentionManager
from mini_vllm.core.kv_cache_groups import get_kv_cache_groups
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.kv_cache_specs import ChunkedLocalAttentionSpec, CrossAttentionSpec, MambaSpec
from mini_vllm.core.kv_cache_utils import get_request_block_hasher
from mini_vllm.core.mamba_manager import MambaManager
from mini_vllm.core.other_managers import get_other_manager
from mini_vllm.core.sched.mamba_split import MambaBlockAlignedSplit, make_mamba_split
from mini_vllm.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

BLOCK = 4


def state(mode="align", drafts=0, block_size=BLOCK, **more):
    return MambaSpec(block_size, ((3, 8), (8, 4)), ("float32", "float64"), mamba_cache_mode=mode,
                     num_speculative_blocks=drafts, **more)  # fmt: skip


def config(*specs, num_blocks=40):
    return KVCacheConfig(num_blocks, [], [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)])


def full(block_size=BLOCK):
    return FullAttentionSpec(block_size, num_kv_heads=1, head_size=1)


def request(name, prompt, hashed=True):
    hasher = get_request_block_hasher(BLOCK) if hashed else None
    return Request(name, prompt, SamplingParams(max_tokens=8), block_hasher=hasher)


def ids(manager, name, group=0):
    return manager.get_block_ids(name)[group]


def test_a_page_of_states_is_as_large_as_its_arrays_or_as_it_is_told_to_be():
    assert state().page_size_bytes == 3 * 8 * 4 + 8 * 4 * 8
    assert state(page_size_padded=1000).page_size_bytes == 1000
    with pytest.raises(ValueError, match="page_size_padded must be at least 352, got 351"):
        state(page_size_padded=351)


@pytest.mark.parametrize(("mode", "blocks"), [("none", 1), ("align", 2), ("all", 10)])
def test_how_many_states_a_request_holds_depends_on_the_mode(mode, blocks):
    assert state(mode).max_blocks_per_request(16, 40) == blocks
    assert state(mode, drafts=3).max_blocks_per_request(16, 40) == blocks + 3


def test_a_mode_that_does_not_exist_is_refused_by_name():
    with pytest.raises(ValueError, match="mamba_cache_mode must be one of none, align, all, got 'some'"):
        state("some")
    with pytest.raises(ValueError, match="num_speculative_blocks must be at least 0, got -1"):
        state(drafts=-1)
    with pytest.raises(ValueError, match="dtypes must be one for each of the 1 shapes"):
        MambaSpec(4, ((3, 8),), ("float32", "float64"))


def test_states_with_padded_pages_form_groups_beside_attention():
    attention = FullAttentionSpec(BLOCK, num_kv_heads=2, head_size=16)
    padded = state(page_size_padded=attention.page_size_bytes)
    groups = get_kv_cache_groups({"a": attention, "b": padded, "c": padded})
    assert [group.layer_names for group in groups] == [["a"], ["b"], ["c"]]
    with pytest.raises(ValueError, match="do not divide the largest page"):
        get_kv_cache_groups({"a": attention, "b": state()})


def test_in_align_a_request_holds_the_last_state_and_the_one_before_it():
    manager = KVCacheManager(kv_cache_config=config(state()), max_model_len=100)
    one = request("one", list(range(18)))
    for num_new in (8, 8, 2):
        manager.allocate_slots(one, num_new)
        one.num_computed_tokens += num_new
        manager.new_step_starts()
    table = ids(manager, "one")
    assert len(table) == 5 and sum(block > 0 for block in table) == 2 and table[3] > 0 and table[4] > 0


def test_a_hit_is_one_block_and_the_request_gets_a_block_of_its_own_to_go_on():
    manager = KVCacheManager(kv_cache_config=config(state()), max_model_len=100)
    manager.allocate_slots(request("one", list(range(18))), 16)
    manager.new_step_starts()
    two = request("two", list(range(18)))
    hits, num_hit = manager.get_computed_blocks(two)
    assert num_hit == 16 and [block.is_null for block in hits.blocks[0]] == [True, True, True, False]
    assert manager.allocate_slots(two, 2, num_hit, hits) is not None
    assert ids(manager, "two")[3] == ids(manager, "one")[3] and ids(manager, "two")[4] != ids(manager, "one")[3]


def test_a_state_of_this_step_is_waited_for():
    manager = KVCacheManager(kv_cache_config=config(state()), max_model_len=100)
    manager.allocate_slots(request("one", list(range(18))), 16)
    two = request("two", list(range(18)))
    hits, num_hit = manager.get_computed_blocks(two)
    assert num_hit == 16 and manager.allocate_slots(two, 2, num_hit, hits) is None
    manager.new_step_starts()
    assert manager.allocate_slots(two, 2, num_hit, hits) is not None


def test_blocks_for_drafts_move_to_the_end_of_the_table():
    manager = KVCacheManager(kv_cache_config=config(state(drafts=2)), max_model_len=100)
    one = request("one", list(range(16)))
    manager.allocate_slots(one, 8)
    one.num_computed_tokens = 8
    before = ids(manager, "one")
    manager.allocate_slots(one, 8)
    after = ids(manager, "one")
    assert before[0] == 0 and len(before) == 4 and len(after) == 6
    assert after[4] == before[2] or after[3] == before[3]
    assert set(before[2:]) <= set(after)


def test_fewer_drafts_than_before_need_no_block():
    manager = KVCacheManager(kv_cache_config=config(state(drafts=3)), max_model_len=100)
    one = request("one", list(range(7)))
    manager.allocate_slots(one, 6)
    one.num_computed_tokens = 6
    manager.allocate_slots(one, 4)
    one.num_computed_tokens = 7
    before = ids(manager, "one")
    assert manager.allocate_slots(one, 1) is not None and ids(manager, "one") == before


def test_without_hits_one_block_is_a_request_s_state_from_beginning_to_end():
    manager = KVCacheManager(kv_cache_config=config(state("none", block_size=64)), enable_caching=False)
    one = request("one", list(range(40)), hashed=False)
    manager.allocate_slots(one, 32)
    one.num_computed_tokens = 32
    manager.allocate_slots(one, 8)
    assert len(ids(manager, "one")) == 1


def test_a_chunk_that_is_over_is_given_back():
    manager = ChunkedLocalAttentionManager(
        ChunkedLocalAttentionSpec(BLOCK, num_kv_heads=1, head_size=1, attention_chunk_size=8), BlockPool(20), 0, BLOCK
    )
    assert [manager.get_num_skipped_tokens(n) for n in (7, 8, 13, 16)] == [0, 8, 8, 16]
    manager.allocate_new_blocks("one", 13, 13)
    manager.remove_skipped_blocks("one", 13)
    assert [block.is_null for block in manager.req_to_blocks["one"]] == [True, True, False, False]


def test_a_chunk_and_eagle_do_not_go_together():
    spec = ChunkedLocalAttentionSpec(BLOCK, num_kv_heads=1, head_size=1, attention_chunk_size=8)
    with pytest.raises(ValueError, match="use_eagle: a hit of chunked local attention"):
        ChunkedLocalAttentionManager.find_longest_cache_hit([], 8, [0], BlockPool(20), spec, BLOCK, True)
    with pytest.raises(ValueError, match="needs blocks as long as all others, got 4 tokens and 8"):
        ChunkedLocalAttentionManager.find_longest_cache_hit([], 8, [0], BlockPool(20), spec, 8)


def test_cross_attention_has_blocks_for_the_encoder_s_tokens_once():
    specs = full(), CrossAttentionSpec(BLOCK, num_kv_heads=1, head_size=1)
    manager = KVCacheManager(kv_cache_config=config(*specs), enable_caching=False, max_model_len=100)
    one = request("one", list(range(6)), hashed=False)
    assert manager.allocate_slots(one, 6, num_encoder_tokens=30) is not None
    one.num_computed_tokens = 6
    manager.allocate_slots(one, 4)
    assert [len(table) for table in manager.get_block_ids("one")] == [3, 8]
    manager.free(one)
    assert manager.block_pool.get_num_free_blocks() == 39


def test_cross_attention_that_does_not_fit_gets_nothing():
    specs = full(), CrossAttentionSpec(BLOCK, num_kv_heads=1, head_size=1)
    manager = KVCacheManager(kv_cache_config=config(*specs, num_blocks=8), enable_caching=False, max_model_len=100)
    one = request("one", list(range(6)), hashed=False)
    for whole in (False, True):
        assert manager.allocate_slots(one, 4, num_encoder_tokens=28, full_sequence_must_fit=whole) is None
    assert manager.block_pool.get_num_free_blocks() == 7


def test_cross_attention_under_prefix_caching_is_refused():
    spec = CrossAttentionSpec(BLOCK, num_kv_heads=1, head_size=1)
    manager = KVCacheManager(kv_cache_config=config(spec), max_model_len=100)
    with pytest.raises(ValueError, match="enable_prefix_caching must be False for a model with cross attention"):
        manager.get_computed_blocks(request("one", list(range(9))))


def test_a_spec_without_a_manager_is_refused_by_name():
    class Odd(KVCacheSpec):
        pass

    with pytest.raises(ValueError, match="Odd has no manager"):
        get_other_manager(Odd(4))
    assert get_other_manager(state()) is MambaManager


@pytest.mark.parametrize(
    ("num_computed", "num_new", "expected"),
    [(0, 3, 0), (0, 7, 4), (0, 18, 16), (8, 10, 8), (16, 2, 2), (18, 1, 1), (14, 1, 0), (14, 3, 2)],
)
def test_steps_of_a_prompt_end_where_a_block_does(num_computed, num_new, expected):
    one = request("one", list(range(18)))
    assert MambaBlockAlignedSplit(4)(one, num_computed, num_new) == expected


def test_under_eagle_the_last_state_of_a_prompt_is_one_block_earlier():
    one = request("one", list(range(18)))
    assert MambaBlockAlignedSplit(4, use_eagle=True)(one, 0, 18) == 12
    assert MambaBlockAlignedSplit(4, use_eagle=True)(one, 12, 6) == 6


def test_only_align_splits():
    assert make_mamba_split(config(full(), state("all"))) is None
    assert make_mamba_split(config(full(), state("align"))).block_size == BLOCK
    with pytest.raises(ValueError, match="blocks of one length, got \\[4, 8\\]"):
        make_mamba_split(config(state(), state(block_size=8)))

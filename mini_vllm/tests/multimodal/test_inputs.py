"""Where an item stands, which of its placeholders get embeddings, and what a block's hash knows of it."""

import numpy as np
import pytest

from mini_vllm.core.kv_cache_utils import get_request_block_hasher
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange, gen_mm_extra_hash_keys
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def item(identifier, offset, length):
    return MultiModalFeatureSpec(None, "image", identifier, PlaceholderRange(offset, length))


def test_without_a_mask_all_placeholders_get_embeddings():
    where = PlaceholderRange(2, 5)
    assert where.get_num_embeds() == 5 and where.get_embeds_indices_in_range(1, 4) == (1, 4) and where.end == 7


def test_a_mask_says_which_embeddings_a_chunk_holds():
    where = PlaceholderRange(2, 5, np.array([False, True, False, True, True]))
    assert where.get_num_embeds() == 3
    cuts = [(0, 5), (0, 1), (1, 2), (2, 3), (3, 5), (4, 4)]
    assert [where.get_embeds_indices_in_range(*cut) for cut in cuts] == [(0, 3), (0, 0), (0, 1), (1, 1), (1, 3), (2, 2)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((-1, 2), "offset of a placeholder range must be a whole number from 0 on, got -1"),
        ((0, 0), "length of a placeholder range must be a whole number from 1 on, got 0"),
        ((0, 2.5), "length .* got 2.5"),
        ((0, 2, [True]), r"is_embed must have shape \(2,\), got \(1,\)"),
        ((0, 2, [[1], [0, 1]]), r"is_embed must have shape \(2,\), got \[\[1\], \[0, 1\]\]"),
    ],
)
def test_a_range_that_is_none_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PlaceholderRange(*settings)


def test_a_block_names_the_items_in_it_and_where_they_begin():
    features = [item("x", 1, 2), item("y", 3, 6), item("z", 10, 1)]
    keys = [gen_mm_extra_hash_keys(features, start, start + 4) for start in (0, 4, 8, 12)]
    assert keys == [(("x", 1), ("y", 3)), (("y", -1),), (("y", -5), ("z", 2)), ()]


def hashes(features, outputs=()):
    """Block hashes of ten placeholders with these items, and of what is generated after them."""
    made = Request("r", [5] * 10, SamplingParams(), mm_features=features, block_hasher=get_request_block_hasher(4))
    for token in outputs:
        made.append_output_token_ids(token)
    return made.block_hashes


def test_the_same_tokens_with_another_item_are_another_block_from_there_on():
    ours, other = hashes([item("x", 0, 4), item("y", 5, 2)]), hashes([item("x", 0, 4), item("z", 5, 2)])
    assert len(ours) == 2 and ours[0] == other[0] and ours[1] != other[1]
    assert hashes([item("x", 0, 4), item("y", 4, 2)])[1] != ours[1]


def test_a_block_that_generated_tokens_fill_knows_all_its_items():
    """The pinned release looks at the last one alone."""
    ours, other = ([item("x", 0, 3), item(name, 8, 1), item("z", 9, 1)] for name in "ab")
    assert hashes(ours)[:2] == hashes(other)[:2]
    assert hashes(ours, [1, 2])[2] != hashes(other, [1, 2])[2]

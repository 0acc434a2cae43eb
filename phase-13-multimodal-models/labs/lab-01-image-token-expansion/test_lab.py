"""Lab 13-01: tokens of a size, the expanded prompt, and a request that has too many."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLMEngine, SamplingParams

HERE = Path(__file__).resolve().parent
CAPTURE = json.loads((HERE / "captured" / "smart_resize.json").read_text(encoding="utf-8"))
POCKET_VL = HERE.parents[2] / "models" / "pocket-vl"


def test_patch_arithmetic(impl):
    for size, want in (
        ((336, 336), 144), ((1, 1), 1), ((14, 14), 1), ((28, 28), 1), ((337, 337), 169), ((337, 336), 156),
        ((29, 28), 2), ((1280, 960), 1610),
    ):  # fmt: skip
        found = impl.image_token_count(*size)
        assert found == want, f"{size[0]} x {size[1]} pixels, patches of 14, merged by 2: got {found}, expected {want}"
    assert impl.image_token_count(336, 336, merge=1) == 576, "336 x 336 without merging: 576 tokens, as in LLaVA 1.5"
    assert impl.image_token_count(100, 50, patch=16, merge=3) == 6, "7 x 4 patches of 16 pixels, merged by 3: 3 x 2"
    found = impl.image_token_count(100, 50, patch=20, merge=1)
    assert found == 15, f"100 x 50 pixels, patches of 20, not merged: got {found}, expected 5 x 3"
    for size, name in (((0, 5), "width"), ((5, 0), "height")):
        with pytest.raises(ValueError, match=f"^{name} must be at least 1, got 0$"):
            impl.image_token_count(*size)


def test_resolution_is_quadratic_cost(impl):
    found = impl.image_token_count(672, 672)
    assert found == 4 * impl.image_token_count(336, 336) == 576, f"twice the side, four times the tokens: got {found}"


def test_resize_is_upstreams(impl):
    for width, height, least, most, *want in CAPTURE:
        found = list(impl.smart_resize(width, height, 28, least, most))
        assert found == want, f"{width} x {height}, {least} to {most} pixels: got {found}, transformers says {want}"
    assert tuple(impl.smart_resize(70, 42)) == (56, 56), "2.5 and 1.5 squares: a tie goes to the even multiple"
    assert tuple(impl.smart_resize(5600, 28)) == (5600, 28), "200 to 1 is allowed"
    found = tuple(impl.smart_resize(104, 57, 20, 400, 10**6))
    assert found == (100, 60), f"104 x 57 in squares of 20: got {found}, expected 100 x 60"
    with pytest.raises(ValueError, match=r"^absolute aspect ratio must be smaller than 200, got 201\.0$"):
        impl.smart_resize(28, 5628)


def test_sizes_at_the_limits(impl):
    for size, want, why in (
        ((491, 407), (476, 392), "below the limit, but its nearest multiples 504 x 420 are above"),
        ((461, 436), (448, 448), "above the limit, but its nearest multiples are not"),
    ):
        found = tuple(impl.smart_resize(*size, 28, 3136, 200_704))
        assert found == want, f"{size[0]} x {size[1]}, at most 200,704 pixels: {why}; got {found}, expected {want}"
    found = tuple(impl.smart_resize(3570, 3598))
    assert found == (3584, 3584), f"3570 x 3598: 128 squares each way are exactly the limit, and allowed; got {found}"
    found = tuple(impl.smart_resize(13792, 13579))
    assert found == (3584, 3556), f"13792 x 13579 scaled to 12,845,056 pixels are 128.999997 squares wide; got {found}"
    found = tuple(impl.smart_resize(1719, 11))
    assert found == (728, 28), f"1719 x 11 scaled to 3,136 pixels are 25.002 squares wide, and round up; got {found}"
    found = tuple(impl.smart_resize(4200, 28, 28, 784, 50 * 784))
    assert found == (86 * 28, 28), f"150 squares by 1, at most 50: one square is the least that a side has; got {found}"


def test_the_worst_picture(impl):
    wide, tall = impl.smart_resize(3584, 3584)
    tokens = wide * tall // 784
    found = tokens, impl.kv_blocks_needed(tokens)
    assert found == (16384, 1024), f"the largest picture: (tokens, blocks) = {found}, expected 16384 and 1024"


def test_your_prediction(impl):
    tokens = [(size, -(-size // 28), round(size / 28)) for size in range(560, 1120)]
    same = sum(up == near for _, up, near in tokens) / len(tokens)
    fewer = sum(up < near for _, up, near in tokens)
    assert fewer == 0
    wanted, mine = 1 - same**2, impl.predicted_share()
    assert mine == pytest.approx(wanted, abs=0.03), (
        f"you said {mine}, it is {wanted:.3f}. How often is one side rounded up by both, and how often are both sides?"
    )


def test_expansion_splices_in_place(impl):
    ids, counts = [5, 9, 6], [4]
    found, (where,) = impl.expand_prompt(ids, 9, counts)
    assert found == [5, 9, 9, 9, 9, 6], f"one marker, a picture of 4 tokens: got {found}"
    assert (where.offset, where.length) == (1, 4), f"got offset {where.offset}, length {where.length}, expected 1 and 4"
    assert ids == [5, 9, 6], f"the caller's prompt became {ids}"
    assert counts == [4], f"the caller's counts became {counts}"
    assert impl.expand_prompt([5, 6], 9, []) == ([5, 6], []), "no picture, no change"


def test_multi_image_ranges_are_ordered_and_disjoint(impl):
    found, ranges = impl.expand_prompt([1, 9, 2, 9, 3], 9, [3, 2])
    got = [(where.offset, where.length) for where in ranges]
    assert (len(found), got) == (8, [(1, 3), (5, 2)]), f"got {len(found)} tokens, ranges {got}, expected (1, 3), (5, 2)"
    found, ranges = impl.expand_prompt([9, 9], 9, [2, 1])
    got = [(where.offset, where.length) for where in ranges]
    assert (found, got) == ([9, 9, 9], [(0, 2), (2, 1)]), f"two pictures side by side: got {found}, {got}"


def test_mismatched_counts(impl):
    for ids, counts in (([9, 1, 9], [1, 2, 3]), ([1], [4]), ([9], [])):
        message = f"^{ids.count(9)} markers in the prompt, {len(counts)} pictures$"
        with pytest.raises(ValueError, match=message):
            impl.expand_prompt(ids, 9, counts)


def test_the_scheduler_sees_only_the_expanded_length(impl):
    ids = [*range(10, 29), 9]
    found, _ = impl.expand_prompt(ids, 9, [impl.image_token_count(672, 672)])
    blocks = impl.kv_blocks_needed(len(ids)), impl.kv_blocks_needed(len(found))
    assert (len(found), blocks) == (595, (2, 38)), f"got {len(found)} tokens, blocks {blocks}, expected 595, (2, 38)"
    assert impl.kv_blocks_needed(0) == 0 and impl.kv_blocks_needed(33, 32) == 2 and impl.kv_blocks_needed(32, 32) == 1


def test_the_engine_expands_alike(impl):
    engine, picture = LLMEngine(POCKET_VL, num_blocks=32), np.zeros((64, 64, 3), np.uint8)
    ids = [1, 5, 7, 9, 7, 11]
    prompt = {"prompt_token_ids": list(ids), "multi_modal_data": {"image": [picture, picture]}}
    engine.add_request("a", prompt, SamplingParams(max_tokens=1))
    theirs = engine.scheduler.requests["a"]
    found, ranges = impl.expand_prompt(ids, 7, [64, 64])
    assert found == list(theirs.prompt_token_ids), f"got {len(found)} tokens, the engine has {theirs.num_prompt_tokens}"
    mine = [(where.offset, where.length) for where in ranges]
    want = [(each.mm_position.offset, each.mm_position.length) for each in theirs.mm_features]
    assert mine == want, f"got ranges {mine}, the engine has {want}"


def test_pictures_that_fit_stay(impl):
    sizes = [(280, 140), (28, 28)]
    assert list(impl.fit(sizes, 51)) == sizes, "51 tokens of 51: nothing gets smaller"
    assert sizes == [(280, 140), (28, 28)], "the caller's list was changed"
    with pytest.raises(ValueError, match=r"^3 pictures do not fit in 2 tokens$"):
        impl.fit([(28, 28)] * 3, 2)


def test_squares_of_another_size(impl):
    found = list(impl.fit([(140, 70), (70, 140)], 60, factor=14))
    assert all(side >= 14 and side % 14 == 0 for size in found for side in size), f"whole squares of 14: got {found}"
    tokens = sum(wide * tall for wide, tall in found) / 196
    assert 30 < tokens <= 60, f"10 x 5 and 5 x 10 squares of 14, room for 60: got {found}, {tokens:.0f} tokens"


def test_a_request_fits(impl):
    rng = random.Random(4)
    for case in range(200):
        sizes = [(28 * rng.randint(1, 40), 28 * rng.randint(1, 40)) for _ in range(rng.randint(1, 5))]
        budget = rng.choice([len(sizes), rng.randint(len(sizes), 900), 64 * len(sizes), 200 * len(sizes)])
        found = list(impl.fit(sizes, budget))
        words = f"case {case}: pictures {sizes}, budget {budget}: got {found}"
        assert len(found) == len(sizes), words
        tokens = sum(wide * tall for wide, tall in found) / 784
        before = sum(wide * tall for wide, tall in sizes) / 784
        assert all(side >= 28 and side % 28 == 0 for size in found for side in size), f"{words}: whole squares of 28"
        assert tokens <= budget, f"{words}, which are {tokens:.0f} tokens"
        grown = [n for n, (a, b) in enumerate(zip(found, sizes, strict=True)) if a[0] > b[0] or a[1] > b[1]]
        assert not grown, f"{words}: picture {grown[0]} grew"
        assert before > budget or found == sizes, f"{words}: they fitted"
        if before > budget >= 64 * len(sizes):
            assert tokens > budget / 2, f"{words}: {tokens:.0f} tokens, less than half of the budget"

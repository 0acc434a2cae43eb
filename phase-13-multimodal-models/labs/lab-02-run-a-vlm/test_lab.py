"""Lab 13-02: a captured run of real vLLM with pictures, and what it allows to be said."""

from __future__ import annotations

import json
import lzma
import random
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
POCKET_VL = HERE.parents[2] / "models" / "pocket-vl"
RUN = json.loads(lzma.decompress((HERE / "captured" / "cpu.json.xz").read_bytes()))
REUSE = {row["step"]: row for row in RUN["reuse"]}
BEFORE, EACH, LENGTH, BLOCK = 3, 65, 64, 16


def prompt_of(row):
    """The tokens of a row of `reuse`, one element each; the question is known by its length."""
    pictures = [(seed, place) for seed in row["pictures"] for place in (*range(LENGTH), "line break")]
    pictures = ["line break" if place == "line break" else (seed, place) for seed, place in pictures]
    tail = row["prompt_tokens"] - BEFORE - len(pictures)
    return [*range(BEFORE), *pictures, *((tail, number) for number in range(tail))]


# ---- tokens --------------------------------------------------------------------------------------------------------


def test_a_picture_is_a_line(impl):
    assert impl.token_line(RUN["sizes"]) == (12, 65), "64 for the picture, 1 for the line break behind it"
    assert impl.token_line(RUN["sizes"][:0:-1]) == (12, 65), "in any order, and without the prompt that has none"
    doubled = [{"pictures": [7], "prompt_tokens": 9}, {"pictures": [7], "prompt_tokens": 9}]
    assert impl.token_line([*doubled, {"pictures": [1, 2, 3], "prompt_tokens": 13}]) == (7, 2)
    few = [{"pictures": [0] * n, "prompt_tokens": 12 + 65 * n} for n in (10, 1, 0, 2)]
    assert impl.token_line(few) == (12, 65), "10 pictures are more than 2"
    assert impl.token_line([few[0], few[3]]) == (12, 65), "of 10 and of 2 pictures, 2 are the fewer"
    assert impl.token_line(few[1:3]) == (12, 65), "two points, a picture apart, are a line"
    assert [len(row["pictures"]) for row in few] == [10, 1, 0, 2], "the caller's rows were changed"


def test_what_is_no_line(impl):
    bad = [{"pictures": list(range(n)), "prompt_tokens": tokens} for n, tokens in ((2, 141), (0, 12), (1, 77))]
    with pytest.raises(ValueError, match=r"no line through \(0, 12\), \(1, 77\), \(2, 141\)"):
        impl.token_line(bad)
    with pytest.raises(ValueError, match=r"no line through \(1, 77\)"):
        impl.token_line(RUN["sizes"][1:2])
    far = [{"pictures": [0] * n, "prompt_tokens": tokens} for n, tokens in ((0, 12), (1, 77), (3, 208))]
    with pytest.raises(ValueError, match=r"no line through \(0, 12\), \(1, 77\), \(3, 208\)"):
        impl.token_line(far)


def test_counts_do_not_depend_on_the_device(impl):
    on_gpu = json.loads(lzma.decompress((HERE / "captured" / "gpu.json.xz").read_bytes()))
    for part in ("sizes", "reuse"):
        here, there = ([{**row, "ms": 0} for row in run[part]] for run in (RUN, on_gpu))
        assert here == there, f"{part}: the two machines count differently"
    assert impl.token_line(on_gpu["sizes"]) == impl.token_line(RUN["sizes"])
    assert impl.score(on_gpu["answers"]) == impl.score(RUN["answers"])
    assert set(impl.typical_ms(on_gpu["latency"])) == set(impl.typical_ms(RUN["latency"]))


# ---- Qwen2-VL ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [(1280, 960, 1564), (640, 480, 391), (3840, 2160, 10_549), (4032, 3024, 15_552), (336, 336, 144), (28, 28, 4)],
)
def test_numbers_of_the_readme(impl, width, height, tokens):
    assert impl.image_tokens(width, height) == tokens


def test_every_size_that_the_release_was_asked(impl):
    for row in RUN["qwen2_vl"]:
        asked = row["width"], row["height"], row["min_pixels"], row["max_pixels"]
        if row["error"]:
            with pytest.raises(ValueError, match=row["error"]):
                impl.resized(*asked)
            continue
        found = impl.resized(*asked)
        assert found == tuple(row["resized"]), f"{asked}: got {found}, the release says {tuple(row['resized'])}"
        assert impl.image_tokens(*asked) == found[0] * found[1] // 784


def test_the_limit_is_for_what_was_rounded(impl):
    """491 × 407 is below the limit, 504 × 420, the nearest cells, above it. The release says 476 × 392."""
    found = impl.resized(491, 407, 3136, 200_704)
    assert found == (476, 392), f"got {found}: this looks like *The limit is asked too early*"


def test_thin_pictures(impl):
    """A side of 28 is the least there is, though the limit is missed by it; and thin is thin either way."""
    assert impl.resized(5900, 30, 3136, 100_352) == (4424, 28)
    assert impl.resized(30, 5900, 3136, 100_352) == (28, 4424)
    with pytest.raises(ValueError, match=r"absolute aspect ratio must be smaller than 200, got 224\.0"):
        impl.resized(1, 224, 3136, 100_352)
    with pytest.raises(ValueError, match=r"absolute aspect ratio must be smaller than 200, got 200\.5"):
        impl.resized(28, 5614, 3136, 100_352)


def test_limits_are_the_callers_and_have_defaults(impl):
    found = [impl.resized(28, 28, least, 100_352) for least in (3136, 12_544)]
    assert found == [(56, 56), (112, 112)], f"28 x 28 with at least 56 x 56 and 112 x 112 pixels: got {found}"
    assert impl.image_tokens(28, 28, min_pixels=12_544) == 16, "at least 112 x 112 pixels are 4 x 4 cells"
    for size, want, why in (
        ((3584, 3584), 16_384, "exactly 12,845,056 pixels are allowed"),
        ((13_792, 13_579), 128 * 127, "scaled to 12,845,056 pixels it is 128.999997 cells wide"),
        ((1719, 11), 26, "scaled to 3,136 pixels it is 25.002 cells wide, and grows to 26"),
    ):
        found = impl.image_tokens(*size)
        assert found == want, f"{size[0]} x {size[1]}: got {found} tokens, expected {want}: {why}"


def test_more_pixels_are_no_more_tokens_at_the_limit(impl):
    assert impl.image_tokens(8064, 6048, max_pixels=200_704) == impl.image_tokens(1280, 960, max_pixels=200_704) == 234
    assert impl.image_tokens(8064, 6048, max_pixels=200_704) <= 200_704 // 784


# ---- three caches ----------------------------------------------------------------------------------------------------


def test_your_prediction(impl):
    found = tuple(REUSE[step]["cached_tokens"] for step in ("the same again", "the same text, picture 2",
                                                            "pictures 2 and 1"))  # fmt: skip
    assert impl.predicted_finds() == found, f"you predicted {impl.predicted_finds()}, the release found {found}"


def test_the_prefix_cache_knows_pictures(impl):
    """Rows up to the first reset; each finds what those before it have left."""
    earlier = []
    for row in RUN["reuse"][:7]:
        found = impl.expected_cached(earlier, prompt_of(row), BLOCK)
        assert found == row["cached_tokens"], f"{row['step']}: got {found}, the release found {row['cached_tokens']}"
        earlier.append(prompt_of(row))


def test_the_last_token_is_computed(impl):
    whole = list(range(32))
    assert impl.expected_cached([whole], whole, 16) == 16, "this looks like *All of it was there*"
    assert impl.expected_cached([whole], [*whole, 0], 16) == 32
    assert impl.expected_cached([whole, whole[:20]], [*whole[:20], 0], 16) == 16
    assert impl.expected_cached([], whole, 16) == 0
    assert impl.expected_cached([[1, *whole], whole[:17]], [0, 2, *whole[2:]], 1) == 1, "behind a difference all differ"
    assert impl.expected_cached([[1, 0, 0]], [2, 0, 0], 1) == 0, "the first token differs, so nothing is found"
    assert whole == list(range(32)), "the caller's prompt was changed"


def test_the_encoder_was_spared(impl):
    found = {step: impl.encoder_hits(row, BEFORE, EACH) for step, row in REUSE.items()}
    assert found == {
        "picture 1": 0, "the same again": 1, "the same text, picture 2": 0, "picture 1, another question": 1,
        "pictures 1 and 2": 2, "pictures 2 and 1": 2, "picture 3, three times": 2, "picture 1, no prefix cache": 1,
        "picture 1, no encoder cache either": 0, "picture 1, nothing left": 0,
    }  # fmt: skip


def test_who_has_its_keys_and_values_needs_no_vectors(impl):
    row = {"pictures": [1, 2], "cached_tokens": 80, "encoded": 0}
    assert impl.encoder_hits(row, 3, 65) == 1, "picture 1 is in the prefix cache: this looks like *Both were needed*"
    assert impl.encoder_hits({**row, "cached_tokens": 67}, 3, 65) == 1
    assert impl.encoder_hits({**row, "cached_tokens": 66}, 3, 65) == 2
    assert impl.encoder_hits({**row, "cached_tokens": 14}, 3, 12, 10) == 1
    assert impl.encoder_hits(row, 20, 65) == 2, "they end at 84 and 149, and 80 tokens are cached"
    assert impl.encoder_hits({**row, "cached_tokens": 130}, 3, 60) == 0, "they end at 67 and 127, 130 are cached"
    assert row == {"pictures": [1, 2], "cached_tokens": 80, "encoded": 0}, "the caller's row was changed"


# ---- time and answers ------------------------------------------------------------------------------------------------


def test_delays_only_add(impl):
    rng = random.Random(0)
    for case in range(20):
        rows = [
            {"arm": arm, "ms": ms * rng.uniform(0.97, 1.03)}
            for arm, ms in (("a", 20.0), ("b", 30.0))
            for _ in range(20)
        ]
        for row in rng.sample(rows[:20], 10) + rng.sample(rows[20:], 10):
            row["ms"] *= rng.uniform(1.5, 30)
        rows[3]["ms"] = 0.1
        rng.shuffle(rows)
        before = [dict(row) for row in rows]
        found = impl.typical_ms(rows)
        assert rows == before, "the caller's rows were changed"
        assert found == pytest.approx({"a": 20.0, "b": 30.0}, rel=0.08), (
            f"case {case}: got {found} for 20 and 30 ms: is it *The mean*, *The middle* or *The best of all*?"
        )


def test_where_the_time_went(impl):
    ms = impl.typical_ms(RUN["latency"])
    order = [ms[arm] for arm in ("text", "long text", "picture again", "new picture", "three new pictures")]
    assert order == sorted(order), f"each arm has more to do than the one before: {ms}"
    times = {"text": 1.0, "long text": 4.0, "picture again": 9.0, "new picture": 20.0}
    parts = impl.shares(times)
    assert parts == {"tokens": 3.0, "kept": 5.0, "new": 11.0}
    assert [*times.values()] == [1.0, 4.0, 9.0, 20.0], "the caller's times were changed"


def test_answers(impl):
    answers = [dict(row) for row in RUN["answers"]]
    assert impl.score(answers) == {
        "colour": (4, 4), "count": (4, 4), "digit": (4, 4), "word": (3, 4), "describe": (3, 4), "more": (4, 4),
    }  # fmt: skip
    assert answers == RUN["answers"], "the caller's answers were changed"
    assert impl.score([]) == {}


# ---- a run of your own -----------------------------------------------------------------------------------------------


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """About a minute: starts vLLM on models/pocket-vl, and asks again whatever has no clock in it."""
    _, result = real_run(str(POCKET_VL), "--arm", "reuse")
    assert impl.token_line(result["sizes"]) == (12, 65)
    for found, kept in zip(result["reuse"], RUN["reuse"], strict=True):
        assert {**found, "ms": 0} == {**kept, "ms": 0}
    assert result["refusals"] == RUN["refusals"] and result["qwen2_vl"] == RUN["qwen2_vl"]

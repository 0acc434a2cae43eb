"""Lab 13-05: a tower that equals transformers', what positions do, and how many rows a picture becomes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from course.fixtures import close
from course.labs import load

given = load(Path(__file__).resolve().parent / "given.py")
SIDE, PATCH = given.SIZES["image_size"], given.SIZES["patch_size"]


def tower_of(impl, weights=None):
    return impl.VisionTower(given.capture()[0] if weights is None else weights, **given.SIZES)


def without_positions():
    weights, _ = given.capture()
    weights[given.POSITIONS][:] = 0
    return weights


# ---- patches -------------------------------------------------------------------------------------------------------


def test_patches_in_order(impl):
    """A grid of 2 x 3 patches of 2 x 2 pixels, two channels; each number says where it stands: channel row column."""
    channel, row, column = np.ogrid[1:3, 0:4, 0:6]
    picture = 100 * channel + 10 * row + column
    found = impl.patchify(np.stack([picture, picture + 200]), 2)
    assert found.shape == (2, 6, 8), f"two pictures, six patches of eight numbers: got {found.shape}"
    for number, want in (
        (0, [100, 101, 110, 111, 200, 201, 210, 211]),
        (2, [104, 105, 114, 115, 204, 205, 214, 215]),
        (3, [120, 121, 130, 131, 220, 221, 230, 231]),
    ):
        got = found[0, number].tolist()
        assert got == want, f"patch {number} (channel, row, column of each number): got {got}, expected {want}"
    assert found[1, 5].tolist() == [324, 325, 334, 335, 424, 425, 434, 435], "the last patch of the second picture"


def test_no_whole_patches(impl):
    tower = tower_of(impl)
    for height, width in ((25, 24), (24, 25), (24, 5)):
        pixels = np.zeros((1, 3, height, width), np.float32)
        for call in (
            lambda p=pixels: impl.patchify(p, PATCH),
            lambda h=height, w=width: tower.num_tokens(h, w),
            lambda h=height, w=width: tower.position_embeddings(h, w),
            lambda p=pixels: tower.encode(p),
            lambda p=pixels: tower.embed_multimodal(p),
        ):
            message = f"^image of {height} x {width} pixels is not a whole number of 6-pixel patches$"
            with pytest.raises(ValueError, match=message):
                call()


# ---- the tower -----------------------------------------------------------------------------------------------------


def same_as(found, want):
    """Words for what is wrong: how much, and which mistake of the README gives the same numbers."""
    assert found.shape == want.shape, f"got {found.shape}, expected {want.shape}: pictures, rows, width of the text"
    off = np.abs(found - want).max(axis=-1)
    words = f"largest difference {off.max():.2g}, {(off <= 1e-4).sum()} of {off.size} rows right"
    for name, theirs in given.suspects():
        if np.abs(theirs - found).max() <= 1e-4:
            return f"{words}: the same as with *{name}*"
    return words


def test_equals_transformers(impl):
    want = given.capture()[1]
    found = tower_of(impl).embed_multimodal(given.pictures())
    assert found.shape == want.shape and np.abs(found - want).max() <= 1e-4, same_as(found, want)


@pytest.mark.parametrize(
    ("size", "heads", "layers", "seed"), [((24, 6), 4, 3, 0), ((24, 6), 8, 3, 1), ((32, 8), 2, 2, 2)]
)
def test_equals_the_engine(impl, size, heads, layers, seed):
    """Random weights and pictures, beside `mini_vllm/models/clip.py`."""
    rng = np.random.default_rng(seed)
    shapes = {name: weight.shape for name, weight in given.capture()[0].items()}
    shapes[given.POSITIONS] = ((size[0] // size[1]) ** 2 + 1, 32)
    shapes[f"{given.TOWER}.embeddings.patch_embedding.weight"] = (32, 3, size[1], size[1])
    weights = {name: (rng.standard_normal(shape) * 0.2).astype(np.float32) for name, shape in shapes.items()}
    settings = {"patch_size": size[1], "image_size": size[0], "num_heads": heads, "num_layers": layers}
    pixels = rng.standard_normal((3, 3, size[0], size[0])).astype(np.float32)
    theirs, mine = given.Theirs(weights, **settings), impl.VisionTower(weights, **settings)
    close(mine.embed_multimodal(pixels), theirs.embed_multimodal(pixels), f"{heads} heads, {layers} layers", 1e-4)


def test_features_come_before_the_projector(impl):
    theirs = given.Theirs(given.capture()[0], **given.SIZES)
    theirs.tower.layers = theirs.tower.layers[:2]
    found = tower_of(impl).encode(given.pictures())
    assert found.shape == (2, 16, 32), f"encode: got {found.shape}, expected two pictures, 16 rows, hidden 32"
    off = np.abs(found - theirs.tower(given.pictures())[:, 1:]).max()
    assert off <= 1e-4, f"encode: features of the layer before the last; largest difference {off:.2g}"


def test_eps_is_the_callers(impl):
    weights = given.capture()[0]
    plain, other = (impl.VisionTower(weights, **given.SIZES, eps=eps) for eps in (1e-5, 0.1))
    off = np.abs(plain.embed_multimodal(given.pictures()) - other.embed_multimodal(given.pictures())).max()
    assert off > 0.01, f"with eps = 0.1 the rows change by {off:.2g}: is it in all norms?"
    default = tower_of(impl).embed_multimodal(given.pictures())
    same = np.array_equal(default, plain.embed_multimodal(given.pictures()))
    assert same, "who gives no eps gets 1e-5, and these rows are others"


def test_large_scores(impl):
    """Queries a thousand times as long: one key takes nearly all, and exp(score) is more than float32 holds."""
    weights, _ = given.capture()
    for kind in ("weight", "bias"):
        weights[f"{given.TOWER}.encoder.layers.0.self_attn.q_proj.{kind}"] *= 1000
    theirs = given.Theirs(weights, **given.SIZES).embed_multimodal(given.pictures())
    with np.errstate(over="ignore", invalid="ignore"):
        found = tower_of(impl, weights).embed_multimodal(given.pictures())
    assert np.isfinite(found).all(), "large scores: NaN or infinity. What is e to the power of 1000?"
    close(found, theirs, "large scores", 1e-2)


def test_a_batch_is_its_pictures(impl):
    tower, pixels = tower_of(impl), given.pictures()
    together = tower.embed_multimodal(pixels)
    for number in (0, 1):
        alone = tower.embed_multimodal(pixels[number : number + 1])[0]
        off = np.abs(alone - together[number]).max()
        assert off <= 1e-5, f"picture {number} alone and in a batch: {off:.2g} apart. Do pictures see each other?"


def test_dtype(impl):
    found = tower_of(impl).embed_multimodal(given.pictures())
    assert found.dtype == np.float32, f"rows for a model of float32 are {found.dtype}"


def test_inputs_are_unchanged(impl):
    weights, _ = given.capture()
    pixels, before = given.pictures(), {name: weight.copy() for name, weight in weights.items()}
    tower = tower_of(impl, weights)
    first, again = tower.embed_multimodal(pixels), tower.embed_multimodal(pixels)
    assert np.array_equal(pixels, given.pictures()), "the caller's pixels were changed"
    changed = [name for name, weight in weights.items() if not np.array_equal(weight, before[name])]
    assert not changed, f"weights were changed, first {changed[0]}"
    assert np.array_equal(first, again), "the same picture twice gives two answers"


# ---- positions -----------------------------------------------------------------------------------------------------


def test_shuffled_patches(impl):
    on, off = (given.moved(tower_of(impl, weights).embed_multimodal) for weights in (None, without_positions()))
    assert (on, off) == (16, 0), (
        f"14 of 16 patches shuffled: {on} rows change with positions, {off} without; expected 16 and 0. Without "
        "positions and without a mask a picture is a bag of patches"
    )
    masked = given.Theirs(without_positions(), **given.SIZES)
    given.masked(masked)
    measured, mine = (on, off, given.moved(masked.embed_multimodal)), impl.predicted_changes()
    assert mine == measured, (
        f"you said {mine}, measured {measured}: with positions, without, and without but with a causal mask. Which row "
        "sees the same set of rows as before?"
    )


def test_one_colour(impl):
    pixels = np.full((1, 3, SIDE, SIDE), 0.5, np.float32)
    for weights, want in ((None, 16), (without_positions(), 1)):
        rows = tower_of(impl, weights).embed_multimodal(pixels)[0]
        found = len({tuple(row) for row in np.round(rows.astype(float), 3)})
        assert found == want, f"a picture of one colour: {found} different rows, expected {want}"


@pytest.mark.parametrize(
    ("image", "patch", "tokens"), [(224, 16, 196), (336, 14, 576), (384, 16, 576), (448, 14, 1024)]
)
def test_tokens_of_a_resolution(impl, image, patch, tokens):
    tower = impl.VisionTower(
        given.blank_weights(image, patch), patch_size=patch, image_size=image, num_heads=2, num_layers=2
    )
    found = tower.num_tokens(image, image)
    assert found == tokens, f"{image} pixels, patches of {patch}: got {found} tokens, expected {tokens}"


def test_two_towers_of_other_sizes(impl):
    """One for 24 pixels, one for 36: each has a table of its own. Who refuses other sizes is done."""
    weights, rng = given.capture()[0], np.random.default_rng(5)
    for image in (24, 36):
        side = image // PATCH
        weights[given.POSITIONS] = rng.standard_normal((side * side + 1, 32)).astype(np.float32)
        tower = impl.VisionTower(weights, **{**given.SIZES, "image_size": image})
        try:
            table = tower.position_embeddings(72, 72).reshape(12, 12, 32)
        except ValueError as error:
            want = f"image of 72 x 72 pixels, the tower's positions are for {image} x {image}"
            assert str(error) == want, f"a table for {image} pixels, asked for 72 x 72: got {str(error)!r}"
            continue
        trained = weights[given.POSITIONS][1:].reshape(side, side, 32)
        for at in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
            off = np.abs(table[at] - trained[at]).max()
            assert off <= 1e-4, f"a table for {image} pixels, asked for 72 x 72: corner {at} is {off:.2g} off"


@pytest.mark.parametrize(("height", "width"), [(48, 48), (24, 36), (12, 24)])
def test_another_size(impl, height, width):
    """Yours to decide: refuse, or say what the positions mean there."""
    tower, pixels = tower_of(impl), np.zeros((1, 3, height, width), np.float32)
    try:
        promised = tower.num_tokens(height, width)
    except ValueError as error:
        want = f"image of {height} x {width} pixels, the tower's positions are for 24 x 24"
        assert str(error) == want, f"got {str(error)!r}, expected {want!r}"
        for call in (tower.embed_multimodal, tower.encode):
            with pytest.raises(ValueError, match=f"^{want}$"):
                call(pixels)
        with pytest.raises(ValueError, match=f"^{want}$"):
            tower.position_embeddings(height, width)
        return
    found = tower.embed_multimodal(pixels).shape[1]
    assert found == promised, (
        f"num_tokens({height}, {width}) promised {promised}, embed_multimodal gave {found}: the scheduler would "
        "reserve the wrong placeholder"
    )
    rows, columns = height // PATCH, width // PATCH
    assert promised == rows * columns, f"num_tokens({height}, {width}) = {promised}, there are {rows * columns} patches"
    table = tower.position_embeddings(height, width).reshape(rows, columns, -1)
    if min(rows, columns) >= 4:
        trained = tower.position_embeddings(SIDE, SIDE).reshape(4, 4, -1)
        for at in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
            off = np.abs(table[at] - trained[at]).max()
            assert off <= 1e-4, f"{height} x {width}: the position of corner {at} is {off:.2g} off its trained one"


def test_positions_of_the_trained_size(impl):
    weights, _ = given.capture()
    found = tower_of(impl, weights).position_embeddings(SIDE, SIDE)
    close(found, weights[given.POSITIONS][1:], "positions of 24 x 24: the table without the class token's row", 0)

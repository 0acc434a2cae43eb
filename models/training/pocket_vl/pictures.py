"""Draws the pictures, 64 × 64 RGB, from a seeded generator: shapes on a 3 × 3 grid, one large shape, a number, a word.

Numpy alone. What the questions ask about stands in `Picture`: shapes with their cells, the text, the background.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from models.training.pocket_vl.glyphs import HEIGHT, text_mask
from models.training.pocket_vl.layout import IMAGE_SIZE

COLOURS = {
    "red": (215, 35, 40),
    "green": (40, 160, 65),
    "blue": (40, 75, 215),
    "yellow": (240, 215, 45),
    "orange": (245, 135, 25),
    "purple": (135, 50, 175),
    "pink": (250, 150, 190),
    "brown": (125, 75, 40),
}
BACKGROUNDS = {"white": 240, "grey": 128, "black": 15}
HELD_OUT = {("green", "heart"), ("purple", "star"), ("orange", "cross"), ("pink", "diamond")}
"""Pairs of colour and shape that training never shows."""
_TIPS = np.array(
    [(0.0, -1.0), (0.951057, -0.309017), (0.587785, 0.809017), (-0.587785, 0.809017), (-0.951057, -0.309017)]
)
Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    inside = sum((nx * x + ny * y <= 0.309017).astype(np.int8) for nx, ny in _TIPS)
    return np.asarray(inside >= 4)  # the tips lie outside of one of the five lines


def _heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = 1.2 * x, 0.15 - 1.15 * y
    return np.asarray((x * x + y * y - 1) ** 3 <= x * x * y * y * y)


SHAPES: dict[str, Mask] = {  # of x to the right and y downwards, both in units of the radius
    "circle": lambda x, y: x * x + y * y <= 0.92,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.82,
    "triangle": lambda x, y: (y <= 0.8) & (2 * abs(x) <= 1.1 * (y + 1)),
    "diamond": lambda x, y: 1.25 * abs(x) + abs(y) <= 1,
    "star": _star,
    "cross": lambda x, y: np.minimum(abs(x), abs(y)) <= 0.3,
    "heart": _heart,
}


@dataclass(frozen=True)
class Thing:
    """One shape; `row` and `column` count from the top left, 0 to 2."""

    colour: str
    shape: str
    row: int = 1
    column: int = 1

    @property
    def name(self) -> str:
        """Colour and shape."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Picture:
    """`kind` is shapes, large, number or word; `pixels` uint8 [64, 64, 3]; `text` and `ink` of numbers and words."""

    kind: str
    pixels: np.ndarray
    background: str
    things: tuple[Thing, ...] = ()
    text: str = ""
    ink: str = ""


def _tint(rng: np.random.Generator, colour: tuple[int, ...]) -> np.ndarray:
    return np.clip(np.array(colour) + rng.integers(-12, 13, 3), 0, 255).astype(np.float32)


def _ground(rng: np.random.Generator) -> tuple[str, np.ndarray]:
    name = ("white", "white", "grey", "black")[rng.integers(4)]
    canvas = np.empty((IMAGE_SIZE, IMAGE_SIZE, 3), np.float32)
    canvas[:] = np.clip(BACKGROUNDS[name] + int(rng.integers(-12, 13)) + rng.integers(-3, 4, 3), 0, 255)
    return name, canvas


def _paint(
    canvas: np.ndarray, shape: str, centre: tuple[float, float], radius: float, ink: np.ndarray, fine: int
) -> None:
    """Blend a shape in; `fine` samples a pixel in each direction make its edge soft. centre: x, y."""
    (x0, y0), n = (max(0, int(c - radius)) for c in centre), IMAGE_SIZE * fine
    x1, y1 = (min(IMAGE_SIZE, int(c + radius) + 2) for c in centre)
    steps = (np.arange(n, dtype=np.float32) + np.float32(0.5)) / fine
    x = (steps[None, x0 * fine : x1 * fine] - centre[0]) / radius
    y = (steps[y0 * fine : y1 * fine, None] - centre[1]) / radius
    inside = SHAPES[shape](x, y) & (np.maximum(abs(x), abs(y)) <= 1)
    cover = inside.reshape(y1 - y0, fine, x1 - x0, fine).mean(axis=(1, 3), dtype=np.float32)[:, :, None]
    canvas[y0:y1, x0:x1] += cover * (ink - canvas[y0:y1, x0:x1])


def _finish(rng: np.random.Generator, canvas: np.ndarray) -> np.ndarray:
    """One in four a little blurred, half of them with noise."""
    if rng.random() < 0.25:
        padded = np.pad(canvas, ((1, 1), (1, 1), (0, 0)), mode="edge")
        canvas = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
        canvas = (canvas[:, :-2] + 2 * canvas[:, 1:-1] + canvas[:, 2:]) / 4
    if rng.random() < 0.5:
        canvas = canvas + rng.integers(-6, 7, canvas.shape, dtype=np.int8)
    return np.clip(canvas + 0.5, 0, 255).astype(np.uint8)


def _pair(rng: np.random.Generator, held_out: bool) -> tuple[str, str]:
    """A colour and a shape; one of the held-out pairs, or none of them."""
    if held_out:
        return sorted(HELD_OUT)[rng.integers(len(HELD_OUT))]
    while True:
        pair = list(COLOURS)[rng.integers(len(COLOURS))], list(SHAPES)[rng.integers(len(SHAPES))]
        if pair not in HELD_OUT:
            return pair


def draw_shapes(rng: np.random.Generator, held_out: bool = False, most: int = 6) -> Picture:
    """One to `most` shapes in cells of a 3 × 3 grid, some of them of one kind; things in reading order.

    held_out: the first of them is one of the pairs that training never shows.
    """
    background, canvas = _ground(rng)
    count = int(rng.integers(1, most + 1))
    pairs = [_pair(rng, held_out)]
    repeat = rng.random() < 0.5  # pictures with several of one shape or colour, for counting
    while len(pairs) < count:
        colour, shape = _pair(rng, False)
        if repeat and rng.random() < 0.6:
            known = pairs[rng.integers(len(pairs))]
            colour, shape = (known[0], shape) if rng.random() < 0.35 else (colour, known[1])
        if (colour, shape) not in HELD_OUT:
            pairs.append((colour, shape))
    cells = rng.permutation(9)[:count]
    fine = int(rng.integers(1, 4))
    things = []
    for (colour, shape), cell in zip(pairs, cells, strict=True):
        row, column = divmod(int(cell), 3)
        radius = rng.uniform(6.0, 10.0)
        slack = max(0.0, 10.6 - radius)
        x, y = (IMAGE_SIZE / 6 * (2 * at + 1) + rng.uniform(-slack, slack) for at in (column, row))
        _paint(canvas, shape, (x, y), radius, _tint(rng, COLOURS[colour]), fine)
        things.append(Thing(colour, shape, row, column))
    things.sort(key=lambda thing: (thing.row, thing.column))
    return Picture("shapes", _finish(rng, canvas), background, tuple(things))


def draw_large(rng: np.random.Generator, held_out: bool = False) -> Picture:
    """One shape, with a radius of 10 to 30 pixels, anywhere."""
    background, canvas = _ground(rng)
    colour, shape = _pair(rng, held_out)
    radius = rng.uniform(10.0, 30.0)
    x, y = rng.uniform(radius, IMAGE_SIZE - radius, 2)
    _paint(canvas, shape, (x, y), radius, _tint(rng, COLOURS[colour]), int(rng.integers(1, 4)))
    return Picture("large", _finish(rng, canvas), background, (Thing(colour, shape),))


def draw_text(rng: np.random.Generator, kind: str, text: str) -> Picture:
    """A number or a word in one colour, at a size that fits and a place that fits."""
    background, canvas = _ground(rng)
    ink = list(COLOURS)[rng.integers(len(COLOURS))]
    most = min(IMAGE_SIZE // (6 * len(text)), 8)
    scale = int(rng.integers(min(2, most), most + 1))
    mask = text_mask(text, scale)
    height, width = mask.shape
    assert height == HEIGHT * scale
    y = int(rng.integers(0, IMAGE_SIZE - height + 1))
    x = int(rng.integers(0, IMAGE_SIZE - width + 1))
    canvas[y : y + height, x : x + width][mask] = _tint(rng, COLOURS[ink])
    return Picture(kind, _finish(rng, canvas), background, text=text, ink=ink)

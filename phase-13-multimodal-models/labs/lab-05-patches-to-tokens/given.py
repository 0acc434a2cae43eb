"""Given: the capture, the engine's own tower with the same weights, and wrong towers made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.gelu import gelu, gelu_tanh
from mini_vllm.models.clip import CLIPVisionModel
from mini_vllm.transformers_utils.configs.llava import VisionConfig

SIZES = {"patch_size": 6, "image_size": 24, "num_heads": 4, "num_layers": 3}
TOWER, PROJECTOR = "vision_tower.vision_model", "multi_modal_projector"
POSITIONS = f"{TOWER}.embeddings.position_embedding.weight"


def pictures() -> np.ndarray:
    """Two pictures of noise, float32 [2, 3, 24, 24]: no two patches are alike."""
    return np.random.default_rng(0).standard_normal((2, 3, 24, 24)).astype(np.float32)


def capture() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights by name, and what transformers makes of `pictures()`, [2, 16, 48]. Fresh copies."""
    with np.load(Path(__file__).resolve().parent / "captured" / "llava_tiny.npz") as stored:
        weights = {name: stored[name] for name in stored.files}
    return weights, weights.pop("expected")


def blank_weights(image_size: int, patch_size: int) -> dict[str, np.ndarray]:
    """Zeros for a tower of width 4 and two layers, text width 6."""
    patches = (image_size // patch_size) ** 2
    shapes: dict[str, tuple[int, ...]] = {
        f"{TOWER}.embeddings.class_embedding": (4,),
        POSITIONS: (patches + 1, 4),
        f"{TOWER}.embeddings.patch_embedding.weight": (4, 3, patch_size, patch_size),
    }
    norms = ["pre_layrnorm", "post_layernorm", *(f"encoder.layers.{i}.layer_norm{k}" for i in range(2) for k in (1, 2))]
    linears = {f"{PROJECTOR}.linear_1": (6, 4), f"{PROJECTOR}.linear_2": (6, 6)}
    for i in range(2):
        layer = f"{TOWER}.encoder.layers.{i}"
        linears |= {f"{layer}.self_attn.{name}_proj": (4, 4) for name in ("q", "k", "v", "out")}
        linears |= {f"{layer}.mlp.fc1": (8, 4), f"{layer}.mlp.fc2": (4, 8)}
    shapes |= {f"{TOWER}.{norm}.{kind}": (4,) for norm in norms for kind in ("weight", "bias")}
    shapes |= {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


class Theirs:
    """The engine's tower (`models/clip.py`) and a projector of two products.

    Args:
        weights: by name. image_size, patch_size, num_heads, num_layers: as the learner's tower has them.
    """

    def __init__(
        self, weights: dict[str, np.ndarray], *, patch_size: int, image_size: int, num_heads: int, num_layers: int
    ) -> None:
        width, inner = weights[f"{TOWER}.encoder.layers.0.mlp.fc2.weight"].shape
        config = VisionConfig(
            "clip_vision_model", width, inner, num_layers, num_heads, image_size, patch_size, 3, 1e-5, "quick_gelu"
        )
        context = ModelContext()
        self.tower = CLIPVisionModel(config, num_layers, context, TOWER)
        for layer in context.layers:
            for name, place in layer.weights():
                place[...] = weights[name]
        self.weights, self.num_layers = weights, num_layers - 1
        self.tokens, self.act = slice(1, None), gelu

    def embed_multimodal(self, pixels: np.ndarray) -> np.ndarray:
        """pixels [N, 3, H, W] -> [N, tokens, text_hidden]."""
        kept, self.tower.layers = self.tower.layers, self.tower.layers[: self.num_layers]
        rows = self.tower(pixels)[:, self.tokens]
        self.tower.layers = kept
        w = self.weights
        inner = self.act(rows @ w[f"{PROJECTOR}.linear_1.weight"].T + w[f"{PROJECTOR}.linear_1.bias"])
        return inner @ w[f"{PROJECTOR}.linear_2.weight"].T + w[f"{PROJECTOR}.linear_2.bias"]


def masked(tower: Theirs) -> None:
    """A row sees itself and the rows before it, as in a language model."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = np.einsum("nqhd,nkhd->nhqk", q, k) * q.dtype.type(q.shape[-1] ** -0.5)
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out = np.einsum("nhqk,nkhd->nqhd", shares / shares.sum(axis=-1, keepdims=True), v)
        return out.reshape(*out.shape[:2], -1)

    for layer in tower.tower.layers:
        layer.self_attn.attn = attend


def _exact_inside(tower: Theirs) -> None:
    for layer in tower.tower.layers:
        layer.mlp.activation_fn = gelu


def _flat(tower: Theirs) -> None:
    for layer in tower.tower.layers:
        layer.self_attn.attn.scale = 1.0


SUSPECTS: dict[str, Callable[[Theirs], Any]] = {
    "A mask that pictures do not have": masked,
    "No positions": lambda tower: tower.tower.embeddings.position_embedding.fill(0),
    "All layers": lambda tower: setattr(tower, "num_layers", tower.num_layers + 1),
    "The last row is dropped": lambda tower: setattr(tower, "tokens", slice(0, -1)),
    "One GELU for all": _exact_inside,
    "Almost the GELU": lambda tower: setattr(tower, "act", gelu_tanh),
    "Scores as they are": _flat,
}


def suspects() -> Iterator[tuple[str, np.ndarray]]:
    """The mistakes of the README that the engine's tower can make too, and what it makes of the capture then."""
    for name, spoil in SUSPECTS.items():
        tower = Theirs(capture()[0], **SIZES)
        spoil(tower)
        yield name, tower.embed_multimodal(pictures())


def shuffle(pixels: np.ndarray, patch: int, order: np.ndarray) -> np.ndarray:
    """Pictures [N, C, H, W] whose patch number i is the old one's patch number `order[i]`."""
    out, columns = np.empty_like(pixels), pixels.shape[3] // patch

    def place(number: int) -> tuple[Any, ...]:
        row, column = divmod(int(number), columns)
        return ..., slice(row * patch, (row + 1) * patch), slice(column * patch, (column + 1) * patch)

    for new, old in enumerate(order):
        out[place(new)] = pixels[place(old)]
    return out


ORDER = np.array([13, 7, 11, 0, 9, 5, 2, 14, 1, 3, 10, 15, 4, 8, 6, 12])
"""The number of the patch that stands at each place after the shuffle. Two, 5 and 10, stay where they were."""


def moved(embed: Callable[[np.ndarray], np.ndarray]) -> int:
    """How many rows of the first picture change by more than 1e-4 when its patches are shuffled, each row followed to
    its new place."""
    pixels = pictures()[:1]
    change = np.abs(embed(shuffle(pixels, 6, ORDER))[0] - embed(pixels)[0][ORDER]).max(axis=-1)
    return int((change > 1e-4).sum())

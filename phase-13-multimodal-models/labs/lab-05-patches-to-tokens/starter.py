"""Lab 13-05: a picture becomes rows for a language model. CLIP's vision tower and LLaVA's projector, in numpy."""

from __future__ import annotations

import math

import numpy as np

TOWER, PROJECTOR = "vision_tower.vision_model", "multi_modal_projector"


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """Given. Each row of `x` with mean 0 and variance 1, then times `weight`, plus `bias`."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * weight + bias


def gelu(x: np.ndarray) -> np.ndarray:
    """Given. The exact GELU, by the error function. The result has the dtype that math.erf's has."""
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def predicted_changes() -> tuple[int, int, int]:
    """Your prediction, before any code runs. The 16 patches of a picture are shuffled, 14 of them get another place.

    Returns:
        How many of the tower's 16 rows, each followed to its new place, change by more than 1e-4: with the tower as it
        is; with its positions all zero; and with its positions all zero and a causal mask in its attention.
    """
    raise NotImplementedError("three numbers of 0 to 16")


def patchify(pixels: np.ndarray, patch: int) -> np.ndarray:
    """Pictures in pieces, row by row of the picture; the numbers of a piece stand as in the convolution's weight.

    Args:
        pixels: [N, C, H, W]. patch: pixels a side.

    Returns:
        [N, (H / patch) * (W / patch), C * patch * patch]

    Raises:
        ValueError: "image of 25 x 24 pixels is not a whole number of 6-pixel patches" (height first).
    """
    raise NotImplementedError("pictures in pieces, row by row")


class VisionTower:
    """CLIP's tower and LLaVA 1.5's projector.

    What must hold: the features are those of the layer before the last. A class token is computed with the patches and
    then dropped. The tower's activation is x·σ(1.702x). The projector is linear, exact GELU, linear. `eps` is that of
    all norms. Weights and pixels are not changed.

    Args:
        weights: float32 by the names of the checkpoint, `vision_tower.vision_model.…` and `multi_modal_projector.…`.
        patch_size, image_size: pixels a side; the positions are for pictures of `image_size`.
        num_heads, num_layers: of the checkpoint, the last layer included.
    """

    def __init__(
        self, weights: dict[str, np.ndarray], *, patch_size: int, image_size: int, num_heads: int, num_layers: int,
        eps: float = 1e-5,
    ) -> None:  # fmt: skip
        raise NotImplementedError("a tower with these weights")

    def position_embeddings(self, height: int, width: int) -> np.ndarray:
        """The positions of a picture's patches, without the class token's: [patches, hidden].

        Raises:
            ValueError: as `num_tokens`.
        """
        raise NotImplementedError("the positions of a picture of this size")

    def num_tokens(self, height: int, width: int) -> int:
        """Rows that a picture of so many pixels becomes: the scheduler reserves as many places.

        Raises:
            ValueError: no whole number of patches, in the words of `patchify`. Where you take no other sizes than the
                trained one: "image of 48 x 48 pixels, the tower's positions are for 24 x 24".
        """
        raise NotImplementedError("the rows that a picture of this size becomes")

    def encode(self, pixels: np.ndarray) -> np.ndarray:
        """Features of each patch: pixels [N, 3, H, W] -> [N, tokens, hidden].

        Raises:
            ValueError: as `num_tokens`.
        """
        raise NotImplementedError("features of each patch")

    def embed_multimodal(self, pixels: np.ndarray) -> np.ndarray:
        """Rows for the language model: pixels [N, 3, H, W] -> float32 [N, tokens, text_hidden].

        Raises:
            ValueError: as `num_tokens`.
        """
        raise NotImplementedError("rows for the language model")

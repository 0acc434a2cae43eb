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
    return 16, 0, 16


def patchify(pixels: np.ndarray, patch: int) -> np.ndarray:
    """Pictures in pieces, row by row of the picture; the numbers of a piece stand as in the convolution's weight.

    Args:
        pixels: [N, C, H, W]. patch: pixels a side.

    Returns:
        [N, (H / patch) * (W / patch), C * patch * patch]

    Raises:
        ValueError: "image of 25 x 24 pixels is not a whole number of 6-pixel patches" (height first).
    """
    n, channels, height, width = pixels.shape
    _whole(height, width, patch)
    cut = pixels.reshape(n, channels, height // patch, patch, width // patch, patch)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(n, -1, channels * patch * patch)


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
        self.weights, self.patch_size, self.image_size = weights, patch_size, image_size
        self.num_heads, self.num_layers, self.eps = num_heads, num_layers, eps

    def position_embeddings(self, height: int, width: int) -> np.ndarray:
        """The positions of a picture's patches, without the class token's: [patches, hidden].

        Raises:
            ValueError: as `num_tokens`.
        """
        rows, columns = _whole(height, width, self.patch_size)
        side = self.image_size // self.patch_size
        table = self.weights[f"{TOWER}.embeddings.position_embedding.weight"][1:]
        if (rows, columns) == (side, side):
            return table
        down, right = (_between(size, side, table.dtype) for size in (rows, columns))
        return np.einsum("rs,ct,sth->rch", down, right, table.reshape(side, side, -1)).reshape(rows * columns, -1)

    def num_tokens(self, height: int, width: int) -> int:
        """Rows that a picture of so many pixels becomes: the scheduler reserves as many places.

        Raises:
            ValueError: no whole number of patches, in the words of `patchify`. Where you take no other sizes than the
                trained one: "image of 48 x 48 pixels, the tower's positions are for 24 x 24".
        """
        rows, columns = _whole(height, width, self.patch_size)
        return rows * columns

    def encode(self, pixels: np.ndarray) -> np.ndarray:
        """Features of each patch: pixels [N, 3, H, W] -> [N, tokens, hidden].

        Raises:
            ValueError: as `num_tokens`.
        """
        w, (n, _, height, width) = self.weights, pixels.shape
        kernel = w[f"{TOWER}.embeddings.patch_embedding.weight"]
        rows = patchify(pixels, self.patch_size) @ kernel.reshape(len(kernel), -1).T
        rows = rows + self.position_embeddings(height, width)
        first = w[f"{TOWER}.embeddings.class_embedding"] + w[f"{TOWER}.embeddings.position_embedding.weight"][0]
        x = np.concatenate([np.broadcast_to(first, (n, 1, len(first))), rows], axis=1)
        x = self._norm(x, f"{TOWER}.pre_layrnorm")
        for number in range(self.num_layers - 1):
            name = f"{TOWER}.encoder.layers.{number}"
            x = x + self._attention(self._norm(x, f"{name}.layer_norm1"), f"{name}.self_attn")
            inner = self._linear(self._norm(x, f"{name}.layer_norm2"), f"{name}.mlp.fc1")
            x = x + self._linear(inner / (1.0 + np.exp(-1.702 * inner)), f"{name}.mlp.fc2")
        return x[:, 1:]

    def embed_multimodal(self, pixels: np.ndarray) -> np.ndarray:
        """Rows for the language model: pixels [N, 3, H, W] -> float32 [N, tokens, text_hidden].

        Raises:
            ValueError: as `num_tokens`.
        """
        inner = gelu(self._linear(self.encode(pixels), f"{PROJECTOR}.linear_1"))
        return self._linear(inner, f"{PROJECTOR}.linear_2").astype(np.float32)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return layer_norm(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.eps)

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _attention(self, x: np.ndarray, name: str) -> np.ndarray:
        n, length, width = x.shape
        size = width // self.num_heads
        q, k, v = (
            self._linear(x, f"{name}.{part}_proj").reshape(n, length, self.num_heads, size).transpose(0, 2, 1, 3)
            for part in "qkv"
        )
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(size)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = shares / shares.sum(axis=-1, keepdims=True) @ v
        return self._linear(mixed.transpose(0, 2, 1, 3).reshape(x.shape), f"{name}.out_proj")


def _whole(height: int, width: int, patch: int) -> tuple[int, int]:
    """Rows and columns of patches."""
    if height % patch or width % patch or not height or not width:
        raise ValueError(f"image of {height} x {width} pixels is not a whole number of {patch}-pixel patches")
    return height // patch, width // patch


def _between(size: int, side: int, dtype: np.dtype) -> np.ndarray:
    """Shares of the old places in the new ones, [size, side]: linear, from the middle of a patch to the next one's."""
    at = np.clip((np.arange(size) + 0.5) * side / size - 0.5, 0, side - 1)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(side))).astype(dtype)

"""Lab 00-05 in the engine: your `forward` and `compute_logits` in the dress of a model of the engine.

`LLM(..., with_labs="00-05")` asks `fit` for it. Weights come from the checkpoint's own files, under its own names, so
nothing of the engine's model is left but its sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

UNLIKE = {
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": None,
    "quantization_config": None,
}
"""What the lab's model is; a checkpoint that says otherwise is served by ours."""
ABSENT = {"tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False}


class LabModel:
    """The learner's model. What the engine asks beside the two functions (sizes, end of a text) is answered by ours."""

    def __init__(self, module: Any, watch: Any, model: Any, folder: Path) -> None:
        self._module, self._watch, self._model = module, watch, model
        self._config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._config.setdefault("head_dim", model.head_dim)
        self._config.setdefault("rope_theta", self._config.get("rope_parameters", {}).get("rope_theta", 10000.0))
        self._weights = read_weights(folder, model.dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, input_ids: np.ndarray, positions: np.ndarray, attn: Callable[..., np.ndarray]) -> np.ndarray:
        """As the engine's, with her function: hidden states [T, H]."""
        hidden = self._watch.call(self._module.forward, self._config, self._weights, input_ids, positions, attn)
        return self._checked("forward", hidden, (len(input_ids), self._config["hidden_size"]))

    def compute_logits(self, hidden: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """As the engine's, with her function: logits [R, V], into `out` if given."""
        logits = self._watch.call(self._module.compute_logits, self._config, self._weights, hidden)
        logits = self._checked("compute_logits", logits, (len(hidden), self.vocab_size))
        if out is None:
            return logits
        out[:] = logits
        return out

    def _checked(self, name: str, array: Any, shape: tuple[int, int]) -> np.ndarray:
        self._watch.require(np.shape(array) == shape, f"{name} returned shape {np.shape(array)}, wanted {shape}")
        kind = getattr(array, "dtype", type(array).__name__)
        self._watch.require(kind == self.dtype, f"{name} returned {kind}, wanted {self.dtype}")
        self._watch.require(np.isfinite(array).all(), f"{name} returned NaN or infinity")
        return array


def read_weights(folder: Path, dtype: np.dtype) -> dict[str, np.ndarray]:
    """Every tensor of a checkpoint under its name."""
    from mini_vllm import Checkpoint

    with Checkpoint(folder) as checkpoint:
        return {name: checkpoint.read(name).astype(dtype) for name in sorted(checkpoint.names())}


def unlike(folder: Path) -> str:
    """What about this checkpoint the lab knows nothing of, "" where it can be served."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name, wanted in UNLIKE.items():
        value = config.get(name, ABSENT.get(name))
        if value != wanted:
            return f"{name}={value!r}"
    return "" if (config.get("rope_parameters") or {}).get("rope_type", "default") == "default" else "scaled positions"


def fit(module: Any, watch: Any, ours: Callable[[str], object]) -> Callable[[Any, str | None, Any], Any]:
    """(model, its folder, config) -> the learner's model; or ours where hers does not apply, and `ours` is told why."""

    def choose(model: Any, folder: str | None, config: Any) -> Any:
        if why := "models without a checkpoint" if folder is None else unlike(Path(folder)):
            ours(why)
            return model
        return LabModel(module, watch, model, Path(str(folder)))

    return choose

"""Writes `captured/llava_tiny.npz` and its provenance: weights, and what transformers' LLaVA makes of pictures.

Needs torch and transformers. Weights are normal numbers, 0.2 for matrices and 0.5 for vectors, by torch's seed 1, so
that each part of the tower matters. Pictures are those of `given.py`.
"""

from __future__ import annotations

import datetime
import json
import platform
from pathlib import Path

import numpy as np

from course.labs import load

HERE = Path(__file__).resolve().parent
VISION = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 24,
    "patch_size": 6, "projection_dim": 32,
}  # fmt: skip
TEXT = {
    "vocab_size": 100, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def llava():
    """transformers' model, with the weights of the capture."""
    import torch
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**VISION), text_config=LlamaConfig(**TEXT), image_token_index=99
    )
    model = LlavaForConditionalGeneration(config).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if "language_model" not in name and "lm_head" not in name:
                weight.normal_(0.0, 0.2 if weight.ndim > 1 else 0.5)
    return model


def hub_name(name: str) -> str:
    """A tensor's name in transformers 5 -> its name in LLaVA's checkpoints on the hub."""
    name = name.removeprefix("model.")
    if name.startswith("vision_tower.") and not name.startswith("vision_tower.vision_model."):
        name = "vision_tower.vision_model." + name.removeprefix("vision_tower.")
    return name


def expected(model, pixels: np.ndarray) -> np.ndarray:
    """Rows for the language model, float32 [N, tokens, text_hidden]."""
    import torch

    with torch.no_grad():
        found = model.model.get_image_features(pixel_values=torch.from_numpy(pixels))
    rows = getattr(found, "pooler_output", found)
    return np.stack([each.numpy() for each in rows])


def main() -> None:
    """Write both files."""
    import torch
    import transformers

    model, folder = llava(), HERE / "captured"
    arrays = {
        hub_name(name): tensor.numpy()
        for name, tensor in model.state_dict().items()
        if ("vision_tower" in name or "multi_modal_projector" in name) and tensor.dtype == torch.float32
    }
    rows = expected(model, load(HERE / "given.py").pictures())
    np.savez_compressed(folder / "llava_tiny.npz", expected=rows, **arrays)
    entry = {
        "machine": "x86-64 virtual machine, 2 cores",
        "device": "cpu",
        "date": datetime.date.today().isoformat(),
        "versions": {
            "python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "model": "LlavaForConditionalGeneration, weights drawn by capture.py",
        "commands": {"llava_tiny.npz": f"python {HERE.relative_to(HERE.parents[2]).as_posix()}/capture.py"},
        "edited": "no",
    }  # fmt: skip
    (folder / "provenance.json").write_text(json.dumps({"cpu": entry}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

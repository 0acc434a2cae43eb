"""pocket-vl in torch: the trainer's model is transformers' LLaVA, and it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.training.pocket_vl import layout
from models.training.pocket_vl.make_random import make_random

pytestmark = pytest.mark.needs_torch
FOLDER = Path(__file__).parent / "pocket-vl"


def library(folder: Path) -> Any:
    """transformers' model in float32; every tensor of the file has its place."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model, loading = transformers.LlavaForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(loading[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def test_the_trainers_model_is_the_librarys(tmp_path: Path) -> None:
    """Logits of two rows with three pictures, on random weights, through file and loader."""
    torch = pytest.importorskip("torch")
    from models.training.pocket_vl.evaluate import load

    make_random(tmp_path, seed=1)
    ours, theirs = load(tmp_path), library(tmp_path)
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(8, 300, (2, 160)))
    ids[0, 5:69] = ids[1, 3:67] = ids[1, 80:144] = layout.IMAGE_ID
    pixels = torch.from_numpy(rng.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8))
    normal = ((pixels.float() - ours.mean) / ours.std).permute(0, 3, 1, 2)
    with torch.no_grad():
        found, first = ours(ids, pixels)
        expected = theirs(input_ids=ids, pixel_values=normal).logits
        tower = theirs.model.vision_tower(normal).pooler_output
    assert (found - expected).abs().max() < 1e-4 < expected.abs().max()
    assert (first - tower).abs().max() < 1e-4


def test_training_learns_and_goes_on(tmp_path: Path) -> None:
    """Six steps lower the loss; a run of three that is resumed for three ends in the same weights."""
    torch = pytest.importorskip("torch")
    from models.training.pocket_vl.rows import make_batch, make_encoder
    from models.training.pocket_vl.train import Trainer, arguments

    encode, special = make_encoder(FOLDER)
    given = ["--out", str(tmp_path), "--device", "cpu"]
    whole, half = Trainer(arguments(given)), Trainer(arguments(given))
    losses = []
    for step in range(6):
        batch = make_batch(0, step, 6, 192, encode, special)
        losses.append(whole.update(batch, 2e-3)[0].item())
        if step == 3:
            torch.save(half.state(), tmp_path / "state.pt")
            half = Trainer(arguments([*given, "--resume", str(tmp_path / "state.pt")]))
            assert half.step == 3
        half.update(batch, 2e-3)
    assert losses[-1] < losses[0] - 1
    for ours, theirs in zip(whole.model.parameters(), half.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)

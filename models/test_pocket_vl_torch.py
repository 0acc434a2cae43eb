"""pocket-vl in torch: the trainer's model is transformers' LLaVA, it learns, and its figures are greedy decoding's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.tests.golden.packed import read_packed
from models.training.pocket_vl import layout, suites
from models.training.pocket_vl.make_random import make_random

pytestmark = pytest.mark.needs_torch
FOLDER = Path(__file__).parent / "pocket-vl"
GOLDEN = Path(__file__).parents[1] / "mini_vllm" / "tests" / "golden" / "pocket-vl.json.xz"


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
    """Six steps lower the loss; a run of three that is resumed for three ends with the same weights."""
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


@pytest.mark.parametrize(
    "names", [["digit", "count"], pytest.param(list(suites.MAKERS), marks=pytest.mark.slow)], ids=["two kinds", "all"]
)
def test_exact_answers_are_those_of_greedy_decoding(names: list[str]) -> None:
    """One pass over the expected answer says right exactly where decoding token by token gives that answer."""
    pytest.importorskip("torch")
    from models.training.pocket_vl.evaluate import answer, load, right
    from models.training.pocket_vl.rows import make_encoder

    model, cases = load(FOLDER), [case for name in names for case in suites.suite(name, 1)]
    false = [suites.Case(case.messages, case.expected + " No.", case.pictures) for case in cases[:2]]
    marks = right(model, cases + false, *make_encoder(FOLDER))
    assert marks == [answer(model, case, FOLDER) == case.expected for case in cases + false]
    assert sum(marks) > 0.8 * len(cases) and not any(marks[-2:])


def test_the_librarys_processor_makes_our_pixels_and_places() -> None:
    """`AutoProcessor` of the folder: pixels normalized as in training, 64 places for each picture, the chat's ids."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    image = pytest.importorskip("PIL.Image")
    from models.training.pocket_vl.evaluate import inputs, load
    from models.training.pocket_vl.rows import make_encoder

    processor, model = transformers.AutoProcessor.from_pretrained(FOLDER), load(FOLDER)
    for name in ("describe", "which"):
        case = suites.suite(name, 1)[0]
        content: list[dict[str, str]] = [{"type": "image"} for _ in case.pictures]
        content.append({"type": "text", "text": case.messages[0][1].replace("<image>", "").strip()})
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        made = processor(
            text=text,
            images=[image.fromarray(picture.pixels) for picture in case.pictures],
            add_special_tokens=False,
            return_tensors="pt",
        )
        ids, answers, pixels = inputs([case], *make_encoder(FOLDER))
        if not case.messages[0][1].endswith("<image>"):
            assert made["input_ids"][0].tolist() == ids[0, : int(answers[0].int().argmax())].tolist()
        normal = ((pixels[:-1].float() - model.mean) / model.std).permute(0, 3, 1, 2)
        assert torch.allclose(made["pixel_values"].float(), normal, atol=1e-5)


def test_the_library_gives_vllms_tokens() -> None:
    """60 answers of the real vLLM, token by token; at a tie of the two likeliest an engine may go the other way."""
    torch = pytest.importorskip("torch")
    from models.training.pocket_vl.evaluate import inputs, load
    from models.training.pocket_vl.rows import make_encoder

    golden = read_packed(GOLDEN)["answers"]
    ours, theirs, (encode, special) = load(FOLDER), library(FOLDER), make_encoder(FOLDER)
    for answer in golden[::3]:
        case = suites.suite(answer["suite"], answer["case"] + 1)[-1]
        ids, answers, pixels = inputs([case], encode, special)
        prompt = ids[:, : int(answers[0].int().argmax())]
        full = torch.cat((prompt, torch.tensor([answer["token_ids"]])), dim=1)
        normal = ((pixels[:-1].float() - ours.mean) / ours.std).permute(0, 3, 1, 2) if case.pictures else None
        with torch.no_grad():
            logits = theirs(input_ids=full, pixel_values=normal).logits[0, prompt.shape[1] - 1 : -1].log_softmax(-1)
        tokens = torch.tensor(answer["token_ids"])
        chosen = logits[torch.arange(len(tokens)), tokens]
        assert (logits.max(-1).values - chosen).max() < 1e-4, answer
        assert torch.allclose(chosen, torch.tensor(answer["logprobs"]), atol=1e-3), answer

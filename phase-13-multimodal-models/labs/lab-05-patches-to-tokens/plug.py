"""Lab 13-05 in the engine: your tower and projector in the place of the model's own `embed_multimodal`.

`LLM(..., with_labs="13-05")` asks `fit` for it. Weights come from the checkpoint's own files, under the lab's names.
Scheduler, caches and language model stay ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from course.labs import ROOT, load
from course.plugs.guards import Watch
from mini_vllm import LLM, SamplingParams
from mini_vllm.model_loader.safetensors_reader import Checkpoint
from models.training.pocket_vl.conversations import draw_number, draw_word
from models.training.pocket_vl.pictures import Picture

POCKET_VL = ROOT / "models" / "pocket-vl"
given = load(Path(__file__).with_name("given.py"))
Weights = dict[str, np.ndarray]


class LabTower:
    """The learner's `VisionTower`, called as the model's own `embed_multimodal` is; each answer is looked at."""

    def __init__(self, module: Any, watch: Watch, model: Any, weights: Weights) -> None:
        vision, self.watch = model.media.vision, watch
        self.shape = vision.num_patches, len(weights[f"{given.PROJECTOR}.linear_2.bias"])
        self.tower = watch.call(
            module.VisionTower, weights, patch_size=vision.patch_size, image_size=vision.image_size,
            num_heads=vision.num_attention_heads, num_layers=vision.num_hidden_layers, eps=vision.layer_norm_eps,
        )  # fmt: skip

    def __call__(self, *, pixel_values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """pixel_values: [3, size, size] for each picture. Returns [rows, H] for each."""
        pixels, require = np.stack(pixel_values), self.watch.require
        rows = self.watch.call(self.tower.embed_multimodal, pixels)
        require(np.array_equal(pixels, np.stack(pixel_values)), "embed_multimodal changed the pixels that it was given")
        wanted = len(pixels), *self.shape
        require(np.shape(rows) == wanted, f"embed_multimodal returned shape {np.shape(rows)}, wanted {wanted}")
        kind = getattr(rows, "dtype", type(rows).__name__)
        require(kind == np.float32, f"embed_multimodal returned {kind}, wanted float32")
        require(np.isfinite(rows).all(), "embed_multimodal returned NaN or infinity")
        promised = self.watch.call(self.tower.num_tokens, *pixels.shape[2:])
        said = f"num_tokens promised {promised} rows for {pixels.shape[2]} x {pixels.shape[3]} pixels, and"
        require(promised == self.shape[0], f"{said} embed_multimodal gave {self.shape[0]}")
        return list(rows)


def read_weights(model: Any, folder: Path) -> Weights:
    """The tensors of tower and projector, float32, under the lab's names whatever the checkpoint calls them. A file may
    leave out the last layer and its norm, which nobody needs: a lab may read them, and whoever uses them gets NaN."""
    found: Weights = {}
    with Checkpoint(folder) as checkpoint:
        for name in sorted(checkpoint.names()):
            own = model.names.own(name)
            if own.startswith("vision_tower."):
                own = own.replace("vision_tower", given.TOWER, 1)
            if own.startswith((given.TOWER, given.PROJECTOR)):
                found[own] = np.asarray(checkpoint.read(name), np.float32)
    last = f"encoder.layers.{model.media.vision.num_hidden_layers - 1}."
    unread: Weights = {}
    for like, name in (("encoder.layers.0.", last), ("pre_layrnorm", "post_layernorm")):
        of_it = {each: array for each, array in found.items() if each.startswith(f"{given.TOWER}.{like}")}
        unread |= {each.replace(like, name): np.full_like(array, np.nan) for each, array in of_it.items()}
    return unread | found


def unlike(model: Any, config: Any) -> str:
    """What about this model the lab knows nothing of, "" where it can be served."""
    if (kind := type(model).__name__) != "LlavaForConditionalGeneration":
        return kind
    media = model.media
    for name, value, wanted in (
        ("model_type", media.vision.model_type, "clip_vision_model"),
        ("hidden_act", media.vision.hidden_act, "quick_gelu"),
        ("projector_hidden_act", media.projector_hidden_act, "gelu"),
        ("multimodal_projector_bias", media.multimodal_projector_bias, True),
        ("vision_feature_select_strategy", media.vision_feature_select_strategy, "default"),
        ("layers of the tower", media.num_vision_layers, media.vision.num_hidden_layers - 1),
        ("ec_transfer_config.ec_connector", getattr(config.ec_transfer_config, "ec_connector", None), None),
    ):
        if value != wanted:
            return f"{name}={value!r}"
    return ""


def fit(
    module: Any, watch: Watch, ours: Callable[[str], object], change: Callable[[Weights], Weights] = lambda same: same
) -> Callable[[Any, str | None, Any], Callable[..., Sequence[Any]]]:
    """(model, its folder, config) -> the learner's tower with the checkpoint's weights, which `change` may change; or
    ours where hers does not apply, and `ours` is told why."""

    def vision_tower(model: Any, folder: str | None, config: Any) -> Callable[..., Sequence[Any]]:
        if why := "models without a checkpoint" if folder is None else unlike(model, config):
            ours(why)
            return model.embed_multimodal
        return LabTower(module, watch, model, change(read_weights(model, Path(str(folder)))))

    return vision_tower


QUESTIONS: dict[str, tuple[str, Callable[[np.random.Generator], Picture]]] = {
    "words": ("What word is written?", draw_word),
    "digits": ("What digit do you see?", lambda rng: draw_number(rng, 1)),
}


def pictures(kind: str, count: int) -> list[Picture]:
    """Of a seed of this lab's own."""
    return [QUESTIONS[kind][1](np.random.default_rng([1305, number])) for number in range(count)]


def prompt(question: str, *shown: Picture) -> dict[str, Any]:
    """A question about pictures, as pocket-vl takes it."""
    text = f"<|user|>\n{'<image>' * len(shown)}\n{question}<|end|>\n<|assistant|>\n"
    return {"prompt": text, "multi_modal_data": {"image": [picture.pixels for picture in shown]}}


def serves(parts: Any) -> None:
    """What a milestone checks: the encoder cache holds the same rows as with the model's own tower, and pocket-vl says
    the same about the pictures."""
    prompts = [prompt(QUESTIONS[kind][0], each) for kind in QUESTIONS for each in pictures(kind, 4)]
    found = []
    for its_parts in (None, parts):
        llm = LLM(POCKET_VL, with_labs=its_parts, num_blocks=200, dtype="float64")
        outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=12), use_tqdm=False)
        cache = dict(llm.llm_engine.engine_core.model_runner.encoder.encoder_cache)
        found.append((cache, [output.outputs[0].text for output in outputs]))
    (theirs, answers), (mine, said) = found
    worst = max(float(np.abs(mine[name] - theirs[name]).max()) for name in theirs)
    assert worst < 2e-4, f"a row for the language model is {worst:.2g} off the model's own"
    for answer, text in zip(answers, said, strict=True):
        assert text == answer, f"pocket-vl says {text!r} where it says {answer!r} with its own tower"


def drawing(picture: Picture) -> list[str]:
    """A word or a digit in lines of a terminal, two rows of pixels in each."""
    grey = picture.pixels.astype(np.float64).mean(axis=-1)
    ink = np.abs(grey - np.median(grey)) > np.abs(grey - np.median(grey)).max() / 2
    rows, columns = (np.flatnonzero(ink.any(axis=axis)) for axis in (1, 0))
    cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    cut = np.pad(cut, ((0, len(cut) % 2), (0, 0)))
    pairs = zip(cut[::2], cut[1::2], strict=True)
    return ["".join(" ▀▄█"[up + 2 * low] for up, low in zip(*pair, strict=True)).rstrip() for pair in pairs]


def show(row: dict[str, Any], console: Any) -> dict[str, Any]:
    """Draws the picture of a payoff (a row of `course/plugs.toml`) and gives the question about it."""
    picture = pictures(row["picture"], 2)[-1]
    console.print("\n".join(drawing(picture)), markup=False, highlight=False)
    return prompt(row["ask"], picture)

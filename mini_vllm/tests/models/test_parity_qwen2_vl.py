"""Qwen2-VL beside transformers: patches, positions of three parts, logits, and greedy tokens."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.needs_torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")
Image = pytest.importorskip("PIL.Image")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from mini_vllm import LLM, SamplingParams  # noqa: E402  # needs torch
from mini_vllm.multimodal.image import to_rgb  # noqa: E402
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange  # noqa: E402
from mini_vllm.tests.multimodal.tiny_qwen2_vl import CONFIG, FILMS, IMAGE, IMAGES, TEXT, VIDEO, VISION  # noqa: E402
from mini_vllm.transformers_utils.configs.qwen2_vl import Qwen2VLVisionConfig  # noqa: E402
from mini_vllm.transformers_utils.processors.qwen2_vl import Qwen2VLImageProcessor, smart_resize  # noqa: E402

# two pictures without a token between them are one run for transformers, which then is lost
PROMPTS = [([1, 5, IMAGE, 7, 8], [0]), ([1, IMAGE, 9, IMAGE, 4], [1, 2]), ([3, IMAGE, 5, IMAGE, 6, IMAGE], [3, 0, 1])]
TEXT_ALONE = [1, 2, 3, 4, 5]
FILMS_AND_PICTURES: list[tuple[list[int], list[int], list[int]]] = [
    ([1, 5, VIDEO, 7], [], [0]), ([1, VIDEO, 2, IMAGE, 4, VIDEO, 5], [1], [1, 0]),
]  # fmt: skip
NUM_TOKENS = 12
processor_class = getattr(transformers, "Qwen2VLImageProcessorPil", None) or transformers.Qwen2VLImageProcessor


@pytest.fixture(scope="module", params=[{}, {"tie_word_embeddings": True}], ids=["plain", "tied"])
def pair(request: Any, tmp_path_factory: Any) -> tuple[Any, Any, Any]:
    """(transformers' model, its processor, the engine), of weights drawn here."""
    folder = tmp_path_factory.mktemp("qwen2_vl")
    torch.manual_seed(3)
    whole = {key: value for key, value in CONFIG.items() if key.endswith("_id")}
    config = transformers.Qwen2VLConfig(text_config=dict(TEXT), vision_config=dict(VISION), **whole, **request.param)
    reference = transformers.Qwen2VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_(0, 0.2 if parameter.dim() > 1 else 0.5)
    reference.save_pretrained(folder)
    processor = processor_class()
    processor.save_pretrained(folder)
    # the film lasts no longer than a frame's larger side: see `get_mrope_input_positions`
    sizes = {"size": {"shortest_edge": 784 * 9, "longest_edge": 784 * 16}}
    (folder / "video_preprocessor_config.json").write_text(json.dumps(sizes))
    return reference, processor, LLM(str(folder), skip_tokenizer_init=True, num_blocks=100)


def ask(reference: Any, processor: Any, tokens: list[int], images: list[int]) -> Any:
    """transformers' logits [tokens, vocabulary] for a prompt with its placeholders."""
    ids, given = torch.tensor([tokens]), {}
    if images:
        given = dict(processor([Image.fromarray(IMAGES[i]) for i in images], return_tensors="pt"))
        given["mm_token_type_ids"] = (ids == IMAGE).int()
    with torch.no_grad():
        return reference(input_ids=ids, **given).logits[0]


def test_the_tokens_are_those_of_transformers(pair: Any) -> None:
    """Each beside the others."""
    reference, processor, llm = pair
    prompts: list[Any] = [
        {"prompt_token_ids": tokens, "multi_modal_data": {"image": [IMAGES[i] for i in images]}}
        for tokens, images in PROMPTS
    ]
    no_marker = {IMAGE: -1000.0, VIDEO: -1000.0}  # transformers would want a picture for it
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logit_bias=no_marker)
    outputs = llm.generate([*prompts, TEXT_ALONE], params, use_tqdm=False)
    for images, output in zip([*(images for _, images in PROMPTS), []], outputs, strict=True):
        tokens = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        said = ask(reference, processor, tokens, images)[len(output.prompt_token_ids) - 1 : -1]
        said[:, [IMAGE, VIDEO]] = -np.inf
        best = said.topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > 1e-4, "a choice too close to call: take another seed"
        assert said.argmax(-1).tolist() == list(output.outputs[0].token_ids)


def plain_logits(llm: Any, tokens: list[int], images: list[int], films: Sequence[int] = ()) -> Any:
    """Those of the model without an engine around it: one request, no cache."""
    engine = llm.llm_engine
    model = engine.engine_core.model
    data = {"image": [IMAGES[i] for i in images], "video": [FILMS[i] for i in films]}
    ids, features = engine.input_processor.multimodal.processor.apply(tokens, data)
    embeds: Any = [model.embed_multimodal(**{key: [each.data[key]] for key in each.data})[0] for each in features]
    rows = model.embed_input_ids(np.array(ids), embeds, is_multimodal=np.isin(ids, [IMAGE, VIDEO]))
    positions, _ = model.get_mrope_input_positions(ids, features)
    return ids, model.compute_logits(model.forward(None, positions, attend, rows))


def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1]) + np.triu(np.full((len(q),) * 2, -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
    return out.reshape(len(q), -1).astype(q.dtype)


@pytest.mark.parametrize(("tokens", "images"), [*PROMPTS, (TEXT_ALONE, [])])
def test_the_logits_are_those_of_transformers(pair: Any, tokens: list[int], images: list[int]) -> None:
    reference, processor, llm = pair
    ids, logits = plain_logits(llm, tokens, images)
    assert logits.dtype == np.float32
    expected = ask(reference, processor, ids, images).numpy()
    assert np.abs(logits - expected).max() <= 1e-4


@pytest.mark.parametrize(("tokens", "images", "films"), FILMS_AND_PICTURES)
def test_the_logits_of_films_are_those_of_transformers(
    pair: Any, tokens: list[int], images: list[int], films: list[int]
) -> None:
    """Patches of films are ours: transformers' need torchvision, under which they are recorded (`test_video.py`)."""
    reference, processor, llm = pair
    ids, logits = plain_logits(llm, tokens, images, films)
    data = {"image": [IMAGES[i] for i in images], "video": [FILMS[i] for i in films]}
    _, features = llm.llm_engine.input_processor.multimodal.processor.apply(tokens, data)
    whole = [each.data for each in features if each.modality == "video"]
    given = dict(processor([Image.fromarray(IMAGES[i]) for i in images], return_tensors="pt")) if images else {}
    given["pixel_values_videos"] = torch.from_numpy(np.concatenate([each["pixel_values_videos"] for each in whole]))
    given["video_grid_thw"] = torch.from_numpy(np.stack([each["video_grid_thw"] for each in whole]))
    assert max(int(each["video_grid_thw"][0]) for each in whole) == 3
    types = torch.tensor([[1 if token == IMAGE else 2 if token == VIDEO else 0 for token in ids]])
    with torch.no_grad():
        expected = reference(input_ids=torch.tensor([ids]), mm_token_type_ids=types, **given).logits[0].numpy()
    assert np.abs(logits - expected).max() <= 1e-4


def test_the_positions_of_films_are_those_of_transformers_where_they_are_short(pair: Any) -> None:
    """Where a film has more pairs of frames than a frame has squares on its larger side, transformers goes on from a
    number that the film has used already."""
    reference, _, llm = pair
    model = llm.llm_engine.engine_core.model
    for t, h, w in ((1, 2, 2), (3, 4, 6), (3, 2, 6), (2, 4, 2), (5, 4, 6)):
        squares = t * h * w // 4
        tokens = [1, 2, *[VIDEO] * squares, 3, 4]
        feature = MultiModalFeatureSpec(
            {"video_grid_thw": np.array([t, h, w])}, "video", "a", PlaceholderRange(2, squares)
        )
        ids = torch.tensor([tokens])
        positions, delta = model.get_mrope_input_positions(tokens, [feature])
        expected, expected_delta = reference.model.get_rope_index(
            ids, mm_token_type_ids=(ids == VIDEO).int() * 2, video_grid_thw=torch.tensor([[t, h, w]])
        )
        behind = t - max(h, w) // 2
        same = len(tokens) if behind <= 0 else len(tokens) - 2
        np.testing.assert_array_equal(positions[:, :same], expected[:, 0, :same].numpy())
        assert (positions[:, same:] - expected[:, 0, same:].numpy() == behind).all()
        assert delta == int(expected_delta) or behind > 0


def test_the_positions_are_those_of_transformers(pair: Any) -> None:
    """Pictures beside each other, at the beginning, at the end, wide and tall ones."""
    reference, _, llm = pair
    model = llm.llm_engine.engine_core.model
    rng = np.random.default_rng(1)
    for count in (0, 1, 2, 5):
        tokens, features, grids = [], [], []
        for number in range(count):
            tokens += [1] * int(rng.integers(0, 4))
            h, w = (2 * int(side) for side in rng.integers(1, 6, 2))
            where = PlaceholderRange(len(tokens), h * w // 4)
            grids.append([1, h, w])
            features.append(MultiModalFeatureSpec({"image_grid_thw": np.array([1, h, w])}, "image", str(number), where))
            tokens += [IMAGE] * where.length + [2]
        ids = torch.tensor([tokens or [1, 2]])
        positions, delta = model.get_mrope_input_positions(ids[0].tolist(), features)
        expected, expected_delta = reference.model.get_rope_index(
            ids, mm_token_type_ids=(ids == IMAGE).int(), image_grid_thw=torch.tensor(grids) if grids else None
        )
        np.testing.assert_array_equal(positions, expected[:, 0].numpy())
        assert delta == int(expected_delta)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_the_patches_are_those_of_transformers(mode: str, tmp_path: Path) -> None:
    for settings in ({}, {"min_pixels": 28 * 28 * 16, "max_pixels": 28 * 28 * 20}):
        processor = processor_class(**settings)
        processor.save_pretrained(tmp_path)
        ours = Qwen2VLImageProcessor.from_folder(tmp_path, Qwen2VLVisionConfig.from_dict(VISION))
        for pixels in [*IMAGES, np.random.default_rng(3).integers(0, 256, (3, 500, 3), dtype=np.uint8)]:
            image = Image.fromarray(pixels).convert(mode)
            expected = processor(image, return_tensors="np")
            patches, grid = ours(to_rgb(image))
            assert list(grid) == expected["image_grid_thw"][0].tolist()
            assert patches.shape == expected["pixel_values"].shape
            assert np.abs(patches - expected["pixel_values"]).max() < 1e-3
            assert np.prod(grid) // 4 <= ours.max_image_tokens


def test_sizes_are_those_of_transformers() -> None:
    theirs = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl").smart_resize
    rng = np.random.default_rng(0)
    for _ in range(300):
        height, width = (int(2 ** rng.uniform(0, 12)) for _ in range(2))
        least = int(rng.integers(1, 200)) * 784
        case = height, width, 28, least, least + int(rng.integers(0, 300)) * 784
        if max(height, width) > 200 * min(height, width):
            with pytest.raises(ValueError, match="absolute aspect ratio must be smaller than 200"):
                smart_resize(*case)
            continue
        assert smart_resize(*case) == theirs(*case)
        made = SimpleNamespace(values={"min_pixels": case[3], "max_pixels": case[4]}, factor=28)
        most = Qwen2VLImageProcessor.max_image_tokens.fget(made)  # type: ignore[attr-defined]
        assert np.prod(smart_resize(*case)) // 784 <= most

"""Films: frames, pixels and positions as recorded from the real release, and what a prompt may give."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.models.qwen2_vl import Qwen2VLForConditionalGeneration
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.multimodal.media.connector import merge_media_io_kwargs
from mini_vllm.multimodal.parse import parse_items
from mini_vllm.multimodal.video import (
    MAX_VIDEO_PIXELS,
    VideoSourceMetadata,
    VideoTargetMetadata,
    sample_by_duration,
    sample_uniformly,
)
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.golden.record_video import FILE, SIZES, film
from mini_vllm.tests.golden.record_video import FILMS as RECORDED_FILMS
from mini_vllm.tests.multimodal.tiny_qwen2_vl import FILMS, IMAGE, IMAGES, VIDEO, prompt, save_tiny_qwen2_vl
from mini_vllm.transformers_utils.configs.qwen2_vl import Qwen2VLVisionConfig
from mini_vllm.transformers_utils.processors.qwen2_vl import Qwen2VLVideoProcessor

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
VISION = Qwen2VLVisionConfig(2, 32, 48, 2, 2, 4, 2, 2)


@pytest.fixture(scope="module")
def recorded():
    return read_packed(FILE)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_qwen2_vl(tmp_path_factory.mktemp("qwen2_vl"))


@pytest.fixture(scope="module")
def llm(tiny):
    settings = {"num_blocks": 100, "block_size": 4, "limit_mm_per_prompt": {"video": 2}}
    return LLM(str(tiny), skip_tokenizer_init=True, **settings)


def tokens_of(llm, *prompts):
    return [list(one.outputs[0].token_ids) for one in llm.generate(list(prompts), GREEDY, use_tqdm=False)]


def test_the_frames_are_those_that_the_real_release_looks_at(recorded):
    for (source, target, fps), uniform, dynamic in recorded["sampling"]:
        there, wanted = VideoSourceMetadata(*source), VideoTargetMetadata(*target)
        assert sample_uniformly(there, wanted._replace(fps=fps)) == uniform
        assert sample_by_duration(there, wanted) == (dynamic or [0])
    assert sum(len(dynamic) > 1 for *_, dynamic in recorded["sampling"]) > 90


@pytest.mark.parametrize("index", range(len(RECORDED_FILMS)))
def test_the_pixels_are_those_of_transformers(recorded, index, tmp_path):
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(SIZES))
    processor = Qwen2VLVideoProcessor.from_folder(tmp_path, VISION)
    patches, grid = processor(film(index))
    expected_grid, text = recorded["pixels"][index]
    assert list(grid) == expected_grid
    mean, std = (np.array(processor.values[key])[:, None] for key in ("image_mean", "image_std"))
    got = np.rint((patches.reshape(-1, 3, 32) * std + mean) * 255)
    expected = np.frombuffer(bytes.fromhex(text), np.uint8).reshape(got.shape).astype(int)
    assert np.abs(got - expected).max() <= 1


def test_the_positions_are_those_of_the_real_release(recorded):
    model = SimpleNamespace(visual=SimpleNamespace(spatial_merge_size=2))
    for size, items, positions, delta in recorded["positions"]:
        features = [
            MultiModalFeatureSpec(
                {f"{modality}_grid_thw": np.array(grid)}, modality, "a", PlaceholderRange(offset, np.prod(grid) // 4)
            )
            for modality, offset, grid in items
        ]
        got = Qwen2VLForConditionalGeneration.get_mrope_input_positions(model, [1] * size, features)
        assert (got[0].tolist(), got[1]) == (positions, delta)


def test_a_film_may_be_an_array_or_a_list_of_pictures(llm):
    whole, tokens = FILMS[0], [1, VIDEO, 7]
    process = llm.llm_engine.input_processor.multimodal.process
    ids, (expected,) = process(prompt(tokens, films=[0]), tokens)
    assert ids == [1, *[VIDEO] * 6, 7]
    for given in (whole, list(whole), tuple(whole), [list(whole)], whole[None], (whole, {"fps": 2.0}), [(whole, None)]):
        _, (feature,) = process({"multi_modal_data": {"video": given}}, tokens)
        for key in ("pixel_values_videos", "video_grid_thw"):
            assert np.array_equal(feature.data[key], expected.data[key])
    backwards = {"prompt_token_ids": tokens, "multi_modal_data": {"video": whole[::-1].copy()}}
    first, other = tokens_of(llm, prompt(tokens, films=[0]), backwards)
    assert first != other
    assert [len(parse_items("video", given)) for given in (None, [], [None], [whole, whole])] == [0, 0, 1, 2]


def test_blocks_of_a_film_are_found_by_its_contents(llm):
    tokens = [1, 2, 3, VIDEO, 7, 8, 9, 4]
    first, again, other = (
        llm.generate({"prompt_token_ids": tokens, "multi_modal_data": {"video": each}}, GREEDY, use_tqdm=False)[0]
        for each in (FILMS[0] ^ 1, FILMS[0] ^ 1, FILMS[0] ^ 2)
    )
    assert first.outputs[0].token_ids == again.outputs[0].token_ids
    assert (first.num_cached_tokens, again.num_cached_tokens, other.num_cached_tokens) == (0, 12, 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            FILMS[0][0],
            r"video'\]\[0\] must be an array \[frames, height, width, 3\] of uint8, got uint8 of shape \(56, 84",
        ),
        (FILMS[0].astype(float), "of uint8, got float64"),
        ([IMAGES[0], IMAGES[1]], r"must have frames of one size, got \[\(56, 56\), \(100, 50\)\]"),
        ([[]], "must have from 1 to .* pixels in all frames, got 0 frames"),
        ([["a.gif"]], r"video'\]\[0\]\[0\] must be a picture of PIL or an array"),
        ("a.gif", r"must be an array .* or a list of pictures, got 'a.gif'"),
        (
            np.broadcast_to(np.uint8(0), (MAX_VIDEO_PIXELS // 10_000 + 1, 100, 100, 3)),
            "pixels in all frames, got 26,844 frames of 100 rows of 100",
        ),
        ([FILMS[1]] * 3, r"At most 2 video\(s\) may be provided in one prompt"),
        ([], "Expected there to be 0 prompt placeholders corresponding to 0 video items, but instead found 1"),
        ([None], r"multi_modal_data\['video'\]\[0\] is empty but multi_modal_uuids\['video'\]\[0\] is missing"),
    ],
)
def test_what_is_no_film_is_refused_by_name(llm, given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        llm.generate({"prompt_token_ids": [1, VIDEO], "multi_modal_data": {"video": given}}, GREEDY)


def test_a_film_that_the_encoder_has_no_room_for_is_refused_by_its_size(tiny):
    llm = LLM(str(tiny), skip_tokenizer_init=True, num_blocks=100, max_num_batched_tokens=16, max_num_seqs=4,
              max_model_len=128, mm_processor_kwargs={"max_pixels": 784 * 2, "min_pixels": 784})  # fmt: skip
    films = np.zeros((2, 56, 28, 3), np.uint8), np.zeros((142, 56, 28, 3), np.uint8)
    prompts = [{"prompt_token_ids": [1, VIDEO, 2], "multi_modal_data": {"video": each}} for each in films]
    (output,) = llm.generate(prompts[:1], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == [1, VIDEO, VIDEO, 2]
    processor = llm.llm_engine.input_processor.multimodal.processor
    assert processor.get_mm_max_tokens_per_item() == {"image": 20, "video": 20 * 7}
    with pytest.raises(ValueError, match=r"has a\(n\) video item with 142 embeddings, more than .* room for \(140\)"):
        llm.generate(prompts[1], GREEDY)


def test_a_request_that_says_one_of_frames_and_rate_has_not_the_other_one_of_the_engine():
    engine = {"video": {"num_frames": 8, "fps": 2}, "image": {"rgba_background_color": [1, 2, 3]}}
    for given, expected in (
        ({"num_frames": 4}, {"num_frames": 4}),
        ({"fps": 1}, {"fps": 1}),
        ({"fps": 1, "num_frames": 4}, {"fps": 1, "num_frames": 4}),
        ({"max_duration": 3}, {"num_frames": 8, "fps": 2, "max_duration": 3}),
    ):
        merged = merge_media_io_kwargs(engine, {"video": given})
        assert merged == {"video": expected, "image": engine["image"]}


def test_settings_of_films_are_read_from_their_file_or_from_that_of_pictures(tmp_path):
    def size_of():
        values = Qwen2VLVideoProcessor.from_folder(tmp_path, VISION).values
        return values["min_pixels"], values["max_pixels"]

    assert size_of() == (128 * 28 * 28, 28 * 28 * 768)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"min_pixels": 64, "max_pixels": 640}))
    assert size_of() == (64, 640)
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps({"size": {"shortest_edge": 128}}))
    assert size_of() == (128, 28 * 28 * 768)
    whole = {"image_processor": {}, "video_processor": {"cap_pixels_per_frame": True, "max_video_tokens": 10}}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    processor = Qwen2VLVideoProcessor.from_folder(tmp_path, VISION, {"min_pixels": 64, "max_pixels": 6400})
    # nine tenths of ten squares of 64 pixels, for patches of two frames each
    assert [processor.max_pixels(n) for n in (1, 2, 4, 1000)] == [1152, 576, 288, 67]
    for key, value in (("do_sample_frames", True), ("video_processor_type", "Other"), ("frames", 2)):
        whole["video_processor"] = {key: value}
        (tmp_path / "processor_config.json").write_text(json.dumps(whole))
        with pytest.raises(ValueError, match=f"processor_config.json: .*{key}"):
            size_of()


def test_an_image_token_is_no_place_for_a_film(llm):
    with pytest.raises(ValueError, match="corresponding to 1 video items, but instead found 0"):
        llm.generate({"prompt_token_ids": [1, IMAGE], "multi_modal_data": {"video": FILMS[0]}}, GREEDY)

"""What LLaVA refuses, and by which words: configs, settings, pictures, names of pictures."""

import json

import numpy as np
import pytest

from mini_vllm.tests.multimodal.test_llava import GREEDY, PROMPTS, make, tokens_of
from mini_vllm.tests.multimodal.tiny_llava import CONFIG, IMAGE, IMAGES, TEXT, VISION, save_tiny_llava
from mini_vllm.transformers_utils.config_parser import ConfigError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def alone(tiny):
    """Each prompt on its own."""
    llm = make(tiny, enable_prefix_caching=False)
    return [tokens_of(llm, [one])[0] for one in PROMPTS]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_config": {**TEXT, "model_type": "nobody"}}, "one architecture, or a model_type among"),
        ({"text_config": None}, "must have text_config"),
        ({"vision_config": {"model_type": "vit"}}, "model_type must be 'clip_vision_model' or 'siglip_vision_model'"),
        ({"vision_config": {**VISION, "patch_size": 7}}, r"image_size \(24\) must be a multiple of patch"),
        ({"vision_config": {**VISION, "depth": 7}}, "vision_config: unknown key 'depth'"),
        ({"vision_config": {**VISION, "image_size": 1 << 20}}, "image_size must be a whole number"),
        ({"image_token_index": 100}, r"image_token_index must be a token id below text_config's vocab_size \(100\)"),
        ({"image_token_index": None}, "image_token_index must be a token id"),
        ({"image_token_id": 98}, r"image_token_index must be a token id .* got \[98, 99\]"),
        ({"vision_feature_layer": 4}, "vision_feature_layer must be one of the tower's 3 layers, got 4"),
        ({"vision_feature_layer": [-2, -5]}, "vision_feature_layer must be a whole number"),
        ({"vision_feature_select_strategy": "some"}, "vision_feature_select_strategy must be 'default' or"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config must be null"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is true, and text_config says that it is not"),
        ({"mystery": 1}, "unknown key 'mystery'"),
    ],
)
def test_a_config_that_is_wrong_is_refused_by_name(change, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ConfigError, match=message):
        make(tmp_path)


@pytest.fixture(scope="module")
def llm(tiny):
    return make(tiny, limit_mm_per_prompt={"image": 3})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"image": [IMAGES[0], IMAGES[1]]}, "Expected there to be 2 prompt placeholders .* 2 image items, .* found 1"),
        ({"image": []}, "Expected there to be 0 prompt placeholders corresponding to 0 image items, .* found 1"),
        ({"image": [IMAGES[0]] * 4}, r"At most 3 image\(s\) may be provided in one prompt\.$"),
        ({"image": "a.png"}, r"multi_modal_data\['image'\]\[0\] must be a picture of PIL or an array .* got 'a.png'"),
        ({"image": IMAGES[0].astype(float)}, r"of uint8, got float64 of shape \(24, 24, 3\)"),
        ({"image": np.zeros((3, 24, 24), np.uint8)}, r"of uint8, got uint8 of shape \(3, 24, 24\)"),
        ({"image": np.zeros((0, 24, 3), np.uint8)}, "must have from 1 to 89,478,485 pixels, got 0 rows of 24"),
        ({"image": np.broadcast_to(np.uint8(0), (10_000, 10_000, 3))}, "got 10,000 rows of 10,000"),
        (
            {"image": np.broadcast_to(np.uint8(0), (9_000_000, 1, 3))},
            "image of 9,000,000 x 1 pixels is too narrow: with 24",
        ),
        ({"image": None}, "Expected there to be 0 prompt placeholders"),
        ({"image": [None]}, r"\['image'\]\[0\] is empty but multi_modal_uuids\['image'\]\[0\] is missing"),
        ({"video": []}, r"multi_modal_data may have \['image'\], got 'video'"),
    ],
)
def test_pictures_that_cannot_be_served_are_refused_at_the_door(llm, given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        llm.generate({"prompt_token_ids": [1, IMAGE, 2], "multi_modal_data": given}, GREEDY)


def test_one_picture_needs_no_list_and_a_text_of_markers_alone_is_text(llm, alone):
    one = {"prompt_token_ids": PROMPTS[0]["prompt_token_ids"], "multi_modal_data": {"image": IMAGES[0]}}
    assert tokens_of(llm, [one]) == alone[:1]
    assert len(llm.generate([1, IMAGE, 2], GREEDY, use_tqdm=False)[0].prompt_token_ids) == 3


def test_grey_pictures_are_three_times_the_same(llm):
    grey = np.arange(24 * 24, dtype=np.uint8).reshape(24, 24)
    pictures = grey, np.stack([grey] * 3, -1)
    first, second = tokens_of(
        llm, [{"prompt_token_ids": [1, IMAGE], "multi_modal_data": {"image": each}} for each in pictures]
    )
    assert first == second


def test_a_name_stands_for_a_picture_that_has_been_seen(tiny, alone):
    llm = make(tiny)
    named = {**PROMPTS[0], "multi_modal_uuids": {"image": "cat"}}
    unseen = {**named, "multi_modal_data": {"image": [None]}}
    with pytest.raises(ValueError, match="Cache miss for image at index 0 but data is not provided"):
        llm.generate(unseen, GREEDY)
    assert tokens_of(llm, [named]) == alone[:1] == tokens_of(llm, [unseen])
    for uuids, message in (
        ({"image": ["cat", "dog"]}, r"must have same length as multi_modal_data\['image'\], but got 2 vs 1"),
        ({"image": 5}, r"multi_modal_uuids\['image'\] must be a text that is not empty, or a list"),
        ({"image": [""]}, r"multi_modal_uuids\['image'\] must be a text that is not empty, or a list"),
        (5, "multi_modal_uuids must be a dict"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            llm.generate({**named, "multi_modal_uuids": uuids}, GREEDY)


def test_a_hash_as_a_name_does_not_give_another_s_picture(tiny, alone):
    llm = make(tiny)
    assert tokens_of(llm, PROMPTS[:1]) == alone[:1]
    processor = llm.llm_engine.input_processor.multimodal.processor
    _, (feature,) = processor.apply(PROMPTS[0]["prompt_token_ids"], PROMPTS[0]["multi_modal_data"])
    stolen = {**PROMPTS[0], "multi_modal_uuids": {"image": feature.mm_hash}}
    with pytest.raises(ValueError, match="Cache miss for image at index 0"):
        llm.generate({**stolen, "multi_modal_data": {"image": [None]}}, GREEDY)
    other = {**PROMPTS[1], "multi_modal_uuids": {"image": feature.mm_hash}}
    assert tokens_of(llm, [other, PROMPTS[0]]) == [alone[1], alone[0]]


def test_the_processor_is_asked_once_for_a_picture_and_other_settings_make_another_picture(tiny):
    llm = make(tiny)
    other = {**PROMPTS[1], "mm_processor_kwargs": {"image_mean": [0.1, 0.2, 0.3]}}
    first, second = tokens_of(llm, [PROMPTS[1], other])
    assert first != second
    tokens_of(llm, PROMPTS[:2])
    cache = llm.llm_engine.input_processor.multimodal.processor.cache
    assert (cache.make_stats().hits, cache.make_stats().total) == (1, 4)
    with pytest.raises(ValueError, match="mm_processor_kwargs: unknown key 'means'"):
        llm.generate({**PROMPTS[1], "mm_processor_kwargs": {"means": 1}}, GREEDY)
    for key in ("image", "model_id", "cls", 1):
        with pytest.raises(ValueError, match=f"mm_processor_kwargs: unknown key {key!r}"):
            llm.generate({**PROMPTS[1], "mm_processor_kwargs": {key: 1, "do_resize": True}}, GREEDY)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit_mm_per_prompt": {"image": -1}}, r"limit_mm_per_prompt\['image'\] must be at least 0, got -1"),
        ({"limit_mm_per_prompt": {"smell": 1}}, r"limit_mm_per_prompt may have \['image', 'video', 'audio'\]"),
        ({"mm_processor_cache_gb": -1}, "mm_processor_cache_gb must be a number of GiB of at least 0, got -1"),
        ({"mm_processor_cache_type": "shm"}, r"mm_processor_cache_type must be one of \('lru',\), got 'shm'"),
        ({"mm_encoder_tp_mode": "both"}, r"mm_encoder_tp_mode must be one of \('weights', 'data'\), got 'both'"),
        ({"allowed_local_media_path": "/nope"}, "The path /nope does not exist"),
        ({"mm_processor_kwargs": {"crop_size": 25}}, "must give pictures of 24 x 24 pixels, which the tower"),
        ({"enable_mm_embeds": True}, "enable_mm_embeds must be unset"),
    ],
)
def test_settings_that_are_wrong_are_refused_by_name(settings, message, tiny):
    with pytest.raises(ValueError, match=message):
        make(tiny, **settings)


def test_no_pictures_at_all(tiny, alone):
    for settings in ({"limit_mm_per_prompt": {"image": 0}}, {"language_model_only": True}):
        llm = make(tiny, **settings)
        with pytest.raises(ValueError, match=r"At most 0 image\(s\) may be provided in one prompt."):
            tokens_of(llm, PROMPTS[:1])
        assert tokens_of(llm, [PROMPTS[4]]) == [alone[4]]


def test_the_language_part_may_be_stored_in_eight_bits(tiny):
    llm = make(tiny, quantization="int8")
    assert len(tokens_of(llm)) == len(PROMPTS)
    model = llm.llm_engine.engine_core.model
    assert not model.model.layers[0].mlp.down_proj.is_unquantized
    assert model.vision_tower.layers[0].mlp.fc1.is_unquantized

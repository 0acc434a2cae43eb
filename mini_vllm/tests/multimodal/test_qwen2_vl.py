"""Qwen2-VL through `LLM.generate`: whoever is served beside others, in chunks or after a preemption gets the tokens
that it gets alone; what is wrong in its files is refused by name."""

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.distributed.shared_memory import is_supported
from mini_vllm.model_loader.random_checkpoint import write_safetensors
from mini_vllm.model_loader.safetensors_reader import Checkpoint
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.tests.multimodal.tiny_qwen2_vl import (
    AS_ON_THE_HUB,
    CONFIG,
    IMAGE,
    TEXT,
    VIDEO,
    VISION,
    prompt,
    save_tiny_qwen2_vl,
)
from mini_vllm.transformers_utils.config import ConfigError, HFConfig

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [
    prompt([1, 5, IMAGE, 7, 8], 0),
    prompt([1, 5, IMAGE, 7, 8], 3),
    prompt([1, IMAGE, IMAGE, 4], 1, 2),
    [1, 2, 3, 4, 5, 6, 7],
    prompt([1, 5, IMAGE, 7, 8, 9], 0),
    prompt([1, VIDEO, 7], films=[0]),
    prompt([3, VIDEO, 5, IMAGE, VIDEO, 6], 0, films=[1, 2]),
]


def make(folder, **settings):
    settings = {"block_size": 4, "num_blocks": 200, "max_num_seqs": 8, "dtype": "float64", **settings}
    return LLM(str(folder), skip_tokenizer_init=True, **settings)


def tokens_of(llm, prompts=PROMPTS):
    return [list(one.outputs[0].token_ids) for one in llm.generate(prompts, GREEDY, use_tqdm=False)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_qwen2_vl(tmp_path_factory.mktemp("qwen2_vl"))


@pytest.fixture(scope="module")
def alone(tiny):
    """Each on its own, with nothing cached and nothing cut."""
    llm = make(tiny, enable_prefix_caching=False, mm_processor_cache_gb=0)
    return [tokens_of(llm, [one])[0] for one in PROMPTS]


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_num_batched_tokens": 1300, "long_prefill_token_threshold": 3}, {"async_scheduling": True}],
    ids=lambda settings: " ".join(map(str, settings)) or "plain",
)
def test_the_tokens_are_those_of_each_request_alone(settings, tiny, alone):
    assert len({tuple(tokens) for tokens in alone}) == len(PROMPTS)
    llm = make(tiny, **settings)
    assert tokens_of(llm) == alone
    assert tokens_of(llm, PROMPTS[::-1]) == alone[::-1]


def test_a_request_that_was_preempted_goes_on_with_its_own_positions(tiny, alone):
    llm = make(tiny, num_blocks=12, scheduler_reserve_full_isl=False)
    assert tokens_of(llm) == alone
    assert llm.llm_engine.scheduler.num_preemptions > 0


def test_a_picture_has_as_many_tokens_as_squares(tiny):
    outputs = make(tiny).generate(PROMPTS, GREEDY, use_tqdm=False)
    squares = [one.prompt_token_ids.count(IMAGE) for one in outputs]
    assert squares == [2 * 2, 2 * 3, 4 * 2 + 1 * 5, 0, 2 * 2, 0, 2 * 2]
    squares = [one.prompt_token_ids.count(VIDEO) for one in outputs]
    assert squares == [0, 0, 0, 0, 0, 3 * 1 * 2, 1 * 1 * 2 + 1 * 2 * 2]


def test_pixels_may_be_fewer_or_more(tiny, alone):
    fewer = {**PROMPTS[2], "mm_processor_kwargs": {"max_pixels": 28 * 28 * 4, "min_pixels": 28 * 28}}
    (output,) = make(tiny).generate(fewer, GREEDY, use_tqdm=False)
    assert output.prompt_token_ids.count(IMAGE) == 2 * 1 + 1 * 4
    for settings, message in (
        ({"patch_size": 16}, r"patch_size must be the tower's \(14\), got 16"),
        ({"max_pixels": 27 * 28}, r"max_pixels \(size\['longest_edge'\]\) must be at least one square of 28 x 28"),
        ({"size": {"height": 3}}, "size must be an object with 'shortest_edge' and 'longest_edge'"),
        ({"do_resize": False}, "do_resize must be True, got False"),
    ):
        with pytest.raises(ValueError, match=message):
            make(tiny, mm_processor_kwargs=settings)


def test_narrow_pictures_are_refused_by_name(tiny):
    llm = make(tiny)
    narrow = {"prompt_token_ids": [1, IMAGE], "multi_modal_data": {"image": np.zeros((2, 500, 3), np.uint8)}}
    with pytest.raises(ValueError, match=r"absolute aspect ratio must be smaller than 200, got 250"):
        llm.generate(narrow, GREEDY)


def test_the_config_of_the_hub_is_the_same_model(tiny, alone, tmp_path):
    assert HFConfig.from_dict(AS_ON_THE_HUB) == HFConfig.from_dict(CONFIG)
    folder = save_tiny_qwen2_vl(tmp_path, config=AS_ON_THE_HUB)
    assert tokens_of(make(folder), PROMPTS[:2]) == alone[:2]


def test_the_same_weights_under_the_names_of_the_class(tiny, alone, tmp_path):
    def change(name):
        if name.startswith("model."):
            return name.replace("model.", "model.language_model.", 1)
        return f"model.{name}" if name.startswith("visual.") else name

    with Checkpoint(tiny) as checkpoint:
        tensors = {change(name): checkpoint.read(name) for name in checkpoint.names()}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())
    assert tokens_of(make(tmp_path), PROMPTS[:2]) == alone[:2]


def test_positions_of_text_count_on_and_those_of_a_picture_are_its_rows_and_columns(tiny):
    model = make(tiny).llm_engine.engine_core.model
    feature = MultiModalFeatureSpec({"image_grid_thw": np.array([1, 4, 6])}, "image", "a", PlaceholderRange(2, 6))
    positions, delta = model.get_mrope_input_positions([1, 2, *[IMAGE] * 6, 3, 4], [feature])
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert delta == 7 - 10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"text_config": {**TEXT, "rope_parameters": {"rope_theta": 1e6}}},
            "rope_parameters must have an mrope_section",
        ),
        (
            {"text_config": {**TEXT, "rope_parameters": {"mrope_section": [1, 2, 2]}}},
            r"mrope_section must have as many",
        ),
        ({"text_config": {**TEXT, "hidden_size": 96}}, "hidden_size must be the language model's .96., got 48"),
        ({"image_token_id": 100}, r"image_token_id must be a token id below the vocab_size \(100\), got 100"),
        ({"vision_config": {**VISION, "num_heads": 3}}, "embed_dim .32. must be a multiple of four times num_heads"),
        ({"vision_config": {**VISION, "hidden_act": "silu"}}, "hidden_act must be 'quick_gelu', got 'silu'"),
        ({"vision_config": {**VISION, "window_size": 112}}, "unknown key 'window_size' = 112"),
        ({"quantization_config": {"bits": 4}}, "quantization_config must be null"),
    ],
)
def test_a_config_that_is_wrong_is_refused_by_name(changed, message):
    with pytest.raises(ConfigError, match=message):
        HFConfig.from_dict({**CONFIG, **changed})


@pytest.mark.skipif(not is_supported(), reason="ranks need Linux on x86-64")
def test_two_ranks_say_what_one_says(tiny, alone):
    llm = make(tiny, tensor_parallel_size=2)
    try:
        assert tokens_of(llm) == alone
    finally:
        llm.llm_engine.core_client.shutdown()

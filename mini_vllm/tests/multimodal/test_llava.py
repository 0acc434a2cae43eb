"""LLaVA through `LLM.generate`: whoever is served beside others, in chunks, after a preemption, by several ranks or
with somebody's blocks gets the tokens that it gets alone."""

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.model_loader.random_checkpoint import write_safetensors
from mini_vllm.model_loader.safetensors_reader import Checkpoint, CheckpointError
from mini_vllm.tests.multimodal.tiny_llava import IMAGE, QWEN, ROWS, SIGLIP, prompt, save_tiny_llava

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [
    prompt([1, 5, IMAGE, 7, 8], 0),
    prompt([1, 5, IMAGE, 7, 8], 3),
    prompt([1, IMAGE, IMAGE, 4], 1, 2),
    prompt([3, IMAGE, 5, IMAGE, 6, IMAGE], 0, 4, 1),
    [1, 2, 3, 4, 5, 6, 7],
    prompt([1, 5, IMAGE, 7, 8, 9], 0),
]


def make(folder, **settings):
    settings = {"block_size": 4, "num_blocks": 200, "max_num_seqs": 8, "dtype": "float64", **settings}
    return LLM(str(folder), skip_tokenizer_init=True, **settings)


def tokens_of(llm, prompts=PROMPTS):
    return [list(one.outputs[0].token_ids) for one in llm.generate(prompts, GREEDY, use_tqdm=False)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def alone(tiny):
    """Each on its own, in the model's plain form, with nothing cached and nothing cut."""
    llm = make(tiny, enforce_eager=True, enable_prefix_caching=False, mm_processor_cache_gb=0)
    return [tokens_of(llm, [one])[0] for one in PROMPTS]


def test_every_picture_counts(alone):
    assert len({tuple(tokens) for tokens in alone}) == len(PROMPTS)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"enforce_eager": True},
        {"max_num_batched_tokens": 17, "max_num_seqs": 4},
        {"max_num_batched_tokens": 20, "long_prefill_token_threshold": 5},
        {"max_num_batched_tokens": 40, "disable_chunked_mm_input": True},
        {"async_scheduling": True, "max_num_batched_tokens": 33},
        {"enable_prefix_caching": False, "mm_processor_cache_gb": 0},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}},
        {"kv_cache_dtype": "auto", "attention_backend": "dense"},
    ],
    ids=lambda settings: " ".join(map(str, settings)) or "compiled",
)
def test_the_tokens_are_those_of_each_request_alone(settings, tiny, alone):
    llm = make(tiny, **settings)
    assert tokens_of(llm) == alone
    assert tokens_of(llm, PROMPTS[::-1]) == alone[::-1]


def test_a_request_that_was_preempted_goes_on_with_its_own_pictures(tiny, alone):
    llm = make(tiny, num_blocks=20, max_num_batched_tokens=24, scheduler_reserve_full_isl=False)
    assert tokens_of(llm) == alone
    assert llm.llm_engine.scheduler.num_preemptions > 0


def test_a_prefix_with_a_picture_is_found_and_one_with_another_picture_is_not(tiny, alone):
    llm = make(tiny)
    tokens_of(llm, PROMPTS[:1])
    same, other = llm.generate([PROMPTS[5], PROMPTS[1]], GREEDY, use_tqdm=False)
    assert same.num_cached_tokens == 20 and other.num_cached_tokens == 0
    assert [list(one.outputs[0].token_ids) for one in (same, other)] == [alone[5], alone[1]]


def test_a_core_in_a_process_of_its_own(tiny, alone):
    pytest.importorskip("msgspec")
    pytest.importorskip("zmq")
    llm = make(tiny, enable_multiprocessing=True)
    try:
        assert tokens_of(llm) == alone
    finally:
        llm.llm_engine.core_client.shutdown()


def test_an_output_says_what_the_prompt_became(tiny):
    (output,) = make(tiny).generate(PROMPTS[2], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == [1] + [IMAGE] * 2 * ROWS + [4]


@pytest.mark.parametrize(
    "config",
    [
        {"text_config": QWEN},
        {"vision_config": SIGLIP, "vision_feature_select_strategy": "full"},
        {"vision_feature_layer": 1},
        {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        {"multimodal_projector_bias": False, "projector_hidden_act": "gelu_pytorch_tanh"},
    ],
    ids=["qwen2", "siglip", "layer 1", "last layer", "projector"],
)
def test_other_towers_and_language_models_have_a_compiled_form_equal_to_the_plain_one(config, tmp_path):
    folder = save_tiny_llava(tmp_path, **config)
    eager, compiled = make(folder, enforce_eager=True), make(folder)
    assert type(compiled.llm_engine.engine_core.model_runner.forward.__self__).__name__ == "FusedLlama"
    found = tokens_of(eager)
    assert found == tokens_of(compiled) and len({tuple(tokens) for tokens in found}) > 4


@pytest.mark.parametrize(
    "change",
    [
        lambda name: name.replace(".vision_model.", "."),
        lambda name: (
            "model." + name.replace("language_model.model.", "language_model.")
            if "lm_head" not in name
            else "lm_head.weight"
        ),
    ],
    ids=["tower of transformers 5", "class of transformers 5"],
)
def test_the_same_weights_under_other_names(change, tiny, alone, tmp_path):
    with Checkpoint(tiny) as checkpoint:
        tensors = {change(name): checkpoint.read(name) for name in checkpoint.names()}
        assert set(tensors) != checkpoint.names()
    write_safetensors(tmp_path / "model.safetensors", tensors)
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_text((tiny / name).read_text())
    assert tokens_of(make(tmp_path)) == alone


def test_tensors_behind_the_features_are_not_needed_and_others_are_refused(tiny, alone, tmp_path):
    with Checkpoint(tiny) as checkpoint:
        tensors = {name: checkpoint.read(name) for name in checkpoint.names()}
    for name in ("post_layernorm.weight", "encoder.layers.2.layer_norm1.weight"):
        tensors[f"vision_tower.vision_model.{name}"] = np.ones(32, np.float32)
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_text((tiny / name).read_text())
    write_safetensors(tmp_path / "model.safetensors", tensors)
    assert tokens_of(make(tmp_path), PROMPTS[:1]) == alone[:1]
    write_safetensors(
        tmp_path / "model.safetensors", {**tensors, "vision_tower.vision_model.more": np.ones(1, np.float32)}
    )
    with pytest.raises(CheckpointError, match=r"1 tensor.* first 'vision_tower.vision_model.more'"):
        make(tmp_path)

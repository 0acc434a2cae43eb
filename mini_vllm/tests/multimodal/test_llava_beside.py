"""LLaVA beside the other rooms: adapters of its language model, grammars, several completions, log-probabilities."""

import json

import numpy as np
import pytest

from mini_vllm import LLM, LoRARequest, SamplingParams
from mini_vllm.engine.parts import EngineParts
from mini_vllm.model_loader.random_checkpoint import write_safetensors
from mini_vllm.model_loader.safetensors_reader import Checkpoint
from mini_vllm.sampling_params import BeamSearchParams
from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.tests.lora.adapters import save_adapter, save_merged
from mini_vllm.tests.multimodal.test_llava import GREEDY, PROMPTS, make, tokens_of
from mini_vllm.tests.multimodal.tiny_llava import IMAGES, save_talking_llava, save_tiny_llava

OF_TEXT = ("o_proj", "gate_proj", "up_proj", "down_proj")
"""Projections that only the language model has under these names."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_llava(tmp_path_factory.mktemp("llava"))


def renamed(adapter, folder):
    """The adapter with the names of transformers 5's class."""
    folder.mkdir()
    names = "base_model.model.language_model.model.", "base_model.model.model.language_model."
    (adapter / "adapter_model.safetensors").rename(adapter / "model.safetensors")
    with Checkpoint(adapter) as file:
        write_safetensors(
            folder / "adapter_model.safetensors", {name.replace(*names): file.read(name) for name in file.names()}
        )
    (adapter / "model.safetensors").rename(adapter / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text((adapter / "adapter_config.json").read_text())
    return folder


def test_an_adapter_of_the_language_model_is_the_merged_weights_under_either_name(tiny, tmp_path):
    adapter = save_adapter(tmp_path / "adapter", tiny, seed=1, targets=OF_TEXT)
    merged = make(save_merged(tmp_path / "merged", tiny, adapter))
    expected, plain = tokens_of(merged), tokens_of(make(tiny))
    assert expected != plain
    for path in (adapter, renamed(adapter, tmp_path / "new")):
        request = LoRARequest("a", 1, str(path))
        llm = make(tiny, enable_lora=True)
        both = llm.generate([*PROMPTS, *PROMPTS], GREEDY, lora_request=[request] * 6 + [None] * 6, use_tqdm=False)
        assert [list(one.outputs[0].token_ids) for one in both] == expected + plain


def test_an_adapter_of_the_tower_is_refused_by_name(tiny, tmp_path):
    adapter = save_adapter(tmp_path / "adapter", tiny, seed=1, targets=("q_proj",))
    llm = make(tiny, enable_lora=True)
    with pytest.raises(ValueError, match=r"target modules must be among .*vision_tower"):
        llm.generate(PROMPTS[:1], GREEDY, lora_request=LoRARequest("a", 1, str(adapter)), use_tqdm=False)
    model = llm.llm_engine.engine_core.model
    assert all(layer.self_attn.qkv_proj.lora is None for layer in model.vision_tower.layers)


def test_a_kv_connector_takes_no_prompt_with_another_picture_for_the_same(tiny, tmp_path):
    """The placeholders of all pictures are the same tokens."""
    expected = tokens_of(make(tiny))
    transfer = {
        "kv_connector": "ExampleConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }  # fmt: skip
    assert tokens_of(make(tiny, kv_transfer_config=transfer)) == expected
    again = make(tiny, kv_transfer_config=transfer)
    outputs = again.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [list(one.outputs[0].token_ids) for one in outputs] == expected
    assert all(one.num_cached_tokens for one in outputs[:4])


def test_logits_have_the_same_bits_in_every_batch(tiny, monkeypatch):
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=1)

    def bits(outputs):
        return [[entry.logprob for step in one.outputs[0].logprobs for entry in step.values()] for one in outputs]

    llm = make(tiny, dtype="float32", enable_prefix_caching=False, mm_processor_cache_gb=0)
    together = bits(llm.generate(PROMPTS, params, use_tqdm=False))
    llm.llm_engine.engine_core.reset_encoder_cache()
    assert together == [bits(llm.generate([one], params, use_tqdm=False))[0] for one in PROMPTS]


def test_a_vision_tower_of_ones_own_from_the_checkpoints_tensors(tiny):
    """As a lab plugs it in: a function of pixels, in the place of tower and projector."""
    seen = []

    def vision_tower(model, folder, config):
        assert config.dtype == "float64"
        with Checkpoint(folder) as checkpoint:
            assert "vision_tower.vision_model.embeddings.class_embedding" in checkpoint.names()

        def embed_multimodal(*, pixel_values):
            seen.append([pixels.shape for pixels in pixel_values])
            return [-1.0 * rows for rows in model.embed_multimodal(pixel_values=pixel_values)]

        return embed_multimodal

    ours, hers = make(tiny), make(tiny, with_labs=EngineParts(vision_tower=vision_tower))
    found, plain = tokens_of(hers), tokens_of(ours)
    assert found[4] == plain[4] and all(a != b for i, (a, b) in enumerate(zip(found, plain, strict=True)) if i != 4)
    assert {shape for shapes in seen for shape in shapes} == {(3, 24, 24)}
    hers = make(tiny, with_labs=EngineParts(vision_tower=lambda *_: lambda *, pixel_values: [np.ones((3, 48))]))
    with pytest.raises(
        ValueError, match=r"embed_multimodal of LlavaForConditionalGeneration must give \[16\] embeddings"
    ):
        tokens_of(hers, PROMPTS[:1])


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    folder = save_talking_llava(tmp_path_factory.mktemp("talking"))
    return LLM(str(folder), num_blocks=200, dtype="float64", max_num_batched_tokens=24, max_num_seqs=4)


def of_picture(index):
    return {"prompt": "a <image> b", "multi_modal_data": {"image": IMAGES[index]}}


def test_a_grammar_holds_and_the_picture_still_counts(talking):
    form = StructuredOutputsParams(regex="[a-f]{8}")
    params = SamplingParams(temperature=0.0, max_tokens=12, structured_outputs=form)
    outputs = talking.generate([of_picture(0), of_picture(1), of_picture(0)], params, use_tqdm=False)
    texts = [one.outputs[0].text for one in outputs]
    assert all(len(text) == 8 and set(text) <= set("abcdef") for text in texts)
    assert texts[0] == texts[2] != texts[1]
    schema = StructuredOutputsParams(json={"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]})
    params = SamplingParams(temperature=0.0, max_tokens=40, structured_outputs=schema)
    (output,) = talking.generate(of_picture(2), params, use_tqdm=False)
    assert output.outputs[0].finish_reason == "length" or json.loads(output.outputs[0].text)["a"] in (1, 2)


def test_beams_see_the_picture(talking):
    params = BeamSearchParams(beam_width=2, max_tokens=4, ignore_eos=True)
    first, second, again = talking.beam_search([of_picture(0), of_picture(1), of_picture(0)], params)
    best = [one.sequences[0].tokens[-4:] for one in (first, second, again)]
    assert best[0] == best[2] != best[1]
    params = BeamSearchParams(beam_width=1, max_tokens=4, ignore_eos=True)
    (one,) = talking.beam_search([of_picture(0)], params)
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    (output,) = talking.generate(of_picture(0), greedy, use_tqdm=False)
    assert one.sequences[0].tokens[-4:] == list(output.outputs[0].token_ids)


def test_several_completions_and_log_probabilities(talking):
    params = SamplingParams(n=3, temperature=1.0, seed=0, max_tokens=5, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    first, second = talking.generate([of_picture(0), of_picture(1)], params, use_tqdm=False)
    assert len(first.outputs) == 3 and len({tuple(each.token_ids) for each in first.outputs}) > 1
    assert len(first.prompt_logprobs) == len(first.prompt_token_ids) == len("a  b") + 16
    after = [max(entry.logprob for entry in each.prompt_logprobs[-1].values()) for each in (first, second)]
    assert not np.isclose(*after)

"""A model cut into stages, without an engine: placeholders, who has which weights, and the same numbers in the end."""

import copy
import re
from pathlib import Path

import numpy as np
import pytest

from mini_vllm.compilation.registry import compiled_form
from mini_vllm.distributed.parallel_state import RankGroup
from mini_vllm.layers.context import ModelContext
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.models.registry import get_supported_archs
from mini_vllm.models.utils import PPMissingLayer, layers_here, make_layers
from mini_vllm.tests.models import decoder_checkpoints, pooling_checkpoints, tiny_checkpoints
from mini_vllm.transformers_utils.config import MEDIA

IDS, POSITIONS = np.array([5, 9, 3, 100, 1, 17, 17]), np.arange(7)
FAMILIES = {
    **{name: (config, tiny_checkpoints.save_tiny) for name, config in tiny_checkpoints.FAMILIES.items()},
    **{name: (config, decoder_checkpoints.save_decoder) for name, config in decoder_checkpoints.DECODERS.items()},
    **{
        name: (config, pooling_checkpoints.save_family)
        for name, config in pooling_checkpoints.FAMILIES.items()
        if config["architectures"][0] in get_supported_archs()
    },
}
FAST = ("llama", "opt")


def attend(layer, q, k, v):
    """One request from its beginning; each layer mixes in its own way, so that a wrong number shows."""
    if k.shape[1] != q.shape[1]:
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / (3 + layer) + np.triu(np.full((len(q),) * 2, -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v).reshape(len(q), -1)


def stages_of(folder, size):
    return [load_model(folder, "float64", pp=RankGroup(tuple(range(size)), rank)) for rank in range(size)]


def through(stages, form=None):
    """Hidden states after the last stage. form: makes what computes a stage, which counts its own layers."""
    hidden = None
    for model in stages:
        program, first = (model, 0) if form is None else (form(model), model.start_layer)

        def attn(layer, *qkv, first=first):
            return attend(layer + first, *qkv)

        hidden = program.forward(IDS, POSITIONS, attn, hidden).copy()
    return hidden


@pytest.mark.parametrize(
    "family", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_stages_one_after_the_other_compute_what_the_whole_model_does(family, tmp_path):
    config, save = FAMILIES[family]
    folder = Path(save(family, tmp_path))
    whole = load_model(folder, "float64")
    stages = stages_of(folder, config["num_hidden_layers"])
    names = [{name for name, _ in stage.weights()} for stage in stages]
    assert set().union(*names) == {name for name, _ in whole.weights()}
    layers = [decoder_of(stage).layers for stage in stages]
    assert [[isinstance(layer, PPMissingLayer) for layer in of_stage] for of_stage in layers] == [
        [i != stage for i in range(len(stages))] for stage in range(len(stages))
    ]
    assert not any(re.search(r"layers?\.\d", name) for name in names[0] & names[1])
    if family in pooling_checkpoints.FAMILIES:
        return  # stages of a model that pools are not served
    expected = whole.forward(IDS, POSITIONS, attend)
    np.testing.assert_allclose(through(stages), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(stages[-1].compute_logits(expected), whole.compute_logits(expected))
    if compiled_form(whole) is not None:
        np.testing.assert_allclose(through(stages, compiled_form), expected, rtol=1e-9, atol=1e-9)


def decoder_of(model):
    """What has the layers."""
    return getattr(model.model, "decoder", model.model)


def test_every_architecture_of_the_registry_has_placeholders():
    """Those tried above are all there are; what takes media is refused by stages."""
    tried = {config["architectures"][0] for config, _ in FAMILIES.values()} | set(MEDIA)
    assert set(get_supported_archs()) <= tried, set(get_supported_archs()) - tried


def test_the_ends_are_where_they_belong(tmp_path):
    first, middle, last = stages_of(tiny_checkpoints.save_tiny("llama", tmp_path), 3)
    missing = [isinstance(model.lm_head, PPMissingLayer) for model in (first, middle, last)]
    embeds = [isinstance(model.model.embed_tokens, PPMissingLayer) for model in (first, middle, last)]
    norms = [isinstance(model.model.norm, PPMissingLayer) for model in (first, middle, last)]
    assert (embeds, norms, missing) == ([False, True, True], [True, True, False], [True, True, False])
    assert [model.num_layers for model in (first, middle, last)] == [1, 1, 1]
    assert [len(layers_here(model.model)) for model in (first, middle, last)] == [1, 1, 1]


def test_layers_keep_the_numbers_and_names_of_the_model():
    for rank, here in enumerate(([0, 1], [2, 3, 4], [5, 6])):
        context = ModelContext(np.dtype("float64"), pp=RankGroup((0, 1, 2), rank))
        start, end, layers = make_layers(7, lambda number, name: (number, name), context, "model.layers")
        assert (start, end) == (here[0], here[-1] + 1)
        assert [layers[number] for number in here] == [(number, f"model.layers.{number}") for number in here]
        assert all(isinstance(layers[number], PPMissingLayer) for number in {*range(7)} - {*here})


def test_a_tied_embedding_is_on_the_first_and_the_last_stage(tmp_path):
    stages = stages_of(tiny_checkpoints.save_tiny("llama-tied-mha", tmp_path), 3)
    assert [isinstance(model.model.embed_tokens, PPMissingLayer) for model in stages] == [False, True, False]
    np.testing.assert_array_equal(stages[0].lm_head.weight, stages[2].lm_head.weight)


def test_a_tensor_that_no_stage_knows_is_still_an_error(tmp_path):
    weights = tiny_checkpoints.make_weights("llama")
    folder = tiny_checkpoints.save_tiny("llama", tmp_path)
    weights["model.layers.0.self_attn.odd.weight"] = np.zeros((2, 2), np.float32)
    [file] = folder.glob("*.safetensors")
    tiny_checkpoints.save_safetensors(file, weights)
    stages = RankGroup((0, 1), 0), RankGroup((0, 1), 1)
    with pytest.raises(ValueError, match=r"1 tensor.s. that LlamaForCausalLM does not use, first 'model.layers.0"):
        load_model(folder, "float64", pp=stages[0])
    load_model(folder, "float64", pp=copy.copy(stages[1]))  # the stage that would have it says so

"""What an adapter's two files say is used, harmless, or refused by name; and the two say the same."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from mini_vllm import LLM, LoRARequest, SamplingParams
from mini_vllm.config.lora import LoRAConfig
from mini_vllm.distributed import shared_memory
from mini_vllm.lora.lora_model import TENSORS_NAME
from mini_vllm.lora.peft_helper import CONFIG_NAME, KEYS, PEFTHelper
from mini_vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.model_loader.random_checkpoint import write_safetensors
from mini_vllm.model_loader.safetensors_reader import SafetensorsFile
from mini_vllm.tests.lora.adapters import ALL, save_adapter, save_merged
from mini_vllm.tests.models.decoder_checkpoints import save_decoder
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

PLAIN = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
GREEDY = SamplingParams(temperature=0, max_tokens=4, logprobs=0)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny("llama", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def worker(base):
    return LRUCacheWorkerLoRAManager(load_model(str(base)), LoRAConfig())


def changed(folder, base, config=None, keep=None, **settings):
    """An adapter of the attention's q and v; `config` changes its file, `keep` says which tensors stay."""
    save_adapter(folder, base, seed=3, targets=("q_proj", "v_proj"), **settings)
    path = folder / CONFIG_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **(config or {})}))
    if keep is not None:
        file = SafetensorsFile(folder / TENSORS_NAME)
        kept = {name: file.read(name) for name in file.tensors if keep(name)}
        file.close()
        write_safetensors(folder / TENSORS_NAME, kept)
    return LoRARequest("a", 1, str(folder))


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "OLoRA"])
def test_an_adapter_whose_base_was_changed_is_refused_by_name(init):
    with pytest.raises(ValueError, match=f"init_lora_weights must be .*got '{init}': PEFT changes the base's weights"):
        PEFTHelper.from_dict({**PLAIN, "init_lora_weights": init})


@pytest.mark.parametrize("init", [True, False, None, "gaussian", "Gaussian", "eva", "orthogonal", "mica"])
def test_how_the_factors_were_drawn_before_training_is_harmless(init):
    assert PEFTHelper.from_dict({**PLAIN, "init_lora_weights": init}) == PEFTHelper.from_dict(PLAIN)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"use_rslora": "false"}, "use_rslora must be true or false, got 'false'"),
        ({"use_rslora": 1}, "use_rslora must be true or false, got 1"),
        ({"use_dora": "no"}, "use_dora must be False or null, got 'no'"),
        ({"r": 4.0}, "r must be a whole number"),
        ({"r": True}, "r must be a whole number"),
        ({"target_modules": 5}, "target_modules must be a text or a list of texts"),
        ({"target_modules": ["q_proj", 5]}, "target_modules must be a text or a list of texts"),
        ({"target_modules": "(q_proj"}, r"target_modules '\(q_proj' is no regular expression"),
        ({"target_modules": "(a+)+x|(.*)*y(?=z)"}, "model.safetensors: |does not select|takes more than a second"),
        ({"layers_to_transform": "1"}, "layers_to_transform must be a whole number or a list"),
        ({"layers_pattern": "layers"}, "layers_pattern cannot stand without layers_to_transform"),
        ({"target_modules": ".*", "layers_to_transform": [0]}, "layers_to_transform cannot stand beside a pattern"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens must be empty"),
        ({"layer_replication": [[0, 1]]}, "layer_replication must be empty"),
        ({"trainable_token_indices": {"embed_tokens": [1]}}, "trainable_token_indices must be empty"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "adapters of experts are not served"),
        ({"kasa_config": {"beta": 1}}, "KaSA changes the base's weights"),
        ({"lora_bais": True}, "unknown key 'lora_bais'.*did you mean 'lora_bias'"),
        ({"scaling_mode": "new"}, "unknown key 'scaling_mode' = 'new': it could change what is computed"),
    ],
)  # fmt: skip
def test_a_field_that_is_not_plain_is_refused_by_name(base, worker, tmp_path, change, words):
    with pytest.raises(ValueError, match=f"LoRA adapter 'a' cannot be served: .*({words})"):
        worker.load_adapter(changed(tmp_path / "a", base, change))


def test_an_adapter_without_tensors_is_an_error(base, worker, tmp_path):
    with pytest.raises(ValueError, match=r"no tensors for \['model.layers.0.self_attn.q_proj', .*which target_modules"):
        worker.load_adapter(changed(tmp_path / "a", base, keep=lambda name: False))
    with pytest.raises(ValueError, match=r"selects nothing, so that nothing is changed; there are .*'q_proj'"):
        worker.load_adapter(changed(tmp_path / "b", base, {"target_modules": []}, keep=lambda name: False))


@pytest.mark.parametrize(
    ("config", "keep", "words"),
    [
        ({}, "layers.1.self_attn.v_proj", r"no tensors for \['model.layers.1.self_attn.v_proj'\]"),
        ({}, "layers.2.", r"no tensors for \['model.layers.2.self_attn.q_proj', 'model.layers.2.self_attn.v_proj'\]"),
        ({"target_modules": ["q_proj"]}, None, r"tensors for \['model.layers.0.self_attn.v_proj', .*does not select"),
        ({"target_modules": ".*q_proj"}, None, r"tensors for \['model.layers.0.self_attn.v_proj'"),
        ({"layers_to_transform": [0, 1]}, None, r"tensors for \['model.layers.2.self_attn.q_proj'"),
        ({"exclude_modules": ["layers.0.self_attn.q_proj"]}, None, r"tensors for \['model.layers.0.self_attn.q_proj'"),
        ({"target_modules": ["q_proj", "v_proj", "k_proj"]}, None, r"no tensors for .*k_proj"),
        ({"target_modules": ["q_proj", "v_proj", "lm_head"]}, None, r"'lm_head'.*output matrices are not served"),
        ({"target_modules": "all-linear"}, None, r"no tensors for .*down_proj"),
    ],
)  # fmt: skip
def test_what_the_config_selects_and_what_the_file_holds_are_one_set(base, worker, tmp_path, config, keep, words):
    with pytest.raises(ValueError, match=words):
        worker.load_adapter(changed(tmp_path / "a", base, config, keep and (lambda name: keep not in name)))


@pytest.mark.parametrize(
    ("config", "dropped"),
    [
        ({"target_modules": r"model\.layers\.[02]\.self_attn\.(q|v)_proj"}, "layers.1."),
        ({"layers_to_transform": [0, 2]}, "layers.1."),
        ({"layers_to_transform": [0, 2], "layers_pattern": "layers"}, "layers.1."),
        ({"layers_to_transform": [0, 2], "layers_pattern": ["h", "layers"]}, "layers.1."),
        ({"exclude_modules": r".*layers\.1\..*"}, "layers.1."),
        ({"exclude_modules": ["k_proj", "layers.1.self_attn.q_proj", "layers.1.self_attn.v_proj"]}, "layers.1."),
        ({"target_modules": ["q_proj", "v_proj", "query_key_value"]}, "nothing"),
        ({"target_modules": ["self_attn.q_proj", "self_attn.v_proj"], "fan_in_fan_out": True}, "nothing"),
    ],
)  # fmt: skip
def test_patterns_chosen_and_excluded_layers_are_served(base, worker, tmp_path, config, dropped):
    lora = worker.load_adapter(changed(tmp_path / "a", base, config, lambda name: dropped not in name))
    assert len(lora.loras) == (6 if dropped == "nothing" else 4)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_codes_are_no_factors(base, worker, tmp_path, dtype):
    """Bytes are written as FP8."""
    request, found = changed(tmp_path / "a", base), {np.uint8: "F8_E4M3", np.int8: "I8", np.int32: "I32"}[dtype]
    save_adapter(tmp_path / "a", base, seed=3, targets=("q_proj", "v_proj"), dtype=dtype)
    words = rf"{TENSORS_NAME}: tensor '.*_proj.lora_A.weight' has dtype {found}; allowed: F64, F32, F16, BF16"
    with pytest.raises(ValueError, match=words):
        worker.load_adapter(request)


@pytest.mark.parametrize(
    ("kind", "value"), [(np.float32, np.nan), (np.float16, np.inf), (np.float32, -np.inf), (np.float64, 1e300)]
)
def test_factors_are_finite(base, worker, tmp_path, kind, value):
    request = changed(tmp_path / "a", base, dtype=kind)
    file = SafetensorsFile(path := tmp_path / "a" / TENSORS_NAME)
    tensors = {name: file.read(name) for name in file.tensors}
    file.close()
    name = next(name for name in tensors if "layers.1.self_attn.v_proj.lora_B" in name)
    tensors[name][3, 1] = value
    write_safetensors(path, tensors)
    with pytest.raises(ValueError, match=f"{TENSORS_NAME}: tensor '{name}' holds a value that is not finite"):
        worker.load_adapter(request)


def test_pickled_weights_are_named_as_such(base, worker, tmp_path):
    request = changed(tmp_path, base)
    (tmp_path / TENSORS_NAME).rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ValueError, match="pickled ones are not read: save it with `safe_serialization=True`"):
        worker.load_adapter(request)


@pytest.mark.parametrize("exclude", [[], ["down_proj"]])
def test_all_linear_is_every_projection_and_no_embedding(base, worker, tmp_path, exclude):
    targets = tuple(kind for kind in ALL if kind not in exclude)
    save_adapter(tmp_path, base, seed=3, targets=targets)
    path = tmp_path / CONFIG_NAME
    settings = {"target_modules": "all-linear", "exclude_modules": exclude}
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    kinds = {name.rpartition(".")[2] for name in worker.load_adapter(LoRARequest("a", 1, str(tmp_path))).loras}
    assert kinds == set(targets)


def test_one_tensor_under_two_names_is_refused(base, worker, tmp_path):
    request = changed(tmp_path / "a", base)
    path = tmp_path / "a" / TENSORS_NAME
    file = SafetensorsFile(path)
    tensors = {name: file.read(name) for name in file.tensors}
    file.close()
    first = next(iter(tensors))
    write_safetensors(path, {**tensors, first.removeprefix("base_model.model."): tensors[first]})
    with pytest.raises(ValueError, match="are one tensor under two names"):
        worker.load_adapter(request)


def answers(folder, lora=None, **settings):
    llm = LLM(str(folder), dtype="float64", skip_tokenizer_init=True, enable_lora=lora is not None, **settings)
    try:
        request = None if lora is None else LoRARequest("a", 1, str(lora))
        out = llm.generate([[5, 6, 7], [9] * 11], GREEDY, lora_request=request, use_tqdm=False)
        firsts = [output.outputs[0] for output in out]
        return [[e[t].logprob for t, e in zip(each.token_ids, each.logprobs, strict=True)] for each in firsts]
    finally:
        llm.llm_engine.shutdown()


PHI3 = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


@pytest.mark.parametrize("eager", [False, True])
def test_phi3_under_the_names_of_its_own_checkpoint(tmp_path, eager):
    base = save_decoder("phi3", tmp_path / "base")
    adapter = save_adapter(tmp_path / "a", base, seed=4, targets=PHI3)
    merged = save_merged(tmp_path / "merged", base, adapter)
    found = answers(base, adapter, enforce_eager=eager)
    np.testing.assert_allclose(found, answers(merged), rtol=0, atol=1e-9)
    assert not np.allclose(found, answers(base), rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
def test_phi3_on_two_ranks(tmp_path):
    base = save_decoder("phi3", tmp_path / "base")
    adapter = save_adapter(tmp_path / "a", base, seed=4, targets=PHI3)
    merged = save_merged(tmp_path / "merged", base, adapter)
    found = answers(base, adapter, tensor_parallel_size=2)
    np.testing.assert_allclose(found, answers(merged), rtol=0, atol=1e-9)


def test_names_that_a_model_has_not_are_answered_with_those_that_it_has(tmp_path):
    base = save_decoder("phi3", tmp_path / "base")
    worker = LRUCacheWorkerLoRAManager(load_model(str(base)), LoRAConfig())
    request = changed(tmp_path / "a", save_tiny("llama", tmp_path / "llama"))
    with pytest.raises(ValueError, match=r"must be among \['down_proj', 'gate_up_proj', 'o_proj', 'qkv_proj'\]"):
        worker.load_adapter(request)


@pytest.mark.needs_torch
def test_the_table_has_every_field_of_pefts_config():
    peft = pytest.importorskip("peft")
    outside = {field.name for field in dataclasses.fields(peft.LoraConfig)} - {*KEYS.used, *KEYS.fixed, *KEYS.harmless}
    assert not outside

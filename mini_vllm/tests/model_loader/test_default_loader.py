"""From folder to model: damaged checkpoints, both dtypes, the hub's folder layout; a plain forward pass as judge."""

from __future__ import annotations

import itertools
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.compilation.registry import compiled_form
from mini_vllm.layers.rotary_embedding import inverse_frequencies
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.model_loader.hub import get_checkpoint_folder
from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint, write_safetensors
from mini_vllm.model_loader.safetensors_reader import INDEX_NAME, SINGLE_NAME, Checkpoint, CheckpointError
from mini_vllm.models.llama import LlamaForCausalLM
from mini_vllm.platforms.cpu.products import project
from mini_vllm.platforms.cpu.threads import unshared
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 61, "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 96, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_checkpoint(tmp_path_factory.mktemp("llama"), LLAMA)


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    with Checkpoint(folder) as checkpoint:
        found = {}
        for name in sorted(checkpoint.names()):
            found[name] = np.empty(checkpoint.shape(name), np.float32)
            checkpoint.read_into(name, found[name])
        return found


def plain_forward(folder: Path, tokens: list[int]) -> np.ndarray:
    """Llama in the fewest lines: no cache, no batch, one token's row per line of the matrix. float64."""
    w = {name: array.astype(np.float64) for name, array in tensors_of(folder).items()}
    n, d = len(tokens), LLAMA["head_dim"]
    config = load_model(folder).config
    angle = np.arange(n)[:, None] * inverse_frequencies(d, config.rope).astype(np.float64)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[name]

    def rotate(x: np.ndarray) -> np.ndarray:
        one, two = np.split(x, 2, axis=-1)
        return np.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(LLAMA["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = ((h @ w[f"{p}self_attn.{c}_proj.weight"].T).reshape(n, -1, d) for c in "qkv")
        q, k, v = rotate(q), np.repeat(rotate(k), 2, axis=1), np.repeat(v, 2, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d) + np.triu(np.full((n, n), -np.inf), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", weights, v).reshape(n, -1) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm.weight")
        gate, up = h @ w[p + "mlp.gate_proj.weight"].T, h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ w["lm_head.weight"].T


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_greedy_tokens_equal_the_plain_forward_pass(folder: Path, dtype: str) -> None:
    prompt = [5, 9, 3, 60, 1, 17]
    llm = LLM(str(folder), dtype=dtype, num_blocks=64, block_size=4)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=0)
    [output] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    logits = plain_forward(folder, prompt + tokens)[len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == tokens
    top = logits.max(-1)
    expected = -np.log(np.exp(logits - top[:, None]).sum(-1))
    assert completion.logprobs is not None
    got = [entry[token].logprob for entry, token in zip(completion.logprobs, tokens, strict=True)]
    np.testing.assert_allclose(got, expected, atol=1e-4 if dtype == "float32" else 1e-5)


def test_weights_are_held_once(folder: Path) -> None:
    """q, k, v and gate, up lie in fused arrays; every tensor of the file has its place in them."""
    model = load_model(folder)
    stored = sum(array.size for array in tensors_of(folder).values())
    assert model.num_parameters == stored
    layer = model.model.layers[0]
    assert layer.self_attn.qkv_proj.weight.shape == (4 * 8 + 2 * 2 * 8, 32)
    assert layer.mlp.gate_up_proj.weight.shape == (96, 32)
    layers = [model.model.embed_tokens, model.lm_head, model.model.norm]
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        layers += [layer.input_layernorm, attention.qkv_proj, attention.o_proj]
        layers += [layer.post_attention_layernorm, mlp.gate_up_proj, mlp.down_proj]
    assert sum(layer.weight.size for layer in layers) == stored


def test_the_compiled_form_has_no_weights_of_its_own(folder: Path) -> None:
    model = load_model(folder)
    form = compiled_form(model)
    assert form is not None
    for ours, layer in zip(form.layers, model.model.layers, strict=True):
        assert ours.qkv.weight is layer.self_attn.qkv_proj.weight and ours.down.weight is layer.mlp.down_proj.weight
        assert np.shares_memory(ours.input_norm, layer.input_layernorm.weight)


def test_tied_embeddings_are_one_array(tmp_path: Path) -> None:
    model = load_model(save_random_checkpoint(tmp_path, {**LLAMA, "tie_word_embeddings": True}))
    assert isinstance(model, LlamaForCausalLM) and model.lm_head is model.model.embed_tokens


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_and_shards(tmp_path: Path, dtype: str) -> None:
    one = load_model(save_random_checkpoint(tmp_path / "one", LLAMA, dtype=dtype))
    assert one.lm_head.weight.dtype == np.float32
    seen: list[tuple[int, int]] = []
    four = save_random_checkpoint(tmp_path / "four", LLAMA, dtype=dtype, shards=4)
    load_model(four, progress=lambda done, total: seen.append((done, total)))
    total = 2 * 9 + 3
    assert seen == [(i, total) for i in range(1, total + 1)]


def damage(tmp_path: Path, folder: Path, change: Any) -> Path:
    tensors = tensors_of(folder)
    change(tensors)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    write_safetensors(tmp_path / SINGLE_NAME, tensors)
    return tmp_path


def test_a_missing_tensor(tmp_path: Path, folder: Path) -> None:
    broken = damage(tmp_path, folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    message = r"tensor 'model\.layers\.1\.mlp\.up_proj\.weight' is missing, expected shape \(48, 32\)"
    with pytest.raises(CheckpointError, match=message):
        load_model(broken)


def test_a_wrong_shape(tmp_path: Path, folder: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    broken = damage(tmp_path, folder, lambda t: t.update({name: np.zeros((8, 32), np.float32)}))
    with pytest.raises(CheckpointError, match=r"tensor '.*k_proj\.weight' has shape \(8, 32\), expected \(16, 32\)"):
        load_model(broken)


def test_a_tensor_that_nothing_would_use(tmp_path: Path, folder: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    broken = damage(tmp_path, folder, lambda t: t.update({name: np.zeros(32, np.float32)}))
    with pytest.raises(
        CheckpointError, match=r"1 tensor\(s\) that LlamaForCausalLM does not use, first '.*q_proj\.bias'"
    ):
        load_model(broken)


def test_tables_that_we_compute_ourselves_are_passed_over(tmp_path: Path, folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    load_model(damage(tmp_path, folder, lambda t: t.update({name: np.zeros(4, np.float32)})))


def tied(tmp_path: Path, head: Any, shards: bool = False) -> Path:
    """A tied checkpoint of `llama-tied-mha` with an output matrix made of its embedding by `head`."""
    folder = save_tiny("llama-tied-mha", tmp_path / "tied")
    tensors = tensors_of(folder)
    more = {"lm_head.weight": head(tensors["model.embed_tokens.weight"])}
    if not shards:
        write_safetensors(folder / SINGLE_NAME, {**tensors, **more})
        return folder
    (folder / SINGLE_NAME).unlink()
    files = {"a.safetensors": more, "b.safetensors": tensors}
    for name, part in files.items():
        write_safetensors(folder / name, part)
    weight_map = {tensor: name for name, part in files.items() for tensor in part}
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("shards", [False, True])
def test_a_tied_output_matrix_that_differs_is_refused_by_name(tmp_path: Path, shards: bool) -> None:
    changes = {
        "all": lambda w: w + 1,
        "one number": lambda w: np.where(np.arange(w.size).reshape(w.shape) == w.size - 1, 0, w),
        "shape": lambda w: w[:-1],
    }
    for name, change in changes.items():
        folder = tied(tmp_path / name, change, shards)
        with pytest.raises(CheckpointError, match=r"'lm_head.weight' and 'model.embed_tokens.weight' differ"):
            load_model(folder)


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tied_output_matrix_that_is_equal_is_fine(tmp_path: Path, shards: bool, dtype: Any) -> None:
    model = load_model(tied(tmp_path, lambda w: w.astype(dtype), shards))
    assert model.lm_head is model.model.embed_tokens


def test_dtype_is_checked(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"dtype must be one of \('float32', 'float64'\), got 'float16'"):
        load_model(folder, dtype="float16")


TOKENS = (1, 2, 3, 8, 9, 31, 32, 33, 64, 100, 128, 129)
WIDE = [pytest.param((24, 100_000), tokens, marks=[] if tokens < 4 else [pytest.mark.slow]) for tokens in TOKENS]


@pytest.mark.parametrize(("shape", "tokens"), [*itertools.product([(8, 4), (1408, 256), (4099, 300)], TOKENS), *WIDE])
@pytest.mark.parametrize("core", [unshared, nullcontext], ids=["one-core", "all-cores"])
def test_a_product_in_blocks_is_the_product(shape: tuple[int, int], tokens: int, core: Any) -> None:
    rng = np.random.default_rng(tokens)
    weight, x = rng.standard_normal(shape), rng.standard_normal((tokens, shape[1]))
    for rows in (x.T, np.ascontiguousarray(x.T)):  # both orders of memory occur
        out = np.full((shape[0], tokens), np.nan)
        with core():
            project(weight, rows, out)
        np.testing.assert_allclose(out, weight @ x.T, atol=1e-9)


def test_a_folder_is_itself(folder: Path) -> None:
    assert get_checkpoint_folder(folder) == folder


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "nowhere", "a/b/c", "no such/model"])
def test_names_that_cannot_be_on_the_hub(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"does not exist \(a hub name has the form 'owner/name'\)"):
        get_checkpoint_folder(name)


def test_a_hub_name_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"'owner/tiny' is no folder here; .* install the extra `hub`"):
        get_checkpoint_folder("owner/tiny")


@pytest.mark.needs_torch
def test_a_hub_name_from_the_offline_cache(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's cache layout: refs/main names a commit, snapshots/COMMIT holds the files."""
    constants = pytest.importorskip("huggingface_hub.constants")
    snapshot = tmp_path / "models--owner--tiny" / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--owner--tiny" / "refs").mkdir()
    (tmp_path / "models--owner--tiny" / "refs" / "main").write_text("0123abc")
    for file in folder.iterdir():
        (snapshot / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert get_checkpoint_folder("owner/tiny").resolve() == snapshot.resolve()
    with pytest.raises(FileNotFoundError, match="model 'owner/other': no such folder, and the hub gave"):
        get_checkpoint_folder("owner/other")

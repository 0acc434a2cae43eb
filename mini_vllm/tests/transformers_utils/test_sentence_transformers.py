"""A sentence-transformers checkpoint: every module of its list is run, known to be nothing, or refused by name."""

from __future__ import annotations

import json
import shutil
from math import erf

import numpy as np
import pytest

from mini_vllm import LLM, PoolingParams
from mini_vllm.config.pooler import get_pooling_config
from mini_vllm.model_loader.random_checkpoint import write_safetensors
from mini_vllm.tests.models.pooling_checkpoints import save_family
from mini_vllm.transformers_utils.sentence_transformers import read_modules

TOKENS = list(range(5, 25))
OLD = "sentence_transformers.models."
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "LayerNorm": "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm",
    "Dropout": "sentence_transformers.sentence_transformer.modules.dropout.Dropout",
}
NAMED = {"embedding_dimension": 64, "pooling_mode": "mean", "include_prompt": True}
FLAGS = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
LINEAR = "torch.nn.modules.linear.Identity"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_family("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def rows(bert):
    """The hidden states of TOKENS: [20, 64]."""
    llm = LLM(str(bert), skip_tokenizer_init=True, enforce_eager=True)
    params = PoolingParams(use_activation=False)
    return np.array(llm.encode([TOKENS], params, pooling_task="token_embed", use_tqdm=False)[0].outputs.data)


def put(file, value):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value))


def checkpoint(folder, bert, pooling, *modules, names=None, **files):
    """A copy of `bert` with these modules after it: (kind, config, tensors)."""
    shutil.copytree(bert, folder)
    put(folder / "1_Pooling" / "config.json", pooling)
    listed = [("", "Transformer"), ("1_Pooling", "Pooling")]
    for i, (kind, config, tensors) in enumerate(modules, 2):
        listed.append((f"{i}_{kind}", kind))
        if config is not None:
            put(folder / f"{i}_{kind}" / "config.json", config)
        if tensors:
            write_safetensors(folder / f"{i}_{kind}" / "model.safetensors", tensors)
    entries = [{"idx": i, "name": str(i), "path": p, "type": (names or NEW)[k]} for i, (p, k) in enumerate(listed)]
    put(folder / "modules.json", entries)
    for name, value in files.items():
        put(folder / f"{name}.json", value)
    return folder


def embedding(folder, **settings):
    llm = LLM(str(folder), skip_tokenizer_init=True, enforce_eager=True, **settings)
    return np.array(llm.embed([TOKENS], use_tqdm=False)[0].outputs.embedding)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (NAMED, "mean"),
        ({**NAMED, "pooling_mode": "cls"}, "cls"),
        ({**NAMED, "pooling_mode": ["lasttoken"]}, "last"),
        (FLAGS, "mean"),
        ({**FLAGS, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "last"),
        ({"word_embedding_dimension": 64}, "mean"),
        ({**FLAGS, "pooling_mode_mean_tokens": False}, "mean"),
        ({**NAMED, **FLAGS}, "mean"),
    ],
)  # fmt: skip
def test_both_spellings_of_a_pooling_are_read(bert, rows, tmp_path, pooling, expected):
    want = {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}[expected]
    found = embedding(checkpoint(tmp_path / "st", bert, pooling))
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "words"),
    [
        ({**NAMED, "pooling_mode": "max"}, r"pooling_mode must be one of .*'lasttoken'.*, got \['max'\]"),
        ({**NAMED, "pooling_mode": "weightedmean"}, "pooling_mode must be one of"),
        ({**NAMED, "pooling_mode": ["cls", "mean"]}, "got .'cls', 'mean'.; several would be concatenated"),
        ({**NAMED, "pooling_mode": []}, "pooling_mode must be one of"),
        ({**NAMED, "pooling_mode": "median"}, "pooling_mode must be one of"),
        ({**NAMED, "pooling_mode": 5}, "pooling_mode must be a text or a list of texts, got 5"),
        ({"word_embedding_dimension": 64, "pooling_mode_max_tokens": True}, r"pooling_mode must be .* got \['max'\]"),
        ({**FLAGS, "pooling_mode_mean_sqrt_len_tokens": True}, "got .'mean', 'mean_sqrt_len_tokens'"),
        ({**FLAGS, "pooling_mode_mean_tokens": "true"}, "pooling_mode_mean_tokens must be true or false, got 'true'"),
        ({**FLAGS, "pooling_mode_mean_tokens": 1}, "pooling_mode_mean_tokens must be true or false, got 1"),
        ({**FLAGS, "pooling_mode": "cls"}, r"pooling_mode \['cls'\] and the flags \['mean'\] disagree"),
        ({**NAMED, "word_embedding_dimension": 32}, "embedding_dimension and word_embedding_dimension disagree"),
        ({**NAMED, "embedding_dimension": 32}, "embedding_dimension must be hidden_size, 64, got 32"),
        ({**NAMED, "include_prompt": False}, "include_prompt must be True or null, got False"),
        ({**NAMED, "poolng_mode": "cls"}, "unknown key 'poolng_mode'.*did you mean 'pooling_mode'"),
        ({**NAMED, "temperature": 2}, "unknown key 'temperature' = 2: it could change what is computed"),
    ],
)  # fmt: skip
def test_what_is_not_pooled_as_it_says_is_refused_by_name(bert, tmp_path, pooling, words):
    with pytest.raises(ValueError, match=words):
        embedding(checkpoint(tmp_path / "st", bert, pooling))


def dense(rng, inputs, outputs, activation=LINEAR, bias=True, name="linear", **more):
    weight, shift = rng.standard_normal((outputs, inputs)).astype(np.float32), rng.standard_normal(outputs)
    tensors = {f"{name}.weight": weight, **({f"{name}.bias": shift.astype(np.float32)} if bias else {})}
    config = {"in_features": inputs, "out_features": outputs, "bias": bias, "activation_function": activation, **more}
    return ("Dense", config, tensors), lambda x: weight @ x + (shift if bias else 0)


def unit(x):
    return x / np.linalg.norm(x)


ACTIVATIONS = {
    "linear.Identity": lambda x: x, "activation.Tanh": np.tanh, "activation.ReLU": lambda x: np.maximum(x, 0),
    "activation.GELU": lambda x: np.array([0.5 * v * (1 + erf(v / 2**0.5)) for v in x]),
    "activation.Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_dense_module_is_run(bert, rows, tmp_path, name):
    module, f = dense(np.random.default_rng(1), 64, 16, f"torch.nn.modules.{name}")
    found = embedding(checkpoint(tmp_path / "st", bert, NAMED, module))
    np.testing.assert_allclose(found, ACTIVATIONS[name](f(rows.mean(0))), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["linear", "dense"])
def test_modules_run_in_their_order(bert, rows, tmp_path, name):
    rng = np.random.default_rng(2)
    one, f = dense(rng, 64, 24, bias=False, name=name)
    two, g = dense(rng, 24, 8, "torch.nn.modules.activation.Tanh", module_output_name="sentence_embedding")
    scale, shift = rng.standard_normal((2, 24)).astype(np.float32)
    norm = ("LayerNorm", {"dimension": 24}, {"norm.weight": scale, "norm.bias": shift})
    drop, length = ("Dropout", {"dropout": 0.3}, None), ("Normalize", None, None)
    names = {kind: OLD + kind for kind in NEW}
    folder = checkpoint(tmp_path / "st", bert, FLAGS, one, norm, drop, length, two, length, names=names)
    x = f(rows.mean(0))
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * scale + shift
    np.testing.assert_allclose(embedding(folder), unit(np.tanh(g(unit(x)))), rtol=0, atol=1e-5)
    config = get_pooling_config(folder)
    assert [m.kind for m in config["projector"]] == ["Dense", "LayerNorm", "Normalize", "Dense"]
    assert config["use_activation"] is True


def bad_modules():
    rng = np.random.default_rng(3)
    plain, _ = dense(rng, 64, 16)
    kind, config, tensors = plain
    short = {"linear.weight": tensors["linear.weight"]}
    more = {**tensors, "residual.weight": tensors["linear.weight"]}
    silu = "torch.nn.modules.activation.SiLU"
    norm = {"norm.weight": np.ones(64, np.float32), "norm.bias": np.ones(64, np.float32)}
    yield [(kind, {**config, "activation_function": silu}, tensors)], "activation_function must be .*, got '.*SiLU'"
    yield [(kind, {**config, "activation_function": "my.module.Act"}, tensors)], "activation_function must be"
    yield [(kind, {k: v for k, v in config.items() if k[0] != "a"}, tensors)], "must have activation_function"
    yield [(kind, {**config, "use_residual": True}, tensors)], "use_residual must be False or null, got True"
    yield [(kind, {**config, "module_input_name": "token_embeddings"}, tensors)], "module_input_name must be"
    yield [(kind, {**config, "in_features": 32}, tensors)], "it must take 64 numbers, got 32"
    yield [(kind, {**config, "out_features": 8}, tensors)], r"shape \(16, 64\), expected \(8, 64\)"
    yield [(kind, {**config, "bias": "no"}, tensors)], "bias must be true or false"
    yield [(kind, config, short)], "must hold linear.weight and linear.bias and nothing else"
    yield [(kind, {**config, "bias": False}, tensors)], "must hold linear.weight and nothing else"
    yield [(kind, config, more)], "nothing else, got .*residual.weight"
    yield [(kind, config, None)], "a Dense needs its weights"
    yield [plain, (kind, config, tensors)], "it must take 16 numbers, got 64"
    yield [plain, ("LayerNorm", {"dimension": 64}, norm)], "it must take 16 numbers, got 64"
    yield [("LayerNorm", {"dimension": 64, "eps": 1e-3}, norm)], "unknown key 'eps'"
    yield [("Normalize", {"module_input_name": "token_embeddings"}, None)], "module_input_name must be"
    yield [("Dropout", {"rate": 0.1}, None)], "unknown key 'rate'"


@pytest.mark.parametrize(("modules", "words"), list(bad_modules()))
def test_a_module_that_is_not_run_as_it_says_is_refused(bert, tmp_path, modules, words):
    with pytest.raises(ValueError, match=words):
        embedding(checkpoint(tmp_path / "st", bert, NAMED, *modules))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: [{**m[0], "type": OLD + "CLIPModel"}, m[1]], "the module 'sentence_transformers.models.CLIPModel'"),
        (lambda m: [*m, {**m[1], "type": OLD + "WordWeights", "path": "2"}], "WordWeights' is not served"),
        (lambda m: [*m, {**m[1], "type": "custom_st.Dense", "path": "2"}], "'custom_st.Dense' is not served"),
        (lambda m: [m[0]], r"must list a Transformer .* got \['Transformer'\]"),
        (lambda m: [m[0], {**m[1], "type": OLD + "Normalize"}], r"got \['Transformer', 'Normalize'\]"),
        (lambda m: [m[1], m[0]], r"got \['Pooling', 'Transformer'\]"),
        (lambda m: [*m, m[1]], r"got \['Transformer', 'Pooling', 'Pooling'\]"),
        (lambda m: [{**m[0], "path": "0_Transformer"}, m[1]], "must list a Transformer in the folder itself"),
        (lambda m: [m[0], {**m[1], "path": "../1_Pooling"}], "path must be a folder of the checkpoint"),
        (lambda m: [m[0], {**m[1], "kwargs": ["task"]}], "entry 1: kwargs must be empty"),
        (lambda m: [m[0], {**m[1], "weight": 2}], "entry 1: unknown key 'weight'"),
        (lambda m: [m[0], {"type": m[1]["type"]}], "entry 1 must have path"),
        (lambda m: {"modules": m}, "not a list of modules"),
        (lambda m: [5], "not a list of modules"),
        (lambda m: [], r"must list a Transformer .* got \[\]"),
    ],
)  # fmt: skip
def test_a_list_of_modules_that_is_not_run_whole_is_refused(bert, tmp_path, change, words):
    folder = checkpoint(tmp_path / "st", bert, NAMED)
    put(folder / "modules.json", change(json.loads((folder / "modules.json").read_text())))
    with pytest.raises(ValueError, match=words):
        read_modules(folder)


@pytest.mark.parametrize("name", ["sentence_bert_config", "sentence_roberta_config"])
def test_the_longest_text_is_the_checkpoints(bert, tmp_path, name):
    folder = checkpoint(tmp_path / "st", bert, NAMED, **{name: {"max_seq_length": 8, "do_lower_case": False}})
    llm = LLM(str(folder), skip_tokenizer_init=True, enforce_eager=True)
    assert llm.llm_engine.max_model_len == 8
    with pytest.raises(ValueError, match="8"):
        llm.embed([TOKENS], use_tqdm=False)
    with pytest.raises(ValueError, match="max_model_len must be at most the model's context of 8, got 9"):
        LLM(str(folder), skip_tokenizer_init=True, max_model_len=9)
    (folder / f"{name}.json").unlink()
    put(folder / "tokenizer_config.json", {"model_max_length": 16})
    assert LLM(str(folder), skip_tokenizer_init=True).llm_engine.max_model_len == 16


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_seq_length": 0}, "max_seq_length must be a whole number of at least 1"),
        ({"max_seq_length": "8"}, "max_seq_length must be a whole number of at least 1, got '8'"),
        ({"max_seq_length": 65}, "max_seq_length must be at most the model's context of 64, got 65"),
        ({"do_lower_case": True}, "do_lower_case must be False or null, got True: write a Lowercase normalizer"),
        ({"max_sequence_length": 8}, "unknown key 'max_sequence_length'.*did you mean 'max_seq_length'"),
        ({"transformer_task": "fill-mask"}, "transformer_task must be"),
        ({"model_args": {"attn_implementation": "x"}}, "model_args must be empty"),
        ({"query_expansion": {"length": 32}}, "query_expansion must be empty"),
    ],
)  # fmt: skip
def test_what_is_said_of_the_transformer_has_an_owner(bert, tmp_path, config, words):
    with pytest.raises(ValueError, match=words):
        embedding(checkpoint(tmp_path / "st", bert, NAMED, sentence_bert_config=config))


def test_two_files_about_the_transformer_must_agree(bert, tmp_path):
    folder = checkpoint(tmp_path / "x", bert, NAMED)
    for name, length in (("bert", 8), ("roberta", 8)):
        put(folder / f"sentence_{name}_config.json", {"max_seq_length": length})
    assert read_modules(folder).seq_pooling_type == "MEAN"
    put(folder / "sentence_roberta_config.json", {"max_seq_length": 16})
    with pytest.raises(ValueError, match=r"sentence_bert_config.json and sentence_roberta_config.json disagree"):
        read_modules(folder)


def test_a_prompt_that_the_library_would_add_is_named(bert, tmp_path, caplog):
    model = {"prompts": {"query": "q: ", "document": ""}, "similarity_fn_name": "cosine", "__version__": {}}
    folder = checkpoint(tmp_path / "a", bert, NAMED, config_sentence_transformers=model)
    read_modules(folder)
    assert not caplog.records
    put(folder / "config_sentence_transformers.json", {**model, "default_prompt_name": "query"})
    read_modules(folder)
    assert "the prompt 'query' is not put before texts" in caplog.text
    put(folder / "config_sentence_transformers.json", {**model, "truncate_dim": 32})
    with pytest.raises(ValueError, match="truncate_dim must be empty, got 32: ask for `dimensions`"):
        read_modules(folder)


def test_a_projection_for_a_model_without_embeddings_is_refused(tmp_path):
    plain = save_family("bert-cross-encoder", tmp_path / "bert")
    module, _ = dense(np.random.default_rng(1), 64, 16)
    with pytest.raises(ValueError, match="makes no embedding that a Dense could change"):
        LLM(str(checkpoint(tmp_path / "st", plain, NAMED, module)), skip_tokenizer_init=True)

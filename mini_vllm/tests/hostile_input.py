"""Inputs that are wrong, damaged or meant ill, by kind: name, what is done, words of the error. `test_hostile_input.py`
runs them all, `docs/parity.md` lists them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mini_vllm import LLM, SamplingParams
from mini_vllm.tests.helpers import POCKET

SMALL = {"num_blocks": 16, "max_model_len": 128}
HI = [{"role": "user", "content": "hi"}]


def pocket_with(folder: Path, **files: Any) -> Path:
    """A copy of models/pocket in which files are others: bytes, text, or JSON. `a__b` names a.b."""
    shutil.copytree(POCKET, folder)
    for name, content in files.items():
        file = folder / name.replace("__", ".")
        if callable(content):
            content = content(file.read_bytes())
        data = content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else None
        file.write_bytes(json.dumps(content).encode() if data is None else data)
    return folder


def own(name: str) -> dict[str, Any]:
    """A JSON file of models/pocket."""
    return json.loads((POCKET / name).read_text(encoding="utf-8"))


def tokenizer(**changes: Any) -> dict[str, Any]:
    """tokenizer.json with other parts; those of its model as `model__vocab`."""
    spec = own("tokenizer.json")
    for name, value in changes.items():
        part, _, inner = name.partition("__")
        spec[part] = {**spec[part], inner: value} if inner else value
    return spec


def weights(key: str, value: Any) -> Callable[[bytes], bytes]:
    """model.safetensors with one entry of its first tensor changed."""

    def change(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header[next(name for name in header if name != "__metadata__")][key] = value
        made = json.dumps(header).encode()
        return len(made).to_bytes(8, "little") + made + data[8 + length :]

    return change


def template(text: Any) -> dict[str, Any]:
    """tokenizer_config.json with another chat template."""
    return {"tokenizer_config__json": {**own("tokenizer_config.json"), "chat_template": text}}


CONFIG = own("config.json") if POCKET.is_dir() else {}
VOCAB = own("tokenizer.json")["model"]["vocab"] if POCKET.is_dir() else {}

# name, files that are others, words of the error of LLM(folder)
FOLDERS: list[tuple[str, dict[str, Any], str]] = [
    ("tokenizer.json is {}", {"tokenizer__json": {}}, "tokenizer.json: the tokenizer's files are damaged: .*model"),
    ("tokenizer.json is [1]", {"tokenizer__json": [1]}, r"tokenizer\.json must hold a JSON object, got list"),
    ("tokenizer.json 100,000 deep", {"tokenizer__json": "[" * 100_000}, r"tokenizer\.json: .*nested too deep"),
    ("tokenizer.json whose model is a text", {"tokenizer__json": tokenizer(model="x") if CONFIG else 0}, "damaged"),
    ("a vocabulary that is a list", {"tokenizer__json": tokenizer(model__vocab=[1]) if CONFIG else 0}, "vocab must be"),
    ("a token id of 10**12", {"tokenizer__json": tokenizer(model__vocab={**VOCAB, "zz": 10**12}) if CONFIG else 0},
     "id of token 'zz' must be 0 to 16777215, got 1000000000000"),
    ("a token id below zero", {"tokenizer__json": tokenizer(model__vocab={**VOCAB, "zz": -5}) if CONFIG else 0},
     "id of token 'zz' must be 0 to"),
    ("an added token of id 10**15", {"tokenizer__json": tokenizer(added_tokens=[{"content": "x", "id": 10**15}])
     if CONFIG else 0}, "id of token 'x' must be 0 to"),
    ("merges of three parts", {"tokenizer__json": tokenizer(model__merges=["a b c"]) if CONFIG else 0}, "damaged"),
    ("a post-processor without parts", {"tokenizer__json": tokenizer(post_processor={"type": "TemplateProcessing"})
     if CONFIG else 0}, "damaged"),
    ("tokenizer_config.json is a list", {"tokenizer_config__json": []},
     r"tokenizer_config\.json must hold a JSON object"),
    ("config.json 100,000 deep", {"config__json": '{"a":' * 100_000}, r"config\.json: .*nested too deep"),
    ("config.json is null", {"config__json": "null"}, r"config\.json must hold a JSON object, got NoneType"),
    ("config.json is no text", {"config__json": b"\xff\xfe\x00"}, r"config\.json: not valid JSON"),
    ("a number of 5,000 digits", {"config__json": '{"vocab_size": ' + "9" * 5000 + "}"}, "Exceeds the limit"),
    ("architectures with a dict in it", {"config__json": {**CONFIG, "architectures": [{}]}}, "architectures must name"),
    ("num_hidden_layers=10**9", {"config__json": {**CONFIG, "num_hidden_layers": 10**9}},
     "num_hidden_layers must be at most 10,000, got 1000000000"),
    ("hidden_size=10**9", {"config__json": {**CONFIG, "hidden_size": 10**9}}, "hidden_size must be at most 16,777,216"),
    ("a vocabulary of 2**31 - 1", {"config__json": {**CONFIG, "vocab_size": 2**31 - 1}},
     "weights needs .* GiB, but this"),
    ("max_position_embeddings=10**18", {"config__json": {**CONFIG, "max_position_embeddings": 10**18}}, "at most"),
    ("rms_norm_eps is a text", {"config__json": {**CONFIG, "rms_norm_eps": "x"}},
     "rms_norm_eps must be a number above 0"),
    ("rope_scaling is a list", {"config__json": {**CONFIG, "rope_scaling": [1]}}, "rope_scaling must be an object"),
    ("a rope type that is a list", {"config__json": {**CONFIG, "rope_scaling": {"rope_type": [1]}}}, "not supported"),
    ("generation_config.json is a list", {"generation_config__json": [1]}, "must hold a JSON object, got list"),
    ("data_offsets are a text", {"model__safetensors": weights("data_offsets", "ab")}, "damaged header entry"),
    ("data_offsets below zero", {"model__safetensors": weights("data_offsets", [-4, 0])}, "damaged header entry"),
    ("data_offsets of 10**30", {"model__safetensors": weights("data_offsets", [10**30, 10**30])},
     "damaged header entry"),
    ("a shape below zero", {"model__safetensors": weights("shape", [-1, -1])}, "damaged header entry"),
    ("a wrong dtype", {"model__safetensors": weights("dtype", "I32")}, "has 2097152 bytes, expected 4194304"),
    ("an unknown dtype", {"model__safetensors": weights("dtype", "F99")}, "has dtype F99; allowed: F64, F32"),
    ("ten extra bytes", {"model__safetensors": lambda data: data + b"0123456789"},
     "tensors end at byte .* the file has"),
    ("a header 100,000 deep", {"model__safetensors": (100_000).to_bytes(8, "little") + b"[" * 100_000},
     "header is not JSON"),
    ("no weights", {"model__safetensors": b""}, "0 bytes are too few"),
    ("an index that is a list", {"model__safetensors__index__json": {"weight_map": [1]}},
     "weight_map must be an object of file names"),
    ("a shard outside the folder",
     {"model__safetensors__index__json": {"weight_map": {"a": "../x", "b": "model.safetensors"}}},
     "is not in the folder"),
    ("an index of other files", {"model__safetensors__index__json": {"weight_map": {"a": "x"}}}, "two sets of weights"),
]  # fmt: skip

# name, template, words of the error of LLM.chat
TEMPLATES: list[tuple[str, Any, str]] = [
    ("range(10**12)", "{% for i in range(10**12) %}x{% endfor %}", "range|Range"),
    ("a recursive macro", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself without end"),
    ("'x' * 10**10", "{{ 'x' * 10**10 }}", "a text of more than"),
    ("loops inside loops", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "rounds"),
    ("a string that doubles by ~", "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}"
     "{% endfor %}{{ n.s }}", "a text of more than"),
    ("a string that doubles by +", "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}"
     "{% endfor %}{{ n.s }}", "a text of more than"),
    ("center(10**10)", "{{ 'x'.center(10**10) }}", "a text of more than"),
    ("the filter center", "{{ 'x' | center(width=10**10) }}", "a text of more than"),
    ("a format of 10**10 characters", "{{ '%10000000000d' % 5 }}", "a text of more than"),
    ("str.format", "{{ '{:10000000000}'.format('x') }}", "a text of more than"),
    ("the filter format", "{{ '%*d' | format(10**10, 5) }}", "a text of more than"),
    ("tojson(indent=10**9)", "{{ messages | tojson(indent=10**9) }}", "a text of more than"),
    ("batch(10**9)", "{{ [1] | batch(10**9, 'x') | list }}", "a text of more than"),
    ("replace that grows", "{{ ('x' * 4000000).replace('x', 'y' * 4000000) }}", "a text of more than"),
    ("join of large texts", "{{ (['x' * 1000000] * 1000) | join }}", "a text of more than"),
    ("a template that is 5", 5, "chat_template must be a text, got 5"),
    ("an include", "{% include 'x' %}", "chat template: TypeError: no loader"),
    ("Python's insides", "{{ ''.__class__.__mro__ }}", "unsafe"),
    ("named templates without names", [{"a": 1}], "has no chat template"),
]  # fmt: skip

# name, keyword arguments of LLM, words of the error; "model" is models/pocket where it is True
ENGINES: list[tuple[str, dict[str, Any], str]] = [
    ("num_blocks=10**12", {"num_blocks": 10**12}, "num_blocks=1000000000000 needs .* GiB, but this machine has"),
    ("num_blocks=10**12 of a checkpoint", {"model": True, "num_blocks": 10**12}, "num_blocks=1000000000000 needs"),
    ("num_blocks of 5,000 digits", {"num_blocks": 10**5000}, "num_blocks must be a number of at most 64 bits"),
    ("kv_cache_memory_bytes=10**18", {"model": True, "kv_cache_memory_bytes": 10**18},
     "kv_cache_memory_bytes=10+ needs"),
    ("a pool of 1 KiB", {"model": True, "kv_cache_memory_bytes": 1024}, "holds 0 tokens.* allow 16908288 bytes"),
    ("max_num_seqs=10**9", {"model": True, "max_num_seqs": 10**9, "max_num_batched_tokens": 10**9},
     "max_num_seqs=10+ with"),
    ("block_size=10**12", {"block_size": 10**12}, "block_size=1000000000000 needs"),
    ("capture sizes up to 10**12", {"model": True, "cudagraph_mode": "FULL", "num_blocks": 64,
     "max_cudagraph_capture_size": 10**12, "max_num_batched_tokens": 10**12},
     "max_cudagraph_capture_size must be at most"),
    ("cudagraph_capture_sizes=5", {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": 5}, "must be a list of whole"),
    ("tensor_parallel_size='2'", {"tensor_parallel_size": "2"}, "must be a whole number, got '2'"),
    ("tokenizer='/nope'", {"model": True, "tokenizer": "/nope"}, "tokenizer folder '/nope' does not exist"),
    ("tokenizer=5", {"model": True, "tokenizer": 5}, "tokenizer must be a folder, a hub name, or an object .* int: 5"),
    ("tokenizer=b'x'", {"model": True, "tokenizer": b"x"}, "tokenizer must be a folder, a hub name or None, got bytes"),
    ("LLM(5)", {"model": 5}, "model must be a folder, a hub name or None, got int: 5"),
    ("LLM('')", {"model": ""}, "model must be a folder or a hub name, got ''"),
    ("a zero byte in the name", {"model": "a\0b"}, r"model must be a folder or a hub name, got 'a\\x00b'"),
    ("a name of 5,000 letters", {"model": "a" * 5000}, "File name too long|does not exist"),
    ("a file for a folder", {"model": __file__}, "is a file"),
    ("LLM([...])", {"model": ["x"]}, "model must be a folder, a hub name or None, got list"),
    ("with_labs=5", {"with_labs": 5}, "with_labs must be a string or a list of strings, such as 'all' .* got 5"),
    ("with_labs=[]", {"with_labs": []}, r"with_labs must be a string or a list of strings.* got \[\]"),
    ("compilation_config='x'", {"compilation_config": "x"}, "compilation_config must be 0, 3, or a dict"),
    ("generation_config=5", {"generation_config": 5}, "generation_config must be a string, got 5"),
    ("scheduling_policy=['fcfs']", {"scheduling_policy": ["fcfs"]}, "scheduling_policy must be one of"),
    ("max_model_len=10**18", {"max_model_len": 10**18}, "max_model_len must be at most the model's context"),
]  # fmt: skip

# name, what is done with an LLM of models/pocket, words of the error
CALLS: list[tuple[str, Callable[[LLM], Any], str]] = [
    ("tools=5", lambda llm: llm.chat(HI, tools=5), "tools must be a list of dicts, as in OpenAI's API, got 5"),
    ("tools=[5]", lambda llm: llm.chat(HI, tools=[5]), "tools must be a list of dicts"),
    ("messages=5", lambda llm: llm.chat(5), "messages must be a list of at least one"),
    ("messages=[5]", lambda llm: llm.chat([5]), "messages must be a list"),
    ("a content of 5", lambda llm: llm.chat([{"role": "user", "content": 5}]),
     "content must be a text or a list of parts"),
    ("an image", lambda llm: llm.chat([{"role": "user", "content": [{"type": "image_url"}]}]),
     "is not a multimodal model"),
    ("a part of type []", lambda llm: llm.chat([{"role": "user", "content": [{"type": []}]}]),
     "type must be one of text"),
    ("tool_calls=5", lambda llm: llm.chat([{"role": "assistant", "tool_calls": 5}]),
     "tool_calls must be a list of dicts"),
    ("arguments that are no JSON", lambda llm: llm.chat([{"role": "assistant", "tool_calls": [
        {"function": {"name": "a", "arguments": "{"}}]}]), "arguments of a tool call are not valid JSON"),
    ("both ways to end", lambda llm: llm.chat(HI, continue_final_message=True), "needs add_generation_prompt=False"),
    ("nothing to continue", lambda llm: llm.chat([{"role": "assistant", "content": ""}], continue_final_message=True,
     add_generation_prompt=False), "a last message with a text to continue"),
    ("chat_template='/nope'", lambda llm: llm.chat(HI, chat_template="/nope"), "looks like a file, but"),
    ("chat_template_kwargs=5", lambda llm: llm.chat(HI, chat_template_kwargs=5), "chat_template_kwargs must be a dict"),
    ("prompts=None", lambda llm: llm.generate(None), "prompts must be a string, a dict, token ids"),
    ("prompts=b'x'", lambda llm: llm.generate(b"x"), "prompts must be a string, a dict, token ids"),
    ("a list of None", lambda llm: llm.generate([None]), r"prompts\[0\]: prompt must be a string"),
    ("ids in two dimensions", lambda llm: llm.generate({"prompt_token_ids": [[1]]}), r"must be an int, got \[1\]"),
    ("an id of 5,000 digits", lambda llm: llm.generate({"prompt_token_ids": [10**5000]}), "a number of 16610 bits"),
    ("images in a prompt", lambda llm: llm.generate({"prompt": "x", "multi_modal_data": {}}),
     "multi_modal_data must be None, got .*: the model takes text alone"),
    ("half a surrogate pair", lambda llm: LLM(**SMALL).generate("\ud800"), "not a text that UTF-8 can write"),
    ("sampling_params=5", lambda llm: llm.generate("x", 5), "sampling_params must be a SamplingParams or a list"),
    ("sampling_params={...}", lambda llm: llm.generate("x", {"n": 1}), "must be a SamplingParams or a list"),
    ("priority='1'", lambda llm: llm.generate("x", priority="1"), "priority must be a list of whole numbers"),
    ("cache_salt=5", lambda llm: llm.generate({"prompt": "x", "cache_salt": 5}), "cache_salt must be a string"),
    ("bad_words=[' ']", lambda llm: llm.generate("x", SamplingParams(bad_words=[" "])), "not spaces alone"),
    ("a bias of infinity", lambda llm: SamplingParams(logit_bias={1: float("inf")}), "below infinity"),
    ("max_tokens of 5,000 digits", lambda llm: SamplingParams(max_tokens=10**5000), "at most 64 bits"),
]  # fmt: skip

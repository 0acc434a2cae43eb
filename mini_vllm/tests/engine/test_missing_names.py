"""Every public name of the pinned release: there, or refused by a sentence that says what to use."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import mini_vllm
from mini_vllm import (
    LLM,
    AsyncLLM,
    BeamSearchParams,
    ClassificationOutput,
    CompletionOutput,
    EmbeddingOutput,
    FlatLogprobs,
    LLMEngine,
    Logprob,
    LoRARequest,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    RepetitionDetectionParams,
    RequestOutput,
    SamplingParams,
    ScoringOutput,
    StructuredOutputsParams,
)  # fmt: skip
from mini_vllm.engine import arg_refusals, missing_names
from mini_vllm.tests.helpers import POCKET

ROOT = Path(mini_vllm.__file__).resolve().parents[1]
UPSTREAM = ROOT / "upstream" / "vllm"
needs_tree = pytest.mark.skipif(not UPSTREAM.is_dir(), reason="upstream/ is absent: run `course upstream`")
ENGINES = {"entrypoints/llm.py": LLM, "v1/engine/llm_engine.py": LLMEngine, "v1/engine/async_llm.py": AsyncLLM}
OF_A_MODEL = ("model", "tokenizer", "hf_config", "max_model_len", "dtype", "served_model_name", "get_vocab_size",
              "get_hidden_size")  # fmt: skip
OF_A_TOKENIZER = ("encode", "decode", "apply_chat_template", "__call__", "__len__", "get_vocab", "all_special_ids",
                  "eos_token_id", "bos_token_id", "vocab_size", "convert_ids_to_tokens")  # fmt: skip


def public_names(file: str, owner: str) -> set[str]:
    """Methods, properties, and what the constructor puts on `self`."""
    tree = ast.parse((UPSTREAM / file).read_text())
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner).body
    made = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    init = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    for node in ast.walk(init):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        made |= {t.attr for t in targets if isinstance(t, ast.Attribute) and getattr(t.value, "id", "") == "self"}
    return {name for name in made if not name.startswith("_")}


@pytest.fixture(scope="module")
def engines() -> Any:
    async def make() -> AsyncLLM:
        return AsyncLLM(num_blocks=32)

    llm = LLM(num_blocks=32)
    made = {LLM: llm, LLMEngine: llm.llm_engine, AsyncLLM: asyncio.run(make())}
    yield made
    made[AsyncLLM].shutdown()


@needs_tree
@pytest.mark.parametrize("file", ENGINES)
def test_every_name_of_an_engine_is_there_or_says_what_to_use(file: str, engines: Any) -> None:
    engine, silent = engines[ENGINES[file]], []
    for name in public_names(file, ENGINES[file].__name__):
        try:
            getattr(engine, name)
        except AttributeError as error:
            if name not in missing_names.MISSING or missing_names.MISSING[name] not in str(error):
                silent.append(name)
    assert not silent


@needs_tree
def test_every_name_of_the_package_is_there_or_says_what_to_use() -> None:
    tree = ast.parse((UPSTREAM / "__init__.py").read_text())
    listed = next(
        n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"
    )
    for name in ast.literal_eval(listed):
        try:
            assert getattr(mini_vllm, name) is not None
        except AttributeError as error:
            assert str(error).endswith("an engine with distributed_executor_backend='ray' joins the cluster by itself")
    assert mini_vllm.AsyncLLMEngine is AsyncLLM and mini_vllm.AsyncEngineArgs is mini_vllm.EngineArgs
    assert "LlamaForCausalLM" in mini_vllm.ModelRegistry.get_supported_archs()


def test_a_name_that_nobody_has_is_a_plain_error(engines: Any) -> None:
    for engine in engines.values():
        with pytest.raises(AttributeError, match=r"object has no attribute 'slep'$"):
            engine.slep  # noqa: B018


@pytest.mark.skipif(not POCKET.is_dir(), reason="models/pocket is not here")
def test_what_is_known_of_a_model_is_known_after_the_start() -> None:
    llm = LLM(str(POCKET), num_blocks=64)
    config = llm.model_config
    assert all(getattr(config, name) is not None for name in OF_A_MODEL)
    assert config.max_model_len == llm.llm_engine.max_model_len == 2048
    assert config.get_vocab_size() == 4096 and config.hf_config.num_hidden_layers == len(
        llm.llm_engine.model.model.layers
    )
    assert config.served_model_name == config.model == config.tokenizer == str(POCKET)
    engine = llm.llm_engine
    assert engine.model_config is config and engine.vllm_config is engine.config
    assert LLM(str(POCKET), num_blocks=64, max_model_len=300).model_config.max_model_len == 300
    tokenizer = llm.get_tokenizer()
    assert all(getattr(tokenizer, name) is not None for name in OF_A_TOKENIZER)


SIGNATURES: dict[str, list[Any]] = {
    "entrypoints/llm.py": [
        LLM.generate, LLM.enqueue, LLM.chat, LLM.enqueue_chat, LLM.wait_for_completion, LLM.encode, LLM.embed,
        LLM.classify, LLM.score, LLM.reward, LLM.beam_search, LLM.get_tokenizer, LLM.get_metrics, LLM.apply_model,
        LLM.reset_prefix_cache, LLM.get_default_sampling_params, LLM.from_engine_args,
    ],
    "v1/engine/async_llm.py": [
        AsyncLLM.generate, AsyncLLM.encode, AsyncLLM.add_request, AsyncLLM.abort, AsyncLLM.from_engine_args,
        AsyncLLM.reset_prefix_cache, AsyncLLM.add_lora, AsyncLLM.remove_lora, AsyncLLM.list_loras, AsyncLLM.pin_lora,
        AsyncLLM.check_health, AsyncLLM.notify_kv_transfer_request_rejected, AsyncLLM.shutdown,
    ],
    "v1/engine/llm_engine.py": [
        LLMEngine.abort_request, LLMEngine.from_engine_args, LLMEngine.reset_prefix_cache, LLMEngine.add_lora,
        LLMEngine.remove_lora, LLMEngine.list_loras, LLMEngine.pin_lora, LLMEngine.collective_rpc,
        LLMEngine.apply_model, LLMEngine.step, LLMEngine.get_num_unfinished_requests,
    ],
    "sampling_params.py": [SamplingParams, BeamSearchParams, StructuredOutputsParams, RepetitionDetectionParams],
    "pooling_params.py": [PoolingParams],
    "lora/request.py": [LoRARequest],
    "outputs.py": [
        RequestOutput, CompletionOutput, PoolingRequestOutput, PoolingOutput, EmbeddingOutput, ClassificationOutput,
        ScoringOutput,
    ],
    "logprobs.py": [Logprob, FlatLogprobs],
}  # fmt: skip
SET_BY_UPSTREAM_ITSELF = {"output_text_buffer_length"}
"""Upstream says of it: "not supposed to be used as an input"."""


def upstreams_arguments(file: str, owner: str, method: str | None) -> list[str]:
    """Of a method, or of a class: those of its `__init__`, else its fields."""
    files = [file, *OTHERS_OF.get(file, ())]
    classes = [n for f in files for n in ast.parse((UPSTREAM / f).read_text()).body if isinstance(n, ast.ClassDef)]
    bodies = [each.body for each in classes if each.name == owner or (method is not None and owner == "LLM")]
    wanted = method or "__init__"
    for node in [node for body in bodies for node in reversed(body)]:  # behind its overloads
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == wanted:
            given = node.args
            return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)][1:]
    fields = [node for node in bodies[0] if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    names = [node.target.id for node in fields if "ClassVar" not in ast.unparse(node.annotation)]
    return [name for name in names if not name.startswith("_") and name not in SET_BY_UPSTREAM_ITSELF]


OTHERS_OF = {"entrypoints/llm.py": ("entrypoints/pooling/offline.py", "entrypoints/generate/beam_search/offline.py")}
"""Where the bases of `LLM` stand."""


@needs_tree
@pytest.mark.parametrize("file", SIGNATURES)
def test_every_signature_has_upstreams_names_in_its_order(file: str) -> None:
    """Ours come after them."""
    for thing in SIGNATURES[file]:
        owner, _, method = thing.__qualname__.partition(".")
        owner = ENGINES[file].__name__ if file in ENGINES else owner
        expected = upstreams_arguments(file, owner, method or None)
        ours = [name for name in inspect.signature(thing).parameters if name != "self"]
        assert ours[: len(expected)] == expected, thing


def test_arguments_of_upstream_that_nothing_here_asks_for_are_refused_by_name() -> None:
    async def asked(**more: Any) -> None:
        llm = AsyncLLM(num_blocks=32)
        try:
            async for _ in llm.generate("hi", SamplingParams(max_tokens=1), "0", **more):
                pass
        finally:
            llm.shutdown()

    values = {"prompt_text": "x", "tokenization_kwargs": {"x": 1}, "trace_headers": {"a": "b"}}
    for name, value in values.items():
        with pytest.raises(ValueError, match=f"{name} must be None, got "):
            asyncio.run(asked(**{name: value}))
    asyncio.run(asked(data_parallel_rank=0, trace_headers={}, tokenization_kwargs=None))
    with pytest.raises(ValueError, match="stat_loggers must be None, got "):
        LLMEngine.from_engine_args(mini_vllm.EngineArgs(num_blocks=32), stat_loggers=[int])
    for wrong in ({"tensorizer_config_dict": {}}, {"is_3d_lora_weight": True}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be "):
            LoRARequest("a", 1, "/a", **wrong)
    with pytest.raises(ValueError, match="late_interaction_params must be None"):
        PoolingParams(late_interaction_params=object())


def test_a_conversation_is_tokenized_as_it_is_asked_for() -> None:
    if not POCKET.is_dir():
        pytest.skip("models/pocket is not here")
    llm = LLM(str(POCKET), num_blocks=64)
    messages = [{"role": "user", "content": "hi"}]
    plain = llm.render_chat(messages)["prompt_token_ids"]
    assert llm.render_chat(messages, tokenization_kwargs={"add_special_tokens": False})["prompt_token_ids"] == plain
    with_more = llm.render_chat(messages, tokenization_kwargs={"add_special_tokens": True})["prompt_token_ids"]
    assert with_more == llm.get_tokenizer().encode(llm.render_chat(messages)["prompt"]) != plain
    for ask in (llm.chat, llm.enqueue_chat):
        for wrong in ({"truncation": True}, {"add_special_tokens": 1}, 5):
            with pytest.raises(ValueError, match="tokenization_kwargs must be a dict with 'add_special_tokens'"):
                ask(messages, tokenization_kwargs=wrong)


PHASE = re.compile(r"phase (\d\d)")


def test_a_refusal_names_a_phase_only_while_its_folder_is_missing() -> None:
    """In every text of the engine that says what a phase brings."""
    there = {path.name[6:8] for path in ROOT.glob("phase-[0-9][0-9]-*")}
    found = []
    for path in (ROOT / "mini_vllm").rglob("*.py"):
        if "tests" in path.parts or "brings" not in (text := path.read_text(encoding="utf-8")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "brings" in node.value:
                found += [f"{path.name}: {node.value!r}" for number in PHASE.findall(node.value) if number in there]
    assert not found


def test_the_refusals_of_arguments_say_what_to_use() -> None:
    sentences = {sentence for sentence, _ in arg_refusals.REFUSED.values()}
    there = {path.name[6:8] for path in ROOT.glob("phase-[0-9][0-9]-*")}
    assert not [each for each in sentences for number in PHASE.findall(each) if number in there]

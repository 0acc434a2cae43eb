"""Engine arguments of any value: each is of the kind that the argument has, or one sentence names it, before anything
is started."""

from __future__ import annotations

import dataclasses
import enum
import re
import subprocess
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, EngineArgs
from mini_vllm.config.utils import check_kind
from mini_vllm.distributed import shared_memory
from mini_vllm.tests.models.tiny_checkpoints import save_tiny


class Choice(enum.Enum):
    ONE = 1


ODD = {
    "below zero": -1, "far below zero": -(10**30), "huge": 10**30, "5,000 digits": 10**5000, "nan": float("nan"),
    "inf": float("inf"), "half": 0.5, "numpy's int": np.int64(3), "numpy's float": np.float32(0.5),
    "numpy's nan": np.float64("nan"), "numpy's bool": np.bool_(True), "an array": np.arange(3),
    "an int as text": "3", "text": "xyz", "no text": "", "half a pair": "\ud800", "a zero byte": "a\0b",
    "5,000 letters": "9" * 5000, "bytes": b"x", "a member": Choice.ONE, "an object": object(), "a class": int,
    "a function": len, "a list": [1], "a list of texts": ["x"], "a list of lists": [[1]], "a tuple": (1,), "a set": {1},
    "a dict": {"x": 1}, "True": True, "zero": 0,
}  # fmt: skip
ARGUMENTS = {each.name: str(each.type) for each in dataclasses.fields(EngineArgs)}
WHAT_IS_LOADED = {"model", "tokenizer", "with_labs"}
OF_A_SETTING = {
    "kv_events_config": ({}, "enable_kv_cache_events publisher buffer_steps hwm nobody"),
    "speculative_config": (
        {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3},
        "method num_speculative_tokens prompt_lookup_max prompt_lookup_min nobody",
    ),
    "compilation_config": ({}, "mode cudagraph_mode cudagraph_capture_sizes nobody"),
    "structured_outputs_config": ({}, "backend disable_any_whitespace jump_forward nobody"),
    "pooler_config": ({}, "pooling_type task logit_sigma step_tag_id returned_token_ids nobody"),
    "kv_transfer_config": ({"kv_connector": "ExampleConnector", "kv_role": "kv_both"}, "kv_role kv_rank nobody"),
    "override_generation_config": ({}, "temperature top_k max_new_tokens nobody"),
    "limit_mm_per_prompt": ({}, "image nobody"),
}
PYTHONS_OWN = r"unhashable|has no len|object is not|not supported between|ambiguous|NoneType|Exceeds the limit|literal"


def outcome(name: str, value: Any, said: str) -> str | None:
    """What is wrong with the answer to an argument; None: nothing."""
    try:
        EngineArgs(**{name: value}).create_engine_config()
    except (ValueError, TypeError) as error:
        text = str(error)
        fine = said in text.replace("-", "_") and "\n" not in text and len(text) < 500
        return None if fine and not re.search(PYTHONS_OWN, text) else f"{type(error).__name__}: {text[:200]!a}"
    return None


@pytest.mark.parametrize("odd", ODD)
def test_any_value_of_any_argument_is_taken_or_named(odd: str) -> None:
    wrong = {name: outcome(name, ODD[odd], name) for name in ARGUMENTS.keys() - WHAT_IS_LOADED}
    assert not {name: text for name, text in wrong.items() if text}


@pytest.mark.parametrize("name", OF_A_SETTING)
def test_any_value_of_any_setting_in_a_dict_is_taken_or_named(name: str) -> None:
    others, keys = OF_A_SETTING[name]
    found = {(key, odd): outcome(name, {**others, key: ODD[odd]}, key) for key in keys.split() for odd in ODD}
    assert not {case: text for case, text in found.items() if text}


@pytest.mark.parametrize("name", sorted(ARGUMENTS.keys() - WHAT_IS_LOADED))
def test_what_is_taken_is_of_the_kind_that_the_argument_has(name: str) -> None:
    """No argument takes everything, and a number of numpy has become Python's own."""
    for value in ODD.values():
        try:
            args = EngineArgs(**{name: value})
            args.create_engine_config()
        except (ValueError, TypeError):
            continue
        taken = getattr(args, name)
        assert not isinstance(taken, np.generic | np.ndarray)
        if callable(taken) and name in ("attention_backend", "distributed_executor_backend", "logits_processors"):
            continue
        check_kind(name, taken, ARGUMENTS[name])


REFUSED: dict[str, list[dict[str, Any]]] = {
    "cudagraph_mode must be one of": [{"compilation_config": {"cudagraph_mode": "SOME"}, "enforce_eager": True}],
    "cudagraph_capture_sizes must hold": [
        {"cudagraph_capture_sizes": ["1"]}, {"cudagraph_capture_sizes": []},
        {"compilation_config": {"cudagraph_capture_sizes": [0], "mode": 0}},
    ],
    "override_generation_config: temperature must": [{"override_generation_config": {"temperature": "hot"}}],
    "override_generation_config: max_new_tokens must": [{"override_generation_config": {"max_new_tokens": 0}}],
    "^num_gpu_blocks_override must be at least 2": [{"num_gpu_blocks_override": 0}],
    "^num_blocks must be at least 2": [{"num_blocks": 0}],
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_what_nothing_would_read_is_refused_too_by_the_name_that_was_given(said: str) -> None:
    for given in REFUSED[said]:
        with pytest.raises(ValueError, match=said):
            EngineArgs(**given).create_engine_config()


def test_a_block_that_no_memory_holds_is_named() -> None:
    config = EngineArgs(block_size=2**40).create_engine_config()
    with pytest.raises(ValueError, match=r"holds 0 tokens.* or lower block_size=1099511627776"):
        config.resolve_num_blocks(kv_bytes_per_block=2**50, max_model_len=2048)


LATE = {
    "distributed_executor_backend": "xyz", "logits_processors": "nope:X", "generation_config": "/nope",
    "quantization": "xyz", "max_model_len": 10**9, "num_blocks": 10**12, "block_size": 10**9,
    "attention_backend": "nope.X", "kv_cache_memory_bytes": 10**17, "quantization_config": {"nobody": 1},
}  # fmt: skip
"""What was said by a rank or by a core, after it had been started."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny("llama", tmp_path_factory.mktemp("llama")))


@pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
@pytest.mark.parametrize("name", LATE)
def test_no_process_is_started_for_what_is_refused(name: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        pytest.fail("a process is started")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(BaseProcess, "start", refuse)
    known = {} if name in ("num_blocks", "kv_cache_memory_bytes") else {"num_blocks": 64}
    for more in ({"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}, {"enable_multiprocessing": True}):
        if name == "distributed_executor_backend" and "pipeline_parallel_size" in more:
            continue
        with pytest.raises(
            (ValueError, RuntimeError, FileNotFoundError), match="LogitsProcessor|num_blocks|nope.X|" + name
        ):
            LLM(folder, **{**known, **more, name: LATE[name]})


def test_settings_can_be_imported_from_where_upstream_has_them() -> None:
    import mini_vllm.config as config

    for name in ("ModelConfig", "PoolerConfig", "LoRAConfig", "SpeculativeConfig", "KVTransferConfig", "LoadConfig"):
        assert name in config.__all__ and dataclasses.is_dataclass(getattr(config, name))
    assert config.KVEventsConfig(publisher="null") and config.StructuredOutputsConfig()

"""The choice of an attention backend, and the words that explain it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.attention.backend import AttentionBackend, AttentionCGSupport, AttentionSelectorConfig
from mini_vllm.attention.backends.registry import get_attention_backend, register_backend
from mini_vllm.attention.selector import MLA_PRIORITIES, PRIORITIES, explain, get_attn_backend
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.helpers import GOLDEN

PLAIN = AttentionSelectorConfig(64)
REASONS = GOLDEN / "attention-reasons.json.xz"

TEN: list[tuple[dict[str, Any], str | None, str]] = [
    ({}, "paged_gather", "Using paged_gather attention backend out of potential backends: ['paged_gather',"),
    ({"dtype": "float64"}, "paged_gather", "paged_online   valid, lower priority"),
    ({"block_size": 5}, "paged_gather", "paged_gather   chosen"),
    ({"kv_cache_dtype": "int8"}, "paged_gather", "dense          valid, lower priority"),
    ({"has_sink": True}, "paged_online", "paged_gather   attention sinks not supported"),
    ({"dtype": "bfloat16"}, None, "dense: [dtype not supported]"),
    ({"kv_cache_dtype": "nvfp4"}, None, "split_kv: [kv_cache_dtype not supported]"),
    ({"use_mla": True}, "mla", "paged_online   MLA not supported"),
    ({"use_mla": True, "kv_cache_dtype": "int8"}, None, "mla: [kv_cache_dtype not supported], paged_gather: [MLA not"),
    ({"use_sparse": True, "attn_type": "encoder_only"}, None, "sparse not supported, attention type encoder_only not"),
    (
        {"use_batch_invariant": True, "use_non_causal": True},
        None,
        "non-causal attention not supported, batch",
    ),
]


@pytest.mark.parametrize(("changes", "name", "words"), TEN, ids=[str(case[0]) for case in TEN])
def test_ten_configurations(changes: dict[str, Any], name: str | None, words: str) -> None:
    cfg = PLAIN._replace(**changes)
    selection = explain(cfg)
    assert selection.name == name and tuple(selection.reasons) == (*MLA_PRIORITIES * cfg.use_mla, *PRIORITIES)
    if name is None:
        assert str(selection).startswith("No valid attention backend found with AttentionSelectorConfig(head_size=64")
        with pytest.raises(ValueError, match="No valid attention backend found") as raised:
            get_attn_backend(cfg)
        assert words in str(raised.value)
    else:
        assert words in str(selection)
        assert get_attn_backend(cfg) is get_attention_backend(name)


def test_reasons_and_their_order_are_those_of_the_real_release() -> None:
    golden = read_packed(REASONS)
    assert golden["provenance"]["vllm"] == "0.22.1"
    for case in golden["cases"]:
        can = {
            "has_sink_support": case["can"]["sinks"],
            "supported_head_sizes": tuple(case["can"]["head_sizes"]),
            "block_size_multiple": case["can"]["block_multiple"],
            "supported_kv_cache_dtypes": ("auto", "fp8"),
        }
        backend: Any = type("Backend", (AttentionBackend,), can)
        assert backend.validate_configuration(AttentionSelectorConfig(**case["cfg"])) == case["reasons"], case


@pytest.mark.parametrize("name", PRIORITIES)
def test_an_explicit_choice_is_obeyed(name: str) -> None:
    selection = explain(PLAIN, name)
    assert selection.name == name and list(selection.reasons) == [name]
    assert str(selection).startswith(f"Using {name} backend, as asked for.")
    assert get_attn_backend(PLAIN, name) is get_attention_backend(name)


def test_an_explicit_choice_never_falls_back() -> None:
    cfg = PLAIN._replace(has_sink=True)
    assert get_attn_backend(cfg) is get_attention_backend("paged_online")
    refused = explain(cfg, "paged_gather")
    assert refused.name is None and str(refused).startswith("Selected backend paged_gather is not valid for this")
    with pytest.raises(ValueError, match=r"paged_gather is not valid for this configuration\. Reason: "):
        get_attn_backend(cfg, "paged_gather")


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(
        ValueError, match="must be one of dense, mla, paged_gather, paged_online, per_token, split_kv, got 'FLASHMLA'"
    ):
        explain(PLAIN, "FLASHMLA")


def test_a_registered_backend_is_taken_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(get_attention_backend("dense")):  # type: ignore[misc]
        name = "mine"

    monkeypatch.setattr("mini_vllm.attention.backends.registry._BACKENDS", {"dense": get_attention_backend("dense")})
    register_backend("mine", Mine)
    assert get_attn_backend(PLAIN, "mine") is Mine
    with pytest.raises(ValueError, match=r"Reason: \['MLA not supported'\]"):
        get_attn_backend(PLAIN._replace(use_mla=True), "mine")
    assert get_attn_backend(PLAIN._replace(use_mla=True), Mine) is Mine  # a class is taken as it is


def test_a_better_backend_that_only_the_block_size_rules_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_attention_backend("paged_gather"), "block_size_multiple", 16)
    selection = explain(PLAIN._replace(block_size=24))
    assert selection.name == "paged_online" and selection.excluded_by_block_size == ["paged_gather"]
    assert "block_size=24 precluded higher-priority backend(s) paged_gather" in str(selection)
    assert explain(PLAIN._replace(block_size=32)).excluded_by_block_size == []


def test_what_each_backend_may_do_inside_a_graph() -> None:
    support = {name: get_attention_backend(name).cudagraph_support for name in PRIORITIES}
    assert support == {
        "paged_gather": AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE,
        "paged_online": AttentionCGSupport.ALWAYS,
        "split_kv": AttentionCGSupport.UNIFORM_BATCH,
        "dense": AttentionCGSupport.NEVER,
    }


def test_the_engine_uses_what_was_selected(tmp_path: Path) -> None:
    from mini_vllm.tests.models.tiny_checkpoints import save_tiny

    folder = str(save_tiny("llama", tmp_path))
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    tokens = set()
    for name in (None, *PRIORITIES):
        llm = LLM(folder, num_blocks=64, attention_backend=name, dtype="float64")
        attention = llm.llm_engine.engine_core.model_runner.attention
        assert attention.name == (name or "paged_gather")
        tokens.add(tuple(llm.generate([{"prompt_token_ids": [5, 6, 7]}], params)[0].outputs[0].token_ids))
    assert len(tokens) == 1
    with pytest.raises(ValueError, match="attention_backend must be one of"):
        LLM(folder, attention_backend="FLASH_ATTN")

"""Lab 14-02: nine captured loads of real vLLM, and what they allow to be said."""

from __future__ import annotations

import copy
import json
import lzma
import re
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
CONFIG = json.loads((POCKET / "config.json").read_text(encoding="utf-8"))
ARMS = ("whole", "reversed", "no_q", "no_norm", "extra", "narrow", "wide", "swapped", "dummy")
RUNS = {arm: json.loads(lzma.decompress((HERE / "captured" / f"cpu-{arm}.json.xz").read_bytes())) for arm in ARMS}
LLAMA = {
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 4096,
    "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip
LAYER = "model.layers.3."


# ---- where a tensor goes -------------------------------------------------------------------------------------------


def test_every_place_is_where_real_vllm_put_it(impl):
    """74 tensors, two orders."""
    for arm in ("whole", "reversed"):
        for row in RUNS[arm]["trace"]:
            wanted = (row["parameter"], *row["rows"])
            assert impl.place_of(row["tensor"], CONFIG) == wanted, f"{row['tensor']}: real vLLM says {wanted}"
    assert len(RUNS["whole"]["trace"]) == 74


@pytest.mark.parametrize(
    ("name", "parameter", "rows"),
    [
        ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.qkv_proj.weight", (0, 4096)),
        ("model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.qkv_proj.weight", (4096, 5120)),
        ("model.layers.31.self_attn.v_proj.weight", "model.layers.31.self_attn.qkv_proj.weight", (5120, 6144)),
        ("model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.gate_up_proj.weight", (0, 14336)),
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_up_proj.weight", (14336, 28672)),
        ("model.layers.0.input_layernorm.weight", "model.layers.0.input_layernorm.weight", (0, 4096)),
        ("model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.down_proj.weight", (0, 4096)),
        ("lm_head.weight", "lm_head.weight", (0, 128256)),
    ],
)
def test_eight_billion_by_hand(impl, name, parameter, rows):
    assert impl.place_of(name, LLAMA) == (parameter, *rows)


# ---- ranks ---------------------------------------------------------------------------------------------------------


def test_fused_rows_of_a_rank(impl):
    found = [impl.fused_rows(LLAMA, ranks) for ranks in (1, 2, 4, 8, 16, 32)]
    assert found == [6144, 3072, 1536, 768, 512, 384], f"{found}: at 16 ranks each KV head stands on two of them"


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 32])
def test_ranks_share_as_the_engine_does(impl, ranks):
    """The judge is the layer of mini_vllm, rank by rank."""
    from mini_vllm.layers.linear import QKVParallelLinear

    for rank in range(ranks):
        layer = object.__new__(QKVParallelLinear)
        layer.head_size, layer.num_heads = 128, 32 // ranks
        layer.num_kv_head_replicas, layer.num_kv_heads = max(1, ranks // 8), max(1, 8 // ranks)
        layer.context = type("Context", (), {"tp_rank": rank})()
        for index, part in enumerate("qkv"):
            assert impl.rank_rows(part, LLAMA, ranks, rank) == layer.rows_here(index), f"{part}, rank {rank} of {ranks}"


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_a_rank_has_the_kv_head_that_its_queries_read(impl, ranks):
    """Query head h reads KV head h // 4. Elsewhere than on its own rank it could not."""
    for rank in range(ranks):
        q, k, v = (impl.rank_rows(part, LLAMA, ranks, rank) for part in "qkv")
        heads = range(q.start // 128, q.stop // 128)
        assert {head // 4 for head in heads} == set(range(k.start // 128, k.stop // 128)), f"rank {rank} of {ranks}"
        assert k == v and q.stop - q.start == 4096 // ranks


@pytest.mark.parametrize(
    ("config", "ranks", "rank", "words"),
    [
        ({}, 5, 0, "tp_size must divide num_attention_heads (32), got 5"),
        ({}, 0, 0, "tp_size must divide num_attention_heads (32), got 0"),
        ({"num_attention_heads": 24, "num_key_value_heads": 6}, 4, 0,
         "tp_size must be a divisor or a multiple of num_key_value_heads (6), got 4"),
        ({}, 4, 4, "tp_rank must be from 0 to 3, got 4"),
        ({}, 4, -1, "tp_rank must be from 0 to 3, got -1"),
    ],
)  # fmt: skip
def test_what_ranks_cannot_do(impl, config, ranks, rank, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        impl.rank_rows("k", {**LLAMA, **config}, ranks, rank)


# ---- the audit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["whole", "reversed"])
def test_nothing_is_wrong_with_a_right_load(impl, arm):
    assert impl.audit(RUNS[arm]) == []


def test_the_tensor_that_nobody_missed(impl):
    """Real vLLM started, answered, and did not say a word."""
    assert RUNS["no_q"]["error"] is None
    found = impl.audit(RUNS["no_q"])
    assert found == [f"unfilled: {LAYER}self_attn.qkv_proj.weight 0:256"], (
        f"{found}. This looks like *Asking which parameters were touched*" if not found else str(found)
    )


def test_the_tensors_that_were_cut(impl):
    """Real vLLM took the first half of the heads of each, and started."""
    assert RUNS["wide"]["error"] is None
    wanted = [f"cut: model.layers.{i}.self_attn.{part}_proj.weight 256 -> 128" for i in range(8) for part in "kv"]
    assert impl.audit(RUNS["wide"]) == sorted(wanted)


def test_what_no_audit_can_see(impl):
    """Of two tensors of one shape that have changed names, every row is where its name says."""
    assert RUNS["swapped"]["error"] is None and impl.audit(RUNS["swapped"]) == []


def test_dummy_weights_ask_nothing(impl):
    run = RUNS["dummy"]
    assert run["error"] is None and run["calls"] == 0, "load_weights of the model was not called"
    assert impl.audit(run) == sorted(f"unread: {name}" for name in run["tensors"])


def test_those_that_stopped(impl):
    """Until the error, and no further."""
    assert f"unread: {LAYER}self_attn.q_norm.weight" in impl.audit(RUNS["extra"])
    assert f"unfilled: {LAYER}input_layernorm.weight 0:256" in impl.audit(RUNS["no_norm"])
    assert f"unread: {LAYER}self_attn.k_proj.weight" in impl.audit(RUNS["narrow"])


def small(*rows, size=10, tensors=None):
    trace = [
        {"tensor": name, "tensor_shape": [many, 4], "parameter": "p", "rows": [first, last], "equal": equal}
        for name, many, first, last, equal in rows
    ]
    names = tensors or {row[0]: [row[1], 4] for row in rows}
    return {"trace": trace, "tensors": names, "parameters": {"p": [size, 4]}, "error": None, "texts": []}


@pytest.mark.parametrize(
    ("run", "wanted"),
    [
        (small(("a", 4, 0, 4, True), ("b", 6, 4, 10, True)), []),
        (
            small(("a", 8, 2, 10, True), ("b", 3, 3, 6, True), ("c", 2, 6, 8, True)),
            ["twice: p 3:8", "unfilled: p 0:2"],
        ),
        (small(("b", 6, 4, 10, True), ("a", 4, 0, 4, True)), []),
        (small(("a", 4, 3, 7, True)), ["unfilled: p 0:3", "unfilled: p 7:10"]),
        (small(("a", 6, 0, 6, True), ("b", 6, 4, 10, True)), ["twice: p 4:6"]),
        (small(("a", 10, 0, 10, True), ("b", 3, 2, 5, True)), ["twice: p 2:5"]),
        (small(("a", 10, 0, 10, True), ("b", 3, 2, 5, True), ("c", 3, 5, 8, True)), ["twice: p 2:8"]),
        (small(("a", 5, 0, 5, True), ("a", 5, 0, 5, True), ("b", 5, 5, 10, True)), ["twice: p 0:5"]),
        (small(*[("a", 10, 0, 10, True)] * 3), ["twice: p 0:10"]),
        (small(("a", 10, 0, 10, False)), ["other numbers: a"]),
        (small(("a", 12, 0, 10, True)), ["cut: a 12 -> 10"]),
        (small(("a", 10, 0, 10, True), tensors={"a": [10, 4], "z": [1]}), ["unread: z"]),
        (small(), ["unfilled: p 0:10"]),
        (small(("a", 12, 0, 5, False)), ["cut: a 12 -> 5", "other numbers: a", "unfilled: p 5:10"]),
        (small(("a", 1, 0, 1, True), size=10**9), ["unfilled: p 1:1000000000"]),
    ],
)
def test_audit_of_small_loads(impl, run, wanted):
    before = copy.deepcopy(run)
    assert impl.audit(run) == wanted
    assert run == before, "the run was changed"


# ---- what was noticed ----------------------------------------------------------------------------------------------


def test_verdicts(impl):
    found = {arm: impl.verdict(RUNS[arm], RUNS["whole"])[0] for arm in ARMS}
    assert found == {
        "whole": "right", "reversed": "right", "no_q": "silent", "no_norm": "loud", "extra": "loud", "narrow": "loud",
        "wide": "silent", "swapped": "silent", "dummy": "silent",
    }  # fmt: skip


def test_how_silent(impl):
    """Of eleven answers. One question would have shown nothing."""
    differ = {arm: impl.verdict(RUNS[arm], RUNS["whole"])[1] for arm in ("whole", "no_q", "wide", "swapped", "dummy")}
    assert differ == {"whole": 0, "no_q": 1, "wide": 11, "swapped": 1, "dummy": 11}
    assert impl.verdict(RUNS["extra"], RUNS["whole"]) == ("loud", 0)


def test_our_engine_is_loud(impl, tmp_path):
    """The same faults, and an engine that keeps account of tensors."""
    import numpy as np

    from mini_vllm.model_loader.default_loader import load_model
    from mini_vllm.model_loader.safetensors_reader import Checkpoint, CheckpointError

    with Checkpoint(POCKET) as checkpoint:
        tensors = {name: checkpoint.read(name) for name in checkpoint.names()}
    (tmp_path / "config.json").write_text((POCKET / "config.json").read_text(encoding="utf-8"), encoding="utf-8")
    for arm, name, change in (
        ("no_q", f"{LAYER}self_attn.q_proj.weight", lambda x: None),
        ("wide", f"{LAYER}self_attn.k_proj.weight", lambda x: np.concatenate([x, x])),
    ):
        changed = dict(tensors)
        value = change(changed.pop(name))
        if value is not None:
            changed[name] = value
        _write(tmp_path / "model.safetensors", changed)
        with pytest.raises(CheckpointError, match=re.escape(name)):
            load_model(tmp_path)
        assert impl.verdict(RUNS[arm], RUNS["whole"])[0] == "silent"


def _write(path, tensors):
    """A safetensors file."""
    header, blobs, at = {}, [], 0
    for name, tensor in tensors.items():
        blob = tensor.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """About half a minute: loads models/pocket without its q_proj of layer 3."""
    _, result = real_run(str(POCKET), "--arm", "no_q")
    assert result["error"] is None and impl.audit(result) == impl.audit(RUNS["no_q"])

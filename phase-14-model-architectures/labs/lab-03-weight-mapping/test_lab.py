"""Lab 14-03: names, rows, and an account of both."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from course.labs import load

given = load(Path(__file__).resolve().parent / "given.py")
SIZES = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 16}
HIDDEN, INNER, LAYERS = 24, 40, 2
ROWS = {"q_proj": 128, "k_proj": 32, "v_proj": 32, "o_proj": HIDDEN, "gate_proj": INNER, "up_proj": INNER}


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("model.layers.3.self_attn.q_proj.weight", ("model.layers.3.self_attn.qkv_proj.weight", "q")),
        ("model.layers.11.self_attn.k_proj.bias", ("model.layers.11.self_attn.qkv_proj.bias", "k")),
        ("model.layers.0.self_attn.v_proj.weight_scale", ("model.layers.0.self_attn.qkv_proj.weight_scale", "v")),
        ("model.layers.3.mlp.gate_proj.weight", ("model.layers.3.mlp.gate_up_proj.weight", 0)),
        ("model.layers.3.mlp.up_proj.weight", ("model.layers.3.mlp.gate_up_proj.weight", 1)),
    ],
)
def test_name_mapping(impl, name, wanted):
    assert impl.map_weight_name(name) == wanted


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.3.input_layernorm.weight",
        "model.layers.3.mlp.down_proj.weight", "model.layers.3.self_attn.o_proj.weight",
        "model.layers.3.mlp.gate_up_proj.weight", "model.layers.3.self_attn.qkv_proj.weight",
        "model.layers.3.mlp.gate.weight", "model.vision.group_proj.weight",
    ],
)  # fmt: skip
def test_unstacked_names_pass_through(impl, name):
    found = impl.map_weight_name(name)
    assert found == (name, None), (
        f"{name} became {found}. This looks like *A name inside of a name*" if "_proj" in name else f"{name}: {found}"
    )


# ---- rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "kv", "dim"), [(8, 2, 16), (4, 4, 8), (6, 1, 5), (32, 8, 128), (12, 3, 1)])
def test_qkv_slices_account_for_gqa(impl, heads, kv, dim):
    found = impl.qkv_slices(heads, kv, dim)
    sizes = {part: rows.stop - rows.start for part, rows in found.items()}
    assert sizes == {"q": heads * dim, "k": kv * dim, "v": kv * dim}
    covered = [row for part in "qkv" for row in range(found[part].start, found[part].stop)]
    assert covered == list(range((heads + 2 * kv) * dim)), f"a gap or an overlap: {found}"


@pytest.mark.parametrize(("heads", "kv"), [(8, 3), (2, 4), (4, 0)])
def test_heads_that_do_not_divide(impl, heads, kv):
    with pytest.raises(
        ValueError, match=re.escape(f"num_heads must be a multiple of num_kv_heads ({kv}), got {heads}")
    ):
        impl.qkv_slices(heads, kv, 16)


def test_fused_matmul_equals_separate_projections(impl):
    """Fusion is layout, not mathematics: one product, three answers."""
    rng = np.random.default_rng(0)
    slices = impl.qkv_slices(8, 2, 16)
    shards = {part: rng.standard_normal((ROWS[f"{part}_proj"], HIDDEN)) for part in "qkv"}
    param = np.full((192, HIDDEN), np.nan)
    for part in "vqk":
        impl.load_stacked(param, shards[part], part, slices)
    x = rng.standard_normal((5, HIDDEN))
    fused = x @ param.T
    for part, rows in slices.items():
        assert np.abs(fused[:, rows] - x @ shards[part].T).max() <= 1e-12, f"{part} stands elsewhere"


def test_gate_and_up_are_halves(impl):
    param, up, gate = np.zeros((6, 4)), np.full((3, 4), 2.0), np.ones((3, 4))
    impl.load_stacked(param, up, 1)
    impl.load_stacked(param, gate, 0)
    assert param[:, 0].tolist() == [1, 1, 1, 2, 2, 2]
    whole = np.arange(24.0).reshape(6, 4)
    impl.load_stacked(param, whole, None)
    assert np.array_equal(param, whole)


@pytest.mark.parametrize(
    ("shard", "part", "shapes"),
    [
        ((128, 24), "k", ((128, 24), (32, 24))),
        ((16, 24), "v", ((16, 24), (32, 24))),
        ((1, 24), "q", ((1, 24), (128, 24))),
        ((32, 1), "k", ((32, 1), (32, 24))),
        ((24,), "q", ((24,), (128, 24))),
    ],
    ids=["a head for each query head", "half of the heads", "one row", "one column", "one row without its axis"],
)
def test_shape_mismatch_is_loud(impl, shard, part, shapes):
    """numpy would stretch some of these to fit. And who narrows first, never sees that there was more."""
    param = np.zeros((192, HIDDEN))
    words = f"'{part}' has shape {shapes[0]}, its place has {shapes[1]}"
    with pytest.raises(ValueError, match=re.escape(words)):
        impl.load_stacked(param, np.ones(shard), part, impl.qkv_slices(8, 2, 16))
    assert not param.any(), "something was written all the same"
    with pytest.raises(ValueError, match=re.escape("the tensor has shape (1, 24), its place has (192, 24)")):
        impl.load_stacked(param, np.ones((1, HIDDEN)), None)
    for half in (0, 1):
        with pytest.raises(ValueError, match=re.escape(f"{half} has shape (192, 24), its place has (96, 24)")):
            impl.load_stacked(param, np.ones((192, HIDDEN)), half)


# ---- a whole checkpoint --------------------------------------------------------------------------------------------


def small_checkpoint(bias=False):
    """name -> tensor, all numbers different."""
    rng = np.random.default_rng(1)
    found = {"model.embed_tokens.weight": (50, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        front = f"model.layers.{layer}."
        for name, rows in ROWS.items():
            place = "mlp" if name in ("gate_proj", "up_proj") else "self_attn"
            found[f"{front}{place}.{name}.weight"] = (rows, 128 if name == "o_proj" else HIDDEN)
            if bias and name in ("q_proj", "k_proj", "v_proj"):
                found[f"{front}{place}.{name}.bias"] = (rows,)
        found[f"{front}mlp.down_proj.weight"] = (HIDDEN, INNER)
        found[f"{front}input_layernorm.weight"] = (HIDDEN,)
    return {name: rng.standard_normal(shape) for name, shape in found.items()}


def small_params(tensors):
    """The arrays of the program, full of NaN."""
    found = {}
    for name, tensor in tensors.items():
        if re.search(r"\.[qkv]_proj\.", name):
            fused, rows = re.sub(r"[qkv]_proj", "qkv_proj", name), 192
        elif re.search(r"\.(gate|up)_proj\.", name):
            fused, rows = re.sub(r"(gate|up)_proj", "gate_up_proj", name), 2 * INNER
        else:
            fused, rows = name, len(tensor)
        found[fused] = np.full((rows, *tensor.shape[1:]), np.nan)
    return found


def loaded(impl, tensors, params=None, **more):
    params = small_params(tensors) if params is None else params
    assert impl.load_checkpoint(params, iter(tensors.items()), **{**SIZES, **more}) is None
    return params


@pytest.mark.parametrize("bias", [False, True])
def test_every_tensor_has_its_rows(impl, bias):
    tensors = small_checkpoint(bias)
    params = loaded(impl, tensors)
    for layer in range(LAYERS):
        front = f"model.layers.{layer}."
        for end in ("weight", "bias")[: 1 + bias]:
            parts = [tensors[f"{front}self_attn.{part}_proj.{end}"] for part in "qkv"]
            assert np.array_equal(params[f"{front}self_attn.qkv_proj.{end}"], np.concatenate(parts))
        parts = [tensors[f"{front}mlp.{part}_proj.weight"] for part in ("gate", "up")]
        assert np.array_equal(params[f"{front}mlp.gate_up_proj.weight"], np.concatenate(parts))
        assert np.array_equal(params[f"{front}mlp.down_proj.weight"], tensors[f"{front}mlp.down_proj.weight"])
    assert np.array_equal(params["model.norm.weight"], tensors["model.norm.weight"])


def test_multi_head_attention_is_a_case_of_it(impl):
    params = {"a.qkv_proj.weight": np.full((96, 4), np.nan)}
    weights = [(f"a.{part}_proj.weight", np.full((32, 4), value)) for value, part in enumerate("qkv")]
    impl.load_checkpoint(params, weights, num_heads=4, num_kv_heads=4, head_dim=8)
    assert params["a.qkv_proj.weight"][::32, 0].tolist() == [0, 1, 2]


def test_order_independent(impl):
    tensors = small_checkpoint()
    wanted = loaded(impl, tensors)
    for order in (
        sorted(tensors),
        sorted(tensors, reverse=True),
        np.random.default_rng(2).permutation(sorted(tensors)),
    ):
        found = loaded(impl, {str(name): tensors[name] for name in order}, small_params(tensors))
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    ("lost", "hole"),
    [
        ("model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.qkv_proj.weight[0:128]"),
        ("model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.qkv_proj.weight[128:160]"),
        ("model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.qkv_proj.weight[160:192]"),
        ("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.gate_up_proj.weight[40:80]"),
        ("model.layers.1.input_layernorm.weight", "model.layers.1.input_layernorm.weight[0:24]"),
    ],
)
def test_touched_exactly_once_and_never(impl, lost, hole):
    """A parameter that k and v have touched is not loaded."""
    tensors = small_checkpoint()
    params = small_params(tensors)
    del tensors[lost]
    with pytest.raises(ValueError, match=re.escape(f"never filled: {hole}") + "$"):
        loaded(impl, tensors, params)


def test_all_holes_are_named(impl):
    tensors = small_checkpoint()
    params = small_params(tensors)
    for part in "vk":
        del tensors[f"model.layers.1.self_attn.{part}_proj.weight"]
    del tensors["model.norm.weight"], tensors["model.layers.0.self_attn.k_proj.weight"]
    wanted = (
        "never filled: model.layers.0.self_attn.qkv_proj.weight[128:160], "
        "model.layers.1.self_attn.qkv_proj.weight[128:192], model.norm.weight[0:24]"
    )
    with pytest.raises(ValueError, match=re.escape(wanted) + "$"):
        loaded(impl, tensors, params)


@pytest.mark.parametrize(
    ("name", "rows", "parameter"),
    [
        ("model.layers.1.self_attn.k_proj.weight", "128:160", "model.layers.1.self_attn.qkv_proj.weight"),
        ("model.layers.1.mlp.up_proj.weight", "40:80", "model.layers.1.mlp.gate_up_proj.weight"),
        ("model.norm.weight", "0:24", "model.norm.weight"),
    ],
)
def test_twice_is_refused(impl, name, rows, parameter):
    """Two files that have the same tensor: which of them is right?"""
    tensors = small_checkpoint()
    with pytest.raises(
        ValueError, match=re.escape(f"tensor '{name}' fills rows {rows} of '{parameter}' for the second")
    ):
        impl.load_checkpoint(small_params(tensors), [*tensors.items(), (name, tensors[name])], **SIZES)


def test_fused_and_single_are_twice(impl):
    """A checkpoint that was stored fused, with a stray piece."""
    tensors, fused = small_checkpoint(), "model.layers.0.self_attn.qkv_proj.weight"
    params = small_params(tensors)
    pieces = {part: f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"}
    whole = np.concatenate([tensors.pop(name) for name in pieces.values()])
    assert np.array_equal(loaded(impl, {**tensors, fused: whole}, params)[fused], whole)
    with pytest.raises(ValueError, match=r"fills rows 128:160 of .* for the second time"):
        loaded(impl, {**tensors, fused: whole, pieces["k"]: np.zeros((32, HIDDEN))}, params)


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.q_norm.weight"),
        ("model.layers.9.self_attn.q_proj.weight", "model.layers.9.self_attn.qkv_proj.weight"),
        ("visual.patch.weight", "visual.patch.weight"),
    ],
)
def test_a_tensor_without_a_place_is_loud(impl, name, parameter):
    tensors = small_checkpoint()
    words = f"tensor '{name}' has no place: there is no parameter '{parameter}'"
    with pytest.raises(ValueError, match=re.escape(words)):
        impl.load_checkpoint(small_params(tensors), [*tensors.items(), (name, np.zeros((4, 4)))], **SIZES)


def test_a_wide_checkpoint_is_refused(impl):
    """Keys and values for each query head, under a config that has two."""
    tensors = small_checkpoint()
    params, name = small_params(tensors), "model.layers.0.self_attn.k_proj.weight"
    tensors[name] = np.zeros((128, HIDDEN))
    words = f"tensor '{name}': 'k' has shape (128, 24), its place has (32, 24)"
    with pytest.raises(ValueError, match=re.escape(words)):
        loaded(impl, tensors, params)


def test_what_is_passed_over(impl):
    """Tables that we compute; and an output embedding that repeats the input's, where the program has none."""
    tensors = small_checkpoint()
    params = small_params(tensors)
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(8), "lm_head.weight": np.ones((50, HIDDEN))}
    loaded(impl, {**more, **tensors}, params)
    untied = {**params, "lm_head.weight": np.full((50, HIDDEN), np.nan)}
    assert loaded(impl, {**more, **tensors}, untied)["lm_head.weight"].all(), "an output embedding of its own was left"
    with pytest.raises(ValueError, match=re.escape("never filled: lm_head.weight[0:50]")):
        loaded(impl, tensors, untied)


def test_inputs_stay(impl):
    tensors = small_checkpoint()
    before = {name: tensor.copy() for name, tensor in tensors.items()}
    params = loaded(impl, tensors)
    params["model.norm.weight"][:] = 7
    assert all(np.array_equal(tensors[name], before[name]) for name in before), "a tensor of the checkpoint was changed"


# ---- pocket --------------------------------------------------------------------------------------------------------


def test_pocket_as_the_engine_loads_it(impl):
    """74 tensors fill 50 arrays; the engine's own loader is the judge."""
    from mini_vllm.model_loader.checkpoint import load_checkpoint

    judge = {f"{layer.prefix}.weight": layer.weight for layer in load_checkpoint(str(given.POCKET))[0].context.layers}
    _, _, params = given.empty_pocket()
    impl.load_checkpoint(params, given.tensors(), **given.SIZES)
    assert len(params) == 50 and set(params) == set(judge)
    wrong = [name for name in params if not np.array_equal(params[name], judge[name])]
    assert not wrong, f"{len(wrong)} arrays differ from the engine's, first {wrong[0]}"

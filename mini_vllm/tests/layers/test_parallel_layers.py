"""Layers that ranks share: who holds what, what is exchanged, and what cannot be shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm.distributed import shared_memory
from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.linear import ColumnParallelLinear, QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from mini_vllm.layers.linear_weights import LinearWeights
from mini_vllm.layers.quantization import get_quantization_config
from mini_vllm.layers.quantization.activations import ActivationScheme, quantize_activations
from mini_vllm.layers.quantization.base_config import QuantizeMethodBase
from mini_vllm.layers.quantization.fp8 import Fp8LinearMethod
from mini_vllm.layers.quantization.int8 import Int8LinearMethod
from mini_vllm.layers.vocab_parallel_embedding import VocabParallelEmbedding
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint
from mini_vllm.parameter import ArraySource
from mini_vllm.tests.compilation.test_cpu_fused import attention, distance
from mini_vllm.tests.distributed.ranks import run_ranks
from mini_vllm.tests.models.tiny_checkpoints import FAMILIES, save_tiny

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")


def rank_of(world_size: int, rank: int) -> ModelContext:
    group = TensorParallelGroup(world_size, 64, np.dtype("float64"))
    group.rank = rank
    return ModelContext(np.dtype("float64"), group=group)


@pytest.mark.parametrize("elements", [3, 7, 1000])
@pytest.mark.parametrize("world_size", [2, 3])
def test_sums_and_rows_of_all_ranks(world_size: int, elements: int) -> None:
    """In pieces that fit the shared memory; the same bits on every rank, added up in the order of the ranks."""
    rng = np.random.default_rng(0)
    of_rank = rng.standard_normal((world_size, 4, 5)) * 10.0 ** rng.integers(-12, 12, (world_size, 4, 5))

    def task(group: Any) -> Any:
        mine = of_rank[group.rank]
        return [(group.all_reduce(mine), group.all_gather(mine.T), group.all_gather(mine[0])) for _ in range(3)]

    total = of_rank[0].copy()
    for part in of_rank[1:]:
        total += part
    for results in run_ranks(world_size, elements, task):
        for summed, gathered, row in results:
            np.testing.assert_array_equal(summed, total)
            np.testing.assert_array_equal(gathered, np.concatenate([part.T for part in of_rank], axis=1))
            np.testing.assert_array_equal(row, np.concatenate([part[0] for part in of_rank]))


def test_a_rank_reads_its_rows_and_columns(tmp_path: Path) -> None:
    """Together the ranks hold the whole model, and each about half of it."""
    folder = save_tiny("llama", tmp_path)
    whole = load_model(folder, "float64")
    parts = []
    for rank in range(2):
        group = TensorParallelGroup(2, 64, np.dtype("float64"))
        group.rank = rank
        parts.append(load_model(folder, "float64", group=group))
    assert [(p.num_heads, p.num_kv_heads) for p in parts] == [(2, 1)] * 2
    for layer, *cut in zip(whole.model.layers, *(p.model.layers for p in parts), strict=True):
        q, k, v = np.split(layer.self_attn.qkv_proj.weight, [4 * 32, 6 * 32])
        for rank, part in enumerate(cut):
            mine = np.concatenate([np.split(x, 2)[rank] for x in (q, k, v)])
            np.testing.assert_array_equal(part.self_attn.qkv_proj.weight, mine)
        for name in ("o_proj", "down_proj"):
            where = "self_attn" if name == "o_proj" else "mlp"
            columns = [getattr(getattr(part, where), name).weight for part in cut]
            np.testing.assert_array_equal(np.concatenate(columns, axis=1), getattr(getattr(layer, where), name).weight)
    rows = np.concatenate([p.lm_head.weight for p in parts])
    np.testing.assert_array_equal(rows, whole.lm_head.weight)
    norms = (2 * 3 + 1) * 64
    assert [p.num_parameters - norms for p in parts] == [(whole.num_parameters - norms) // 2] * 2


@pytest.mark.parametrize("name", ["llama", "qwen2", "opt"])
def test_more_ranks_than_kv_heads_repeat_them(name: str, tmp_path: Path) -> None:
    folder = save_tiny(name, tmp_path)
    ids, positions = np.arange(5) + 7, np.arange(5)
    alone = load_model(folder, "float64")
    expected = alone.compute_logits(alone.forward(ids, positions, attention(5)))

    def task(group: Any) -> Any:
        model = load_model(folder, "float64", group=group)
        hidden = model.forward(ids, positions, attention(5))
        return (model.num_heads, model.num_kv_heads), model.compute_logits(hidden)

    for heads, logits in run_ranks(4, 1000, task):
        assert heads == (1, 1) and logits.shape == expected.shape and distance(logits, expected) < 1e-12


def test_a_vocabulary_that_does_not_divide_is_padded_and_masked(tmp_path: Path) -> None:
    folder = save_random_checkpoint(tmp_path, {**FAMILIES["llama"], "vocab_size": 131, "tie_word_embeddings": True})
    alone = load_model(folder, "float64")
    ids = np.array([0, 63, 64, 127, 128, 130])
    expected = alone.embed_input_ids(ids), alone.compute_logits(alone.embed_input_ids(ids))

    def task(group: Any) -> Any:
        model = load_model(folder, "float64", group=group)
        embedded = model.embed_input_ids(ids)
        return model.lm_head.weight.shape, model.lm_head.vocab, embedded, model.compute_logits(embedded)

    for rank, (shape, vocab, embedded, logits) in enumerate(run_ranks(2, 100, task)):
        assert shape == (128, 64) and vocab == slice(128 * rank, min(131, 128 * rank + 128))
        np.testing.assert_array_equal(embedded, expected[0])
        assert logits.shape == (6, 131) and distance(logits, expected[1]) < 1e-12


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda c: QKVParallelLinear(8, 4, 4, 4, False, c, "x"), "must divide num_heads of the model, 4, got 3"),
        (lambda c: QKVParallelLinear(8, 4, 6, 2, False, c, "x"), "multiple or a divisor of num_kv_heads .*, 2, got 3"),
        (lambda c: RowParallelLinear(8, 6, False, c, "x.down"), r"must divide the inputs of x\.down, 8, got 3"),
        (lambda c: ColumnParallelLinear(6, [8], False, c, "x.fc1"), r"must divide the outputs of x\.fc1, 8, got 3"),
    ],
)
def test_what_ranks_do_not_divide_is_an_error(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"tensor_parallel_size .*{words}"):
        make(rank_of(3, 0))


def test_stacked_tensors_of_other_sizes_are_each_cut() -> None:
    for rank in range(2):
        layer = ColumnParallelLinear(6, [8, 4, 2], False, rank_of(2, rank), "x.in_proj")
        assert [layer.rows_here(i) for i in range(3)] == [slice(n * rank, n * rank + n) for n in (4, 2, 1)]


def test_a_sum_that_is_left_to_the_caller_is_not_made() -> None:
    """The experts of a mixture are summed once, behind all of them."""
    x = np.arange(24.0).reshape(3, 8)

    def task(group: Any) -> Any:
        context = ModelContext(np.dtype("float64"), group=group)
        layer, mine = RowParallelLinear(8, 6, False, context, "x.w2", reduce_results=False), slice(4 * group.rank, None)
        layer.weight[:] = group.rank + 1.0
        return layer.forward(x[:, mine][:, :4]), x[:, mine][:, :4].sum(axis=1) * (group.rank + 1.0)

    for found, of_this_rank in run_ranks(2, 1000, task):
        np.testing.assert_array_equal(found, np.repeat(of_this_rank[:, None], 6, axis=1))


def test_a_replicated_layer_is_whole_on_every_rank() -> None:
    layer = ReplicatedLinear(8, 6, prefix="x.gate", context=rank_of(3, 1))
    assert layer.weight.shape == (6, 8) and not layer.is_cut


def test_a_method_that_cannot_cut_columns_says_so() -> None:
    class Whole(Int8LinearMethod):
        take_part = QuantizeMethodBase.take_part
        check_part = QuantizeMethodBase.check_part

    config = get_quantization_config("int8").from_config({})
    config.make_method = Whole
    context = rank_of(2, 0)
    object.__setattr__(context, "quant_config", config)
    layer = RowParallelLinear(8, 6, False, context, "x.down_proj")
    said = r"must be 1 with Whole, which cannot cut the inputs of x\.down_proj"
    with pytest.raises(ValueError, match=said):
        layer.quant_method.check_part(layer)
    with pytest.raises(ValueError, match=said):
        layer.load(np.ones((6, 8)))


def parts_of(make: Any, quantization: str, config: dict[str, Any], source: Any) -> list[Any]:
    """One layer, loaded on each of two ranks."""
    made = []
    for rank in range(2):
        context = rank_of(2, rank)
        object.__setattr__(context, "quant_config", get_quantization_config(quantization).from_config(config))
        layer = make(context)
        source(layer)
        made.append(layer)
    return made


@pytest.mark.parametrize("block_size", [64, 32, -1])
def test_nf4_with_double_quantization_is_the_weight_of_one_rank(block_size: int) -> None:
    """Second-level blocks of 256 scales go over the ends of rows, and are cut anywhere."""
    W = np.random.default_rng(0).standard_normal((24, 320)) * np.linspace(0.1, 3, 24)[:, None]
    config = {"double_quant": True, "block_size": block_size}
    quant_config = get_quantization_config("nf4").from_config(config)
    whole = LinearWeights(320, 24, quant_config, "x.o_proj", dtype="float64").load(W).dequantized()
    rows, columns = (
        parts_of(make, "nf4", config, lambda layer: layer.load(W))
        for make in (
            lambda c: ColumnParallelLinear(320, [24], False, c, "x.fc1"),
            lambda c: RowParallelLinear(320, 24, False, c, "x.o_proj"),
        )
    )
    np.testing.assert_array_equal(np.concatenate([part.dequantized() for part in rows]), whole)
    np.testing.assert_array_equal(np.concatenate([part.dequantized() for part in columns], axis=1), whole)
    assert columns[0].group_size == {64: 32, 32: 32, -1: 160}[block_size]  # 160 inputs a rank
    assert 0 < np.linalg.norm(whole - W) < 0.15 * np.linalg.norm(W)


@pytest.mark.parametrize("activation_scheme", [None, "dynamic"])
def test_a_cut_through_a_2d_block_is_refused_where_upstream_refuses_it(activation_scheme: str | None) -> None:
    config: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    config |= {"activation_scheme": activation_scheme} if activation_scheme else {}

    def load(layer: Any) -> None:
        rng, first = np.random.default_rng(0), 0
        for size in layer.output_sizes:
            scales = rng.random((-(-size // 16), layer.input_size // 16), np.float32)
            codes = rng.integers(0, 120, (size, layer.input_size), np.uint8)
            layer[first : first + size].load(ArraySource({"weight": codes, "weight_scale_inv": scales}))
            first += size

    for make, words in (
        (
            lambda c: RowParallelLinear(48, 8, False, c, "x.down"),
            "Weight input_size_per_partition = 24 .* block_k = 16",
        ),
        (
            lambda c: ColumnParallelLinear(32, [48], False, c, "x.fc1"),
            "Weight output_partition_size = 24 .*block_n = 16",
        ),
    ):
        with pytest.raises(ValueError, match=rf"{words}\. \(x\.\w+, tensor_parallel_size=2\)"):
            parts_of(make, "fp8", config, load)
    parts_of(lambda c: RowParallelLinear(64, 8, False, c, "x.down"), "fp8", config, load)
    merged = parts_of(lambda c: ColumnParallelLinear(32, [48, 48], False, c, "x.gate_up_proj"), "fp8", config, load)
    quant_config = merged[0].context.quant_config
    whole = LinearWeights(32, 96, quant_config, "x.gate_up_proj", partitions=[48, 48], dtype="float64")
    load(whole)
    gate, up = np.split(whole.dequantized(), 2)
    np.testing.assert_array_equal(merged[0].dequantized(), np.concatenate([gate[:24], up[:24]]))


@pytest.mark.parametrize("quantization", ["ct-w8a8", "fp8-dynamic"])
def test_each_rank_rounds_its_share_of_the_inputs(quantization: str) -> None:
    """As upstream: a token's scale is that of the rank's inputs, which an outlier elsewhere does not coarsen."""
    rng = np.random.default_rng(1)
    W, x = rng.standard_normal((6, 32)), rng.standard_normal((5, 32))
    x[:, 3] *= 1000  # on rank 0
    scheme = ActivationScheme("int8" if quantization == "ct-w8a8" else "fp8")
    method = (Int8LinearMethod if quantization == "ct-w8a8" else Fp8LinearMethod)(activations=scheme)
    found, errors = [], []
    for rank in range(2):
        layer = RowParallelLinear(32, 6, False, rank_of(2, rank), "x.down_proj", reduce_results=False)
        layer.quant_method = method
        method.take_part(layer, whole_of(method, W), np.arange(6), layer.columns)
        mine = x[:, layer.columns]
        values, scale = quantize_activations(np.ascontiguousarray(mine.T), scheme)
        found.append(layer.forward(mine))
        np.testing.assert_allclose(found[-1].T, layer.dequantized() @ values * scale, rtol=1e-12)
        errors.append(np.abs(found[-1] - mine @ W[:, layer.columns].T).max())
    assert errors[1] < errors[0] / 30


def whole_of(method: Any, W: np.ndarray) -> Any:
    """The layer of one rank, stored as a method stores it."""
    layer = LinearWeights(W.shape[1], len(W), prefix="x.down_proj", dtype="float64")
    layer.quant_method = method
    method.create_weights(layer, W.shape[1], [len(W)], "float64")
    layer.load(W)
    return layer


def test_an_embedding_holds_zeros_where_it_is_padded() -> None:
    embedding = VocabParallelEmbedding(70, 4, rank_of(2, 1), "embed")
    assert embedding.weight.shape == (64, 4) and not embedding.weight[6:].any()


def test_group_size_of_experts_is_named_with_its_argument(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"group_size must divide the 64 inputs .*got 128.*quantization_config=\{\"group_size\": 32\}"
    ):
        load_model(save_tiny("mixtral", tmp_path), quantization="int4")

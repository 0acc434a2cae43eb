"""Replicas that deal whole experts to each other give the tokens of one process, and send what the formula says."""

from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.compilation import cpu_scratch
from mini_vllm.config.parallel import ALL2ALL_BACKENDS
from mini_vllm.distributed import shared_memory
from mini_vllm.distributed.device_communicators.all2all import make_all2all_manager
from mini_vllm.engine.parts import EngineParts
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.fused_moe.config import FusedMoEParallelConfig
from mini_vllm.layers.fused_moe.expert_parallel import dispatch_matrix
from mini_vllm.layers.fused_moe.layer import FusedMoE
from mini_vllm.tests.distributed.replicas import run_replicas
from mini_vllm.tests.models.decoder_checkpoints import save_decoder
from mini_vllm.tests.models.test_moe_models import stacked
from mini_vllm.tests.models.tiny_checkpoints import make_weights, save_safetensors, save_tiny

pytestmark = pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
HIDDEN, INTER, TOP_K = 6, 4, 2
BOTH = pytest.mark.parametrize("backend", ALL2ALL_BACKENDS)
AGRS, HT = ALL2ALL_BACKENDS


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def whole_layer(num_experts):
    """A layer by itself that has all experts."""
    layer = FusedMoE(num_experts, TOP_K, HIDDEN, INTER, dtype=np.float64)
    layer.w13[:], layer.w2[:] = numbers(*layer.w13.shape, seed=1), numbers(*layer.w2.shape, seed=2)
    return layer


def rows_of(dp_rank, sizes, num_experts):
    """A replica's rows and what the router says of them."""
    return numbers(sizes[dp_rank], HIDDEN, seed=dp_rank), numbers(sizes[dp_rank], num_experts, seed=7 + dp_rank)


def layer_task(backend, sizes, num_experts, strategy="linear", layers=3):
    """The layer's output on this rank, `layers` times; exchanges and bytes that it took."""
    whole = whole_layer(num_experts)

    def task(group, tp):
        ep = FusedMoEParallelConfig(strategy, make_all2all_manager(backend, group))
        layer = FusedMoE(
            num_experts, TOP_K, HIDDEN, INTER,
            context=ModelContext(np.dtype("float64"), group=tp, enable_expert_parallel=True, ep=ep),
        )  # fmt: skip
        layer.w13[:], layer.w2[:] = whole.w13[layer.held], whole.w2[layer.held]
        out = [layer(*rows_of(group.dp_rank, sizes, num_experts)) for _ in range(layers)]
        assert all(np.array_equal(each, out[0]) for each in out)
        return out[0], group.num_exchanges / layers, group.num_bytes_sent / layers

    return task


@pytest.mark.parametrize(
    "sizes, tp_size, num_experts, strategy",
    [
        ([5, 9], 1, 8, "linear"), ([1, 0], 1, 7, "round_robin"), ([0, 0], 1, 3, "linear"), ([2, 1], 2, 5, "linear"),
        pytest.param([4, 0, 2], 1, 7, "round_robin", marks=pytest.mark.slow),
        pytest.param([3, 6], 2, 8, "round_robin", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_layer_gives_what_all_its_experts_give(sizes, tp_size, num_experts, strategy):
    """Both ways, for unequal batches, empty ones, and experts that the ranks do not divide; both the same bits."""
    found = [
        run_replicas(layer_task(backend, sizes, num_experts, strategy), len(sizes), tp_size)
        for backend in ALL2ALL_BACKENDS
    ]
    for rank, ((gathered, *_), (sent, *_)) in enumerate(zip(*found, strict=True)):
        expected = whole_layer(num_experts)(*rows_of(rank // tp_size, sizes, num_experts))
        assert gathered.shape == expected.shape and np.array_equal(gathered, sent)
        assert np.allclose(gathered, expected, rtol=0, atol=1e-12)


def row_bytes():
    """Of a row that goes out, with weights (8 bytes each) and ids (4); of a row that comes back."""
    return HIDDEN * 8 + TOP_K * (8 + 4), HIDDEN * 8


def expected_bytes(backend, sizes, num_experts, rank, strategy):
    """What a rank sends to others in a layer."""
    out, back = row_bytes()
    others = sum(sizes) - sizes[rank]
    if backend == AGRS:
        return (len(sizes) - 1) * sizes[rank] * out + others * back
    layer = whole_layer(num_experts)
    ids = [layer.select_experts(rows_of(dp, sizes, num_experts)[1])[1] for dp in range(len(sizes))]
    matrix = dispatch_matrix(ids, num_experts, strategy)
    return (matrix[rank].sum() - matrix[rank, rank]) * out + (matrix[:, rank].sum() - matrix[rank, rank]) * back


@BOTH
@pytest.mark.parametrize("sizes, num_experts, strategy", [([5, 9], 8, "linear"), ([6, 0, 11], 7, "round_robin")])
def test_a_layer_is_two_exchanges_of_so_many_bytes(backend, sizes, num_experts, strategy):
    found = run_replicas(layer_task(backend, sizes, num_experts, strategy), len(sizes))
    for rank, (_, exchanges, num_bytes) in enumerate(found):
        assert exchanges == 2
        assert num_bytes == expected_bytes(backend, sizes, num_experts, rank, strategy)


def test_more_ranks_than_experts_are_refused():
    task = layer_task(AGRS, [1, 1], 3)
    found = run_replicas(task, 2, 2)
    assert all("enable_expert_parallel needs an expert for each of 4 ranks, got 3" in each for each in found)


# -- whole engines -----------------------------------------------------------------------------------------------------

NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
POCKET_MOE = Path(__file__).resolve().parents[3] / "models" / "pocket-moe"
PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def prompts_of(dp_rank, count):
    rng = np.random.default_rng(dp_rank)
    return [{"prompt_token_ids": rng.integers(3, 150, int(rng.integers(1, 30))).tolist()} for _ in range(count)]


def make_engine(folder, group=None, **args):
    parts = None if group is None else EngineParts(dp_group=group)
    args = {"num_blocks": 64, "dtype": "float64", "seed": 0, "max_num_batched_tokens": 32, **args}
    return LLM(folder, with_labs=parts, enable_expert_parallel=group is not None, **args)


def in_lockstep(llm, group, prompts, params=PARAMS):
    """Serve all prompts, as long as any replica has work; returns the tokens, and how many steps were dummies."""
    engine, found, dummies = llm.llm_engine, {}, 0
    core = engine.engine_core
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt, params)
    while group.all_reduce(np.array([engine.has_unfinished_requests()], np.int64))[0]:
        before = core.num_steps
        for output in engine.step() if engine.has_unfinished_requests() else ():
            if output.finished:
                found[int(output.request_id)] = output.outputs[0].token_ids
        if core.num_steps == before:
            core.model_executor.execute_dummy_batch()
            dummies += 1
    return [found[number] for number in range(len(prompts))], dummies


def engine_task(folder, counts, args):
    def task(group, tp):
        llm = make_engine(folder, group, **args)
        tokens, dummies = in_lockstep(llm, group, prompts_of(group.dp_rank, counts[group.dp_rank]))
        core = llm.llm_engine.engine_core
        cache = core.model_executor.driver_worker.model_runner.kv_cache
        used = bool(cache.data.any())
        load = core.model_executor.get_stats()[1]
        return tokens, dummies, used, int(load.counts.sum())

    return task


def check_engines(folder, counts, own=None, **args):
    """Every replica's tokens are those of one process; an idle one computes dummies alone and writes nothing.

    own: arguments of the replicas that the one process does not have.
    """
    one = make_engine(folder, **args)
    task, tp_size = engine_task(folder, counts, args | (own or {})), (own or {}).get("tensor_parallel_size", 1)
    ranks = run_replicas(task, len(counts), tp_size, start_others=True)
    errors = [found for found in ranks if isinstance(found, str)]
    assert not errors, "\n".join(errors)
    for rank, found in enumerate(ranks):
        tokens, dummies, used, assignments = found
        prompts = prompts_of(rank, counts[rank])
        expected = [o.outputs[0].token_ids for o in one.generate(prompts, PARAMS, use_tqdm=False)] if prompts else []
        assert tokens == expected
        assert used == bool(prompts) and (assignments > 0) == bool(prompts)
        assert dummies > 0 or prompts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(save_tiny("mixtral", tmp_path_factory.mktemp("mixtral")))


@BOTH
@pytest.mark.parametrize("counts", [(3, 1), (0, 2)])
def test_replicas_give_the_tokens_of_one_process(folder, backend, counts):
    check_engines(folder, counts, {"all2all_backend": backend})


@pytest.mark.parametrize(
    "more",
    [
        {"enforce_eager": True}, {"async_scheduling": True}, {"quantization": "fp8"}, {"speculative_config": NGRAM},
        {"load_format": "dummy"},
    ],
)  # fmt: skip
def test_and_with(folder, more):
    """Steps planned ahead, quantized experts, drafts; experts dealt in turns."""
    check_engines(folder, (2, 1, 0), {"expert_placement_strategy": "round_robin", "all2all_backend": HT}, **more)


def test_experts_that_are_chosen_by_groups_beside_latents(tmp_path):
    """DeepSeek-V2: shared experts stay in each replica; a dummy's attention has the width of the latents."""
    check_engines(str(save_decoder("deepseek-v2", tmp_path)), (2, 0))


def test_replicas_that_would_cut_their_steps_into_unequally_many_tiles(folder, monkeypatch):
    """The compiled form takes a step as one: else one replica would come to more exchanges than the other."""
    monkeypatch.setattr(cpu_scratch, "TILE", 8)
    check_engines(folder, (3, 1))


def test_experts_that_are_stacked_in_the_file(tmp_path):
    """transformers 5 writes all experts as one tensor: a rank reads every third."""
    folder = save_tiny("mixtral", tmp_path)
    save_safetensors(folder / "model.safetensors", stacked(make_weights("mixtral")))
    check_engines(str(folder), (1, 1, 2), {"expert_placement_strategy": "round_robin"})


@pytest.mark.slow
@BOTH
def test_the_pocket_mixture(backend):
    check_engines(str(POCKET_MOE), (4, 2), {"all2all_backend": backend})


@pytest.mark.slow
@BOTH
def test_replicas_of_two_ranks_each(folder, backend):
    check_engines(folder, (0, 3), {"all2all_backend": backend, "tensor_parallel_size": 2})


def failing_task(folder, how, **args):
    """Replica 1 breaks in its first step; what each replica raised."""

    def task(group, tp):
        llm = make_engine(folder, group, **args)
        executor = llm.llm_engine.engine_core.model_executor
        group.all_reduce(np.array([1]))
        if group.dp_rank == 1 and how == "raises":
            executor.driver_worker.model_runner.forward = no_room
        elif group.dp_rank == 1:
            executor.workers[0].proc.kill()
        try:
            in_lockstep(llm, group, prompts_of(group.dp_rank, 1))
        except Exception as error:
            return type(error).__name__, str(error)

    return task


def no_room(*args):
    raise MemoryError("no room for it")


def test_a_step_that_fails_in_one_replica_fails_in_all(folder):
    first, second = run_replicas(failing_task(folder, "raises"))
    assert second == ("MemoryError", "no room for it")
    assert first[0] == "ReplicaGoneError" and "data-parallel rank 1 (pid" in first[1]
    assert "failed in its step: MemoryError: no room for it. The replicas cannot go on" in first[1]


@pytest.mark.slow
def test_a_rank_of_a_replica_that_dies_ends_all(folder):
    args = {"tensor_parallel_size": 2}
    first, second = run_replicas(failing_task(folder, "dies", **args), 2, 2, start_others=True)
    assert second[0] == "RuntimeError" and "rank 1 (pid" in second[1] and "SIGKILL" in second[1]
    assert "data-parallel rank 1" in first[1] and "make a new engine" in first[1].lower()

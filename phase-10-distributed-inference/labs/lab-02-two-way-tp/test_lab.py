"""Lab 10-02: shares of weights and cache, a capture of real vLLM with two workers, and logs that are not right."""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from course.labs import load

HERE = Path(__file__).resolve().parent
POCKET = HERE.parents[2] / "models" / "pocket"
given = load(HERE / "given.py")
CONFIG = json.loads((POCKET / "config.json").read_text(encoding="utf-8"))
CPU = {n: json.loads((HERE / "captured" / f"cpu-tp{n}.json").read_text(encoding="utf-8")) for n in (1, 2)}
LOGS = {n: (HERE / "captured" / f"cpu-tp{n}.log").read_text(encoding="utf-8") for n in (1, 2)}
GPU = HERE / "capture.json.xz"
OPT, LLAMA = given.opt_1_3b(), given.llama(given.LLAMA_3_8B)
GIB = 2**30


# ---- weights -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "ranks", "head_dim", "wanted"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (4096, 4096), 2, 128, (2048, 4096)),
        ("model.layers.0.self_attn.k_proj.weight", (1024, 4096), 2, 128, (512, 4096)),
        ("model.layers.9.self_attn.v_proj.weight", (1024, 4096), 8, 128, (128, 4096)),
        ("model.layers.9.self_attn.v_proj.weight", (1024, 4096), 32, 128, (128, 4096)),
        ("model.layers.0.self_attn.o_proj.weight", (4096, 4096), 4, 128, (4096, 1024)),
        ("model.layers.0.mlp.gate_proj.weight", (14336, 4096), 4, 128, (3584, 4096)),
        ("model.layers.0.mlp.up_proj.weight", (14336, 4096), 2, 128, (7168, 4096)),
        ("model.layers.0.mlp.down_proj.weight", (4096, 14336), 2, 128, (4096, 7168)),
        ("model.layers.0.input_layernorm.weight", (4096,), 2, 128, (4096,)),
        ("model.layers.0.post_attention_layernorm.weight", (4096,), 8, 128, (4096,)),
        ("model.norm.weight", (4096,), 2, 128, (4096,)),
        ("model.embed_tokens.weight", (128256, 4096), 2, 128, (64128, 4096)),
        ("lm_head.weight", (32000, 4096), 4, 128, (8000, 4096)),
        ("lm_head.weight", (32001, 4096), 1, 128, (32064, 4096)),
        ("model.decoder.embed_tokens.weight", (50272, 2048), 2, 64, (25152, 2048)),
        ("model.decoder.embed_positions.weight", (2050, 2048), 2, 64, (2050, 2048)),
        ("model.decoder.layers.3.self_attn.q_proj.bias", (2048,), 2, 64, (1024,)),
        ("model.decoder.layers.3.self_attn.k_proj.bias", (2048,), 4, 64, (512,)),
        ("model.layers.3.self_attn.k_proj.bias", (256,), 8, 64, (64,)),
        ("model.decoder.layers.3.self_attn.out_proj.bias", (2048,), 2, 64, (2048,)),
        ("model.decoder.layers.3.self_attn.out_proj.weight", (2048, 2048), 2, 64, (2048, 1024)),
        ("model.decoder.layers.3.fc1.bias", (8192,), 2, 64, (4096,)),
        ("model.decoder.layers.3.fc1.weight", (8192, 2048), 8, 64, (1024, 2048)),
        ("model.decoder.layers.3.fc2.bias", (2048,), 2, 64, (2048,)),
        ("model.decoder.layers.3.fc2.weight", (2048, 8192), 2, 64, (2048, 4096)),
        ("model.decoder.layers.3.self_attn_layer_norm.bias", (2048,), 2, 64, (2048,)),
        ("model.decoder.final_layer_norm.weight", (2048,), 2, 64, (2048,)),
    ],
)
def test_what_a_rank_holds(impl, name, shape, ranks, head_dim, wanted):
    found = tuple(impl.shape_on_rank(name, shape, ranks, head_dim))
    assert found == wanted, f"{name} {shape} on {ranks} ranks: got {found}, expected {wanted}"
    alone = tuple(impl.shape_on_rank(name, shape, 1, head_dim))
    assert alone == shape or "embed_tokens" in name or "lm_head" in name, f"one rank holds all of {name}, got {alone}"


@pytest.mark.parametrize(
    ("name", "shape", "ranks", "says"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (4096, 4096), 6, "6 ranks cannot share 32"),
        ("model.layers.0.self_attn.q_proj.weight", (4096, 4096), 64, "64 ranks cannot share 32"),
        ("model.layers.0.self_attn.k_proj.weight", (1024, 4096), 3, "3 ranks cannot share 8"),
        ("model.layers.0.self_attn.v_proj.weight", (512, 4096), 6, "6 ranks cannot share 4"),
        ("model.layers.0.self_attn.o_proj.weight", (4096, 4096), 6, "6 ranks cannot share 32"),
        ("model.layers.0.self_attn.o_proj.weight", (4096, 4096), 64, "64 ranks cannot share 32"),
        ("model.decoder.layers.0.self_attn.out_proj.weight", (4096, 4096), 64, "64 ranks cannot share 32"),
        ("model.layers.0.mlp.up_proj.weight", (14336, 4096), 3, "3 ranks cannot share 14336"),
        ("model.layers.0.mlp.down_proj.weight", (4096, 14336), 3, "3 ranks cannot share 14336"),
        ("lm_head.weight", (32000, 4096), 3, "3 ranks cannot share 32000"),
        ("model.layers.0.block_sparse_moe.gate.weight", (8, 4096), 2, "unknown"),
        ("model.layers.0.mlp.q_projector.weight", (8, 4096), 2, "unknown"),
        ("model.layers.0.mlp.gate.weight", (8, 4096), 1, "unknown"),
        ("model.layers.0.normalizer.weight", (4096,), 2, "unknown"),
        ("model.layers.0.fc10.weight", (8, 4096), 2, "unknown"),
        ("model.layers.0.self_attn.o_proj.weight_scale", (4096,), 2, "unknown"),
        ("model.layers.0.self_attn.q_proj.weight_scale", (4096, 1), 2, "unknown"),
        ("lm_head", (32000, 4096), 2, "unknown"),
    ],
)
def test_what_cannot_be_cut(impl, name, shape, ranks, says):
    with pytest.raises(ValueError, match=f"^{name}: {says}$"):
        impl.shape_on_rank(name, shape, ranks, 128)


@pytest.mark.parametrize(
    ("shapes", "head_dim", "ranks", "wanted"),
    [
        (OPT, 64, 1, 2.4509),
        (OPT, 64, 2, 1.2296),
        (OPT, 64, 8, 0.3137),
        (LLAMA, 128, 1, 14.9575),
        (LLAMA, 128, 2, 7.479),
        (LLAMA, 128, 16, 0.9666),
    ],
)
def test_bytes_of_weights(impl, shapes, head_dim, ranks, wanted):
    found = impl.weight_bytes(shapes, ranks, head_dim, 2) / GIB
    assert found == pytest.approx(wanted, abs=1e-4), f"{found:.4f} GiB on each of {ranks} ranks, expected {wanted}"


def test_bytes_of_what_cannot_be_cut(impl):
    with pytest.raises(ValueError, match=r"^model\.layers\.0\.mlp\.fc1\.weight: 3 ranks cannot share 8192$"):
        impl.weight_bytes({"model.layers.0.mlp.fc1.weight": (8192, 2048)}, 3, 64, 2)


def test_half_is_not_half(impl):
    """OPT-1.3B over two: what is whole on both, positions and norms and the biases of sums, is 8.6 MiB."""
    both = 2 * impl.weight_bytes(OPT, 2, 64, 2) - impl.weight_bytes(OPT, 1, 64, 2)
    assert both / 2**20 == pytest.approx(8.578, abs=0.001), f"{both / 2**20:.3f} MiB are there twice, expected 8.578"
    assert impl.weight_bytes(OPT, 1, 64, 4) == 2 * impl.weight_bytes(OPT, 1, 64, 2), "twice the bytes a number"


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_engine_holds_as_much(impl, ranks):
    """pocket in mini_vllm, cut over ranks: each layer's bytes on one of them."""
    from mini_vllm.models.llama import LlamaForCausalLM
    from mini_vllm.transformers_utils.config import HFConfig

    group = SimpleNamespace(world_size=ranks, rank=ranks - 1) if ranks > 1 else None
    held = LlamaForCausalLM(HFConfig.from_folder(POCKET), "float32", None, group).weight_nbytes
    found = impl.weight_bytes(given.llama(CONFIG), ranks, CONFIG["head_dim"], 4)
    assert found == held, f"{found:,} bytes on each of {ranks} ranks, and a worker of mini_vllm holds {held:,}"


# ---- the cache -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ((24, 32, 64, 2, 1), 3 * 2**20),
        ((24, 32, 64, 2, 2), 3 * 2**19),
        ((32, 8, 128, 2, 1), 2**21),
        ((32, 8, 128, 2, 8), 2**18),
        ((32, 8, 128, 2, 16), 2**18),
        ((8, 2, 64, 4, 2), 2**16),
        ((8, 2, 64, 4, 2, 32), 2**17),
    ],
)
def test_bytes_of_a_block(impl, sizes, wanted):
    found = impl.kv_block_bytes(*sizes)
    assert found == wanted, f"{sizes}: got {found} bytes, expected {wanted}"


def test_every_rank_has_the_same_blocks(impl):
    assert impl.predict_kv_blocks([1000, 1000], 16) == 62, "a block has one number on all ranks: 62, not 124"
    assert impl.predict_kv_blocks([1000, 400, 900], 16) == 25, "the rank with the least room decides"
    assert impl.predict_kv_blocks([1599], 16) == 99 and impl.predict_kv_blocks([15, 100], 16) == 0
    assert impl.predict_kv_blocks((16, 32), 16) == 1


def test_your_prediction(impl):
    budget, tokens = 24e9 * 0.9 - 1.2 * GIB, {}
    for cards in (1, 2):
        left = int(budget - impl.weight_bytes(LLAMA, cards, 128, 2))
        tokens[cards] = 16 * impl.predict_kv_blocks([left] * cards, impl.kv_block_bytes(32, 8, 128, 2, cards))
    assert tokens == {1: 32432, 2: 187392}, f"tokens by cards: got {tokens}, expected 32,432 and 187,392"
    gain, mine = tokens[2] / tokens[1], impl.predicted_gain()
    assert isinstance(mine, (int, float)), f"got {mine!r}, expected a number"
    assert abs(mine / gain - 1) < 0.25, (
        f"you said {mine}; one card holds {tokens[1]:,} tokens, two hold {tokens[2]:,}. Two things halve, and they "
        "multiply: this looks like *Capacity doubles*"
    )


# ---- real vLLM -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_captured_blocks(impl, ranks):
    """vLLM on a CPU gives each worker 1 GiB for its cache, whatever its weights take."""
    block = impl.kv_block_bytes(8, 2, 64, 4, ranks)
    found = impl.predict_kv_blocks([GIB] * ranks, block)
    assert found == CPU[ranks]["num_blocks"], f"{ranks} workers: got {found}, vLLM says {CPU[ranks]['num_blocks']}"


def test_the_captured_logs(impl):
    for ranks in (1, 2):
        found = impl.read_log(LOGS[ranks])
        assert (found.world_size, found.kv_tokens) == (ranks, 16 * CPU[ranks]["num_blocks"])
        assert found.weights == {} and found.backends == [], "on a CPU the log says neither"
        assert impl.doubts(found, ranks, 0.02, found.kv_tokens) == []


@pytest.mark.provided
def test_two_workers_say_the_same():
    """Real vLLM: the same tokens at all 128 places, though by sums in another order the margins differ a little."""
    names = [each.removeprefix("VLLM::") for each in CPU[2]["processes"]]
    assert names == ["EngineCore", "Worker_TP0", "Worker_TP1"]
    pairs = list(zip(CPU[1]["answers"], CPU[2]["answers"], strict=True))
    assert all(one["token_ids"] == two["token_ids"] for one, two in pairs)
    apart = max(abs(a - b) for one, two in pairs for a, b in zip(one["margins"], two["margins"], strict=True))
    assert 0 < apart < 1e-3


def log_of(world=2, weights=(1.23, 1.23), tokens=100_000, backends=("CUSTOM", "PYNCCL"), worker="Worker_TP{}"):
    """A log in the form of the release's lines."""
    lines = [f"(Worker pid=57) INFO 11-26 15:41:14 [parallel_state.py:1422] world_size={world} rank=0 local_rank=0 x=1"]
    for rank, gib in enumerate(weights):
        head = f"({worker.format(rank)} pid={57 + rank}) INFO 11-26 15:41:18 [gpu_model_runner.py:5133]"
        lines.append(f"{head} Model loading took {gib} GiB memory and 0.516822 seconds")
    names = "[" + ", ".join(f"'{each}'" for each in backends) + "]"
    if backends:
        lines.append(
            f"(Worker_TP0 pid=57) INFO 11-26 15:41:18 [cuda_communicator.py:229] Using {names} all-reduce backends "
            "(in dispatch order) for group 'tp:0' out of potential backends: ['QUICK_REDUCE', 'CUSTOM', 'PYNCCL']."
        )
    if tokens:
        lines.append(
            f"(EngineCore pid=40) INFO 11-26 15:41:19 [kv_cache_utils.py:1733] GPU KV cache size: {tokens:,} tokens"
        )
    return "\n".join(["INFO non-default args: {'tensor_parallel_size': 2}", *lines, "Maximum concurrency 3.00x", ""])


def test_read_log(impl):
    found = impl.read_log(log_of(8, [1.5 + rank / 4 for rank in range(8)], 1_234_567, ("QUICK_REDUCE", "PYNCCL")))
    assert (found.world_size, found.kv_tokens) == (8, 1_234_567)
    assert found.weights == {f"Worker_TP{rank}": 1.5 + rank / 4 for rank in range(8)}
    assert found.backends == ["QUICK_REDUCE", "PYNCCL"], "those in use, not the potential ones"
    found = impl.read_log(log_of(1, [14.96], 512, (), "EngineCore"))
    assert (found.world_size, found.weights, found.kv_tokens, found.backends) == (1, {"EngineCore": 14.96}, 512, [])
    found = impl.read_log(log_of(worker="Worker_DP1_TP{}") + "INFO asked for world_size=16, 9 GiB and 7 tokens\n")
    assert found.weights == {"Worker_DP1_TP0": 1.23, "Worker_DP1_TP1": 1.23}, f"by their names: got {found.weights}"
    assert (found.world_size, found.kv_tokens) == (2, 100_000), "a line of another kind is not read"
    again = impl.read_log(log_of() + log_of(4, (2.0,), 160, ("PYNCCL",)))
    assert (again.world_size, again.kv_tokens, again.backends) == (4, 160, ["PYNCCL"]), "the last one counts"
    assert again.weights == {"Worker_TP0": 2.0, "Worker_TP1": 1.23}
    nothing = impl.read_log("")
    assert (nothing.world_size, nothing.weights, nothing.kv_tokens, nothing.backends) == (0, {}, 0, [])


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, []),
        ({"weights": (1.26, 1.24), "tokens": 91_000}, []),
        ({"weights": (1.1, 1.1), "tokens": 200_000}, []),
        ({"world": 1, "weights": (1.23,), "backends": ()}, ["ranks"]),
        ({"world": 4}, ["ranks"]),
        ({"weights": (1.23,)}, ["ranks"]),
        ({"weights": (2.46, 2.46)}, ["weights"]),
        ({"weights": (1.23, 2.46)}, ["weights"]),
        ({"tokens": 60_000}, ["capacity"]),
        ({"tokens": 0}, []),
        ({"backends": ("PYNCCL",)}, ["wire"]),
        ({"backends": ("SYMM_MEM", "PYNCCL")}, ["wire"]),
        ({"backends": ("NCCL_SYMM_MEM", "PYNCCL")}, []),
        ({"backends": ("PYNCCL", "CUSTOM")}, []),
        ({"backends": ("FLASHINFER",)}, []),
        ({"backends": ("QUICK_REDUCE",)}, []),
        ({"backends": ()}, []),
        ({"weights": ()}, []),
        (
            {"world": 1, "weights": (2.46,), "tokens": 40_000, "backends": ("PYNCCL",)},
            ["ranks", "weights", "capacity", "wire"],
        ),
    ],
)  # fmt: skip
def test_what_is_in_doubt(impl, changed, wanted):
    startup = impl.read_log(log_of(**changed))
    found = impl.doubts(startup, 2, 1.23, 100_000)
    assert list(found) == wanted, f"log with {changed}: got {found}, expected {wanted}"


def test_one_of_many_is_enough(impl):
    """Seven ranks of eight hold an eighth; one holds a quarter, and it is the one that runs out of memory."""
    for heavy in (0, 3, 7):
        weights = {f"Worker_TP{rank}": 2.46 if rank == heavy else 1.23 for rank in range(8)}
        found = impl.doubts(impl.Startup(8, weights), 8, 1.23, 1000)
        assert found == ["weights"], f"rank {heavy} of 8 holds twice its share: got {found}. A mean or a sum hides it"


def test_one_rank_needs_no_wire(impl):
    assert impl.doubts(impl.Startup(1, {"EngineCore": 2.45}, 900, ["PYNCCL"]), 1, 2.45, 1000) == []
    assert impl.doubts(impl.Startup(), 2, 1.0, 1000) == [], "what the log does not say is not in doubt"
    assert impl.doubts(impl.Startup(kv_tokens=1), 2, 1.0, 1000) == ["capacity"], "one token is said, and is too few"
    large = impl.Startup(weights={"Worker_TP0": 16.4, "Worker_TP1": 16.4}, kv_tokens=93)
    assert impl.doubts(large, 2, 15.0, 100) == [], "within a tenth is a good prediction, however large the model"
    assert impl.doubts(impl.Startup(world_size=1), 2, 1.0, 0) == ["ranks"]
    small = impl.Startup(2, {"Worker_TP0": 0.6, "Worker_TP1": 0.6}, 300_000, ["CUSTOM"])
    assert impl.doubts(small, 2, 1.23, 100_000) == [], "less than computed, and more room than predicted, is no fault"


# ---- two GPUs ------------------------------------------------------------------------------------------------------


def test_two_gpus(impl):
    """A capture of `gpu_run.py`: what the workers loaded, and how many blocks two starts allow to be predicted."""
    if not GPU.is_file():
        impl.predict_kv_blocks([1], 1)
        pytest.skip("no capture.json.xz here: gpu_run.py makes it, on a machine with two GPUs")
    arms = json.loads(lzma.decompress(GPU.read_bytes()))["arms"]
    for name, shapes, head_dim, sizes in (
        ("opt", OPT, 64, (24, 32, 64, 2)),
        ("tight", LLAMA, 128, (32, 8, 128, 2)),
        ("llama", LLAMA, 128, (32, 8, 128, 2)),
    ):
        fixed = {}
        for ranks in (1, 2):
            if "found" not in arms.get(f"{name}-{ranks}", {}):
                continue
            found, startup = arms[f"{name}-{ranks}"]["found"], impl.read_log("\n".join(arms[f"{name}-{ranks}"]["log"]))
            weights = impl.weight_bytes(shapes, ranks, head_dim, 2)
            for worker, gib in startup.weights.items():
                assert abs(gib - weights / GIB) < 0.1, (
                    f"{name}-{ranks}: {worker} loaded {gib} GiB, computed {weights / GIB:.2f}"
                )
            used = found["num_blocks"] * impl.kv_block_bytes(*sizes, ranks)
            fixed[ranks] = found["device_bytes"] * found["options"]["gpu_memory_utilization"] - weights - used
            assert startup.kv_tokens == found["num_blocks"] * found["block_size"]
        assert all(0 < each < 4 * GIB for each in fixed.values()), f"{name}: neither weights nor cache: {fixed}"


@pytest.mark.real_vllm
def test_live(impl, real_run):
    """About a minute: starts vLLM on models/pocket with two workers."""
    log, found = real_run(str(POCKET), "--tp", "2")
    startup = impl.read_log(log)
    assert (startup.world_size, found["num_blocks"]) == (2, impl.predict_kv_blocks([GIB] * 2, 2**16))
    assert [each["token_ids"] for each in found["answers"]] == [each["token_ids"] for each in CPU[1]["answers"]]
    assert math.isfinite(startup.kv_tokens)

"""Lab 11-03: bytes of adapters and slots against files and the engine, and plans against a judge."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

POCKET = Path(__file__).resolve().parents[3] / "models" / "pocket"
MIB, GIB = 1 << 20, 1 << 30
LLAMA_2_7B = {
    "q": (4096, 4096), "k": (4096, 4096), "v": (4096, 4096), "o": (4096, 4096), "gate": (11008, 4096),
    "up": (11008, 4096), "down": (4096, 11008),
}  # fmt: skip
LLAMA_3_8B = {**LLAMA_2_7B, "k": (1024, 4096), "v": (1024, 4096)}
LLAMA_3_8B = {**LLAMA_3_8B, "gate": (14336, 4096), "up": (14336, 4096), "down": (4096, 14336)}
POCKET_SHAPES = {
    "q": (256, 256), "k": (128, 256), "v": (128, 256), "o": (256, 256), "gate": (512, 256), "up": (512, 256),
    "down": (256, 512),
}  # fmt: skip
ATTENTION = ("q", "k", "v", "o")


# ---- bytes ---------------------------------------------------------------------------------------------------------


def test_an_adapter_of_a_7b_model(impl):
    size = impl.adapter_bytes(LLAMA_2_7B, 32, 16, ATTENTION)
    assert size == 32 * MIB, f"{size / MIB} MiB; 131,072 parameters a projection, 4 of them, 32 layers, 2 bytes"
    assert impl.adapter_bytes(LLAMA_2_7B, 32, 64, ATTENTION) == 4 * size, "rank is a linear dial"
    assert impl.adapter_bytes(LLAMA_2_7B, 32, 16, ["q", "v"]) == size // 2
    assert impl.adapter_bytes(LLAMA_2_7B, 32, 16, ATTENTION, dtype_bytes=4) == 2 * size
    assert impl.adapter_bytes(LLAMA_2_7B, 32, 16, []) == 0
    assert GIB // size == 32


def test_outputs_need_not_be_inputs(impl):
    assert impl.adapter_bytes(LLAMA_3_8B, 32, 16, ATTENTION) == 26 * MIB, "k and v of Llama-3-8B are a quarter as wide"
    assert impl.adapter_bytes({"down": (3, 5)}, 1, 2, ["down"], 1) == 16


def test_a_projection_that_is_not_there(impl):
    with pytest.raises(ValueError, match=r"^no projection is called 'qkv'; there are down, gate, k, o, q, up, v$"):
        impl.adapter_bytes(LLAMA_2_7B, 32, 16, ["q", "qkv"])


def test_an_adapter_on_the_disk(impl, tmp_path):
    """Tensors of a file in PEFT's layout, as the engine's reader finds them."""
    from mini_vllm.model_loader.safetensors_reader import SafetensorsFile
    from mini_vllm.tests.lora.adapters import save_adapter

    folder = save_adapter(tmp_path, POCKET, seed=1, rank=4, targets=("q_proj", "v_proj", "down_proj"))
    file = SafetensorsFile(folder / "adapter_model.safetensors")
    there = sum(file.read(name).nbytes for name in file.tensors)
    file.close()
    said = impl.adapter_bytes(POCKET_SHAPES, 8, 4, ("q", "v", "down"), dtype_bytes=4)
    assert said == there, f"{said:,} bytes, and the file's tensors have {there:,}"


def test_a_slot_is_for_any_adapter(impl):
    for shapes, rank, mib in (
        (LLAMA_2_7B, 8, 38.125),
        (LLAMA_2_7B, 16, 76.25),
        (LLAMA_2_7B, 64, 305),
        (LLAMA_3_8B, 16, 80),
    ):
        found = impl.slot_bytes(shapes, 32, rank) / MIB
        assert found == mib, f"rank {rank}: {found} MiB for a slot, {mib} are reserved. An adapter may patch all of it"


@pytest.mark.parametrize(("slots", "rank"), [(1, 8), (3, 16)])
def test_what_the_engine_reserves(impl, slots, rank):
    from mini_vllm import LLM

    llm = LLM(str(POCKET), enable_lora=True, max_loras=slots, max_lora_rank=rank, num_blocks=16)
    there = llm.llm_engine.engine_core.model_runner.lora_manager.adapter_manager.nbytes
    said = slots * impl.slot_bytes(POCKET_SHAPES, 8, rank, dtype_bytes=4)
    assert said == there, f"{slots} slots of rank {rank}: {said:,} bytes, and the engine holds {there:,}"


def test_what_a_step_reads(impl):
    sizes = {"a": 30, "b": 20, "c": 10}
    assert impl.step_bytes(1000, sizes, ["a", "b", None, "a", "a"]) == (1050, 3000)
    rows = [None, None]
    assert impl.step_bytes(1000, sizes, rows) == (1000, 1000) and rows == [None, None]
    assert impl.step_bytes(7, sizes, ["c", None]) == (17, 14)
    assert impl.step_bytes(1000, sizes, ["c"]) == (1010, 1000), "one tenant alone: merged is cheaper"
    assert impl.step_bytes(1000, sizes, []) == (0, 0)


# ---- plans ---------------------------------------------------------------------------------------------------------


def machine(impl, memory_gib=24.0, base_gib=12.55, kv_mib=256):
    return impl.Machine(int(memory_gib * GIB), int(base_gib * GIB), kv_mib * MIB, LLAMA_2_7B, 32)


def judge(tenants, where, engines):
    """What is wrong with a plan; "" where nothing is. Written without the lab's functions."""
    by_name = {each.name: each for each in tenants}
    served = sorted(name for engine in engines for name in engine.tenants)
    if served != sorted(by_name):
        return f"served are {len(served)} of {len(by_name)} tenants, or one of them twice"
    for engine in engines:
        mine = [by_name[name] for name in engine.tenants]
        if engine.max_loras < len(mine):
            return f"{len(mine)} tenants may be busy at once, and max_loras is {engine.max_loras}"
        top = max((each.rank for each in mine), default=0)
        if engine.max_lora_rank < top or engine.max_lora_rank not in (1, 8, 16, 32, 64, 128, 256, 320, 512):
            return f"an adapter of rank {top}, and max_lora_rank is {engine.max_lora_rank}"
        numbers = sum(out + inp for out, inp in where.shapes.values())
        slots = engine.max_loras * engine.max_lora_rank * numbers * where.layers * where.dtype_bytes
        need = where.base + slots + sum(each.requests for each in mine) * where.kv_per_request
        if need > where.memory:
            words = f"{need / GIB:.2f} GiB on a machine of {where.memory / GIB:.2f}"
            return f"{words}: {engine.max_loras} slots take {slots / GIB:.2f}"
    return ""


def planned(impl, tenants, where):
    before = list(tenants)
    engines = impl.plan(tenants, where)
    wrong = judge(tenants, where, engines)
    assert not wrong, wrong
    assert tenants == before, "an argument was changed"
    return engines


def test_one_tenant(impl):
    (engine,) = planned(impl, [impl.Tenant("a", 8, 2)], machine(impl))
    assert (engine.max_loras, engine.tenants) == (1, ("a",))
    assert impl.plan([], machine(impl)) == []


def test_a_rank_between_two(impl):
    """Rank 20 needs buffers of rank 32, since there are none of 20."""
    planned(impl, [impl.Tenant("a", 20, 1), impl.Tenant("b", 4, 1)], machine(impl))


def test_alike_tenants_share(impl):
    tenants = [impl.Tenant(f"t{i}", 8, 1) for i in range(80)]
    assert len(planned(impl, tenants, machine(impl))) == 3, "39 a machine: 38 MiB for the slot and 256 for the KV cache"


def test_one_high_rank_is_paid_by_all(impl):
    """Ninety tenants of rank 8, six of rank 128, in turns: who serves them as they come pays 610 MiB for each slot."""
    tenants = [impl.Tenant(f"t{i}", 128 if i % 16 == 5 else 8, 1) for i in range(96)]
    engines = planned(impl, tenants, machine(impl))
    assert len(engines) <= 4, (
        f"{len(engines)} machines; 4 are enough. max_lora_rank by engine: {[each.max_lora_rank for each in engines]}"
    )


def test_busy_and_quiet_ones(impl):
    """Some need KV cache, some need slots, some both."""
    chance = random.Random(4)
    tenants = [impl.Tenant(f"t{i}", chance.choice([8, 8, 8, 16, 64]), chance.choice([1, 1, 2, 6])) for i in range(60)]
    engines = planned(impl, tenants, machine(impl))
    assert len(engines) <= 6, f"{len(engines)} machines; 6 are enough"


@pytest.mark.parametrize("seed", range(6))
def test_any_plan_holds(impl, seed):
    chance = random.Random(seed)
    tenants = [
        impl.Tenant(f"t{i}", chance.choice([1, 8, 12, 16, 64, 256]), chance.randint(1, 8))
        for i in range(chance.randint(1, 40))
    ]
    where = machine(impl, chance.choice([18.0, 24.0, 40.0]), kv_mib=chance.choice([32, 256]))
    least = sum(each.requests for each in tenants) * where.kv_per_request / (where.memory - where.base)
    engines = planned(impl, tenants, where)
    assert len(engines) <= 2 * least + 14, f"{len(engines)} machines, the KV cache alone needs {least:.1f}"


def test_too_large_for_a_machine(impl):
    need = impl.slot_bytes(LLAMA_2_7B, 32, 512) + 5 * GIB + 256 * MIB
    just = impl.Machine(need, 5 * GIB, 256 * MIB, LLAMA_2_7B, 32)
    assert len(planned(impl, [impl.Tenant("a", 512, 1)], just)) == 1, "it fits to the byte"
    with pytest.raises(ValueError, match=r"^tenant 'b' does not fit on a machine of her own$"):
        impl.plan([impl.Tenant("a", 8, 1), impl.Tenant("b", 8, 64)], machine(impl))
    with pytest.raises(ValueError, match=r"^tenant 'c' does not fit on a machine of her own$"):
        impl.plan([impl.Tenant("c", 513, 1)], machine(impl, 80.0))

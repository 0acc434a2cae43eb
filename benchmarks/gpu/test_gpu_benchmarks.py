"""What can be proved about the GPU measurements without a GPU: the ways agree, and the captures meet their goals."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.kernels.interpreter import triton_or_skip

pytestmark = pytest.mark.needs_torch
ON_GPU = triton_or_skip()
import torch  # noqa: E402

from benchmarks.gpu import counters, moe, moe_step, publish  # noqa: E402
from benchmarks.gpu.decoder import Decoder, Shape  # noqa: E402
from mini_vllm import moe_align_block_size  # noqa: E402
from mini_vllm.kernels.grouped_gemm import fused_experts  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TINY = [Shape(2, 32, 4, 4, 8, 64, 100, False, torch.float32), Shape(2, 32, 4, 2, 8, 64, 100, True, torch.float32)]


def captured(phase: str, name: str) -> dict[str, Any]:
    file = next(ROOT.glob(f"phase-{phase}-*/captured/{name}.json*"))
    return json.loads(lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes())


@pytest.mark.parametrize("shape", TINY, ids=["opt", "llama"])
def test_a_step_in_pieces_is_the_step(shape: Shape) -> None:
    """And each step attends to what the steps before it wrote: another context gives other tokens."""
    runs = []
    for pieces, position in ((False, 16), (True, 16), (False, 3)):
        model = Decoder(shape, batch=3, max_len=32, device="cpu")
        model.reset(position)
        tokens = []
        for _ in range(6):
            if pieces:
                x, mask, cos, sin = model.start()
                for i in range(shape.layers):
                    x = model.after(i, x, model.attend(i, *model.before(i, x, cos, sin), mask))
                model.finish(x)
            else:
                model.step()
            tokens.append(model.tokens.tolist())
        runs.append(tokens)
        assert int(model.position) == position + 6
    assert runs[0] == runs[1] != runs[2]


def test_all_ways_through_the_experts_agree() -> None:
    gen = torch.Generator().manual_seed(0)
    tokens, experts, top_k, hidden, inner = 21, 4, 2, 32, 16
    x = torch.randn(tokens, hidden, generator=gen)
    w13, w2 = (torch.randn(experts, *s, generator=gen) / s[1] ** 0.5 for s in ((2 * inner, hidden), (hidden, inner)))
    scores, ids = torch.rand(tokens, experts, generator=gen).softmax(dim=-1).topk(top_k)
    shares, plan = moe.plans(scores, ids, experts)
    expected = moe.reference(x, w13, w2, shares, slice(0, tokens))
    sorted_ids, expert_ids, used = moe_align_block_size(ids.numpy(), 16, experts)
    alignment = tuple(torch.tensor(a, dtype=torch.int32) for a in (sorted_ids, expert_ids, [used]))
    if not ON_GPU:
        out = fused_experts(x, w13, w2, scores, alignment, (16, 16, 16))  # type: ignore[arg-type]
        assert torch.allclose(out.double(), expected, atol=1e-5)
    assert torch.allclose(moe.loop_of_matmuls(x, w13, w2, shares).double(), expected, atol=1e-5)
    assert len(plan) == 5 and int(plan[2][-1]) == tokens * top_k


def test_publishing_keeps_the_fastest_and_the_slowest(tmp_path: Path) -> None:
    facts = {"machine": "CARD, 1.2, 1000 MiB, 1 MHz, 1 W", "cpu_cores": 4, "versions": {}, "date": "d", "command": "c"}
    rows = [{"shape": 1, "configs": [{"us": i} for i in range(9)]}]
    measured = {"provenance": facts, "ceilings": {"copy_gb_per_s": 1}, "results": rows}
    (tmp_path / "int4.json").write_text(json.dumps(measured), encoding="utf-8")
    publish.main(tmp_path, root=tmp_path)
    folder = tmp_path / "phase-06-quantization" / "captured"
    [row] = json.loads(lzma.decompress((folder / "h200-int4.json.xz").read_bytes()))["int4"]
    assert [config["us"] for config in row["configs"]] == [0, 1, 2, 3, 4, 8]
    entry = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))["h200-int4"]
    assert entry["machine"] == "one CARD (1,000 MiB, driver 1.2), 4 CPU cores" and "command" not in entry


def test_counters_are_read_with_their_units() -> None:
    stalls = [f"{counters.STALL}{name}_per_issue_active.ratio" for name in ("wait", "barrier")]
    names = ["Kernel Name", "gpu__time_duration.sum", "launch__registers_per_thread", *stalls]
    rows = [names, ["", "ns", "register/thread", "inst", "inst"], ["_gemm_kernel", "1,500", "64", "0.5", "2"]]
    table = "==PROF== noise\n" + "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    [row] = counters.read(table, [("_gemm_kernel", "small")])
    assert (row["us"], row["registers"], list(row["waits"].items())) == (1.5, 64.0, [("barrier", 2.0), ("wait", 0.5)])


def test_the_captures_meet_the_goals() -> None:
    """80 % of copy bandwidth for decode, 90 % for softmax, 70 % of cuBLAS for GEMM, 2.5 times cuBLAS for int4."""
    decode = {row["shape"]: row for row in captured("04", "h200-kernels")["decode"]}
    assert decode["llama-3-8b, 64 x 4096"]["share_of_copy"] >= 0.8
    softmax = {tuple(row["shape"]): row["share_of_copy"]["kernel"] for row in captured("04", "h200-softmax")["softmax"]}
    assert softmax[65536, 1024] >= 0.9 and softmax[16384, 4096] >= 0.9
    square = {row["shape"][0]: row["share_of_cublas"] for row in captured("07", "h200-gemm")["square"]}
    assert min(square[4096]["gemm"], square[4096]["gemm_tma"]) >= 0.7
    int4 = {row["shape"]: row["times_cublas"] for row in captured("06", "h200-int4")["int4"] if row["batch"] == 1}
    small = int4.pop("4096 x 4096")["kernel, defaults"]
    assert len(int4) == 3 and min(row["kernel, defaults"] for row in int4.values()) >= 2.5
    assert 2.2 <= small < 2.5, "not met: the guide says by how much, and why"


def test_a_whole_model_without_waiting_for_the_gpu() -> None:
    """Alignment on the GPU gives the engine's tables; a step is the same with the loop and with the grouped kernel."""
    gen = torch.Generator().manual_seed(0)
    for tokens, experts, top_k, block in ((1, 4, 2, 16), (21, 4, 2, 16), (9, 3, 1, 4), (40, 16, 8, 16)):
        ids = torch.rand(tokens, experts, generator=gen).topk(top_k)[1]
        sorted_ids, expert_ids, used = moe_align_block_size(ids.numpy(), block, experts)
        mine = moe_step.align(ids, block, experts)
        assert int(mine[2]) == used and (mine[0][:used].numpy() == sorted_ids[:used]).all()
        assert (mine[0][used:] >= tokens * top_k).all()
        assert (mine[1][: used // block].numpy() == expert_ids[: used // block]).all()
    if not ON_GPU:
        shape = moe_step.MoEShape(2, 32, 4, 2, 16, 24, 100, True, torch.float32, 4, 2)
        model, tokens_of = moe_step.MoEDecoder(shape, batch=3, max_len=32, device="cpu"), {}
        for model.way in ("loop", "grouped"):
            model.reset(position=16)
            found = [(model.step(), model.tokens.tolist())[1] for _ in range(4)]
            tokens_of[model.way] = found
        assert tokens_of["loop"] == tokens_of["grouped"] and tokens_of["loop"][0] != tokens_of["loop"][3]


def test_the_capture_of_a_whole_model() -> None:
    for row in captured("07", "h200-moe-step")["moe-step"]:
        ms, parts = row["ms_per_step"], row["profile"]["grouped"]
        assert row["floor_ms"] < ms["grouped, graph"] < ms["grouped, launched"] < ms["loop, launched"]
        assert abs(sum(parts["ms"].values()) - parts["gpu_busy_ms"]) < 0.01 and min(parts["ms"].values()) > 0
        assert parts["gpu_busy_ms"] < ms["grouped, graph"] * 1.02
        if row["batch"] > 1:
            assert max(parts["share"], key=parts["share"].__getitem__) == "experts"


def test_the_captures_are_right_before_they_are_fast() -> None:
    """bf16 outputs: half a step is 2 ** -9, 0.2 %; a product of bf16 operands stays within two of them."""
    errors = [row["relative_error"] for table in ("decode", "prefill") for row in captured("04", "h200-kernels")[table]]
    errors += [row["relative_error"] for row in captured("04", "h200-softmax")["softmax"]]
    errors += [row["relative_error"]["kernel"] for row in captured("06", "h200-int4")["int4"]]
    errors += [error for row in captured("07", "h200-gemm")["square"] for error in row["relative_error"].values()]
    errors += [row["relative_error"] for row in captured("07", "h200-gemm")["moe"]]
    assert min(errors) > 0 and max(errors) < 5e-3

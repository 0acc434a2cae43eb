"""bf16, FP8 and 4-bit weights on one layer, from one row to 4,096: where does each stop paying?

Below some number of rows a product waits for its weights, and fewer bits of weight are less to wait for. Above it the
multiplying takes the time: FP8 multiplies twice as fast, and 4-bit weights have to be unpacked first.

Upstream's own kernels take part where `--vllm FOLDER` names the unpacked GPU wheel of the pinned release: Marlin
(upstream/csrc/quantization/marlin/marlin.cu:862 — "marlin_gemm") and the CUTLASS product in FP8
(upstream/csrc/libtorch_stable/torch_bindings.cpp:441 — "cutlass_scaled_mm").
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.common import normal, num_sets, race, relative_error
from benchmarks.gpu.matmul import quantized, tinygemm
from mini_vllm.kernels.int4_matmul import int4_matmul, repack_for_kernel

SHAPES = {  # name: (outputs, inputs)
    "llama-3-8b gate and up, 28672 x 4096": (28672, 4096),
    "llama-3-8b down, 4096 x 14336": (4096, 14336),
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
FP8_MAX = 448.0
Product = Callable[[int], torch.Tensor]


def load_vllm(folder: Path | None) -> Any:
    """Register upstream's kernels with torch; its table of number types, or None where there is no folder."""
    if folder is None:
        return None
    for name in ("_C_stable_libtorch", "_C"):
        torch.ops.load_library(str(folder / "vllm" / f"{name}.abi3.so"))
    spec = importlib.util.spec_from_file_location("vllm_scalar_type", folder / "vllm" / "scalar_type.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.scalar_types


def to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale for each row, and the row in E4M3. x: [rows, columns] -> the same, [rows, 1] float32."""
    scale = x.abs().amax(dim=-1, keepdim=True).float() / FP8_MAX
    return (x / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


class Layer:
    """One weight [outputs, inputs] in every form; all of them stand for (nearly) the same numbers.

    Attributes:
        bf16: what 4-bit codes and scales stand for. fp8: the same rounded to E4M3, with a scale for each output.
    """

    def __init__(self, outputs: int, inputs: int, seed: int, types: Any) -> None:
        self.outputs, self.inputs = outputs, inputs
        packed, scales, self.bf16 = quantized(outputs, inputs, seed)
        self.words = repack_for_kernel(packed, scales)
        self.tiny = tinygemm(packed, scales)
        self.fp8, self.fp8_scale = to_fp8(self.bf16)
        self.types = types
        self.marlin = None if types is None else self._for_marlin(packed, scales)

    def _for_marlin(self, packed: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Codes as GPTQ packs them ([inputs / 8, outputs] int32), then as Marlin reads them.

        Upstream: upstream/vllm/model_executor/layers/quantization/utils/marlin_utils.py:306 — `marlin_permute_scales`.
        """
        codes = torch.stack((packed & 15, packed >> 4), dim=-1).view(self.outputs, self.inputs).T.to(torch.int32)
        gptq = torch.zeros(self.inputs // 8, self.outputs, dtype=torch.int32, device=packed.device)
        for i in range(8):
            gptq |= codes[i::8] << 4 * i
        none = torch.empty(0, dtype=torch.int32, device=packed.device)
        words = torch.ops._C.gptq_marlin_repack(gptq, none, self.inputs, self.outputs, 4, False)
        order = [i + 8 * j for i in range(8) for j in range(8)]
        permuted = scales.T.reshape(-1, 64)[:, order].reshape(-1, self.outputs).contiguous()
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        return words, permuted, torch.zeros(sms, dtype=torch.int32, device=packed.device)

    def marlin_product(self, x: torch.Tensor) -> torch.Tensor:
        """Upstream's default for GPTQ and AWQ checkpoints on this card: sums between programs in float32."""
        assert self.marlin is not None
        words, scales, workspace = self.marlin
        sizes = len(x), self.outputs, self.inputs
        flags = True, False, True, False  # all of K is here; no atomic sums; sums in float32; zero points are codes
        return torch.ops._C.marlin_gemm(
            x, None, words, None, scales, None, None, None, None, None, workspace, self.types.uint4b8.id, *sizes, *flags
        )


def cutlass_fp8(x: torch.Tensor, x_scale: torch.Tensor, layer: Layer) -> torch.Tensor:
    """Upstream's product in FP8: a scale for each row and each output."""
    out = torch.empty(len(x), layer.outputs, dtype=torch.bfloat16, device=x.device)
    torch.ops._C.cutlass_scaled_mm(out, x, layer.fp8.T, x_scale, layer.fp8_scale, None)
    return out


def round_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Upstream's kernel for `to_fp8`: one pass."""
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scale = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
    torch.ops._C.dynamic_per_token_scaled_fp8_quant(out, x, scale, None)
    return out, scale


def torch_fp8(x: torch.Tensor, x_scale: torch.Tensor, layer: Layer) -> torch.Tensor:
    """torch's product in FP8 with the same scales, sums as torch does by default."""
    return torch._scaled_mm(
        x, layer.fp8.T, scale_a=x_scale, scale_b=layer.fp8_scale.T.contiguous(), out_dtype=torch.bfloat16
    )


def products(xs: list[torch.Tensor], layers: list[Layer], with_vllm: bool) -> dict[str, Product]:
    """Every way to multiply these rows with this layer; each is called with the number of a set of inputs."""
    ready = [to_fp8(x) for x in xs]
    ways: dict[str, Product] = {
        "bf16, cuBLAS": lambda i: torch.mm(xs[i], layers[i].bf16.T),
        "fp8, torch, rows rounded before": lambda i: torch_fp8(*ready[i], layers[i]),
        "4 bits, torch (tinygemm)": lambda i: layers[i].tiny(xs[i]),
    }
    if len(xs[0]) <= 16:
        ways["4 bits, our kernel"] = lambda i: int4_matmul(xs[i], *layers[i].words)
    if with_vllm:
        ways |= {
            "fp8, vLLM (CUTLASS), rows rounded before": lambda i: cutlass_fp8(*ready[i], layers[i]),
            "fp8, vLLM (CUTLASS)": lambda i: cutlass_fp8(*round_rows(xs[i]), layers[i]),
            "4 bits, vLLM (Marlin)": lambda i: layers[i].marlin_product(xs[i]),
        }
    return ways


def row(name: str, rows: int, layers: list[Layer], ceiling: dict[str, float], with_vllm: bool) -> dict[str, Any]:
    """One shape at one number of rows."""
    outputs, inputs = SHAPES[name]
    xs = [normal(rows, inputs, seed=40 + i) for i in range(len(layers))]
    ways = products(xs, layers, with_vllm)
    times = race({way: [lambda i=i, f=f: f(i) for i in range(len(xs))] for way, f in ways.items()})  # type: ignore
    few = slice(0, 64)
    expected = xs[0][few].double() @ layers[0].bf16.double().T
    flop, moved = 2 * rows * outputs * inputs, 2 * rows * (inputs + outputs)
    reading = (2 * outputs * inputs + moved) / ceiling["copy_gb_per_s"] / 1e3
    floor = max(reading, flop / ceiling["cublas_bf16_8192_tflop_per_s"] / 1e6)
    return {
        "shape": name, "rows": rows, "us": {way: round(us, 2) for way, us in times.items()},
        "times_bf16": {way: round(times["bf16, cuBLAS"] / us, 2) for way, us in times.items()},
        "tflop_per_s": {way: round(flop / us / 1e6, 1) for way, us in times.items()},
        "bf16_floor_us": round(floor, 2),
        "relative_error": {way: relative_error(ways[way](0)[few], expected) for way in times},
    }  # fmt: skip


def measure(ceiling: dict[str, float], vllm: Path | None = None) -> list[dict[str, Any]]:
    """All shapes and numbers of rows."""
    types, result = load_vllm(vllm), []
    if types is None:
        print("  without vLLM's kernels: --vllm FOLDER names its unpacked wheel", flush=True)
    for name, (outputs, inputs) in SHAPES.items():
        layers = [Layer(outputs, inputs, seed, types) for seed in range(num_sets(outputs * inputs // 2))]
        for rows in ROWS:
            result.append(found := row(name, rows, layers, ceiling, types is not None))
            print("low-bits", name, rows, found["us"], found["times_bf16"], flush=True)
        print("   errors", found["relative_error"], flush=True)
        del layers
        torch.cuda.empty_cache()
    return result

"""Records what the reference libraries make of the same weights, for `test_quantization_golden.py`.

Run from the repository root:

    .venv-vllm/bin/python mini_vllm/tests/golden/record_quantization.py vllm    # the CPU build of the pinned release
    python mini_vllm/tests/golden/record_quantization.py bitsandbytes           # needs bitsandbytes and torch

`vllm` holds packed tensors from the release's own packers and from compressed-tensors with the floats that they stand
for, and prompt log-probabilities of the real engine on the checkpoints of `quantized_checkpoints.py`.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

ENGINES = {
    "ct-w8a8": "float32", "ct-w4a16": "bfloat16", "ct-w4a16-asym": "bfloat16", "ct-w4a16-actorder": "bfloat16",
    "gptq": "bfloat16", "gptq-desc-act": "bfloat16", "awq": "bfloat16",
}  # fmt: skip
"""Layouts that the release computes on a CPU, and in which type; FP8 and 8-bit packed weights it does not."""
PROMPT = [1, 5, 300, 7, 9, 200, *range(3, 45, 2), 511, 17, 64, 128, 256, 31, 99]


def _weights(rows: int = 16, columns: int = 128, seed: int = 0) -> Any:
    import torch

    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, columns), dtype=np.float32))


def _vllm_packers() -> dict[str, Any]:
    """GPTQ and AWQ by upstream's test helpers; they work on [in, out]."""
    import torch
    from vllm.model_executor.layers.quantization.utils import quant_utils as utils
    from vllm.scalar_type import scalar_types

    W = _weights().T.contiguous()
    shape, found = tuple(W.shape), {}
    for bits, kind in ((4, scalar_types.uint4b8), (8, scalar_types.uint8b128)):
        ref, q, scales, _ = utils.quantize_weights(W, kind, 32)
        found |= {f"gptq{bits}.qweight": utils.gptq_pack(q, bits, *shape), f"gptq{bits}.scales": scales,
                  f"gptq{bits}.floats": ref}  # fmt: skip
    perm = torch.from_numpy(np.random.default_rng(1).permutation(shape[0]))
    ref, q, scales, g_idx, _ = utils.gptq_quantize_weights(W, scalar_types.uint4b8, 32, True, perm)
    found |= {"desc_act.qweight": utils.gptq_pack(q, 4, *shape), "desc_act.scales": scales, "desc_act.g_idx": g_idx,
              "desc_act.floats": ref}  # fmt: skip
    ref, q, scales, zeros = utils.quantize_weights(W, scalar_types.uint4, 32, zero_points=True)
    found |= {"awq.qweight": utils.awq_pack(q, 4, *shape), "awq.qzeros": utils.awq_pack(zeros, 4, *zeros.shape),
              "awq.scales": scales, "awq.floats": ref}  # fmt: skip
    return found


def _compressed_tensors() -> dict[str, Any]:
    """Compressed and decompressed by the library that writes such checkpoints."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    found = {}
    g_idx = torch.from_numpy(np.random.default_rng(2).permutation(np.arange(128) // 32).astype(np.int32))
    cases = {
        "ct_int8": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
        "ct_fp8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
        "ct_w4": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
        "ct_w4_asym": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}),
        "ct_w4_actorder": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32,
                                              "actorder": "group"}),
        "ct_w8": ("pack-quantized", {"num_bits": 8, "strategy": "channel"}),
    }  # fmt: skip
    for name, (form, settings) in cases.items():
        args, W = QuantizationArgs(**settings), _weights()
        order = torch.argsort(g_idx, stable=True) if settings.get("actorder") else torch.arange(128)
        groups = W[:, order].reshape(16, -1, settings.get("group_size", 128))
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        state = {"weight": W, "weight_scale": scale}
        if not args.symmetric:
            state["weight_zero_point"] = zero.round().to(torch.int8)
        if settings.get("actorder"):
            state["weight_g_idx"] = g_idx
        compressor = BaseCompressor.get_value_from_registry(form)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        packed = compressor.compress(state, scheme)
        found |= {f"{name}.{key}": value for key, value in packed.items()}
        found[f"{name}.floats"] = compressor.decompress(packed, scheme)["weight"]
    return found


def _fp8_casts() -> dict[str, Any]:
    """torch's own conversion, after the clamp that upstream puts before it."""
    import torch

    rng = np.random.default_rng(3)
    x = (rng.standard_normal(4000) * 10.0 ** rng.uniform(-4, 4, 4000)).astype(np.float32)
    codes = torch.arange(256, dtype=torch.uint8)
    cast = torch.clamp(torch.from_numpy(x), -448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    return {"fp8.x": x, "fp8.codes": cast, "fp8.values": codes.view(torch.float8_e4m3fn).float()}


def _nf4() -> dict[str, Any]:
    from bitsandbytes import functional

    W = _weights(64, 512)
    packed, state = functional.quantize_4bit(W, blocksize=64, quant_type="nf4")
    twice, double = functional.quantize_4bit(W, blocksize=64, quant_type="nf4", compress_statistics=True)
    return {
        "packed": packed, "absmax": state.absmax, "floats": functional.dequantize_4bit(packed, state)[:8],
        "double.packed": twice, "double.absmax": double.absmax, "double.scales": double.state2.absmax,
        "double.offset": double.offset, "double.levels": double.state2.code,
        "double.floats": functional.dequantize_4bit(twice, double)[:8],
    }  # fmt: skip


def _engine(layout: str, target: str) -> None:
    """Child process: prompt log-probabilities of one checkpoint by the real engine, written to `target`."""
    import os

    from mini_vllm.tests.golden.record_vllm import ENVIRONMENT

    os.environ.update(ENVIRONMENT)
    from vllm import LLM, SamplingParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    from mini_vllm.tests.layers.quantization.quantized_checkpoints import save_quantized

    with tempfile.TemporaryDirectory() as scratch:
        save_quantized(layout, Path(scratch) / layout)
        llm = LLM(
            str(Path(scratch) / layout), dtype=ENGINES[layout], enforce_eager=True, max_model_len=128,
            skip_tokenizer_init=True, distributed_executor_backend=UniProcExecutor,
        )  # fmt: skip
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        [output] = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)
    steps = zip(PROMPT[1:], output.prompt_logprobs[1:], strict=True)
    np.save(target, np.array([step[token].logprob for token, step in steps], np.float32))


def _engines() -> dict[str, Any]:
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for layout in ENGINES:
            target = str(Path(scratch) / f"{layout}.npy")
            subprocess.run([sys.executable, __file__, "engine", layout, target], check=True, cwd=ROOT)
            found[f"logprobs.{layout}"] = np.load(target)
    return found


def main() -> None:
    """Write `quantization-vllm.npz` or `quantization-bitsandbytes.npz`."""
    what = sys.argv[1]
    if what == "engine":
        return _engine(*sys.argv[2:])
    packages = ("vllm", "compressed-tensors") if what == "vllm" else ("bitsandbytes",)
    found = {**_vllm_packers(), **_compressed_tensors(), **_fp8_casts(), **_engines()} if what == "vllm" else _nf4()
    provenance = {
        "command": f"record_quantization.py {what}", "machine": f"{platform.machine()}, CPU",
        "python": platform.python_version(), **{p: metadata.version(p) for p in (*packages, "torch", "numpy")},
    }  # fmt: skip
    if what == "vllm":
        provenance["engines"] = "; ".join(f"{layout} {dtype}" for layout, dtype in ENGINES.items())
    arrays = {name: _array(value) for name, value in found.items()}
    np.savez_compressed(HERE / f"quantization-{what}.npz", provenance=np.array(json.dumps(provenance)), **arrays)
    print(len(arrays), "arrays", file=sys.stderr)


def _array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    if "float8" in str(value.dtype):
        import torch

        value = value.view(torch.uint8)
    return value.detach().numpy()


if __name__ == "__main__":
    main()

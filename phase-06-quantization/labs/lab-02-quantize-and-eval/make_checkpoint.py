"""Writes a quantized copy of a float checkpoint in the compressed-tensors layout. Given material: nothing to edit.

    python make_checkpoint.py --model models/pocket --out FOLDER --scheme w4a16

Schemes
    w8a8   int8 weights, a scale for each output row; int8 activations, a scale for each token, found at run time
    w4a16  int4 weights in groups of 128 along the input, eight codes an int32; activations stay floats
    w4a16-g32  the same with groups of 32

Round to nearest and nothing else: no calibration data. Embedding, output projection and norms stay as they are.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import Checkpoint, quantize_grouped, quantize_per_channel, write_safetensors

Array = np.ndarray[Any, Any]
GROUPS = {"w4a16": 128, "w4a16-g32": 32}
SCHEMES = ("w8a8", *GROUPS)


def pack_int32(q: Array) -> Array:
    """Codes -8..7 [out, in] -> int32 [out, in / 8]: code + 8, the first of eight in the lowest four bits.

    Upstream: upstream/vllm/model_executor/layers/quantization/utils/quant_utils.py:421 —
    `pack_quantized_values_into_int32`.
    """
    nibbles = (q.astype(np.int64) + 8).astype(np.uint32).reshape(len(q), -1, 8)
    return (nibbles << (4 * np.arange(8, dtype=np.uint32))).sum(axis=2, dtype=np.uint32).view(np.int32)


def quantized(name: str, weight: Array, scheme: str) -> dict[str, Array]:
    """The tensors that stand for one weight [out, in] in the checkpoint."""
    base = name.removesuffix(".weight")
    if scheme == "w8a8":
        codes, scales = quantize_per_channel(weight)
        return {f"{base}.weight": codes, f"{base}.weight_scale": scales[:, None].astype(np.float32)}
    codes, scales = quantize_grouped(weight, GROUPS[scheme])
    return {
        f"{base}.weight_packed": pack_int32(codes),
        f"{base}.weight_scale": scales.astype(np.float16),
        f"{base}.weight_shape": np.array(weight.shape, np.int64),
    }


def quantization_config(scheme: str) -> dict[str, Any]:
    """What config.json says about it; upstream parses it in compressed_tensors.py."""
    if scheme == "w8a8":
        weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
        inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
        layout = "int-quantized"
    else:
        weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUPS[scheme]}
        inputs, layout = None, "pack-quantized"
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def convert(model: Path, out: Path, scheme: str) -> None:
    """Write the quantized checkpoint; everything but config.json and the weights is copied."""
    out.mkdir(parents=True, exist_ok=True)
    for path in model.iterdir():
        if path.suffix != ".safetensors" and path.is_file():
            shutil.copy(path, out / path.name)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = quantization_config(scheme)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    tensors: dict[str, Array] = {}
    with Checkpoint(model) as checkpoint:
        for name in sorted(checkpoint.names()):
            array = checkpoint.read(name)
            if name.endswith("_proj.weight"):
                tensors |= quantized(name, array, scheme)
            else:
                tensors[name] = array.astype(np.float16)
    write_safetensors(out / "model.safetensors", tensors)


def main() -> None:
    """Parse the arguments and convert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="float checkpoint")
    parser.add_argument("--out", required=True, type=Path, help="folder to write")
    parser.add_argument("--scheme", required=True, choices=SCHEMES)
    args = parser.parse_args()
    convert(args.model, args.out, args.scheme)


if __name__ == "__main__":
    main()

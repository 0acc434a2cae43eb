"""Asks the real `AttentionBackend.validate_configuration` of vLLM 0.22.1 why a backend cannot be used.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    .venv-vllm/bin/python mini_vllm/tests/golden/record_attention_reasons.py

The method under test is upstream's; the backends are subclasses of upstream's that can do what ours can. The result is
`attention-reasons.json.xz`.
"""

from __future__ import annotations

import os
import platform
import random
from pathlib import Path
from typing import Any, ClassVar

from mini_vllm.tests.golden.packed import write_packed

for name, value in {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}.items():
    os.environ.setdefault(name, value)

import torch  # noqa: E402
from vllm import __version__  # noqa: E402
from vllm.platforms.interface import DeviceCapability  # noqa: E402
from vllm.v1.attention.backend import AttentionBackend, MultipleOf  # noqa: E402
from vllm.v1.attention.selector import AttentionSelectorConfig  # noqa: E402

HERE = Path(__file__).resolve().parent
FLAGS = (
    "use_mla", "has_sink", "use_sparse", "use_mm_prefix", "use_per_head_quant_scales", "use_non_causal",
    "use_batch_invariant",
)  # fmt: skip


def make_backend(sinks: bool, head_sizes: list[int], block_multiple: int) -> type[AttentionBackend]:
    """A backend of upstream's that takes float32 and float64."""

    class Backend(AttentionBackend):
        supported_dtypes: ClassVar = [torch.float32, torch.float64]
        supported_kv_cache_dtypes: ClassVar = ["auto", "fp8"]

        @classmethod
        def get_supported_head_sizes(cls) -> list[int]:
            return head_sizes

        @staticmethod
        def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
            return [MultipleOf(block_multiple)]

        @classmethod
        def supports_sink(cls) -> bool:
            return sinks

    return Backend


def record(rng: random.Random) -> dict[str, Any]:
    """One backend, one configuration, the reasons."""
    can = {
        "sinks": rng.random() < 0.5,
        "head_sizes": rng.choice([[], [64, 128]]),
        "block_multiple": rng.choice([1, 1, 16]),
    }
    cfg: dict[str, Any] = {
        "head_size": rng.choice([64, 80, 128]),
        "dtype": rng.choice(["float32", "float64", "float16", "bfloat16"]),
        "kv_cache_dtype": rng.choice([None, "auto", "fp8", "fp8_e5m2"]),
        "block_size": rng.choice([None, 1, 16, 24]),
        "attn_type": rng.choice(["decoder", "decoder", "encoder_only"]),
    }
    cfg |= {flag: rng.random() < 0.2 for flag in FLAGS}
    real = AttentionSelectorConfig(**{**cfg, "dtype": getattr(torch, cfg["dtype"])})
    backend = make_backend(**can)
    reasons = backend.validate_configuration(device_capability=DeviceCapability(9, 0), **real._asdict())
    return {"can": can, "cfg": cfg, "reasons": reasons}


def main() -> None:
    rng = random.Random(0)
    found = {
        "provenance": {
            "vllm": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "command": ".venv-vllm/bin/python mini_vllm/tests/golden/record_attention_reasons.py",
        },
        "cases": [record(rng) for _ in range(400)],
    }
    write_packed(HERE / "attention-reasons.json.xz", found)
    print(len(found["cases"]), "cases,", sum(not case["reasons"] for case in found["cases"]), "of them valid")


if __name__ == "__main__":
    main()

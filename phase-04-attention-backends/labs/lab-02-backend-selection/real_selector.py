"""Asks the selector of real vLLM 0.22.1 about GPUs that are not here. Given material: nothing to edit.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_selector.py --out FOLDER --capability 9.0

What decides is vLLM's own code: `CudaPlatformBase.get_attn_backend_cls`, the backend classes, their predicates. The
CPU build lacks only what a predicate asks the machine about, so four things have stand-ins:

    the GPU          a platform class that answers `get_device_capability` with --capability
    compiled parts   empty modules in the place of FlashAttention 2 and 3, FlashMLA and the stable-ABI kernels;
                     FlashAttention 4 is said to be there, as in the GPU wheel
    flashinfer       a package of dummies that can be imported
    device="cuda"    tensors that a module makes at import are made on the CPU

No kernel is run. Figures go to FOLDER/result.json: for each configuration, the backend chosen and the reasons against
each of the others, as numbers into "reasons".
"""

import argparse
import importlib.abc
import importlib.machinery
import itertools
import json
import logging
import os
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")
STAND_INS = (
    "vllm._C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm.third_party.flashmla",
    "flashinfer",
)
BLOCK_SIZES = (8, 16, 32, 48, 64, 96)
OVERRIDES = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "FLASHMLA", "TRITON_MLA")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of STAND_INS; whatever is taken from a package among them is a dummy."""

    def find_spec(self, name, path=None, target=None):
        if not any(name == s or name.startswith(f"{s}.") for s in STAND_INS):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return types.ModuleType(spec.name)

    def exec_module(self, module):
        def dummy(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return MagicMock(name=name)

        module.__getattr__ = dummy


def on_the_cpu(make):
    """`torch.zeros` and the like, for modules that make a CUDA tensor when they are imported."""
    return lambda *a, device=None, **k: make(*a, device="cpu" if device == "cuda" else device, **k)


def pretend(major: int, minor: int):
    """The stand-in platform, installed as vLLM's current one."""
    sys.meta_path.insert(0, StandIns())
    import torch
    import vllm.platforms
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability, Platform

    class StandInGPU(CudaPlatformBase):
        @classmethod
        def get_device_capability(cls, device_id=0):
            return DeviceCapability(major, minor)

        @classmethod
        def has_device_capability(cls, capability, device_id=0):
            return Platform.has_device_capability.__func__(cls, capability, device_id)

        @classmethod
        def num_compute_units(cls, device_id=0):
            return 132

    vllm.platforms._current_platform = StandInGPU()
    import vllm.vllm_flash_attn.flash_attn_interface as flash_attn_interface

    flash_attn_interface.FA4_AVAILABLE = True
    for name in ("zeros", "empty"):
        setattr(torch, name, on_the_cpu(getattr(torch, name)))
    return StandInGPU


def configurations():
    """(head size, dtype, KV dtype, block size, MLA, sinks)."""
    product = itertools.product
    for size, dtype, kv, sink in product(
        (16, 64, 80, 96, 100, 128, 320, 512), ("bfloat16", "float32"), ("auto", "fp8_e4m3", "fp8_e5m2"), (False, True)
    ):
        yield size, dtype, kv, None, False, sink
    yield from ((size, "float16", "auto", None, False, False) for size in (64, 80))
    yield from ((128, "bfloat16", "auto", block, False, False) for block in BLOCK_SIZES)
    for dtype, kv, sink in product(("bfloat16", "float32"), ("auto", "fp8", "fp8_e4m3", "fp8_e5m2"), (False, True)):
        yield 576, dtype, kv, None, True, sink
    yield 512, "bfloat16", "auto", None, True, False
    yield from ((576, "bfloat16", kv, block, True, False) for kv in ("auto", "fp8") for block in BLOCK_SIZES)


class Asker:
    """Calls the real selector; keeps its log lines, and the reasons by number."""

    def __init__(self, platform) -> None:
        import torch
        from vllm.v1.attention.selector import AttentionSelectorConfig

        self.platform, self.torch, self.make = platform, torch, AttentionSelectorConfig
        self.lines: list[str] = []
        self.reasons: list[str] = []
        logging.getLogger("vllm.platforms.cuda").addFilter(self.keep)

    def keep(self, record: logging.LogRecord) -> bool:
        """Keeps the words of a log record, and lets it pass."""
        self.lines.append(record.getMessage())
        return True

    def config(self, size, dtype, kv, block, mla, sink):
        return self.make(size, getattr(self.torch, dtype), kv, block, use_mla=mla, has_sink=sink)

    def number(self, reason: str) -> int:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason)

    def row(self, key) -> list:
        """[*configuration, chosen or None, {backend: reasons against it}, warnings of a chosen block size]."""
        config = self.config(*key)
        valid, rejected = self.platform.get_valid_backends(self.platform.get_device_capability(), config)
        against = {backend.name: [self.number(r) for r in reasons] for backend, (_, reasons) in rejected.items()}
        chosen = self.ask(None, config)[0]
        warnings = [line for line in self.lines if line.startswith("--block-size")]
        return [*key, chosen, {**{b.name: [] for b, _ in valid}, **against}, *warnings]

    def ask(self, override: str | None, config) -> tuple[str | None, str]:
        """(name chosen or None, the log line of the choice or the error)."""
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        self.lines.clear()
        try:
            path = self.platform.get_attn_backend_cls(AttentionBackendEnum[override] if override else None, config)
        except ValueError as error:
            return None, str(error)
        names = [backend.name for backend in AttentionBackendEnum if backend.value == path]
        return names[0], self.lines[-1] if self.lines else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--capability", required=True, help="compute capability, as 9.0")
    parser.add_argument("--model", help="not used; every capture script takes it")
    args = parser.parse_args()
    platform = pretend(*map(int, args.capability.split(".")))
    import vllm
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version

    with set_current_vllm_config(VllmConfig()):
        asker = Asker(platform)
        result = {"vllm": vllm.__version__, "capability": args.capability, "fa_version": get_flash_attn_version()}
        plain = asker.config(128, "bfloat16", "auto", None, False, False)
        result["forced"] = [[name, *asker.ask(name, plain)] for name in (*OVERRIDES, "FLASH_ATN")]
        result["rows"] = [asker.row(key) for key in configurations()]
        result["reasons"] = asker.reasons
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The hardware below the engine. Upstream twin: `vllm/platforms/__init__.py`."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from mini_vllm.platforms.interface import Platform

DEVICES = {
    "cpu": "mini_vllm.platforms.cpu.platform:CpuPlatform",
    "cuda": "mini_vllm.platforms.cuda:CudaPlatform",
    "torch": "mini_vllm.platforms.cuda:TorchCpuPlatform",
}
"""Engine argument `device` -> its platform."""


@cache
def get_platform(device: str) -> Platform:
    """The platform of that name.

    Raises:
        ValueError: no platform has it, or this machine does not; the message says what is missing.

    Upstream: upstream/vllm/platforms/__init__.py:212 — `resolve_current_platform_cls_qualname`.
    """
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {device!r}")
    module, _, name = DEVICES[device].partition(":")
    platform: Platform = getattr(import_module(module), name)()
    platform.check_available()
    return platform

"""The hardware below the engine: ours, and what packages from outside bring.

Upstream twin: `vllm/platforms/__init__.py`.
Upstream looks for devices and takes the one that is there, as `current_platform`, for the whole process. Here `device`
names it, and `EngineConfig.platform` is handed on; unset, it is the plug-in's whose device is there, else "cpu".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from mini_vllm.logger import init_logger
from mini_vllm.platforms.interface import Platform
from mini_vllm.plugins import PLATFORM_PLUGINS_GROUP, call_plugin, load_plugins_by_group, named_where_slow
from mini_vllm.utils.checks import did_you_mean, shown
from mini_vllm.utils.import_utils import resolve_obj_by_qualname

logger = init_logger(__name__)

DEFAULT_DEVICE = "cpu"
builtin_platforms = {
    "cpu": "mini_vllm.platforms.cpu.platform.CpuPlatform",
    "cuda": "mini_vllm.platforms.cuda.CudaPlatform",
    "torch": "mini_vllm.platforms.cuda.TorchCpuPlatform",
}
"""Engine argument `device` -> its platform.
Upstream: upstream/vllm/platforms/__init__.py:203 — `builtin_platform_plugins`."""

REQUIRED = ("device_name", "get_worker_cls")
"""What `Platform` leaves open, and no engine can do without."""


@cache
def platform_plugins() -> dict[str, str | None]:
    """Name of each platform plug-in, which is the name of its device -> class, or None where the device is not there.

    Raises:
        RuntimeError: two devices are there, as upstream.
        ValueError: one has the name of ours, which upstream lets it replace.
        TypeError: what a plug-in returns is neither a name nor None.

    Upstream: upstream/vllm/platforms/__init__.py:212 — `resolve_current_platform_cls_qualname`.
    """
    found = {name: _ask(name, func) for name, func in load_plugins_by_group(PLATFORM_PLUGINS_GROUP).items()}
    active = [name for name, qualname in found.items() if qualname is not None]
    if len(active) >= 2:
        raise RuntimeError(
            f"Only one platform plugin can be activated, but got: {active}. MINI_VLLM_PLUGINS says which ones are "
            "asked at all"
        )
    for name in active:
        logger.info("Platform plugin %s is activated", name)
    return found


def _ask(name: str, func: Callable[[], Any]) -> str | None:
    if name in builtin_platforms:
        taken = ", ".join(builtin_platforms)
        raise ValueError(f"platform plugin {name!r} must have a name of its own, and none of {taken}")
    try:
        with named_where_slow(f"Platform plugin {name}"):
            qualname = func()
    except Exception as error:
        logger.warning("Platform plugin %s failed, so its device counts as absent: %r", name, error)
        return None
    if not isinstance(qualname, str | None):
        raise TypeError(
            f"platform plugin {name!r} must return the qualified name of a class, or None where its device is absent, "
            f"got {shown(qualname)}"
        )
    return qualname


def default_device() -> str:
    """The device of an engine that names none: of a plug-in, where it is there, else "cpu".

    Raises:
        RuntimeError, ValueError, TypeError: see `platform_plugins`.
    """
    active = next((name for name, qualname in platform_plugins().items() if qualname is not None), None)
    return active or DEFAULT_DEVICE


def get_platform(device: str) -> Platform:
    """The platform of that name; the same object whenever it is asked for.

    Raises:
        ValueError: no platform has it, or this machine does not; the message says what is missing.
        TypeError: a plug-in's class is no `Platform`.
        RuntimeError: see `platform_plugins`.
    """
    if isinstance(device, str) and (device in builtin_platforms or device in platform_plugins()):
        return _platform(device)
    known = [*builtin_platforms, *platform_plugins()]
    near = did_you_mean(device, known) if isinstance(device, str) else ""
    raise ValueError(f"device must be one of {', '.join(known)}, got {shown(device)}{near}")


@cache
def _platform(device: str) -> Platform:
    ours = builtin_platforms.get(device)
    platform: Platform = resolve_obj_by_qualname(ours)() if ours else call_plugin(device, _class_of_plugin(device))
    if platform.device_name != device:
        raise ValueError(
            f"platform plugin {device!r}: {type(platform).__name__}.device_name must be {device!r}, "
            f"got {platform.device_name!r}"
        )
    platform.check_available()
    return platform


def _class_of_plugin(device: str) -> type[Platform]:
    """What a plug-in names, imported and looked at."""
    qualname = platform_plugins()[device]
    if qualname is None:
        raise ValueError(f"device={device!r}: its platform plugin finds no such device on this machine")
    try:
        with named_where_slow(f"The import of {qualname}"):
            found = resolve_obj_by_qualname(qualname)
    except ValueError as error:
        raise ValueError(f"platform plugin {device!r}: {error}") from error
    except Exception as error:
        raise ValueError(f"platform plugin {device!r}: {qualname!r} cannot be imported: {error!r}") from error
    if not (isinstance(found, type) and issubclass(found, Platform)):
        raise TypeError(f"platform plugin {device!r} must name a subclass of Platform, got {qualname!r}")
    missing = [name for name in REQUIRED if getattr(found, name) is getattr(Platform, name)]
    if missing:
        raise TypeError(f"platform plugin {device!r}: {found.__name__} must have {', '.join(missing)} of its own")
    return found

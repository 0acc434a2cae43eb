"""Parts of the engine that others bring, found by the entry points of what is installed. Upstream has no twin: nobody
exchanges its scheduler by name. The general plug-ins are in `plugins/__init__.py`, as `vllm/plugins/__init__.py`.

    mini_vllm.engine_parts    (with_labs) -> `EngineParts`: what `with_labs` names. The course fills it.

The engine knows the name of a group, and nothing of who fills it.
"""

from __future__ import annotations

from typing import Any

from mini_vllm.plugins import entry_points

ENGINE_PARTS_GROUP = "mini_vllm.engine_parts"

_REGISTERED: dict[str, Any] = {}


def register(group: str, provider: Any) -> None:
    """Fill a group in this process, before what is installed: for a clone that runs without being installed."""
    _REGISTERED[group] = provider


def load_provider(group: str, wanted_by: str) -> Any:
    """The one object that fills a group.

    Args:
        wanted_by: the setting that needs it, for the message of an error.

    Raises:
        ImportError: nobody fills the group, several do, or what fills it cannot be imported.

    Upstream: upstream/vllm/plugins/__init__.py:28 — `load_plugins_by_group`.
    """
    if group in _REGISTERED:
        return _REGISTERED[group]
    found = {point.value: point for point in entry_points(group)}
    if not found:
        raise ImportError(
            f"{wanted_by} needs the entry point {group!r}, and nothing that is installed has it. The course has: run "
            "`pip install -e .` in its clone, again if that was done before this release"
        )
    if len(found) > 1:
        raise ImportError(
            f"{wanted_by} needs one entry point {group!r}, found {len(found)}: {', '.join(sorted(found))}"
        )
    ((value, point),) = found.items()
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"{wanted_by}: the entry point {group!r} is {value!r}, which does not load: {error}"
        ) from error

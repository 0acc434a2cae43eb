"""Packages from outside this tree, found by their entry points: docs/plugins.md.

An entry point is a line that a package's installation leaves behind: a group, a name, and the function that it stands
for. Nothing is scanned before somebody asks for a group, and then once in a process.
Upstream twin: `vllm/plugins/__init__.py`, which has groups for input processors and statistics too; the group of
compiled forms is ours alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Timer
from time import monotonic
from typing import Any

from mini_vllm.logger import init_logger
from mini_vllm.utils.checks import shown

logger = init_logger(__name__)

DEFAULT_PLUGINS_GROUP = "mini_vllm.general_plugins"
"""Run in every process: front end, core, ranks."""
PLATFORM_PLUGINS_GROUP = "mini_vllm.platform_plugins"
"""Asked for a platform where `device` is unset or names none of ours: `platforms/__init__.py`."""
COMPILED_FORMS_GROUP = "mini_vllm.compiled_forms"
"""Asked where a model is about to be compiled: `compilation/registry.py`."""
GROUPS = (DEFAULT_PLUGINS_GROUP, PLATFORM_PLUGINS_GROUP, COMPILED_FORMS_GROUP)

SLOW_S = 5.0
"""Seconds after which a plugin that is being imported, or asked, is named."""

plugins_loaded = False
"""Whether this process has run the general plugins."""


@cache
def _entry_points() -> Any:
    """All entry points of this process's path. The module that reads them is slow to import, hence late."""
    import importlib.metadata

    return importlib.metadata.entry_points()


def entry_points(group: str) -> Any:
    """What is installed under the name of a group: `importlib.metadata.EntryPoints`, read once in a process."""
    return _entry_points().select(group=group)


def brought_by(group: str, name: str) -> str:
    """The package and its version that an entry point of this name belongs to: "refacc 0.1.0"; of two, the later."""
    dist = [plugin.dist for plugin in entry_points(group) if plugin.name == name][-1]
    return f"{dist.name} {dist.version}"


def _allowed_plugins() -> list[str] | None:
    """Names in MINI_VLLM_PLUGINS, which commas separate; None: unset, so all are allowed. Empty: none is.

    Upstream: upstream/vllm/envs.py:1035 — "VLLM_PLUGINS".
    """
    names = os.environ.get("MINI_VLLM_PLUGINS")
    return None if names is None else [name.strip() for name in names.split(",")]


def load_plugins_by_group(group: str) -> dict[str, Callable[[], Any]]:
    """The functions of a group, by the names of their entry points; they are imported, and not called.

    One that cannot be imported is logged and left out. Of two with one name the later stays, and a warning says so
    (upstream says nothing). What is found is logged as upstream does: notes for platforms and forms, debugging for the
    general ones.

    Raises:
        TypeError: an entry point that is no function, by its name.

    Upstream: upstream/vllm/plugins/__init__.py:28 — `load_plugins_by_group`.
    """
    found, allowed = entry_points(group), _allowed_plugins()
    if not found:
        logger.debug("No plugins for group %s found.", group)
        return {}
    log = logger.debug if group == DEFAULT_PLUGINS_GROUP else logger.info
    log("Available plugins for group %s:", group)
    for plugin in found:
        log("- %s -> %s", plugin.name, plugin.value)
    if allowed is None:
        log("All plugins in this group will be loaded. Set `MINI_VLLM_PLUGINS` to control which plugins to load.")
    plugins: dict[str, Callable[[], Any]] = {}
    for plugin in found:
        if allowed is not None:
            if plugin.name not in allowed:
                continue
            log("Loading plugin %s", plugin.name)
        func = _load(plugin, group)
        if func is None:
            continue
        if plugin.name in plugins:
            logger.warning("Two plugins of %s are called %s: %s is taken", group, plugin.name, plugin.value)
        plugins[plugin.name] = func
    return plugins


def _load(plugin: Any, group: str) -> Callable[[], Any] | None:
    """What an entry point names; None where it cannot be imported."""
    try:
        with named_where_slow(f"The import of plugin {plugin.name} ({plugin.value})"):
            func = plugin.load()
    except Exception:
        logger.exception("Failed to load plugin %s", plugin.name)
        return None
    if not callable(func):
        raise TypeError(f"plugin {plugin.name!r} of {group} must be a function, got {shown(func)}")
    return func


@contextmanager
def named_where_slow(what: str) -> Iterator[None]:
    """Log what takes longer than `SLOW_S`: while nobody knows yet whether it will end, and how long it took where it
    did. It is not broken off: half an import is worse than none. (Upstream waits without a word.)"""
    start = monotonic()
    timer = Timer(SLOW_S, logger.warning, ("%s has taken %g s so far, and goes on", what, SLOW_S))
    timer.daemon = True
    with suppress(RuntimeError):  # a browser has no threads
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if (seconds := monotonic() - start) > SLOW_S:
            logger.warning("%s took %.1f s", what, seconds)


def load_general_plugins() -> None:
    """Run the general plugins, once in a process. Every process does, so a plugin must bear to be run again.

    What a plugin raises goes on to the caller, as upstream, and the log has the plugin's name. Then nothing counts as
    loaded: the next engine meets the same error (upstream's next one starts without the plugin).

    Upstream: upstream/vllm/plugins/__init__.py:69 — `load_general_plugins`.
    """
    global plugins_loaded
    if plugins_loaded:
        return
    plugins_loaded = True  # first: a plugin may make an engine's arguments
    try:
        _report_unknown_names()
        for name, func in load_plugins_by_group(DEFAULT_PLUGINS_GROUP).items():
            call_plugin(name, func)
    except BaseException:
        plugins_loaded = False
        raise


def call_plugin(name: str, func: Callable[[], Any]) -> Any:
    """What a plugin returns. Where it raises, the log says which one it was."""
    try:
        with named_where_slow(f"Plugin {name}"):
            return func()
    except Exception as error:
        logger.error("Plugin %s failed: %r", name, error)
        raise


def _report_unknown_names() -> None:
    """A name in MINI_VLLM_PLUGINS that nobody has is most likely misspelt."""
    found = {plugin.name for group in GROUPS for plugin in entry_points(group)}
    missing = [name for name in _allowed_plugins() or () if name and name not in found]
    if missing:
        there = ", ".join(sorted(found)) or "none"
        logger.warning("MINI_VLLM_PLUGINS names %s; plugins that are there: %s", ", ".join(missing), there)

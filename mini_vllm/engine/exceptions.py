"""How an engine fails. Upstream twin: `vllm/v1/engine/exceptions.py`."""

from __future__ import annotations

from importlib import import_module


class EngineGenerateError(Exception):
    """`AsyncLLM.generate` failed for one request; the engine goes on.

    Upstream: upstream/vllm/v1/engine/exceptions.py:3 — `EngineGenerateError`.
    """


class EngineDeadError(Exception):
    """The engine core is gone, and every request with it: make a new engine.

    Args:
        reason: what happened to it, in words. Upstream points to the log instead.

    Upstream: upstream/vllm/v1/engine/exceptions.py:9 — `EngineDeadError`.
    """

    def __init__(self, reason: str = "its process has ended") -> None:
        advice = "" if "Make a new engine" in reason else " Make a new engine."
        super().__init__(f"EngineCore encountered an issue: {reason.rstrip('.')}.{advice}")
        self.reason = reason


class ScalingInProgressError(RuntimeError):
    """Replicas are added or taken away already."""


class CoreTraceback(Exception):
    """Where an error was raised in the core's process: the cause of the one that is raised in the front end."""

    def __str__(self) -> str:
        return f"in the engine core's process:\n{self.args[0]}"


def make_error(kind: str, message: str, trace: str = "") -> Exception:
    """An error that was raised in another process, of the same class where that is ours or Python's own.

    Args:
        kind: module and name of the class, "builtins.ValueError".
        message, trace: its text, and its traceback as text.
    """
    module, _, name = kind.rpartition(".")
    error: Exception | None = None
    if module == "builtins" or module.startswith("mini_vllm."):
        found = getattr(import_module(module), name, None)
        if isinstance(found, type) and issubclass(found, Exception):
            try:
                error = found(message)
            except TypeError:  # a class that wants more than a text
                error = None
    if error is None:
        error = RuntimeError(f"{name}: {message}")
    vars(error)["said_by_core"] = True  # whoever raises it here has not made its text
    if trace:
        error.__cause__ = CoreTraceback(trace)
    return error

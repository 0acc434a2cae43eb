"""Loggers of the engine, under the name `mini_vllm`. Upstream twin: `vllm/logger.py`.

By itself nothing is configured here: a warning goes to stderr by Python's own rule, and a program that sets up
`logging` has all of it. The environment variable VLLM_LOGGING_LEVEL ("INFO", say) sends everything from that level on
to stderr, in upstream's format, from every process of an engine. Upstream always does so, to stdout.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache

_FORMAT = "%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s"
_DATE_FORMAT = "%m-%d %H:%M:%S"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def configure_logging(level: str | None) -> None:
    """Send what is logged from a level on to stderr; None: leave everything as it is.

    Raises:
        ValueError: no such level.

    Upstream: upstream/vllm/logger.py:41 — `DEFAULT_LOGGING_CONFIG`.
    """
    if level is None:
        return
    if level.upper() not in _LEVELS:
        raise ValueError(f"VLLM_LOGGING_LEVEL must be one of {', '.join(_LEVELS)}, got {level!r}")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT, _DATE_FORMAT))
    root = logging.getLogger("mini_vllm")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level.upper())


def init_logger(name: str) -> logging.Logger:
    """The logger of a module: `init_logger(__name__)` (upstream/vllm/logger.py:204 — `init_logger`)."""
    return logging.getLogger(name)


@lru_cache(maxsize=1024)
def warning_once(name: str, message: str) -> None:
    """Log a warning, the same one only once in a process."""
    logging.getLogger(name).warning(message)


@lru_cache(maxsize=1024)
def info_once(name: str, message: str) -> None:
    """Log a note, the same one only once in a process."""
    logging.getLogger(name).info(message)


configure_logging(os.environ.get("VLLM_LOGGING_LEVEL"))

"""Loggers of the engine, under the name `mini_vllm`. Upstream twin: `vllm/logger.py`.

Nothing is configured here: a warning goes to stderr by Python's own rule, and a program that sets up `logging` has all
of it. Upstream installs a handler and a format.
"""

from __future__ import annotations

import logging
from functools import lru_cache


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

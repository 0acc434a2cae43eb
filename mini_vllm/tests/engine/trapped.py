"""A toy model that does what a character of the prompt says; in a module, for other processes to import it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.toy_model import ToyModel


def _raise() -> None:
    raise ArithmeticError("the model broke")


def stop(pid: int) -> None:
    """Stop a process and wait until all of its threads stand still: the signal alone only asks for it."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.is_dir():
        time.sleep(1.0)
        return
    while any(s.read_text().rpartition(")")[2].split()[0] != "T" for s in tasks.glob("*/stat")):
        time.sleep(0.005)


TRAPS = {
    "!": _raise,
    "#": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "$": lambda: sys.exit(3),
    "%": lambda: ctypes.string_at(0),
    "&": lambda: os._exit(7),
    "~": lambda: time.sleep(0.02),
}
"""Character -> what the forward pass does when it meets it. "?" makes the logits of its row NaN."""


class Trapped(ToyModel):
    """See `TRAPS`. A trap goes off in a step that computes the character; "~" slows that step and all after it.

    slow: from the start.
    """

    def __init__(self, slow: bool = False) -> None:
        super().__init__()
        self.slow = slow

    def forward(self, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        for character, trap in TRAPS.items():
            met = bool((np.asarray(input_ids) == ord(character)).any())
            if character == "~":
                self.slow, met = self.slow or met, self.slow or met
            if met:
                trap()
        return super().forward(input_ids, *args, **kwargs)

    def compute_logits(self, hidden: Any, *args: Any) -> Any:
        logits = super().compute_logits(hidden, *args)
        logits[:, [ord(character) for character in "?" + "".join(TRAPS)]] = -1e9  # a trap is set by a prompt alone
        logits[hidden[:, 0] == ord("?")] = np.nan
        return logits


class GatedToy(ToyModel):
    """Each step waits for a file."""

    def __init__(self, gate: Path) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + 120
        while not self.gate.exists():
            assert time.monotonic() < deadline, "nobody opens the gate"
            time.sleep(0.002)
        return super().forward(*args, **kwargs)


class FailsToLoad(ToyModel):
    """Raises in the process that unpickles it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise state["error"]

"""The type of an array. Upstream has no twin: there it is `torch.Tensor`."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
"""Of any shape and type of number; comments and docstrings give both."""

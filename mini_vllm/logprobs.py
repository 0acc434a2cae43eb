"""Log-probabilities as the user gets them. Upstream twin: `vllm/logprobs.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Logprob:
    """Log-probability of one token at one position; `rank` counts from 1 (1 = the most likely token)."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None

"""Log-probabilities as the user gets them. Upstream twin: `vllm/logprobs.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Logprob:
    """Log-probability of one token at one position; `rank` counts from 1 (1 = the most likely token)."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


LogprobsOnePosition = dict[int, Logprob]


@dataclass
class FlatLogprobs(MutableSequence[LogprobsOnePosition]):
    """The log-probabilities of a request in six flat lists, however long it is: Python's garbage collector then has
    six objects to look at instead of one for every entry. To a reader it is a list of dicts, token id -> `Logprob`.

    Position i has the entries `start_indices[i]` to `end_indices[i]`. Entries are added at the end and never changed.
    Upstream: upstream/vllm/logprobs.py:31 — `FlatLogprobs`.
    """

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int | None] = field(default_factory=list)
    decoded_tokens: list[str | None] = field(default_factory=list)

    def append(self, value: LogprobsOnePosition | None) -> None:
        """Add the next position; None or {}: one without entries."""
        self.start_indices.append(len(self.logprobs))
        for token_id, entry in (value or {}).items():
            self.token_ids.append(token_id)
            self.logprobs.append(entry.logprob)
            self.ranks.append(entry.rank)
            self.decoded_tokens.append(entry.decoded_token)
        self.end_indices.append(len(self.logprobs))

    def extend(self, values: Iterable[LogprobsOnePosition | None]) -> None:
        """Add several positions."""
        for one_position in values:
            self.append(one_position)

    def __len__(self) -> int:
        return len(self.start_indices)

    def __getitem__(self, index: Any) -> Any:
        """The dict of a position, or a `FlatLogprobs` of a slice."""
        if isinstance(index, slice):
            part = FlatLogprobs()
            part.extend(self[i] for i in range(*index.indices(len(self))))
            return part
        if not isinstance(index, int):
            raise TypeError(f"Invalid index type: {type(index)}")
        entries = range(self.start_indices[index], self.end_indices[index])
        return {self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i]) for i in entries}

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("Cannot set logprobs in FlatLogprobs")

    def __delitem__(self, index: Any) -> None:
        raise TypeError("Cannot delete logprobs from FlatLogprobs")

    def insert(self, index: int, value: Any) -> None:
        """Refused, as upstream."""
        raise TypeError("Cannot insert logprobs to FlatLogprobs")

    def __iter__(self) -> Iterator[LogprobsOnePosition]:
        return (self[i] for i in range(len(self)))


SampleLogprobs = FlatLogprobs | list[LogprobsOnePosition]
PromptLogprobs = FlatLogprobs | list[LogprobsOnePosition | None]
"""One entry for each token of a prompt; None for the first (in a `FlatLogprobs`, an entry without tokens)."""


def create_prompt_logprobs(flat_logprobs: bool) -> PromptLogprobs:
    """A container for the log-probabilities of a prompt, with the entry of its first token: None.

    Upstream: upstream/vllm/logprobs.py:162 — `create_prompt_logprobs`.
    """
    if not flat_logprobs:
        return [None]
    logprobs = FlatLogprobs()
    logprobs.append(None)
    return logprobs


def create_sample_logprobs(flat_logprobs: bool) -> SampleLogprobs:
    """An empty container for the log-probabilities of a completion.

    Upstream: upstream/vllm/logprobs.py:170 — `create_sample_logprobs`.
    """
    return FlatLogprobs() if flat_logprobs else []

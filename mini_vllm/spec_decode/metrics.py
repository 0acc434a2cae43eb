"""How many drafts were made, and how many were accepted. Upstream twin: `vllm/v1/spec_decode/metrics.py`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SpecDecodingStats:
    """Counts over requests and steps.

    num_drafts: how often a request had drafts in a step. num_draft_tokens: drafts. num_accepted_tokens: those of them
    that became tokens. num_accepted_tokens_per_pos: of these, how many were the first, the second, … of their step.

    Upstream: upstream/vllm/v1/spec_decode/metrics.py:18 — `SpecDecodingStats`, which counts one step; here since the
    scheduler was made.
    """

    num_spec_tokens: int
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)

    @classmethod
    def new(cls, num_spec_tokens: int) -> SpecDecodingStats:
        """Zeros for so many positions."""
        return cls(num_spec_tokens, num_accepted_tokens_per_pos=[0] * num_spec_tokens)

    def observe_draft(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one request of one step."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        for position in range(num_accepted_tokens):
            self.num_accepted_tokens_per_pos[position] += 1

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens of a request in a step that had drafts, the model's own among them: 1 where none was accepted.

        Upstream: upstream/vllm/v1/spec_decode/metrics.py:95 — "mean_acceptance_length = 1 +".
        """
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else 1.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted drafts over drafts; 0.0 before the first."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

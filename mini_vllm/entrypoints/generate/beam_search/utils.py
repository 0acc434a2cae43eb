"""A beam, what it is worth, and the beams of one prompt. Upstream twin:
`vllm/entrypoints/generate/beam_search/utils.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.logprobs import LogprobsOnePosition


@dataclass
class BeamSearchSequence:
    """One beam: the prompt and what was chosen after it.

    tokens: prompt and choices together. logprobs: per choice, what the step reported. cum_logprob: the sum over the
    choices. text: of all tokens, on the beams that are returned alone. finish_reason and stop_reason stay None, as
    upstream.
    Upstream: upstream/vllm/entrypoints/generate/beam_search/utils.py:19 — `BeamSearchSequence`.
    """

    orig_prompt: dict[str, Any]
    tokens: list[int]
    logprobs: list[LogprobsOnePosition]
    lora_request: None = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def get_prompt(self) -> dict[str, Any]:
        """The request that asks for this beam's next token."""
        return {**self.orig_prompt, "prompt_token_ids": self.tokens}

    def extended(self, token_id: int, step: LogprobsOnePosition) -> BeamSearchSequence:
        """This beam with one more token, out of what the step reported."""
        score = self.cum_logprob + step[token_id].logprob
        return BeamSearchSequence(
            self.orig_prompt, [*self.tokens, token_id], [*self.logprobs, step], self.lora_request, score
        )


@dataclass
class BeamSearchOutput:
    """The best beams of one prompt, best first; fewer than the width where the search found fewer.

    Upstream: upstream/vllm/entrypoints/generate/beam_search/utils.py:103 — `BeamSearchOutput`.
    """

    sequences: list[BeamSearchSequence]


@dataclass
class BeamSearchInstance:
    """The search for one prompt: beams that go on, and those that met the end of sequence.

    Upstream: upstream/vllm/entrypoints/generate/beam_search/utils.py:112 — `BeamSearchInstance`.
    """

    beams: list[BeamSearchSequence]
    completed: list[BeamSearchSequence] = field(default_factory=list)


def get_beam_search_score(
    tokens: list[int], cumulative_logprob: float, eos_token_id: int | None, length_penalty: float = 1.0
) -> float:
    """The sum of log-probabilities over (number of tokens) ** `length_penalty`.

    The number counts the prompt too, less an end of sequence in the last place. Log-probabilities are negative, so that
    a larger penalty favours longer beams.
    Upstream: upstream/vllm/entrypoints/generate/beam_search/utils.py:137 — `get_beam_search_score`.
    """
    num_tokens = len(tokens) - (tokens[-1] == eos_token_id)
    return cumulative_logprob / num_tokens**length_penalty


def create_sort_beams_key_function(
    eos_token_id: int | None, length_penalty: float
) -> Callable[[BeamSearchSequence], float]:
    """The key that sorts beams.

    Upstream: upstream/vllm/entrypoints/generate/beam_search/utils.py:156 — `create_sort_beams_key_function`.
    """
    return lambda beam: get_beam_search_score(beam.tokens, beam.cum_logprob, eos_token_id, length_penalty)

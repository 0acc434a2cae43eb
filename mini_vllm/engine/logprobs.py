"""Log-probabilities on their way to the user: sums, and the text of each token.

Upstream twin: `vllm/v1/engine/logprobs.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.engine import EngineCoreOutput
from mini_vllm.engine.detokenizer import REPLACEMENT
from mini_vllm.logprobs import (
    FlatLogprobs,
    Logprob,
    PromptLogprobs,
    SampleLogprobs,
    create_prompt_logprobs,
    create_sample_logprobs,
)
from mini_vllm.sampling_params import SamplingParams

_MAX_CONTEXT = 4
"""Tokens before the present one: a character of UTF-8 has at most four bytes."""


class LogprobsProcessor:
    """Gathers what the core reports for one request.

    Args:
        tokenizer: gives each token its text; None: `decoded_token` is None, as where `detokenize` is False.

    Attributes:
        logprobs: one dict per output token. cumulative_logprob: the sum over the tokens chosen. Both None where the
            request did not ask. prompt_logprobs: one entry per prompt token, None where it did not ask for these.

    Upstream: upstream/vllm/v1/engine/logprobs.py:30 — `LogprobsProcessor`.
    """

    def __init__(self, tokenizer: Any, params: SamplingParams) -> None:
        self.tokenizer = tokenizer if params.detokenize else None
        flat, wanted, of_prompt = params.flat_logprobs, params.num_logprobs is not None, params.prompt_logprobs
        self.logprobs: SampleLogprobs | None = create_sample_logprobs(flat) if wanted else None
        self.prompt_logprobs: PromptLogprobs | None = None if of_prompt is None else create_prompt_logprobs(flat)
        self.cumulative_logprob = 0.0 if wanted else None

    def update_from_output(self, output: EngineCoreOutput) -> None:
        """Take in the step's entries, one dict for each new token, the chosen token first; and the prompt's, once."""
        if self.logprobs is not None and output.new_logprobs is not None:
            for token_id, step in zip(output.new_token_ids, output.new_logprobs, strict=True):
                self.cumulative_logprob = (self.cumulative_logprob or 0.0) + step[token_id][0]
                self._append(self.logprobs, step)
        if self.prompt_logprobs is not None:
            for entry in output.new_prompt_logprobs_tensors or ():
                self._append(self.prompt_logprobs, entry)

    def pop_prompt_logprobs(self) -> PromptLogprobs | None:
        """All of the prompt's at once, for a stream of what is new: the next call has none.

        Upstream: upstream/vllm/v1/engine/logprobs.py:189 — `LogprobsProcessor.pop_prompt_logprobs`.
        """
        popped = self.prompt_logprobs
        if popped:
            self.prompt_logprobs = []
        return popped

    def _append(self, logprobs: Any, step: dict[int, tuple[float, int]] | None) -> None:
        if step is None:
            logprobs.append(None)
            return
        context = self._sampled_before(logprobs) if self.tokenizer is not None else ()
        logprobs.append({t: Logprob(lp, rank, self._decode(t, context)) for t, (lp, rank) in step.items()})

    @staticmethod
    def _sampled_before(logprobs: SampleLogprobs | PromptLogprobs) -> list[int]:
        """The last tokens that stand there, the latest last: the first of each entry."""
        if isinstance(logprobs, FlatLogprobs):
            spans = zip(logprobs.start_indices[-_MAX_CONTEXT:], logprobs.end_indices[-_MAX_CONTEXT:], strict=True)
            return [logprobs.token_ids[start] for start, end in spans if start < end]
        return [next(iter(entry)) for entry in logprobs[-_MAX_CONTEXT:] if entry]

    def _decode(self, token_id: int, context: Sequence[int]) -> str | None:
        """The token's text. One that ends inside a character has "", and the token that completes the character has
        all of it: upstream/vllm/v1/engine/logprobs.py:312 — `LogprobsProcessor._verify_tokens`."""
        if self.tokenizer is None:
            return None
        text = self._text([token_id])
        return self._correct(token_id, context) if text.endswith(REPLACEMENT) else text

    def _correct(self, token_id: int, context: Sequence[int]) -> str:
        """Upstream: upstream/vllm/v1/engine/logprobs.py:249 — `LogprobsProcessor._correct_decoded_token`."""
        for count in range(1, len(context) + 1):
            before = list(context[-count:])
            whole = self._text([*before, token_id])
            if whole.endswith(REPLACEMENT):
                continue
            clean = len(before)
            while clean and self._text(before[clean - 1 : clean]).endswith(REPLACEMENT):
                clean -= 1
            prefix = self._text(before[:clean]) if clean else ""
            common = next((i for i, (a, b) in enumerate(zip(prefix, whole, strict=False)) if a != b), None)
            return whole[min(len(prefix), len(whole)) if common is None else common :]
        return ""

    def _text(self, token_ids: list[int]) -> str:
        assert self.tokenizer is not None
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)

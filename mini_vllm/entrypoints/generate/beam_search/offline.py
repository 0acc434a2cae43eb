"""Beam search over finished requests of one token each. Upstream twin:
`vllm/entrypoints/generate/beam_search/offline.py`.

The engine knows nothing of beams. Every step submits each live beam as a request of its own, prompt and choices
together, which asks for one token and the log-probabilities of twice the width; the beams of the next step are picked
here. The prefix cache makes that affordable: what the beams share is computed once, and each step adds one token to
each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mini_vllm.engine.input_processor import ProcessedInput, Prompt
from mini_vllm.entrypoints.generate.beam_search.utils import (
    BeamSearchInstance,
    BeamSearchOutput,
    BeamSearchSequence,
    create_sort_beams_key_function,
)
from mini_vllm.entrypoints.offline_utils import Bar, OfflineInferenceMixin, Progress
from mini_vllm.logprobs import LogprobsOnePosition
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import BeamSearchParams, SamplingParams
from mini_vllm.utils.checks import is_int, require


class BeamSearchOfflineMixin(OfflineInferenceMixin):
    """Gives `LLM` its `beam_search`.

    Upstream: upstream/vllm/entrypoints/generate/beam_search/offline.py:24 — `BeamSearchOfflineMixin`.
    """

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: None = None,
        use_tqdm: Bar = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The `beam_width` best continuations of each prompt, by cumulated log-probability over length.

        Each step extends every live beam by its 2 * `beam_width` likeliest tokens. An extension by the end of sequence
        is complete and takes no place among the beams; of the others the best `beam_width` go on. After `max_tokens`
        steps the live ones compete with the complete ones.

        Args:
            prompts: as `generate` takes them. lora_request: None.
            params: the width asks for 2 * `beam_width` log-probabilities: engine argument `max_logprobs` bounds it.
            use_tqdm: a bar over steps, an upper bound: a search may end early.
            concurrency_limit: prompts searched at a time; None: all.

        Raises:
            ValueError, TypeError: what is wrong with which argument or prompt; nothing has been computed.
            RuntimeError: the forward pass of a beam failed (NaN in its logits).

        Upstream: upstream/vllm/entrypoints/generate/beam_search/offline.py:27 — `beam_search`.
        """
        require(lora_request is None, "lora_request", lora_request, "None: beams have no adapter")
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"params must be a BeamSearchParams, got {type(params).__name__}")
        ok = concurrency_limit is None or (is_int(concurrency_limit) and concurrency_limit >= 1)
        require(ok, "concurrency_limit", concurrency_limit, "None, or at least 1")
        tokenizer = self.llm_engine.get_tokenizer()
        search = BeamSearch(params, getattr(tokenizer, "eos_token_id", None))
        wanted = SamplingParams(
            logprobs=2 * params.beam_width, max_tokens=1, temperature=params.temperature, skip_clone=True
        )
        instances = [self._instance(i, item, params) for i, item in enumerate(self._process(prompts, wanted, None))]
        limit = concurrency_limit or max(1, len(instances))
        rounds = [instances[start : start + limit] for start in range(0, len(instances), limit)]
        with Progress(len(rounds) * params.max_tokens, use_tqdm) as advance:
            for batch in rounds:
                for _ in range(params.max_tokens):
                    beams = [beam for instance in batch for beam in instance.beams]
                    if not beams:
                        break
                    search.take(batch, self._one_step(beams, wanted))
                    advance(sum(len(instance.beams) for instance in batch))
        outputs = [search.best(instance) for instance in instances]
        for beam in (beam for output in outputs for beam in output.sequences):
            beam.text = tokenizer.decode(beam.tokens, skip_special_tokens=False)
        return outputs

    def _instance(self, index: int, item: ProcessedInput, params: BeamSearchParams) -> BeamSearchInstance:
        most = self.llm_engine.max_model_len - len(item.prompt_token_ids)
        if params.max_tokens > most:
            raise ValueError(
                f"prompts[{index}]: max_tokens must be at most {most}, what max_model_len = "
                f"{self.llm_engine.max_model_len} leaves of a prompt of {len(item.prompt_token_ids)} tokens, got "
                f"{params.max_tokens}: a beam goes on until then"
            )
        prompt = {"prompt_token_ids": item.prompt_token_ids, "prompt": item.prompt, "cache_salt": item.cache_salt}
        if item.mm_features:
            prompt["mm_features"] = item.mm_features
        given = {key: value for key, value in prompt.items() if value is not None}
        return BeamSearchInstance([BeamSearchSequence(given, list(item.prompt_token_ids), [])])

    def _one_step(self, beams: list[BeamSearchSequence], params: SamplingParams) -> list[RequestOutput]:
        processed = self._process([beam.get_prompt() for beam in beams], params, None)
        return self._run_engine(self._add_requests(processed, None), False)


class BeamSearch:
    """What to keep of a step."""

    def __init__(self, params: BeamSearchParams, eos_token_id: int | None) -> None:
        self.params, self.eos_token_id = params, eos_token_id
        self.key = create_sort_beams_key_function(eos_token_id, params.length_penalty)

    def take(self, batch: list[BeamSearchInstance], results: Sequence[RequestOutput]) -> None:
        """Extend every beam of these prompts by one token; `results` has what each of them reported, in order."""
        outputs = iter(results)
        for instance in batch:
            extended = [
                beam.extended(token_id, step)
                for beam in instance.beams
                for step in _reported(next(outputs))
                for token_id in step
            ]
            ended = [beam for beam in extended if beam.tokens[-1] == self.eos_token_id and not self.params.ignore_eos]
            done = set(map(id, ended))
            instance.completed += ended
            instance.beams = self._sorted([beam for beam in extended if id(beam) not in done])

    def best(self, instance: BeamSearchInstance) -> BeamSearchOutput:
        """The answer for one prompt."""
        instance.completed += instance.beams
        return BeamSearchOutput(self._sorted(instance.completed))

    def _sorted(self, beams: list[BeamSearchSequence]) -> list[BeamSearchSequence]:
        """The best, equals in the order in which they were found."""
        return sorted(beams, key=self.key, reverse=True)[: self.params.beam_width]


def _reported(output: RequestOutput) -> Any:
    """What the one step of a beam reported: one dict, the likeliest token first."""
    completion = output.outputs[0]
    if completion.finish_reason == "error":
        raise RuntimeError(f"beam search: {completion.stop_reason}")
    reported: Sequence[LogprobsOnePosition] = completion.logprobs or []
    return reported

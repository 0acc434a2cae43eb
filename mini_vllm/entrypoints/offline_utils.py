"""What `LLM` does with many prompts at once. Upstream twin: `vllm/entrypoints/offline_utils.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mini_vllm.engine.input_processor import ProcessedInput
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.entrypoints.offline_chat import checked_tokenization
from mini_vllm.outputs import RequestOutput
from mini_vllm.pool.params import PoolingParams
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams
from mini_vllm.utils.checks import is_int, shown

Bar = bool | Callable[..., Any]
"""`use_tqdm`: whether to show a bar, or what makes one (upstream's name and meaning)."""


class OfflineInferenceMixin:
    """Queues prompts, runs the engine until they are done, and gives results in the order of the prompts.

    What a call did not ask for, because `enqueue` had queued it, is kept for `wait_for_completion`.
    Upstream: upstream/vllm/entrypoints/offline_utils.py:49 — `OfflineInferenceMixin`.
    """

    llm_engine: LLMEngine
    _request_counter: Any
    _enqueued: list[str]
    _done: dict[str, RequestOutput]

    def get_default_sampling_params(self) -> SamplingParams:
        """Here for the type; see `LLM`."""
        raise NotImplementedError

    def _process(
        self, prompts: Any, params: Any, tokenization_kwargs: Any, lora_request: Any = None, mm_kwargs: Any = None
    ) -> list[ProcessedInput]:
        """All prompts, checked: whatever is wrong with one of them is raised with its place."""
        if mm_kwargs and self.llm_engine.input_processor.multimodal is None:
            raise ValueError(f"mm_processor_kwargs must be None for a model of text alone, got {shown(mm_kwargs, 60)}")
        batch = prompt_to_seq(prompts)
        processed = []
        of_each = self._params_to_seq(params, len(batch)), self._lora_to_seq(lora_request, len(batch))
        for i, (prompt, its_params, its_lora) in enumerate(zip(batch, *of_each, strict=True)):
            try:
                prompt = self._tokenized(prompt, tokenization_kwargs)
                if mm_kwargs is not None and isinstance(prompt, Mapping):
                    prompt = {"mm_processor_kwargs": mm_kwargs, **prompt}
                processed.append(self.llm_engine.process_inputs(prompt, its_params, its_lora))
            except (ValueError, TypeError) as error:
                kind = type(error) if type(error) in (ValueError, TypeError) else ValueError
                raise kind(f"prompts[{i}]: {error}") from None
        return processed

    def _tokenized(self, prompt: Any, tokenization_kwargs: Mapping[str, Any] | None) -> Any:
        """A text in the form that was asked for; anything else as it is."""
        if tokenization_kwargs is None or not checked_tokenization(tokenization_kwargs):
            return prompt
        text = prompt.get("prompt") if isinstance(prompt, Mapping) and "prompt_token_ids" not in prompt else prompt
        if not isinstance(text, str):
            return prompt
        ids = self.llm_engine.get_tokenizer().encode(text, **tokenization_kwargs)
        return {**(prompt if isinstance(prompt, Mapping) else {"prompt": text}), "prompt_token_ids": ids}

    def _params_to_seq(self, params: Any, n: int) -> list[Any]:
        if params is None:
            params = self.get_default_sampling_params()
        if isinstance(params, SamplingParams | PoolingParams):
            return [params] * n
        if not isinstance(params, Sequence) or isinstance(params, str | bytes):
            raise TypeError(f"sampling_params must be a SamplingParams or a list of them, got {type(params).__name__}")
        if len(params) != n:
            raise ValueError(f"sampling_params must be one, or one for each of {n} prompts, got {len(params)}")
        return list(params)

    @staticmethod
    def _lora_to_seq(lora_request: Any, n: int) -> list[Any]:
        if not isinstance(lora_request, Sequence):
            return [lora_request] * n
        if isinstance(lora_request, str | bytes):
            raise TypeError(f"lora_request must be a LoRARequest or a list of them, got {shown(lora_request)}")
        if len(lora_request) != n:
            raise ValueError(f"lora_request must be one, or one for each of {n} prompts, got {len(lora_request)}")
        return list(lora_request)

    @staticmethod
    def _priority_to_seq(priority: Any, n: int) -> list[int]:
        if priority is None:
            return [0] * n
        if not isinstance(priority, Sequence) or isinstance(priority, str | bytes):
            raise TypeError(f"priority must be a list of whole numbers, one for each prompt, got {shown(priority)}")
        if len(priority) != n:
            raise ValueError(f"priority must have one number for each of {n} prompts, got {len(priority)}")
        return list(priority)

    def _add_requests(self, processed: list[ProcessedInput], priority: Any) -> list[str]:
        """Queue them; nothing stays queued where one is refused. Returns their ids."""
        ids: list[str] = []
        try:
            for item, its_priority in zip(processed, self._priority_to_seq(priority, len(processed)), strict=True):
                ids.append(str(next(self._request_counter)))
                self.llm_engine.add_processed(ids[-1], item, its_priority, RequestOutputKind.FINAL_ONLY)
        except BaseException:
            self.llm_engine.abort_request(ids)
            raise
        return ids

    def _run_engine(self, ids: list[str], use_tqdm: Bar) -> list[RequestOutput]:
        """Step until all of `ids` have finished; where a step fails they are aborted.

        Upstream: upstream/vllm/entrypoints/offline_utils.py:573 — `_run_engine`.
        """
        missing = set(ids) - set(self._done)
        try:
            with Progress(len(ids), use_tqdm if len(ids) > 1 or callable(use_tqdm) else False) as advance:
                while missing:
                    for output in self.llm_engine.step():
                        if output.finished:
                            self._done[output.request_id] = output
                            if output.request_id in missing:
                                missing.discard(output.request_id)
                                advance(_num_tokens(output))
        except BaseException:
            self.llm_engine.abort_request(ids)
            for request_id in ids:
                self._done.pop(request_id, None)
            raise
        return [self._done.pop(request_id) for request_id in ids]


def _num_tokens(output: Any) -> int:
    """What was made of a request, for the bar: its output tokens; of a pooled prompt its own."""
    if isinstance(output, RequestOutput):
        return sum(len(completion.token_ids) for completion in output.outputs)
    return len(output.prompt_token_ids)


class Progress:
    """A bar over finished requests with tokens per second; silent off a terminal, unless the caller made it."""

    def __init__(self, total: int, use_tqdm: Bar) -> None:
        self.total = total
        self.made = use_tqdm(total=total, desc="Processed prompts") if callable(use_tqdm) else None
        self.enabled = self.made is None and bool(use_tqdm) and sys.stderr.isatty()
        self.num_tokens = 0

    def __enter__(self) -> Any:
        if self.made is not None:
            return lambda num_tokens: self.made.update(1)
        if not self.enabled:
            return lambda num_tokens: None
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn())
        rate = TextColumn("{task.fields[rate]}")
        self.bar = Progress(*columns, rate, TimeRemainingColumn(), console=Console(stderr=True))
        self.bar.start()
        self.task = self.bar.add_task("Generating", total=self.total, rate="")
        return self._advance

    def _advance(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        elapsed = self.bar.tasks[self.task].elapsed or 1e-9
        self.bar.update(self.task, advance=1, rate=f"{self.num_tokens / elapsed:.0f} tok/s")

    def __exit__(self, *exc: object) -> None:
        if self.made is not None:
            self.made.close()
        elif self.enabled:
            self.bar.stop()


def prompt_to_seq(prompts: Any) -> list[Any]:
    """One prompt or many -> a list of prompts. A list of whole numbers is one prompt.

    Raises TypeError for what is neither.
    Upstream: upstream/vllm/renderers/inputs/preprocess.py:48 — `prompt_to_seq`.
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence):
        raise TypeError(
            f"prompts must be a string, a dict, token ids, or a list of these, got {type(prompts).__name__}"
        )
    if len(prompts) and all(is_int(item) for item in prompts):
        return [prompts]
    return list(prompts)

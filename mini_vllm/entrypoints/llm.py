"""`LLM`: the offline front door. All prompts in, all results out.

Upstream twins: `vllm/entrypoints/llm.py` and `vllm/entrypoints/offline_utils.py`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.engine.input_processor import Prompt
from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import RequestOutputKind, SamplingParams

Message = Mapping[str, Any]


class LLM:
    """A model ready to continue prompts.

    Args:
        model: a checkpoint folder, a hub name (extra `hub`), or a model object; None for the toy model.
        tokenizer: by default the checkpoint's own.
        with_labs: labs whose code takes the place of ours, "all" or ["02-01", …]: see `mini_vllm.engine.parts`.
        engine_args: `block_size`, `num_blocks`, `max_num_seqs`, `max_num_batched_tokens`, `attention_backend`,
            `cudagraph_mode`, … (see `EngineConfig`).

    >>> from mini_vllm import LLM, SamplingParams
    >>> llm = LLM(num_blocks=64)  # the toy model
    >>> [output] = llm.generate(["hi"], SamplingParams(max_tokens=4, temperature=0), use_tqdm=False)
    >>> len(output.outputs[0].token_ids), output.outputs[0].finish_reason
    (4, 'length')

    Upstream: upstream/vllm/entrypoints/llm.py:66 — `LLM`.
    """

    def __init__(self, model: Any = None, *, tokenizer: Any = None, with_labs: Any = None, **engine_args: Any) -> None:
        self.llm_engine = LLMEngine(model, tokenizer=tokenizer, with_labs=with_labs, **engine_args)
        self._request_counter = itertools.count()

    def get_tokenizer(self) -> Any:
        """The tokenizer in use, or None."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Parameters used where none are given: the checkpoint's `generation_config.json` over ours.

        Upstream: upstream/vllm/entrypoints/llm.py:415 — `LLM.get_default_sampling_params`.
        """
        return SamplingParams(**self.llm_engine.default_sampling_params)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue every prompt; results in the order of the prompts.

        Args:
            prompts: one or many; each a string or `{"prompt_token_ids": [...]}` / `{"prompt": "..."}`.
            sampling_params: one for all, or one for each prompt; None: the checkpoint's defaults.
            use_tqdm: show a progress bar on a terminal when there is more than one prompt (upstream's name).
            priority: one number for each prompt, lower first (policy "priority").

        Raises:
            ValueError, TypeError: what is wrong with which prompt. All prompts are looked at before any is queued.

        Upstream: upstream/vllm/entrypoints/llm.py:422 — `LLM.generate`.
        """
        if not isinstance(prompts, str | Mapping | Sequence):
            raise TypeError(f"prompts must be a string, a dict, or a list of these, got {type(prompts).__name__}")
        batch = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
        params = self._params_for_each(sampling_params, len(batch))
        priorities = [0] * len(batch) if priority is None else list(priority)
        if len(priorities) != len(batch):
            raise ValueError(f"priority must have one number for each of {len(batch)} prompts, got {len(priorities)}")
        processed = []
        for i, (prompt, its_params) in enumerate(zip(batch, params, strict=True)):
            try:
                processed.append(self.llm_engine.process_inputs(prompt, its_params))
            except (ValueError, TypeError) as error:
                raise type(error)(f"prompts[{i}]: {error}") from None
        ids = []
        try:
            for item, its_priority in zip(processed, priorities, strict=True):
                ids.append(str(next(self._request_counter)))
                self.llm_engine.add_processed(ids[-1], item, its_priority, RequestOutputKind.FINAL_ONLY)
            return self._run_engine(ids, use_tqdm and len(batch) > 1)
        except BaseException:
            self.llm_engine.abort_request(ids)
            raise

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[RequestOutput]:
        """Continue one conversation (a list of `{"role", "content"}`) or many, by the checkpoint's chat template.

        `tools` are given to the template, in the form of OpenAI's API; parsing the calls is the caller's business.

        Upstream: upstream/vllm/entrypoints/llm.py:615 — `LLM.chat`.
        """
        many = [messages] if not messages or isinstance(messages[0], Mapping) else list(messages)
        prompts = [
            self.render_chat(conversation, add_generation_prompt, chat_template, tools)  # type: ignore[arg-type]
            for conversation in many
        ]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def render_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> Prompt:
        """The conversation as a prompt of token ids; special tokens come from the template, none are added."""
        from mini_vllm.entrypoints.chat_utils import apply_chat_template

        if self.llm_engine.folder is None or self.llm_engine.tokenizer is None:
            raise ValueError("chat needs a checkpoint with a tokenizer, and a chat template there or as chat_template=")
        text = apply_chat_template(
            self.llm_engine.folder,
            messages,
            add_generation_prompt=add_generation_prompt,
            chat_template=chat_template,
            tools=tools,
        )
        token_ids = self.llm_engine.tokenizer.encode(text, add_special_tokens=False)
        return {"prompt": text, "prompt_token_ids": token_ids}

    def _params_for_each(self, params: Any, n: int) -> list[SamplingParams]:
        if params is None:
            params = self.get_default_sampling_params()
        if isinstance(params, SamplingParams):
            return [params] * n
        if not isinstance(params, Sequence):
            raise TypeError(f"sampling_params must be a SamplingParams or a list of them, got {type(params).__name__}")
        if len(params) != n:
            raise ValueError(f"sampling_params must be one, or one for each of {n} prompts, got {len(params)}")
        return list(params)

    def _run_engine(self, ids: list[str], show_progress: bool) -> list[RequestOutput]:
        """Step until all of `ids` have finished.

        Upstream: upstream/vllm/entrypoints/offline_utils.py:573 — `_run_engine`.
        """
        done: dict[str, RequestOutput] = {}
        with _Progress(len(ids), show_progress) as advance:
            while len(done) < len(ids):
                for output in self.llm_engine.step():
                    if output.finished:
                        done[output.request_id] = output
                        advance(sum(len(completion.token_ids) for completion in output.outputs))
        return [done[request_id] for request_id in ids]


class _Progress:
    """A bar over finished requests with tokens per second; silent off a terminal."""

    def __init__(self, total: int, enabled: bool) -> None:
        self.total = total
        self.enabled = enabled and sys.stderr.isatty()
        self.num_tokens = 0

    def __enter__(self) -> Any:
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
        if self.enabled:
            self.bar.stop()

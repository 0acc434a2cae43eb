"""`/v1/completions` as server-sent events.

Upstream: upstream/vllm/entrypoints/openai/completion/serving.py:279 — `completion_stream_generator`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from mini_vllm.entrypoints.openai.completion.protocol import (
    CompletionResponseStreamChoice,
    CompletionStreamResponse,
)
from mini_vllm.entrypoints.openai.completion.serving import (
    CompletionContext,
    OpenAIServingCompletion,
    echoed,
    plain,
)
from mini_vllm.entrypoints.utils import should_include_usage
from mini_vllm.outputs import CompletionOutput, RequestOutput


async def completion_stream_generator(
    serving: OpenAIServingCompletion, context: CompletionContext
) -> AsyncGenerator[str, None]:
    """Events, an error among them if one comes, and "[DONE]"."""
    state = StreamState(serving, context)
    try:
        async with aclosing(context.outputs) as outputs:
            async for prompt_index, result in outputs:
                for chunk in state.take(prompt_index, result):
                    yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
        usage = state.final_usage()
        if state.include_usage:
            last = CompletionStreamResponse(
                id=context.request_id,
                created=context.created,
                model=context.model_name,
                choices=[],
                usage=usage,
                system_fingerprint=serving.options.system_fingerprint,
            )
            yield f"data: {last.model_dump_json(exclude_none=True)}\n\n"
        context.metadata.final_usage_info = usage
    except Exception as error:
        yield f"data: {serving.create_streaming_error_response(error)}\n\n"
    yield "data: [DONE]\n\n"


class StreamState:
    """What has been sent of each choice."""

    def __init__(self, serving: OpenAIServingCompletion, context: CompletionContext) -> None:
        self.serving, self.context = serving, context
        self.request = request = context.request
        num_choices = request.n * len(context.prompts)
        self.num_characters = [0] * num_choices
        self.num_tokens = [0] * num_choices
        self.prompt_shown = [False] * num_choices
        self.num_prompt_tokens = [0] * len(context.prompts)
        self.num_cached: int | None = None
        self.include_usage, self.continuous_usage = should_include_usage(
            request.stream_options, serving.options.enable_force_include_usage
        )

    def take(self, prompt_index: int, result: RequestOutput) -> list[CompletionStreamResponse]:
        """The events of one output of the engine."""
        if self.num_cached is None:
            self.num_cached = result.num_cached_tokens
        self.num_prompt_tokens[prompt_index] = len(result.prompt_token_ids)
        if result.prompt is None:
            result.prompt = self.context.prompts[prompt_index].get("prompt")
        chunks = (self._chunk(prompt_index, result, output) for output in result.outputs)
        return [chunk for chunk in chunks if chunk is not None]

    def _chunk(
        self, prompt_index: int, result: RequestOutput, output: CompletionOutput
    ) -> CompletionStreamResponse | None:
        request, i = self.request, output.index + prompt_index * self.request.n
        first, self.prompt_shown[i] = not self.prompt_shown[i], True
        if request.echo and first:
            text, token_ids, entries = echoed(request, result, output)
        else:
            text, token_ids, entries = plain(output)
            if not text and not token_ids and not self.num_tokens[i]:
                self.prompt_shown[i] = not first
                return None
        show_prompt = first and (request.echo or request.return_token_ids)
        logprobs = self.serving.logprobs_of(request, token_ids, entries, self.num_characters[i])
        self.num_characters[i] += len(output.text)
        self.num_tokens[i] += len(output.token_ids)
        self.serving._raise_if_error(output, self.context.request_id)
        choice = CompletionResponseStreamChoice(
            index=i,
            text=text,
            logprobs=logprobs,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            prompt_token_ids=result.prompt_token_ids if show_prompt else None,
            token_ids=list(output.token_ids) if request.return_token_ids else None,
        )
        return self._event(choice, prompt_index, i)

    def _event(self, choice: CompletionResponseStreamChoice, prompt_index: int, i: int) -> CompletionStreamResponse:
        context, fingerprint = self.context, self.serving.options.system_fingerprint
        further: dict[str, Any] = {}
        if choice.finish_reason is not None and not self.include_usage and fingerprint is not None:
            further["system_fingerprint"] = fingerprint
        if self.continuous_usage:
            further["usage"] = self.serving._usage(self.num_prompt_tokens[prompt_index], self.num_tokens[i])
        return CompletionStreamResponse(
            id=context.request_id,
            object="text_completion",
            created=context.created,
            model=context.model_name,
            choices=[choice],
            **further,
        )

    def final_usage(self) -> Any:
        """All choices of all prompts."""
        return self.serving._usage(sum(self.num_prompt_tokens), sum(self.num_tokens), self.num_cached)

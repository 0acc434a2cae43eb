"""From a user's prompt to token ids and checked parameters. Upstream twin: `vllm/v1/engine/input_processor.py`.

Everything that can be wrong with a request is found here, before anything is queued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.config.reasoning import ReasoningConfig
from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.inputs.llm import PromptType, check_prompt_keys
from mini_vllm.lora.request import LoRARequest
from mini_vllm.pool.params import PoolingParams
from mini_vllm.sample.logits_processor import validate_logits_processors_parameters
from mini_vllm.sampling_params import SamplingParams, bad_word_ids
from mini_vllm.utils.async_utils import in_turns
from mini_vllm.utils.checks import shown

Prompt = PromptType


@dataclass(slots=True)
class ProcessedInput:
    """A request ready for the engine core; `params` is a copy that the engine owns."""

    prompt: str | None
    prompt_token_ids: list[int]
    params: Any
    """`SamplingParams` or `PoolingParams`."""
    cache_salt: str | None = None
    lora_request: LoRARequest | None = None
    mm_features: list[Any] | None = None


class InputProcessor:
    """Tokenizes and checks.

    Args:
        tokenizer: or None, where prompts have to be token ids.
        vocab_size: number of tokens that the model knows.
        max_model_len: context length in tokens.
        eos_token_ids: ends of sequence by the model's configuration.
        max_logprobs: the most `logprobs` that a request may ask for; -1: the vocabulary.
        structured_outputs: what grammars are made by.
        logits_processors: custom ones, named, which look at every request; None: neither named nor installed.
        reasoning: what marks the thinking; None: nothing does. pooler_config: None for a model that generates.
        multimodal: the door for media (`multimodal_inputs.py`); None: the model takes none.

    Upstream: upstream/vllm/v1/engine/input_processor.py:36 — `InputProcessor`.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Sequence[int],
        max_logprobs: int = -1,
        structured_outputs: StructuredOutputsConfig | None = None,
        logits_processors: tuple[Any, ...] | None = None,
        reasoning: ReasoningConfig | None = None,
        pooler_config: PoolerConfig | None = None,
        multimodal: Any = None,
    ) -> None:
        self.pooler_config, self.multimodal = pooler_config, multimodal
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.max_logprobs = max_logprobs
        self.logits_processors, self.reasoning = logits_processors, reasoning
        self.structured_outputs = structured_outputs or StructuredOutputsConfig()
        self.eos_token_ids = list(eos_token_ids)

    def process_inputs(
        self, prompt: Prompt, params: SamplingParams | PoolingParams, bad_words: list[list[int]] | None = None
    ) -> ProcessedInput:
        """Turn one prompt into a `ProcessedInput`. bad_words: those of `params` as token ids, where they are known.

        Raises:
            ValueError, TypeError: names the argument, the value and what is allowed.
        """
        if isinstance(params, PoolingParams):
            return self._process_pooling(prompt, params)
        if self.pooler_config is not None:
            raise ValueError("this model pools; it generates nothing: use `embed`, `classify`, `score` or `encode`")
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params must be a SamplingParams, got {type(params).__name__}")
        text, token_ids, cache_salt = self._tokenize(prompt)
        mm_features = None
        if self.multimodal is not None:
            token_ids, mm_features = self.multimodal.process(prompt, token_ids)
        self._validate_token_ids(token_ids)
        params.verify(self.vocab_size, self.max_logprobs)
        if self.logits_processors is not None:
            validate_logits_processors_parameters(self.logits_processors, params)
        if params.thinking_token_budget is not None and self.reasoning is None:
            raise ValueError(
                "thinking_token_budget is set but reasoning_config is not configured. Please set engine argument "
                "reasoning_config to use thinking_token_budget."
            )
        try:
            params = params.clone()
        except RecursionError:  # a schema given as a dict
            raise ValueError("structured_outputs.json cannot be used: too many parts inside each other") from None
        if params.max_tokens is None:
            params.max_tokens = self.max_model_len - len(token_ids)
        eos = getattr(self.tokenizer, "eos_token_id", None)
        params.update_from_generation_config(self.eos_token_ids, eos)
        if params.bad_words:
            self._need_tokenizer("bad_words")
            params.update_from_tokenizer(self.tokenizer, bad_words)
        if params.thinking_token_budget is not None and self.reasoning is not None:
            params.think_start_token_ids = list(self.reasoning.reasoning_start_token_ids or ())
            params.think_end_token_ids = list(self.reasoning.reasoning_end_token_ids or ())
        if params.stop:
            self._need_tokenizer("stop")
        if params.structured_outputs is not None:
            self._validate_structured_outputs(params)
        return ProcessedInput(text, token_ids, params, cache_salt, mm_features=mm_features)

    async def process_inputs_async(self, prompt: Prompt, params: SamplingParams | PoolingParams) -> ProcessedInput:
        """The same in the loop of a server: a grammar, which may take seconds, is compiled in another thread first, and
        of a long list of words some are read at a time."""
        wanted, bad_words = getattr(params, "structured_outputs", None), None
        words = getattr(params, "bad_words", None)
        if words and self.tokenizer is not None:
            bad_words = [ids async for word in in_turns(words) for ids in bad_word_ids(word, self.tokenizer)]
        if wanted is not None:
            from mini_vllm.structured_output.engine import compile_beside

            await compile_beside(wanted, self.structured_outputs)
        return self.process_inputs(prompt, params, bad_words)

    def _process_pooling(self, prompt: Prompt, params: PoolingParams) -> ProcessedInput:
        """A prompt may fill the whole context: nothing comes after it."""
        if self.pooler_config is None:
            raise ValueError("pooling is only supported for pooling models: try runner='pooling'")
        text, token_ids, cache_salt = self._tokenize(prompt)
        self._validate_token_ids(token_ids, room=0)
        params = params.clone()
        params.verify(self.pooler_config)
        return ProcessedInput(text, token_ids, params, cache_salt)

    def _validate_structured_outputs(self, params: SamplingParams) -> None:
        from mini_vllm.structured_output.engine import validate_structured_outputs

        validate_structured_outputs(params, self.structured_outputs, self.tokenizer)

    def _tokenize(self, prompt: Prompt) -> tuple[str | None, list[int], str | None]:
        if isinstance(prompt, str):
            self._need_tokenizer("a prompt given as text")
            try:
                return prompt, list(self.tokenizer.encode(prompt)), None
            except UnicodeEncodeError as error:  # half of a pair of surrogates, which no UTF-8 text has
                raise ValueError(f"prompt is not a text that UTF-8 can write: {error}") from None
        if isinstance(prompt, list | tuple | np.ndarray):
            return None, list(prompt), None
        if not isinstance(prompt, Mapping):
            raise TypeError(
                "prompt must be a string, a list of token ids, or a dict with 'prompt' or 'prompt_token_ids', "
                f"got {type(prompt).__name__}: {shown(prompt, 60)}"
            )
        check_prompt_keys(prompt, () if self.multimodal is None else self.multimodal.keys)
        salt = prompt.get("cache_salt")
        if salt is not None and not (isinstance(salt, str) and salt):
            raise ValueError(f"cache_salt must be a string that is not empty, got {salt!r}")
        token_ids = prompt.get("prompt_token_ids")
        if token_ids is None:
            if not isinstance(prompt.get("prompt"), str):
                raise ValueError(f"a prompt dict needs 'prompt' or 'prompt_token_ids', got keys {sorted(prompt)}")
            text, ids, _ = self._tokenize(prompt["prompt"])
            return text, ids, salt
        if isinstance(token_ids, str) or not isinstance(token_ids, Sequence | np.ndarray):
            raise TypeError(f"prompt_token_ids must be a list of ints, got {type(token_ids).__name__}")
        return prompt.get("prompt"), list(token_ids), salt

    def _validate_token_ids(self, token_ids: list[int], room: int = 1) -> None:
        if not token_ids:
            raise ValueError("prompt must have at least one token, got an empty prompt")
        for i, token in enumerate(token_ids):
            if isinstance(token, bool) or not isinstance(token, int | np.integer):
                raise ValueError(f"prompt_token_ids[{i}] must be an int, got {shown(token, 60)}")
            if not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"prompt_token_ids[{i}] = {shown(token)} is outside the vocabulary (0 to {self.vocab_size - 1})"
                )
        if not room and len(token_ids) > self.max_model_len:
            raise ValueError(f"prompt has {len(token_ids)} tokens, more than max_model_len = {self.max_model_len}")
        if room and len(token_ids) >= self.max_model_len:
            raise ValueError(
                f"prompt has {len(token_ids)} tokens; it must be shorter than max_model_len = {self.max_model_len}, "
                "so that there is room for at least one output token"
            )

    def _need_tokenizer(self, what: str) -> None:
        if self.tokenizer is None:
            raise ValueError(f"{what} needs a tokenizer, and this model has none: give prompt_token_ids")

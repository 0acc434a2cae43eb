"""Where structured outputs meet the engine: the check at the door, and the manager of a core.

Upstream: `upstream/vllm/sampling_params.py:794 — `SamplingParams._validate_structured_outputs`` and the constructor of
`EngineCore`; there each backend has a check of its own.
"""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.structured_output import StructuredOutputManager
from mini_vllm.structured_output.backend_types import StructuredOutputOptions, TokenVocabulary
from mini_vllm.structured_output.request import get_structured_output_key

if TYPE_CHECKING:
    from mini_vllm.config.resolved_model import ResolvedModel
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.structured_output.jump_forward import JumpForward
    from mini_vllm.structured_outputs_params import StructuredOutputsParams


def validate_structured_outputs(params: SamplingParams, config: StructuredOutputsConfig, tokenizer: Any) -> None:
    """Refuse here what could not be compiled in the core.

    Raises:
        ValueError: no tokenizer, an empty list of choices, a grammar that cannot be read, is not supported or allows
            no text at all; the message says which.

    Upstream: upstream/vllm/sampling_params.py:794 — `SamplingParams._validate_structured_outputs`.
    """
    wanted = params.structured_outputs
    assert wanted is not None
    if tokenizer is None:
        raise ValueError("Structured outputs requires a tokenizer so it can't be used with 'skip_tokenizer_init'")
    if wanted._backend not in (None, config.resolved_backend):
        raise ValueError(
            f"Request-level structured output backend selection is not supported. The request specified "
            f"{wanted._backend!r}, but the engine was initialised with {config.backend!r}"
        )
    if wanted.choice is not None and not wanted.choice:
        raise ValueError(f"Choice {wanted.choice!r} cannot be an empty list")
    if wanted.grammar is not None and not wanted.grammar.strip():
        raise ValueError("structured_outputs.grammar cannot be an empty string")
    wanted._backend, wanted._backend_was_auto = config.resolved_backend, config.backend == "auto"
    try:
        request_type, spec = get_structured_output_key(wanted)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"structured_outputs.json cannot be written as JSON: {error}") from None
    if config.resolved_backend == "mini":
        _compile(request_type, spec, config)


def _compile(request_type: StructuredOutputOptions, spec: str, config: StructuredOutputsConfig) -> None:
    """Raises ValueError where it cannot be used."""
    from mini_vllm.structured_output.specs import compile_spec

    try:
        compile_spec(request_type, spec, not config.disable_any_whitespace)
    except ValueError as error:
        raise ValueError(f"structured_outputs.{request_type.name.lower()} cannot be used: {error}") from None


async def compile_beside(wanted: StructuredOutputsParams, config: StructuredOutputsConfig) -> None:
    """Compile a grammar in a thread, so that the loop goes on; `validate_structured_outputs` then finds it compiled.

    Raises:
        ValueError: as `validate_structured_outputs`; what is wrong beside the grammar is said there.
    """
    if config.resolved_backend != "mini" or wanted.choice == []:
        return
    try:
        request_type, spec = get_structured_output_key(wanted)
    except (TypeError, ValueError, RecursionError):
        return
    if spec.strip() or request_type is StructuredOutputOptions.JSON_OBJECT:
        await asyncio.to_thread(_compile, request_type, spec, config)


def make_structured_output_manager(
    config: EngineConfig, model: ResolvedModel, tokenizer: Any = None, make_jump_forward: Any = None
) -> StructuredOutputManager:
    """The manager of a core. What compiles grammars is imported, and the vocabulary read, with the first of them.

    Args:
        tokenizer: None, or a path: the checkpoint's own, or the one that stands there. It is read when it is needed.
        make_jump_forward: (vocabulary, tokenizer) -> a `JumpForward`; None: ours.
    """

    @functools.cache
    def read_tokenizer() -> Any:
        if tokenizer is not None and not isinstance(tokenizer, str | Path):
            return tokenizer
        from mini_vllm.model_loader.checkpoint import resolve_model

        return resolve_model(model.model, tokenizer, config)[1]

    @functools.cache
    def vocabulary() -> TokenVocabulary:
        from mini_vllm.structured_output.vocabulary import token_vocabulary

        return token_vocabulary(read_tokenizer(), model.vocab_size, model.eos_token_ids)

    def jump_forward() -> JumpForward:
        from mini_vllm.structured_output.jump_forward import JumpForward

        return (make_jump_forward or JumpForward)(vocabulary(), read_tokenizer())

    assert config.max_num_seqs is not None
    drafts, wanted = config.speculative_config, config.structured_outputs
    num_drafts = 0 if drafts is None else drafts.num_speculative_tokens
    return StructuredOutputManager(
        wanted, config.max_num_seqs, vocabulary, read_tokenizer, num_drafts,
        jump_forward if wanted.jump_forward else None,
    )  # fmt: skip

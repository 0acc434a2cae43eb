"""Where structured outputs meet the engine: the check at the door, and the manager of a core.

Upstream: `upstream/vllm/sampling_params.py:794 — `SamplingParams._validate_structured_outputs`` and the constructor of
`EngineCore`; there each backend has a check of its own.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.structured_output import StructuredOutputManager
from mini_vllm.structured_output.backend_types import TokenVocabulary
from mini_vllm.structured_output.jump_forward import JumpForward
from mini_vllm.structured_output.request import get_structured_output_key
from mini_vllm.structured_output.specs import compile_spec
from mini_vllm.structured_output.vocabulary import token_vocabulary

if TYPE_CHECKING:
    from mini_vllm.engine.core import EngineCore


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
        kind = request_type.name.lower()
        try:
            compile_spec(request_type, spec, not config.disable_any_whitespace)
        except ValueError as error:
            raise ValueError(f"structured_outputs.{kind} cannot be used: {error}") from None


def make_structured_output_manager(core: EngineCore) -> StructuredOutputManager:
    """The manager of a core, made with its first grammar."""

    def tokenizer() -> Any:
        if core.tokenizer is None or isinstance(core.tokenizer, str | Path):
            from mini_vllm.model_loader.checkpoint import resolve_model

            core.tokenizer = resolve_model(core.resolved_model.model, core.tokenizer, core.config)[1]
        return core.tokenizer

    model, config = core.resolved_model, core.config
    assert config.max_num_seqs is not None
    drafts = config.speculative_config

    @functools.cache
    def vocabulary() -> TokenVocabulary:
        return token_vocabulary(tokenizer(), model.vocab_size, model.eos_token_ids)

    num_drafts = 0 if drafts is None else drafts.num_speculative_tokens
    manager = StructuredOutputManager(config.structured_outputs, config.max_num_seqs, vocabulary, tokenizer, num_drafts)
    if config.structured_outputs.jump_forward:
        manager.jump_forward = (core.parts.jump_forward or JumpForward)(vocabulary(), tokenizer())
    return manager

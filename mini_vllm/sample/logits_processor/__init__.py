"""Changes to the logits that a batch may ask for: the built-in ones, and how an engine gets others.

A custom processor is a subclass of `LogitsProcessor`, named to the engine as a class or as "module:Class"
(`LLM(logits_processors=[...])`), or installed under the entry point group `mini_vllm.logits_processors`. What a request
wants of it stands in `SamplingParams.extra_args`.
Upstream twin: `vllm/v1/sample/logits_processor/__init__.py`.
"""

from __future__ import annotations

import importlib
import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from mini_vllm.plugins import entry_points
from mini_vllm.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
    process_dict_updates,
)
from mini_vllm.sample.logits_processor.interface import BatchUpdate, LogitsProcessor, MoveDirectionality
from mini_vllm.sample.logits_processor.state import LogitsProcessors
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.utils.checks import shown

STR_POOLING_REJECTS_LOGITSPROCS = "Pooling models do not support custom logits processors."
STR_SPEC_DEC_REJECTS_LOGITSPROCS = "Custom logits processors are not supported when speculative decoding is enabled."
LOGITSPROCS_GROUP = "mini_vllm.logits_processors"
BUILTIN_LOGITS_PROCESSORS: list[type[LogitsProcessor]] = [
    MinTokensLogitsProcessor,
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
]
RequestLogitsProcessor = Callable[..., np.ndarray]
"""(output ids, logits [V]) or (prompt ids, output ids, logits [V]) -> logits [V], changed in place or not."""


def build_logitsprocs(
    vllm_config: Any = None,
    device: Any = "cpu",
    is_pin_memory: bool = False,
    is_pooling_model: bool = False,
    custom_logitsprocs: Sequence[str | type[LogitsProcessor]] = (),
) -> LogitsProcessors:
    """The built-in processors, then those installed, then those named, each made once.

    With speculative decoding upstream keeps min tokens alone, and refuses requests with `min_p` or `logit_bias`
    (upstream/vllm/sampling_params.py:780 — `SamplingParams._validate_spec_decode`); here the rejection sampler knows
    them.

    Raises:
        ValueError: custom ones with a pooling model or with drafts. RuntimeError: one cannot be imported.

    Upstream: upstream/vllm/v1/sample/logits_processor/__init__.py:184 — `build_logitsprocs`.
    """
    if is_pooling_model:
        if custom_logitsprocs:
            raise ValueError(STR_POOLING_REJECTS_LOGITSPROCS)
        return LogitsProcessors()
    if getattr(vllm_config, "speculative_config", None):
        if custom_logitsprocs:
            raise ValueError(STR_SPEC_DEC_REJECTS_LOGITSPROCS)
        classes = BUILTIN_LOGITS_PROCESSORS
    else:
        classes = [*BUILTIN_LOGITS_PROCESSORS, *load_custom_logitsprocs(tuple(custom_logitsprocs))]
    return LogitsProcessors([each(vllm_config, device, is_pin_memory) for each in classes])


def has_custom_logitsprocs(logits_processors: Sequence[str | type[LogitsProcessor]] | None) -> bool:
    """True where an engine has processors besides the built-in ones."""
    return bool(logits_processors) or bool(entry_points(LOGITSPROCS_GROUP))


@lru_cache
def load_custom_logitsprocs(
    logits_processors: tuple[str | type[LogitsProcessor], ...] = (),
) -> tuple[type[LogitsProcessor], ...]:
    """The classes: those of the entry points, then these. Raises as `build_logitsprocs`, ValueError for no processor.

    Upstream: upstream/vllm/v1/sample/logits_processor/__init__.py:158 — `_load_custom_logitsprocs`.
    """
    return (*_load_plugins(), *map(_load_one, logits_processors))


def _load_plugins() -> list[type[LogitsProcessor]]:
    loaded = []
    for point in entry_points(LOGITSPROCS_GROUP):
        try:
            loaded.append(_checked(point.load(), str(point.value)))
        except Exception as error:
            named = f"{point.name} ({point.value})"
            raise RuntimeError(f"Failed to load LogitsProcessor plugin {named}: {error}") from error
    return loaded


def _load_one(named: str | type[LogitsProcessor]) -> type[LogitsProcessor]:
    if not isinstance(named, str):
        return _checked(named, getattr(named, "__name__", repr(named)))
    module_path, colon, qualname = named.partition(":")
    if not (module_path and colon and qualname):
        raise ValueError(f"logits_processors must name classes as 'module:Class', got {shown(named)}")
    try:
        found: Any = importlib.import_module(module_path)
        for attribute in qualname.split("."):
            found = getattr(found, attribute)
    except Exception as error:
        raise RuntimeError(f"Failed to load LogitsProcessor plugin {named}: {error}") from error
    return _checked(found, named)


def _checked(found: Any, name: str) -> type[LogitsProcessor]:
    if not (isinstance(found, type) and issubclass(found, LogitsProcessor)):
        raise ValueError(f"{name} must be a subclass of LogitsProcessor")
    return found


def validate_logits_processors_parameters(
    logits_processors: Sequence[str | type[LogitsProcessor]], sampling_params: SamplingParams
) -> None:
    """Let every custom processor look at a request. Raises what it raises.

    Upstream: upstream/vllm/v1/sample/logits_processor/__init__.py:223 — `validate_logits_processors_parameters`.
    """
    for each in load_custom_logitsprocs(tuple(logits_processors)):
        each.validate_params(sampling_params)


class AdapterLogitsProcessor(LogitsProcessor):
    """A batch-level processor around one for single requests: subclasses give `is_argmax_invariant` and
    `new_req_logits_processor`.

    Attributes:
        req_info: row -> the request's processor, its prompt and output already bound; the output is the live list.

    Upstream: upstream/vllm/v1/sample/logits_processor/__init__.py:234 — `AdapterLogitsProcessor`.
    """

    def __init__(self, vllm_config: Any = None, device: Any = "cpu", is_pin_memory: bool = False) -> None:
        self.req_info: dict[int, partial[np.ndarray]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """The processor of a new request; None where it needs none."""

    def _new_state(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> partial[np.ndarray] | None:
        made = self.new_req_logits_processor(params)
        if made is None:
            return None
        if len(inspect.signature(made).parameters) < 3:
            return partial(made, output_ids)
        if prompt_ids is None:
            raise ValueError("Prompt token ids are required for this logits processor but were not provided.")
        return partial(made, prompt_ids, output_ids)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """See `LogitsProcessor`."""
        process_dict_updates(self.req_info, batch_update, self._new_state)

    def has_work(self) -> bool:
        """True while a request uses it."""
        return bool(self.req_info)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """One call a row that has a processor. Raises ValueError where one gives back anything but such a row."""
        for row, process in self.req_info.items():
            found = process(logits[row])
            if np.shape(found) != logits.shape[1:]:
                name = f"the processor of a request that {type(self).__name__} made"
                raise ValueError(f"{name} must give back {logits.shape[1]} logits, got {found!r:.60}")
            logits[row] = found
        return logits


__all__ = [
    "LOGITSPROCS_GROUP",
    "STR_POOLING_REJECTS_LOGITSPROCS",
    "STR_SPEC_DEC_REJECTS_LOGITSPROCS",
    "AdapterLogitsProcessor",
    "BatchUpdate",
    "LogitBiasLogitsProcessor",
    "LogitsProcessor",
    "LogitsProcessors",
    "MinPLogitsProcessor",
    "MinTokensLogitsProcessor",
    "MoveDirectionality",
    "RequestLogitsProcessor",
    "build_logitsprocs",
    "has_custom_logitsprocs",
    "load_custom_logitsprocs",
    "validate_logits_processors_parameters",
]

"""A proposer of one's own, by its name. Upstream twin: `vllm/v1/spec_decode/custom_class_proposer.py`."""

from __future__ import annotations

import importlib
from typing import Any


def create_custom_proposer(vllm_config: Any) -> Any:
    """An object of the class that `speculative_config.model` names ("my_module.MyProposer"), made with `vllm_config`.

    Its `propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None)` returns a list of drafts for
    each row: see `NgramProposer.propose`. A class written for vLLM serves here if it reads no more than
    `vllm_config.speculative_config` and does its arithmetic in numpy.

    Raises:
        ValueError: no such module, no such class, it cannot be made so, or it has no `propose`.

    Upstream: upstream/vllm/v1/spec_decode/custom_class_proposer.py:12 — `create_custom_proposer`.
    """
    backend = vllm_config.speculative_config.model
    named = f"speculative_config: model={backend!r}"
    module_path, _, class_name = backend.rpartition(".")
    if not module_path:
        raise ValueError(f"{named} must be a whole path, like 'my_module.MyProposer'")
    try:
        module = importlib.import_module(module_path)
    except ImportError as error:
        raise ValueError(f"{named}: module {module_path!r} cannot be imported: {error}") from None
    user_class = getattr(module, class_name, None)
    if user_class is None:
        raise ValueError(f"{named}: module {module_path!r} has no {class_name!r}")
    try:
        proposer = user_class(vllm_config)
    except Exception as error:
        raise ValueError(
            f"{named} cannot be made with the engine's settings: {type(error).__name__}: {error}"
        ) from error
    if not callable(getattr(proposer, "propose", None)):
        raise ValueError(f"{named} has no method 'propose'")
    return proposer

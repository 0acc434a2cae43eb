"""Drafts by a small model. Upstream twin: `vllm/v1/spec_decode/draft_model.py`."""

from __future__ import annotations

from typing import Any

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.spec_decode.llm_base_proposer import SpecDecodeBaseProposer


class DraftModelProposer(SpecDecodeBaseProposer):
    """A whole language model, smaller than the target, with the same vocabulary and the same ranks.

    It reads the tokens alone; embeddings and output weights are its own.

    Upstream: upstream/vllm/v1/spec_decode/draft_model.py:17 — `DraftModelProposer`.
    """

    pass_hidden_states_to_model = False

    def __init__(self, model: Any, vllm_config: Any, runner: Any) -> None:
        super().__init__(model, vllm_config, runner)


def load_draft_model(target: ResolvedModel, config: Any, group: TensorParallelGroup | None = None) -> Any:
    """The draft model of an engine, or the part of it that a rank of `group` has: floats, whatever the target is.

    Raises:
        FileNotFoundError, ValueError: as `SpeculativeConfig.resolve_draft_model`, or as `load_model` of
            `model_loader/default_loader.py`.

    Upstream: upstream/vllm/v1/spec_decode/draft_model.py:69 — `DraftModelProposer._get_model`.
    """
    from mini_vllm.model_loader.default_loader import load_model
    from mini_vllm.model_loader.dummy_loader import load_dummy_model

    config.speculative_config.resolve_draft_model(target)
    folder = config.speculative_config.draft_model_config.model
    if config.load_format == "dummy":
        return load_dummy_model(folder, config.dtype, None, group, False)
    return load_model(folder, config.dtype, group=group)

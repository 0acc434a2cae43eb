"""Drafts by a head on the target's hidden states. Upstream twin: `vllm/v1/spec_decode/eagle.py`."""

from __future__ import annotations

from typing import Any

from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.spec_decode.llm_base_proposer import SpecDecodeBaseProposer


class EagleProposer(SpecDecodeBaseProposer):
    """One layer that goes on where the target stopped: see `models/llama_eagle.py`.

    Its keys and values at position i are made of token i + 1. So the last slot of a block holds something of the block
    behind it, and a prefix hit leaves its last block out: `FullAttentionManager.find_longest_cache_hit`.

    Upstream: upstream/vllm/v1/spec_decode/eagle.py:10 — `EagleProposer`.
    """

    pass_hidden_states_to_model = True


def load_eagle_head(target: Any, config: Any, group: TensorParallelGroup | None = None) -> Any:
    """The head of an engine, or the part of it that a rank of `group` has: floats, whatever the target is.

    Args:
        target: the model, loaded; the head takes over its embedding and its output matrix.
        config: the engine's, whose `speculative_config` has been resolved.

    Raises:
        ValueError: as `fill_weights` of `model_loader/default_loader.py`; the target has no embedding to share.

    Upstream: upstream/vllm/v1/spec_decode/llm_base_proposer.py:1184 — `SpecDecodeBaseProposer.load_model`.
    """
    from mini_vllm.model_loader.default_loader import fill_weights
    from mini_vllm.model_loader.dummy_loader import initialize_dummy_weights
    from mini_vllm.model_loader.hub import get_checkpoint_folder
    from mini_vllm.models.llama_eagle import EagleLlamaForCausalLM

    drafts = config.speculative_config
    head = EagleLlamaForCausalLM(drafts.draft_model_config, config.dtype, None, group)
    if config.load_format == "dummy":
        initialize_dummy_weights(head)
    else:
        fill_weights(head, get_checkpoint_folder(drafts.model, drafts.revision))
    head.share_with(target)
    return head

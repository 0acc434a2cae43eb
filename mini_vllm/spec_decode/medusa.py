"""Drafts by heads side by side. Upstream twin: `vllm/v1/spec_decode/medusa.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_vllm.distributed.parallel_state import TensorParallelGroup
from mini_vllm.utils.arrays import Array


class MedusaProposer:
    """All k drafts from one hidden state, the likeliest token of each head: no cache, no pass after the first.

    Args:
        model: the heads, see `models/medusa.py`.

    Upstream: upstream/vllm/v1/spec_decode/medusa.py:18 — `MedusaProposer`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def propose(self, target_hidden_states: Array) -> Array:
        """Hidden states behind the last sampled token of R requests, [R, H] -> drafts [R, k].

        Upstream: upstream/vllm/v1/spec_decode/medusa.py:39 — `MedusaProposer.propose`.
        """
        logits = self.model.compute_logits(self.model.forward(target_hidden_states))
        return np.stack([each.argmax(axis=-1) for each in logits], axis=1)


def load_medusa_heads(config: Any, group: TensorParallelGroup | None = None) -> Any:
    """The first `num_speculative_tokens` heads of the checkpoint, in floats; of `group`, a rank's share.

    Raises:
        ValueError: as `fill_weights` of `model_loader/default_loader.py`.

    Upstream: upstream/vllm/v1/spec_decode/medusa.py:57 — `MedusaProposer.load_model`.
    """
    from mini_vllm.model_loader.default_loader import fill_weights
    from mini_vllm.model_loader.dummy_loader import initialize_dummy_weights
    from mini_vllm.model_loader.hub import get_checkpoint_folder
    from mini_vllm.models.medusa import Medusa

    drafts = config.speculative_config
    heads = Medusa(drafts.draft_model_config, config.dtype, drafts.num_speculative_tokens, group)
    if config.load_format == "dummy":
        initialize_dummy_weights(heads)
    else:
        fill_weights(heads, get_checkpoint_folder(drafts.model, drafts.revision))
    return heads

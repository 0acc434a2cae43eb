"""Small arithmetic of speculative decoding, and what is looked at before a drafter is loaded.

Upstream twin: `vllm/v1/spec_decode/utils.py`; the checks stand in `vllm/config/speculative.py` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.utils.json_files import load_json_object

if TYPE_CHECKING:
    from mini_vllm.config.resolved_model import ResolvedModel
    from mini_vllm.config.speculative import SpeculativeConfig


def unconditional_to_conditional_rates(rates: Sequence[float]) -> list[float]:
    """From "the first i drafts are all accepted" to "draft i is, if those before it are".

    Upstream: upstream/vllm/v1/spec_decode/utils.py:599 — `unconditional_to_conditional_rates`.
    """
    return [rate / before if before > 0 else 0.0 for rate, before in zip(rates, [1.0, *rates[:-1]], strict=True)]


def method_of_checkpoint(model: str) -> str | None:
    """What upstream reads out of a name, or out of the `config.json` in a folder; None: nothing.

    Upstream: upstream/vllm/config/speculative.py:694 — "eagle-".
    """
    for part, method in (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash")):
        if part in model.lower():
            return method
    file = Path(model, "config.json")
    return "medusa" if file.is_file() and load_json_object(file).get("model_type") == "medusa" else None


def read_draft_config(config: SpeculativeConfig, folder: str | Path) -> Any:
    """What is known of the draft model, or of the heads, before a weight is read.

    Raises:
        FileNotFoundError, ValueError: there is no such checkpoint, or it is of something else.
    """
    if config.method == "eagle":
        from mini_vllm.transformers_utils.configs.eagle import read_eagle_config

        return read_eagle_config(folder)
    if config.method == "medusa":
        from mini_vllm.transformers_utils.configs.medusa import MedusaConfig

        return MedusaConfig.from_folder(folder)
    from mini_vllm.config.resolved_model import ResolvedModel

    return ResolvedModel.from_folder(folder)


def check_draft_sizes(config: SpeculativeConfig, draft: Any, target: ResolvedModel) -> None:
    """Raise ValueError where a drafter does not fit its target.

    Upstream: upstream/vllm/config/speculative.py:1018 — `verify_equal_vocab_size_if_draft_model`, for the method of
    that name alone; heads of other sizes end there in an error of shapes, and heads beyond those of the checkpoint in
    one of weights that were not read.
    """
    named = f"speculative_config: model={config.model!r}"
    theirs = getattr(target.hf_config, "hidden_size", None)
    if theirs is None and not config.uses_draft_model():
        raise ValueError(f"speculative_config: method {config.method!r} needs a target that is read from a folder")
    if draft.vocab_size != target.vocab_size:
        raise ValueError(
            f"{named} has a vocabulary of {draft.vocab_size} tokens, the target one of {target.vocab_size}: its drafts "
            "would be other words"
        )
    if not config.uses_draft_model() and draft.hidden_size != theirs:
        raise ValueError(f"{named} reads hidden states of {draft.hidden_size} numbers, the target has {theirs}")
    if config.method == "medusa" and config.num_speculative_tokens > draft.num_heads:
        raise ValueError(
            f"speculative_config: num_speculative_tokens must be at most {draft.num_heads}, the heads of "
            f"model={config.model!r}, got {config.num_speculative_tokens}"
        )
    longest = getattr(draft, "max_model_len", target.max_model_len)
    if config.max_model_len is not None and config.max_model_len > longest:
        raise ValueError(
            f"speculative_config: max_model_len must be at most the draft model's {longest}, got {config.max_model_len}"
        )

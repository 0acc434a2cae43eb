"""What is known of a model before any weight is read; the settings asked for are in `config/model.py`.

Upstream twin: `vllm/config/model.py`, where both are one class."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.config.multimodal import MultiModalConfig
from mini_vllm.logger import warning_once
from mini_vllm.transformers_utils.config import HFConfig

if TYPE_CHECKING:
    from mini_vllm.multimodal.processing import BaseMultiModalProcessor


@dataclass
class ResolvedModel:
    """A checkpoint to be loaded by the workers, or a finished model object.

    Attributes:
        model: the folder; or an object that obeys the contract of `models/interfaces_base.py`.
        max_model_len: context of the model in tokens. vocab_size: rows of its logits.
        default_model_len: what is served where nobody asks for less, or for more; None: all of it.
        default_sampling_params: under the names of `SamplingParams`.
        hf_config: what `config.json` says; None for an object.
        multimodal: what a prompt may have beside its text.

    Upstream: upstream/vllm/config/model.py:117 — `ModelConfig`.
    """

    model: Any
    max_model_len: int
    vocab_size: int
    eos_token_ids: list[int]
    default_sampling_params: dict[str, Any] = field(default_factory=dict)
    hf_config: HFConfig | None = None
    default_model_len: int | None = None
    multimodal: MultiModalConfig = field(default_factory=MultiModalConfig)

    def make_mm_processor(self) -> BaseMultiModalProcessor | None:
        """What turns media into features; None where the model takes none. A checkpoint's is made by its class."""
        found = self.model
        if self.hf_config is not None:
            from mini_vllm.models.registry import get_model_class

            found = get_model_class(self.hf_config.architecture)
        return found.make_mm_processor(self) if getattr(found, "supports_multimodal", False) else None

    @property
    def mm_encoder_tp_mode(self) -> str:
        """What ranks share of an encoder of media: the weights of each layer, or ("data") the items. A model that does
        not know the second takes the first.

        Upstream: upstream/vllm/config/model.py:687 — "mm_encoder_tp_mode ==".
        """
        mode = self.multimodal.mm_encoder_tp_mode
        if mode == "weights" or self.hf_config is None:
            return "weights"
        from mini_vllm.models.registry import get_model_class

        found = get_model_class(self.hf_config.architecture)
        if getattr(found, "supports_encoder_tp_data", False):
            return mode
        if getattr(found, "supports_multimodal", False):
            warning_once(
                __name__, "This model does not support `--mm-encoder-tp-mode data`. Falling back to "
                "`--mm-encoder-tp-mode weights`.",
            )  # fmt: skip
        return "weights"

    @property
    def lengths(self) -> tuple[int, int | None]:
        """(max_model_len, default_model_len)."""
        return self.max_model_len, self.default_model_len

    @classmethod
    def from_folder(cls, folder: str | Path, multimodal: MultiModalConfig | None = None) -> ResolvedModel:
        """Read `config.json` and `generation_config.json`.

        Raises:
            FileNotFoundError, ConfigError: as `HFConfig.from_folder`.

        Upstream: upstream/vllm/config/model.py:1465 — `ModelConfig.get_diff_sampling_param`.
        """
        config = HFConfig.from_folder(folder)
        defaults = {key: value for key, value in config.generation_defaults.items() if value is not None}
        if "max_new_tokens" in defaults:
            defaults["max_tokens"] = defaults.pop("max_new_tokens")
        return cls(
            str(folder), config.max_model_len, config.vocab_size, config.eos_token_ids, defaults, config,
            config.default_model_len, multimodal or MultiModalConfig(),
        )  # fmt: skip

    @classmethod
    def of(cls, model: Any, multimodal: MultiModalConfig | None = None) -> ResolvedModel:
        """For a finished model; a `ResolvedModel` is handed back."""
        if isinstance(model, ResolvedModel):
            return model
        defaults = getattr(model, "default_sampling_params", {})
        sizes = model.max_model_len, model.vocab_size, model.eos_token_ids
        return cls(model, *sizes, defaults, multimodal=multimodal or MultiModalConfig())

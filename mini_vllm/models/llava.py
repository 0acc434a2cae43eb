"""LLaVA: a vision tower, a projector of two layers, and a language model, which gets rows in the place of embeddings.

    pixels [N, 3, size, size] -> tower -> rows of one of its layers -> projector -> embeddings [N, rows, H]

Upstream twin: `vllm/model_executor/models/llava.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.gelu import get_act_fn
from mini_vllm.layers.linear import ColumnParallelLinear, RowParallelLinear
from mini_vllm.layers.module import Module
from mini_vllm.models.clip import CLIPVisionModel
from mini_vllm.models.interfaces import SupportsMultiModal
from mini_vllm.models.interfaces_base import Attention, CausalLM
from mini_vllm.models.module_mapping import MultiModelKeys
from mini_vllm.models.siglip import SiglipVisionModel
from mini_vllm.models.vision import select_vision_tokens
from mini_vllm.multimodal.processing.llava import LlavaMultiModalProcessor, LlavaProcessingInfo
from mini_vllm.multimodal.registry import MULTIMODAL_REGISTRY
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.transformers_utils.configs.llava import LlavaConfig
from mini_vllm.utils.arrays import Array

_TOWERS: dict[str, Any] = {"clip_vision_model": CLIPVisionModel, "siglip_vision_model": SiglipVisionModel}
_UNUSED = ("post_layernorm.", "head.", "embeddings.position_ids")
"""Tensors of a tower that come after the features, or repeat 0, 1, 2, …"""


class LlavaMultiModalProjector(Module):
    """Features to the language model's width: linear, activation, linear.

    Upstream: upstream/vllm/model_executor/models/llava.py:128 — `LlavaMultiModalProjector`.
    """

    def __init__(self, config: LlavaConfig, text_hidden_size: int, context: ModelContext, prefix: str) -> None:
        bias, features = config.multimodal_projector_bias, config.vision.hidden_size
        self.linear_1 = ColumnParallelLinear(features, [text_hidden_size], bias, context, f"{prefix}.linear_1")
        self.act = get_act_fn(config.projector_hidden_act)
        self.linear_2 = RowParallelLinear(text_hidden_size, text_hidden_size, bias, context, f"{prefix}.linear_2")

    def forward(self, image_features: Array) -> Array:
        """[rows, features] -> [rows, H]."""
        return self.linear_2(self.act(self.linear_1(image_features)))


@MULTIMODAL_REGISTRY.register_processor(LlavaMultiModalProcessor, info=LlavaProcessingInfo)
class LlavaForConditionalGeneration(SupportsMultiModal, CausalLM):
    """Attributes:
        language_model: of the class that `text_config` names.
        vision_tower: callable, pixels [N, 3, size, size] -> [N, rows, features].

    Upstream: upstream/vllm/model_executor/models/llava.py:504 — `LlavaForConditionalGeneration`.
    """

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        from mini_vllm.models.registry import get_model_class

        self.media: LlavaConfig = config.media
        self.language_model = get_model_class(self.media.text_architecture)(config.text_config, *args, **kwargs)
        self.context = context = self.language_model.context
        for name in ("use_mla", "attn_scale", "logits_soft_cap", "sinks"):
            setattr(self, name, getattr(self.language_model, name))
        self.model, self.lm_head = self.language_model.model, self.language_model.lm_head
        self.names = _Names(set())
        towers = context.in_floats()
        tower = _TOWERS[self.media.vision.model_type]
        self.vision_tower = tower(self.media.vision, self.media.num_vision_layers, towers, _Names.tower)
        self.multi_modal_projector = LlavaMultiModalProjector(self.media, config.hidden_size, towers, _Names.projector)

    def embed_multimodal(self, *, pixel_values: list[Array]) -> Sequence[Array]:  # type: ignore[override]
        """pixel_values: [3, size, size] for each picture. Returns [rows, H] for each.

        Upstream: upstream/vllm/model_executor/models/llava.py:661 — `LlavaForConditionalGeneration.embed_multimodal`.
        """
        features = self.vision_tower(np.stack(pixel_values))
        features = select_vision_tokens(features, self.media.vision_feature_select_strategy)
        rows = self.multi_modal_projector(features.reshape(-1, features.shape[-1]))
        return list(rows.reshape(len(features), -1, rows.shape[-1]))

    def get_language_model(self) -> Any:
        """What computes tokens."""
        return self.language_model

    def forward(self, input_ids: Any, positions: Array, attn: Attention, inputs_embeds: Array | None = None) -> Array:
        """That of the language model: a picture's rows stand in `inputs_embeds`.

        Upstream: upstream/vllm/model_executor/models/llava.py:668 — `LlavaForConditionalGeneration.forward`.
        """
        return self.language_model.forward(input_ids, positions, attn, inputs_embeds)

    def compute_logits(self, hidden: Array) -> Array:
        """Hidden rows [R, H] -> logits [R, V]."""
        return self.language_model.compute_logits(hidden)

    def get_mm_mapping(self) -> MultiModelKeys:
        """Adapters are of the language model alone.

        Upstream: upstream/vllm/model_executor/models/llava.py:732 — `LlavaForConditionalGeneration.get_mm_mapping`.
        """
        return MultiModelKeys(["model", "lm_head"], [_Names.projector], [_Names.tower])

    def lora_module_name(self, name: str) -> str:
        """The name of a module in an adapter's file, which has one of two orders of the parts -> here.

        Upstream: upstream/vllm/lora/utils.py:155 — `parse_fine_tuned_lora_name`, with the model's "weights_mapper".
        """
        pairs = (("model.language_model.", "model."), ("language_model.", ""))
        found = next((pair for pair in pairs if name.startswith(pair[0])), ("", ""))
        return found[1] + name.removeprefix(found[0])

    def adapt_to(self, names: set[str]) -> None:
        """See `_Names`."""
        self.names = _Names(names)
        self.language_model.adapt_to({self.names.own(name) for name in names})

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Those of all layers, under the names of the checkpoint."""
        for name, dest in super().weights():
            yield self.names.stored(name), dest

    def is_ignorable(self, name: str) -> bool:
        """What comes after the features, and what the language model does not need."""
        own = self.names.own(name)
        if not own.startswith(f"{_Names.tower}."):
            return self.language_model.is_ignorable(own)
        rest = own.removeprefix(f"{_Names.tower}.")
        return rest.startswith(_UNUSED) or self._is_later_layer(rest)

    def _is_later_layer(self, name: str) -> bool:
        head, _, number = name.partition("encoder.layers.")
        return (
            not head
            and number.partition(".")[0].isdigit()
            and (int(number.partition(".")[0]) >= self.media.num_vision_layers)
        )

    def repeated(self, name: str) -> str | None:
        """See `CausalLM.repeated`."""
        found = self.language_model.repeated(self.names.own(name))
        return None if found is None else self.names.stored(found)


class _Names:
    """Checkpoints have one of two orders of the parts, and the tower's names with `vision_model.` or without:

        language_model.model.layers.…   language_model.lm_head.…   vision_tower.vision_model.…   the hub's LLaVA 1.5
        model.language_model.layers.…   lm_head.…                  model.vision_tower.…          in transformers 5

    Args:
        names: of the tensors that are there.

    Upstream: upstream/vllm/model_executor/models/llava.py:517 — "hf_to_vllm_mapper = WeightsMapper(".
    """

    tower, projector = "vision_tower", "multi_modal_projector"

    def __init__(self, names: set[str]) -> None:
        of_class = any(name.startswith("model.language_model.") for name in names)
        inner = "" if any(f"{self.tower}.embeddings." in name for name in names) else ".vision_model"
        head = "model." if of_class else ""
        self._pairs = (
            ("model.", "model.language_model." if of_class else "language_model.model."),
            ("lm_head.", "lm_head." if of_class else "language_model.lm_head."),
            (f"{self.tower}.", f"{head}{self.tower}{inner}."),
            (f"{self.projector}.", f"{head}{self.projector}."),
        )

    def stored(self, name: str) -> str:
        """A layer's name -> the checkpoint's."""
        own, stored = next(pair for pair in self._pairs if name.startswith(pair[0]))
        return stored + name.removeprefix(own)

    def own(self, name: str) -> str:
        """The checkpoint's name -> a layer's; a name of neither kind as it is."""
        pair = next((pair for pair in self._pairs if name.startswith(pair[1])), ("", ""))
        return pair[0] + name.removeprefix(pair[1])

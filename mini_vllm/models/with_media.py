"""What models that take media have in common: a language model, which gets rows in the place of embeddings, and the
names of a checkpoint that has it beside a tower.

Upstream writes the first out in each model; the second is `WeightsMapper` in `vllm/model_executor/models/utils.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mini_vllm.layers.context import ModelContext
from mini_vllm.models.interfaces import SupportsMultiModal
from mini_vllm.models.interfaces_base import Attention, CausalLM
from mini_vllm.models.module_mapping import MultiModelKeys
from mini_vllm.transformers_utils.config import HFConfig
from mini_vllm.utils.arrays import Array


class StoredNames:
    """The names of layers, and those that a checkpoint has for them.

    Args:
        pairs: (beginning of a layer's name, beginning of the checkpoint's).

    Upstream: upstream/vllm/model_executor/models/utils.py:42 — `WeightsMapper`.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self.pairs = pairs

    def stored(self, name: str) -> str:
        """A layer's name -> the checkpoint's."""
        own, stored = next(pair for pair in self.pairs if name.startswith(pair[0]))
        return stored + name.removeprefix(own)

    def own(self, name: str) -> str:
        """The checkpoint's name -> a layer's; a name of neither kind as it is."""
        pair = next((pair for pair in self.pairs if name.startswith(pair[1])), ("", ""))
        return pair[0] + name.removeprefix(pair[1])


class LanguageModelWithMedia(SupportsMultiModal, CausalLM):
    """A model fills `find_names`, `embed_multimodal`, and makes its tower with `encoder_context`.

    Attributes:
        language_model: computes tokens; its layers, cache and logits are those of the whole.
        towers, connectors: the first parts of the names of all other layers.
    """

    towers: tuple[str, ...] = ()
    connectors: tuple[str, ...] = ()

    def __init__(self, config: HFConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.media = config.media
        self.language_model = self.make_language_model(config, *args, **kwargs)
        self.context = self.language_model.context
        for name in ("use_mla", "attn_scale", "logits_soft_cap", "sinks"):
            setattr(self, name, getattr(self.language_model, name))
        self.model, self.lm_head = self.language_model.model, self.language_model.lm_head
        self.names = self.find_names(set())

    def make_language_model(self, config: HFConfig, *args: Any, **kwargs: Any) -> Any:
        """Of the class that the config names."""
        from mini_vllm.models.registry import get_model_class

        return get_model_class(self.media.text_architecture)(config.text_config, *args, **kwargs)

    @property
    def use_data_parallel(self) -> bool:
        """Whether each rank has the whole tower, and takes some of the items."""
        group = self.context.group
        return self.supports_encoder_tp_data and group is not None and group.mm_encoder_tp_mode == "data"

    def encoder_context(self) -> ModelContext:
        """What the tower is made with: it is never quantized, and each rank has its share, or all."""
        context = self.context.in_floats()
        return replace(context, group=None) if self.use_data_parallel else context

    def find_names(self, names: set[str]) -> StoredNames:
        """How the checkpoint that has these tensors names them."""
        raise NotImplementedError(f"{type(self).__name__} must have find_names")

    def get_language_model(self) -> Any:
        """What computes tokens."""
        return self.language_model

    def forward(self, input_ids: Any, positions: Array, attn: Attention, inputs_embeds: Array | None = None) -> Array:
        """That of the language model: the rows of media stand in `inputs_embeds`.

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
        return MultiModelKeys(["model", "lm_head"], list(self.connectors), list(self.towers))

    def lora_module_name(self, name: str) -> str:
        """The name of a module in an adapter's file, which has one of two orders of the parts -> here.

        Upstream: upstream/vllm/lora/utils.py:155 — `parse_fine_tuned_lora_name`, with the model's "weights_mapper".
        """
        pairs = (("model.language_model.", "model."), ("language_model.", ""))
        found = next((pair for pair in pairs if name.startswith(pair[0])), ("", ""))
        return found[1] + name.removeprefix(found[0])

    def adapt_to(self, names: set[str]) -> None:
        """See `find_names`."""
        self.names = self.find_names(names)
        self.language_model.adapt_to({self.names.own(name) for name in names})

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Those of all layers, under the names of the checkpoint."""
        for name, dest in super().weights():
            yield self.names.stored(name), dest

    def is_ignorable(self, name: str) -> bool:
        """What the language model does not need."""
        return self.language_model.is_ignorable(self.names.own(name))

    def repeated(self, name: str) -> str | None:
        """See `CausalLM.repeated`."""
        found = self.language_model.repeated(self.names.own(name))
        return None if found is None else self.names.stored(found)

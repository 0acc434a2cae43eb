"""The layers of one stage of a pipeline, with placeholders for those of the others.

Upstream twin: `vllm/model_executor/models/utils.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mini_vllm.distributed.utils import get_pp_indices
from mini_vllm.layers.context import ModelContext
from mini_vllm.layers.module import Module
from mini_vllm.transformers_utils.config import HFConfig


class PPMissingLayer(Module):
    """Stands for a layer that another stage has: no weights, and its input comes out as it is.

    Upstream: upstream/vllm/model_executor/models/utils.py:604 — `PPMissingLayer`.
    """

    def __init__(self, context: ModelContext, prefix: str) -> None:
        self.prefix = prefix
        context.missing.append(prefix)

    def forward(self, x: Any, *_: Any) -> Any:
        """What came in."""
        return x


def span_of_layers(context: ModelContext, num_hidden_layers: int) -> tuple[int, int]:
    """The first layer that this process has, and the one after its last. Raises as `get_pp_indices`."""
    if context.pp is None:
        return 0, num_hidden_layers
    return get_pp_indices(num_hidden_layers, context.pp.rank_in_group, context.pp.world_size)


def is_pp_missing_parameter(name: str, context: ModelContext) -> bool:
    """Whether a tensor of the checkpoint belongs to another stage.

    Upstream: upstream/vllm/model_executor/models/utils.py:674 — `is_pp_missing_parameter`.
    """
    return any(name.startswith(f"{prefix}.") for prefix in context.missing)


def make_layers(
    num_hidden_layers: int, layer_fn: Callable[[int, str], Any], context: ModelContext, prefix: str
) -> tuple[int, int, list[Any]]:
    """The first layer of this stage, the one after its last, and a list of all layers, which has placeholders for
    those of the other stages.

    Args:
        layer_fn: (number of the layer, its prefix) -> the layer.
        prefix: of the list.

    Raises:
        ValueError: see `get_pp_indices`.

    Upstream: upstream/vllm/model_executor/models/utils.py:617 — `make_layers`.
    """
    start, end = span_of_layers(context, num_hidden_layers)
    layers = []
    for number in range(num_hidden_layers):
        name = f"{prefix}.{number}"
        layers.append(layer_fn(number, name) if start <= number < end else PPMissingLayer(context, name))
    return start, end, layers


def is_missing(layer: Any) -> bool:
    """Whether there is no such layer here: the model has none, or another stage has it."""
    return layer is None or isinstance(layer, PPMissingLayer)


def layers_here(decoder: Any) -> list[Any]:
    """The layers of a decoder that this stage has."""
    return [layer for layer in decoder.layers if not isinstance(layer, PPMissingLayer)]


def make_embedding(cls: Any, config: HFConfig, context: ModelContext, prefix: str) -> Any:
    """The embedding, which the first stage looks tokens up in, and the last one, too, multiplies with where it is tied;
    else a placeholder.

    Upstream: upstream/vllm/model_executor/models/llama.py:368 — "if get_pp_group().is_first_rank or (".
    """
    if context.is_first_rank or (config.tie_word_embeddings and context.is_last_rank):
        return cls(config.vocab_size, config.hidden_size, context, prefix)
    return PPMissingLayer(context, prefix)


def make_norm(cls: Any, config: HFConfig, context: ModelContext, prefix: str) -> Any:
    """The norm after the last layer, where that is here; else a placeholder."""
    return (
        cls(config.hidden_size, config.norm_eps, context, prefix)
        if context.is_last_rank
        else PPMissingLayer(context, prefix)
    )


def make_lm_head(cls: Any, embed_tokens: Any, config: HFConfig, context: ModelContext) -> Any:
    """The output embedding of the last stage: the embedding where it is tied. Else a placeholder."""
    if config.tie_word_embeddings:
        return embed_tokens
    if context.is_last_rank:
        return cls(config.vocab_size, config.hidden_size, context, "lm_head")
    return PPMissingLayer(context, "lm_head")

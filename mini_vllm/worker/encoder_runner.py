"""The runner's side of media: encode what the plan says, keep it by its identifier, put it where its placeholders are.

Upstream twins: `vllm/v1/worker/gpu/mm/encoder_runner.py` and `encoder_cache.py` beside it, and the parts of
`vllm/v1/worker/gpu_model_runner.py` about media.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.models.interfaces import supports_mrope, supports_multimodal
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec
from mini_vllm.utils.arrays import Array
from mini_vllm.worker.rope_state import RopeState

if TYPE_CHECKING:
    from mini_vllm.config.resolved_model import ResolvedModel
    from mini_vllm.distributed.ec_transfer.ec_connector import ECConnectorBase, ECConnectorMetadata
    from mini_vllm.worker.model_runner import ModelInputs, ModelRunner


class EncoderRunner:
    """What the runner holds where its model takes media.

    Args:
        model: obeys `SupportsMultiModal` of `models/interfaces.py`.
        embed_multimodal: in the place of the model's own; None: that.
        ec_connector: the worker's half of what brings embeddings from elsewhere, and carries them there.

    Attributes:
        encoder_cache: identifier of an item -> its embeddings [n, H]. What is in it, the scheduler decides.
        mm_features: items of the requests that the runner knows, by request id.
        rope: positions of three parts; None: the model's have one.

    Upstream: upstream/vllm/v1/worker/gpu/mm/encoder_runner.py:13 — `EncoderRunner`.
    """

    def __init__(
        self, model: Any, embed_multimodal: Callable[..., Sequence[Array]] | None = None,
        ec_connector: ECConnectorBase | None = None,
    ) -> None:  # fmt: skip
        self.model, self.embed_multimodal, self.ec_connector = model, embed_multimodal, ec_connector
        self.encoder_cache: dict[str, Array] = {}
        self.mm_features: dict[str, list[MultiModalFeatureSpec]] = {}
        self.rope = RopeState(model) if supports_mrope(model) else None

    def reset_encoder_cache(self) -> None:
        """Forget all embeddings. Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:914 — `reset_encoder_cache`."""
        self.encoder_cache.clear()

    def begin_step(self, scheduler_output: SchedulerOutput) -> None:
        """Forget and get to know requests, forget embeddings, and encode: before anything else of a step, and in steps
        without tokens too."""
        for req_id in scheduler_output.finished_req_ids:
            self.mm_features.pop(req_id, None)
            if self.rope is not None:
                self.rope.forget(req_id)
        for new in scheduler_output.scheduled_new_reqs:
            self.mm_features[new.req_id] = new.mm_features
            if self.rope is not None:
                self.rope.init_prefill_positions(new.req_id, new.prompt_token_ids, new.mm_features)
        for identifier in scheduler_output.free_encoder_mm_hashes:
            self.encoder_cache.pop(identifier, None)
        if self.ec_connector is not None:
            self._load(self.ec_connector, scheduler_output.ec_connector_metadata)
        self.execute_mm_encoder(scheduler_output.scheduled_encoder_inputs)

    def _load(self, ec_connector: ECConnectorBase, metadata: ECConnectorMetadata | None) -> None:
        """Take in what others have encoded.

        Upstream: upstream/vllm/v1/worker/ec_connector_model_runner_mixin.py:55 — `_get_ec_connector_output`.
        """
        assert metadata is not None, "the plan has no ec_connector_metadata"
        ec_connector.bind_connector_metadata(metadata)
        if ec_connector.is_consumer:
            ec_connector.start_load_caches(self.encoder_cache)
        ec_connector.clear_connector_metadata()

    def execute_mm_encoder(self, scheduled_encoder_inputs: dict[str, list[int]]) -> None:
        """Encode the items of the plan; neighbours of one modality together.

        Raises:
            ValueError: the model gives other embeddings than the items have places.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:2860 — `_execute_mm_encoder`.
        """
        self._encode(
            [self.mm_features[req_id][i] for req_id, inputs in scheduled_encoder_inputs.items() for i in inputs]
        )

    def _encode(self, items: Sequence[MultiModalFeatureSpec]) -> None:
        for modality, group in groupby(items, key=lambda item: (item.modality, sorted(item.data))):
            together = list(group)
            kwargs = {key: [item.data[key] for item in together] for key in modality[1]}
            embed = self.embed_multimodal or self.model.embed_multimodal
            outputs = [np.asarray(output) for output in embed(**kwargs)]
            wanted = [item.mm_position.get_num_embeds() for item in together]
            if [len(output) for output in outputs] != wanted:
                raise ValueError(
                    f"embed_multimodal of {type(self.model).__name__} must give {wanted} embeddings for these "
                    f"{modality[0]} items, got {[output.shape for output in outputs]}"
                )
            self.encoder_cache.update(zip((item.identifier for item in together), outputs, strict=True))
            if self.ec_connector is not None:
                for item in together:
                    self.ec_connector.save_caches(self.encoder_cache, item.identifier)

    def gather_mm_embeddings(
        self, req_ids: Sequence[str], starts: Array, positions: Array
    ) -> tuple[list[Array], Array]:
        """The embeddings that the T tokens of a step need, in their order, and which tokens they are for: bool[T].

        Args:
            starts: [rows + 1], where each request's tokens begin. positions: [T], their numbers within their request.

        Raises:
            RuntimeError: "Encoder cache miss": an item is needed that nobody has encoded.
            ValueError: another item, of another size, was encoded under the same identifier.

        Upstream: upstream/vllm/v1/worker/gpu_model_runner.py:3071 — `_gather_mm_embeddings`.
        """
        embeds, is_multimodal = [], np.zeros(len(positions), bool)
        for row, req_id in enumerate(req_ids):
            if not (features := self.mm_features[req_id]):
                continue
            at, stop = int(starts[row]), int(starts[row + 1])
            computed, end = int(positions[at]), int(positions[at]) + stop - at
            for feature, first, last in _needed(features, computed, end):
                where = feature.mm_position
                rows = slice(*where.get_embeds_indices_in_range(first, last))
                if rows.start == rows.stop:
                    continue
                if feature.identifier not in self.encoder_cache and self.ec_connector is not None:
                    self._encode([feature])  # it could not be loaded
                if (output := self.encoder_cache.get(feature.identifier)) is None:
                    raise RuntimeError(f"Encoder cache miss for {feature.identifier!r} of request {req_id!r}")
                if len(output) != where.get_num_embeds():
                    raise ValueError(
                        f"identifier {feature.identifier!r} belongs to an item of {len(output)} embeddings, but "
                        f"request {req_id!r} has {where.get_num_embeds()} places for it"
                    )
                embeds.append(output[rows])
                places = slice(at + where.offset + first - computed, at + where.offset + last - computed)
                is_multimodal[places] = True if where.is_embed is None else where.is_embed[first:last]
        return embeds, is_multimodal

    def around(self, runner: ModelRunner, inputs: ModelInputs) -> Callable[[Array, Array, Any], Array]:
        """The runner's forward pass for a step, with embeddings in the place of ids, and positions as the model has
        them."""
        req_ids, starts, forward = runner.input_batch.req_ids, inputs.metadata.query_start_loc, runner.forward

        def embedded(input_ids: Array, positions: Array, attn: Any) -> Array:
            embeds, is_multimodal = self.gather_mm_embeddings(req_ids, starts, positions)
            inputs_embeds = self.model.embed_input_ids(input_ids, embeds, is_multimodal=is_multimodal)
            if self.rope is not None:
                positions = self.rope.prepare_positions(req_ids, starts, positions)
            return forward(None, positions, attn, inputs_embeds)

        return embedded


def make_encoder(
    model: Any, vision_tower: Any = None, resolved: ResolvedModel | None = None, config: Any = None
) -> EncoderRunner | None:
    """For the runner of this model; None where it takes text alone. vision_tower: see `EngineParts`."""
    if not supports_multimodal(model):
        return None
    transfer = None if config is None else config.ec_transfer_config
    half = None if transfer is None else transfer.make_connector("worker")
    if vision_tower is None:
        return EncoderRunner(model, ec_connector=half)
    folder = None if resolved is None or resolved.hf_config is None else resolved.model
    return EncoderRunner(model, vision_tower(model, folder, config), half)


def reset_encoder_cache(worker: Any) -> None:
    """For all ranks. Upstream: upstream/vllm/v1/worker/gpu_worker.py:730 — `reset_encoder_cache`."""
    worker.model_runner.encoder.reset_encoder_cache()


def _needed(
    features: list[MultiModalFeatureSpec], start: int, end: int
) -> Iterator[tuple[MultiModalFeatureSpec, int, int]]:
    """Items that stand among the tokens `start` to `end`, and which of their placeholders do."""
    for feature in features:
        where = feature.mm_position
        if where.offset >= end:
            break
        if where.end > start:
            yield feature, max(start - where.offset, 0), min(end - where.offset, where.length)

"""What the scheduler does for media: encode an item in the step that first needs it, and cut a chunk before an item
that cannot be encoded.

The encoder has a budget of its own, and its outputs need room until the prompt has passed them. An item is encoded as a
whole, though a chunk may end in the middle of it. What cannot be encoded yet is not reached: the chunk ends before it.

Upstream twin: `vllm/v1/core/sched/scheduler.py`, where these lines stand in `schedule` and in the methods it calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mini_vllm.core.encoder_cache_manager import (
    EncoderCacheManager,
    EncoderDecoderCacheManager,
    compute_mm_encoder_budget,
)
from mini_vllm.request import Request
from mini_vllm.utils.checks import shown

if TYPE_CHECKING:
    from mini_vllm.config.resolved_model import ResolvedModel
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.core.sched.output import SchedulerOutput
    from mini_vllm.distributed.ec_transfer.ec_connector import ECConnectorBase


class EncoderInputs:
    """What the scheduler holds where its model takes media.

    Args:
        encoder_cache_manager: room for the encoder's outputs.
        max_num_encoder_input_tokens: embeddings that the encoder computes in a step.
        disable_chunked_mm_input: a chunk does not end in the middle of an item, where that can be avoided.
        shift_computed_tokens: an EAGLE head sees each token beside the next one, so an item is needed 1 token earlier.
        ec_connector: its scheduler's half, where encoder outputs come from elsewhere, or go there.

    Upstream: upstream/vllm/v1/core/sched/scheduler.py:201 — "self.max_num_encoder_input_tokens".
    """

    def __init__(
        self, encoder_cache_manager: EncoderCacheManager, max_num_encoder_input_tokens: int,
        disable_chunked_mm_input: bool = False, shift_computed_tokens: int = 0,
        ec_connector: ECConnectorBase | None = None,
    ) -> None:  # fmt: skip
        self.encoder_cache_manager = encoder_cache_manager
        self.max_num_encoder_input_tokens = max_num_encoder_input_tokens
        self.disable_chunked_mm_input, self.shift_computed_tokens = disable_chunked_mm_input, shift_computed_tokens
        self.ec_connector = ec_connector
        self.is_encoder_decoder = isinstance(encoder_cache_manager, EncoderDecoderCacheManager)

    @classmethod
    def of(cls, config: EngineConfig, model: ResolvedModel) -> EncoderInputs | None:
        """For the model of an engine; None where it takes no media.

        Raises:
            ValueError: an argument that does not go with media, or an item that may not be cut and fits no step.
        """
        transfer = config.ec_transfer_config
        if (processor := model.make_mm_processor()) is None:
            if transfer is not None:
                raise ValueError(
                    f"ec_transfer_config must be None for a model that takes no media, got {shown(transfer)}"
                )
            return None
        drafts = config.speculative_config
        for name, value, is_wrong, allowed in (
            ("runner", config.runner_type, config.runner_type != "generate", "'generate'"),
            ("method of speculative_config", drafts and drafts.method, drafts and drafts.has_weights, "'ngram'"),
            ("pipeline_parallel_size", config.pipeline_parallel_size, config.pipeline_parallel_size > 1, "1"),
            ("device", config.device, config.device in ("cuda", "torch"), "'cpu'"),
        ):
            if is_wrong:
                raise ValueError(f"{name} must be {allowed} for a model that takes media, got {value!r}")
        limits = config.scheduler
        budget, size = compute_mm_encoder_budget(limits, processor.get_mm_max_tokens_per_item())
        half = None if transfer is None else transfer.make_connector("scheduler")
        return cls(EncoderCacheManager(size), budget, limits.disable_chunked_mm_input, ec_connector=half)

    @property
    def cache_size(self) -> int:
        """Embeddings that are kept."""
        return self.encoder_cache_manager.cache_size

    def begin_step(self) -> EncoderStep:
        """For the plan of a step."""
        return EncoderStep(self)

    def plan(self, output: SchedulerOutput) -> None:
        """Put the loads of a step into its finished plan.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:914 — "if self.ec_connector is not None:".
        """
        if self.ec_connector is not None:
            output.ec_connector_metadata = self.ec_connector.build_connector_meta(output)

    def check_fits(self, request: Request) -> int:
        """Slots of cross attention that a request needs; 0 where the model has none. Raises ValueError: an item of the
        request can never be encoded."""
        most = min(self.max_num_encoder_input_tokens, self.encoder_cache_manager.cache_size)
        for index, feature in enumerate(request.mm_features):
            if (num_embeds := feature.mm_position.get_num_embeds()) > most:
                raise ValueError(
                    f"{feature.modality} {index} of request {request.request_id!r} has {num_embeds} embeddings, but "
                    f"the encoder's budget and cache allow at most {most}"
                )
        return sum(map(request.get_num_encoder_embeds, range(len(request.mm_features)))) * self.is_encoder_decoder

    def drop_step(self, output: SchedulerOutput) -> None:
        """The model failed: nobody may count on what it was to encode. Some of those that asked for it may be gone, so
        everything is forgotten, and encoded again where it is needed."""
        manager = self.encoder_cache_manager
        encodes = output.scheduled_encoder_inputs or self.ec_connector is not None
        if encodes and not self.is_encoder_decoder:
            forgotten = [*manager.freed, *manager.cached]
            manager.reset()
            manager.freed += forgotten

    def free_passed(self, request: Request) -> None:
        """A step has been executed: what the prompt has passed is needed no more, its keys and values are there.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1667 — `_free_encoder_inputs`.
        """
        manager, computed = self.encoder_cache_manager, request.num_computed_tokens
        for input_id in manager.get_cached_input_ids(request):
            if request.mm_features[input_id].mm_position.end <= computed or (self.is_encoder_decoder and computed > 0):
                manager.free_encoder_input(request, input_id)


class EncoderStep:
    """The encoder's part of a plan.

    Attributes:
        compute_budget: embeddings that are left to be computed.
        scheduled: request id -> the places of its items that are encoded in this step.
        request, inputs: the request that was clamped last, and the items that it would have encoded.
        loads: those of its items that would come from elsewhere.
    """

    def __init__(self, room: EncoderInputs) -> None:
        self.room, self.manager = room, room.encoder_cache_manager
        self.compute_budget = room.max_num_encoder_input_tokens
        self.scheduled: dict[str, list[int]] = {}
        self.request: Request | None = None
        self.inputs: list[int] = []
        self.loads: list[int] = []

    def clamp(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """So many of `num_new_tokens` that nothing is reached which is not encoded. 0: the next token is of such an
        item. What is here already counts as needed from now on.

        With an EAGLE head the release asks for one token more than the last, but looks for embeddings only up to the
        last; and it stops for ever one token before an item for which there is no room, or none to be whole, where the
        item before still needs that token. Here the first is encoded, and the head does without the second.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:1096 — `_try_schedule_encoder_inputs`.
        """
        self.request, self.inputs, self.loads = request, [], []
        room, shift, manager = self.room, self.room.shift_computed_tokens, self.manager
        budget, num_embeds_to_schedule, identifiers = self.compute_budget, 0, set()
        end = num_computed_tokens + num_new_tokens
        for index, feature in enumerate(request.mm_features if num_new_tokens > 0 else ()):
            where = feature.mm_position
            if where.offset >= end + shift:
                break
            if room.is_encoder_decoder and num_computed_tokens > 0:
                continue
            if not room.is_encoder_decoder and (
                where.end <= num_computed_tokens
                or feature.identifier in identifiers
                or manager.check_and_update_cache(request, index)
            ):
                continue
            before = where.offset - shift
            if room.disable_chunked_mm_input and num_computed_tokens < before and end < where.end:
                return before - num_computed_tokens
            if not manager.can_allocate(request, index, budget, num_embeds_to_schedule):
                stop = before if num_computed_tokens < before else where.offset
                return max(0, stop - num_computed_tokens)
            reached = max(0, num_computed_tokens - where.offset), min(where.length, end + shift - where.offset)
            first, last = where.get_embeds_indices_in_range(*reached)
            if first == last:
                continue
            num_embeds_to_schedule += where.get_num_embeds()
            identifiers.add(feature.identifier)
            if room.ec_connector is not None and room.ec_connector.has_cache_item(feature.identifier):
                self.loads.append(index)
                continue
            budget -= where.get_num_embeds()
            self.inputs.append(index)
        return num_new_tokens

    def num_encoder_tokens(self, request: Request) -> int:
        """Embeddings that the decoder of an encoder-decoder model looks at, for the request that was clamped last:
        its cross-attention blocks have a slot for each."""
        return sum(map(request.get_num_encoder_embeds, self.inputs)) if self.room.is_encoder_decoder else 0

    def commit(self, request: Request) -> None:
        """The request has slots: its items are encoded in this step."""
        if request is not self.request or not (self.inputs or self.loads):
            return
        if self.inputs:
            self.scheduled[request.request_id] = self.inputs
        for index in (*self.inputs, *self.loads):
            self.manager.allocate(request, index)
            if self.room.ec_connector is not None:
                self.room.ec_connector.update_state_after_alloc(request, index)
        self.compute_budget -= sum(map(request.get_num_encoder_embeds, self.inputs))
        self.request, self.inputs, self.loads = None, [], []

    def take_back(self, victim: Request, running: Sequence[Request]) -> None:
        """A request is preempted in the step that gave it something: its items are not encoded for it. Another one of
        the plan that counts on such an item has it encoded instead; otherwise it counts as not encoded.

        The pinned release keeps it as if it were: the next one that needs it finds an empty place.
        """
        for index in self.scheduled.pop(victim.request_id, ()):
            identifier = victim.mm_features[index].identifier
            users = self.manager.cached.get(identifier, ())
            heir = next((request for request in running if request.request_id in users), None)
            if heir is not None:
                self.scheduled.setdefault(heir.request_id, []).append(_place(heir, identifier))
                continue
            self.compute_budget += victim.get_num_encoder_embeds(index)
            if not self.room.is_encoder_decoder:
                self.manager.forget(victim, index)
            if self.request is not None and self.request is not victim and self.request.request_id in users:
                self.inputs.append(_place(self.request, identifier))


def _place(request: Request, identifier: str) -> int:
    return [feature.identifier for feature in request.mm_features].index(identifier)

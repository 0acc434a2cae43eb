"""Which embeddings the model runner keeps, counted by the scheduler. Upstream twin:
`vllm/v1/core/encoder_cache_manager.py`.

The encoder's output for an item is needed as long as a chunk of the prompt still holds a part of it, and once more
where somebody sends the same item again. The manager counts embeddings, not bytes; the arrays are the runner's, which
is told what to forget.
"""

from __future__ import annotations

from collections.abc import Mapping

from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.request import Request
from mini_vllm.utils.checks import is_int


class EncoderCacheManager:
    """Room for the outputs of the encoder, shared by all requests that have the same item.

    Args:
        cache_size: embeddings that fit.

    Attributes:
        num_free_slots: embeddings for which there is room at once.
        num_freeable_slots: embeddings for which there is room once everything that nobody needs is forgotten.
        cached: identifier of an item -> ids of the requests that need it now, perhaps none.
        sizes: the embeddings of what is cached. Upstream asks whoever frees an item, so that a request which has the
            identifier for an item of another size leaves the counters wrong for ever.
        freeable: identifiers that nobody needs, and their embeddings; the one that has waited longest goes first.
        freed: forgotten since `get_freed_mm_hashes` was called.

    Raises:
        ValueError: `cache_size` is no whole number from 0 on.

    Upstream: upstream/vllm/v1/core/encoder_cache_manager.py:17 — `EncoderCacheManager`.
    """

    def __init__(self, cache_size: int) -> None:
        if not is_int(cache_size) or cache_size < 0:
            raise ValueError(f"cache_size must be a whole number of embeddings from 0 on, got {cache_size!r}")
        self.cache_size = self.num_free_slots = self.num_freeable_slots = cache_size
        self.cached: dict[str, set[str]] = {}
        self.sizes: dict[str, int] = {}
        self.freeable: dict[str, int] = {}
        self.freed: list[str] = []

    def reset(self) -> None:
        """Forget everything: the weights of the encoder have changed. The runner has to forget as well."""
        self.cached.clear()
        self.sizes.clear()
        self.freeable.clear()
        self.freed.clear()
        self.num_free_slots = self.num_freeable_slots = self.cache_size

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        """Whether the item has been encoded. If so, the request needs it from now on."""
        mm_hash = request.mm_features[input_id].identifier
        users = self.cached.get(mm_hash)
        if users is None:
            return False
        if not users:
            self.num_freeable_slots -= self.freeable.pop(mm_hash)
        users.add(request.request_id)
        return True

    def can_allocate(
        self, request: Request, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        """Whether an item can be encoded and kept, beside the `num_embeds_to_schedule` embeddings that are sure to be.
        If need be, what nobody needs is forgotten for it, the oldest first."""
        num_embeds = request.get_num_encoder_embeds(input_id)
        if num_embeds > encoder_compute_budget:
            return False
        num_embeds += num_embeds_to_schedule
        if num_embeds > self.num_free_slots and num_embeds > self.num_freeable_slots:
            return False
        while num_embeds > self.num_free_slots:
            mm_hash = next(iter(self.freeable))
            self.num_free_slots += self.freeable.pop(mm_hash)
            del self.cached[mm_hash], self.sizes[mm_hash]
            self.freed.append(mm_hash)
        return True

    def allocate(self, request: Request, input_id: int) -> None:
        """Take the room that `can_allocate` has found."""
        num_embeds = request.get_num_encoder_embeds(input_id)
        assert self.num_free_slots >= num_embeds and self.num_freeable_slots >= num_embeds
        mm_hash = request.mm_features[input_id].identifier
        self.cached.setdefault(mm_hash, set()).add(request.request_id)
        self.sizes[mm_hash] = num_embeds
        self.num_free_slots -= num_embeds
        self.num_freeable_slots -= num_embeds

    def forget(self, request: Request, input_id: int) -> None:
        """The item is not encoded after all: its request was preempted in the step that was to do it."""
        mm_hash = request.mm_features[input_id].identifier
        num_embeds = self.sizes.pop(mm_hash)
        del self.cached[mm_hash]
        self.num_free_slots += num_embeds
        self.num_freeable_slots += num_embeds

    def get_cached_input_ids(self, request: Request) -> set[int]:
        """The items of a request that are here, whether it needs them or not. A set, as upstream: its order, the same
        in every process, is that in which they become freeable."""
        return {i for i, feature in enumerate(request.mm_features) if feature.identifier in self.cached}

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        """The request does not need this item any more; it is kept until the room is needed."""
        mm_hash = request.mm_features[input_id].identifier
        users = self.cached.get(mm_hash)
        if not users:
            return
        users.discard(request.request_id)
        if not users:
            self.freeable[mm_hash] = num_embeds = self.sizes[mm_hash]
            self.num_freeable_slots += num_embeds

    def free(self, request: Request) -> None:
        """The request needs nothing any more: it has ended or was preempted."""
        for input_id in self.get_cached_input_ids(request):
            self.free_encoder_input(request, input_id)

    def get_freed_mm_hashes(self) -> list[str]:
        """What the runner has to forget."""
        freed, self.freed = self.freed, []
        return freed


class EncoderDecoderCacheManager(EncoderCacheManager):
    """For a model whose decoder looks at the encoder's output through cross attention: one pass of it puts keys and
    values into the cross-attention blocks, so nothing is shared, and the runner forgets the output a step later.

    Attributes:
        held: how many embeddings each input takes that waits for its pass, by request id and place. The pinned release
            gives the room back at every step of a request, and to requests that have never taken any.
        allocated, to_free: identifiers of this step and of the one before.

    Upstream: upstream/vllm/v1/core/encoder_cache_manager.py:323 — `EncoderDecoderCacheManager`.
    """

    def __init__(self, cache_size: int) -> None:
        super().__init__(cache_size)
        self.held: dict[tuple[str, int], int] = {}
        self.allocated: list[str] = []
        self.to_free: list[str] = []

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.held.clear()
        self.allocated.clear()
        self.to_free.clear()

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        """False: nothing is shared."""
        return False

    def can_allocate(
        self, request: Request, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        """Whether an input can be encoded."""
        num_embeds = request.get_num_encoder_embeds(input_id)
        return num_embeds <= encoder_compute_budget and num_embeds + num_embeds_to_schedule <= self.num_free_slots

    def allocate(self, request: Request, input_id: int) -> None:
        """Take the room."""
        num_embeds = request.get_num_encoder_embeds(input_id)
        self.num_free_slots -= num_embeds
        self.held[request.request_id, input_id] = num_embeds
        self.allocated.append(request.mm_features[input_id].identifier)

    def get_cached_input_ids(self, request: Request) -> set[int]:
        """All of them: `free_encoder_input` knows which hold room."""
        return set(range(len(request.mm_features)))

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        """The pass is over, or will not come."""
        self.num_free_slots += self.held.pop((request.request_id, input_id), 0)

    def get_freed_mm_hashes(self) -> list[str]:
        """What the step before has encoded: its cross-attention blocks are filled."""
        to_free, self.to_free, self.allocated = self.to_free, self.allocated, []
        return to_free


def compute_mm_encoder_budget(
    scheduler_config: SchedulerConfig, mm_max_toks_per_item: Mapping[str, int]
) -> tuple[int, int]:
    """Embeddings that the encoder computes in a step, and embeddings that are kept: as the settings say, and at least
    one item of any kind. mm_max_toks_per_item: embeddings of the largest item, by modality; none: (0, 0).

    Raises:
        ValueError: items may not be cut, and the largest does not fit a step.

    Upstream: upstream/vllm/v1/core/encoder_cache_manager.py:269 — `compute_mm_encoder_budget`.
    """
    if not mm_max_toks_per_item:
        return 0, 0
    most = max(mm_max_toks_per_item.values())
    if scheduler_config.disable_chunked_mm_input and most > scheduler_config.max_num_batched_tokens:
        raise ValueError(
            f"max_num_batched_tokens must be at least {most}, the embeddings of the largest item, where "
            f"disable_chunked_mm_input is set, got {scheduler_config.max_num_batched_tokens}"
        )
    compute_budget = max(scheduler_config.max_num_encoder_input_tokens, most)
    return compute_budget, max(scheduler_config.encoder_cache_size, most)

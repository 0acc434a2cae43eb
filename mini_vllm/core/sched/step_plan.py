"""The plan of a step while the scheduler is making it, and how it becomes a `SchedulerOutput`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.request import Request

if TYPE_CHECKING:
    from mini_vllm.core.sched.encoder_inputs import EncoderStep
    from mini_vllm.core.sched.mamba_split import MambaBlockAlignedSplit


@dataclass(slots=True)
class StepPlan:
    """What has been given out so far. `token_budget` is what is left, `long_prefill_token_threshold` what one request
    gets of it at most (0: all). `split`: where a step of a prompt has to end; None: anywhere. `encoder`: its part,
    where the model takes media.

    Upstream keeps these as local variables of `Scheduler.schedule`.
    """

    token_budget: int
    long_prefill_token_threshold: int = 0
    split: MambaBlockAlignedSplit | None = None
    encoder: EncoderStep | None = None
    is_plain: bool = field(init=False)  # neither of them
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    new_blocks: dict[str, KVCacheBlocks] = field(default_factory=dict)
    running: list[Request] = field(default_factory=list)
    new: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_plain = self.split is None and self.encoder is None

    def clamp(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Tokens for one request in this step, from its token `num_computed_tokens` on: no more than it lacks
        (`num_new_tokens`), than its own cap, and than what is left of the budget; nothing of an item that cannot be
        encoded; 0 where it has to end with a block and none fits."""
        threshold = self.long_prefill_token_threshold
        if 0 < threshold < num_new_tokens:
            num_new_tokens = threshold
        num_new_tokens = num_new_tokens if num_new_tokens < self.token_budget else self.token_budget
        if self.is_plain:
            return num_new_tokens
        if self.encoder is not None and request.mm_features:
            num_new_tokens = self.encoder.clamp(request, num_computed_tokens, num_new_tokens)
        return num_new_tokens if self.split is None else self.split(request, num_computed_tokens, num_new_tokens)

    def cuts(self, num_new_tokens: int) -> bool:
        """Whether the budget, and not a request's own cap, leaves it less than it lacks."""
        return min(num_new_tokens, self.long_prefill_token_threshold or num_new_tokens) > self.token_budget

    def refuse(self, request: Request) -> bool:
        """A request that waits cannot be admitted, so that it needs no item yet. False."""
        if self.encoder is not None:
            self.encoder.manager.free(request)
        return False

    def add(self, request: Request, num_new_tokens: int, new_blocks: KVCacheBlocks) -> None:
        """Give `num_new_tokens` of the budget to a request."""
        self.num_scheduled_tokens[request.request_id] = num_new_tokens
        self.new_blocks[request.request_id] = new_blocks
        self.token_budget -= num_new_tokens
        if self.encoder is not None:
            self.encoder.commit(request)

    def remove(self, request: Request) -> None:
        """Take back what a running request was given in this step: it has just been preempted."""
        self.running.remove(request)
        self.token_budget += self.num_scheduled_tokens.pop(request.request_id)
        del self.new_blocks[request.request_id]
        self.spec_decode_tokens.pop(request.request_id, None)
        if self.encoder is not None:
            self.encoder.take_back(request, self.running)

    def make_output(self, finished_req_ids: set[str], previously_scheduled: set[str]) -> SchedulerOutput:
        """The finished plan: new requests in full, the others as differences."""
        new_reqs = [
            NewRequestData(
                request.request_id, request.prompt_token_ids, request.sampling_params,
                self.new_blocks[request.request_id].get_block_ids(), request.num_computed_tokens, request.lora_request,
                request.mm_features, list(request.output_token_ids),
            )
            for request in self.new
        ]  # fmt: skip
        encoder = self.encoder
        output = SchedulerOutput(
            scheduled_new_reqs=new_reqs,
            scheduled_cached_reqs=self._make_cached_request_data(previously_scheduled),
            num_scheduled_tokens=self.num_scheduled_tokens,
            total_num_scheduled_tokens=sum(self.num_scheduled_tokens.values()),
            scheduled_spec_decode_tokens=self.spec_decode_tokens,
            preempted_req_ids={request.request_id for request in self.preempted},
            finished_req_ids=finished_req_ids,
            scheduled_encoder_inputs={} if encoder is None else encoder.scheduled,
            free_encoder_mm_hashes=[] if encoder is None else encoder.manager.get_freed_mm_hashes(),
        )
        if encoder is not None:
            encoder.room.plan(output)
        return output

    def _make_cached_request_data(self, previous: set[str]) -> CachedRequestData:
        """Upstream: upstream/vllm/v1/core/sched/scheduler.py:1036 — `_make_cached_request_data`."""
        requests = self.running + self.resumed
        blocks = [self.new_blocks[request.request_id] for request in requests]
        return CachedRequestData(
            req_ids=[request.request_id for request in requests],
            resumed_req_ids={request.request_id for request in self.resumed},
            new_block_ids=[b.get_block_ids() if any(b.blocks) else None for b in blocks],
            num_computed_tokens=[request.num_computed_tokens for request in requests],
            num_output_tokens=[len(r.output_token_ids) + r.num_output_placeholders for r in requests],
            all_token_ids={r.request_id: list(r.all_token_ids) for r in requests if r.request_id not in previous},
        )

"""The limits of a step. Upstream twin: `vllm/config/scheduler.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from mini_vllm.config.utils import flag, one_of, whole_number

POLICIES = ("fcfs", "priority")


@dataclass
class SchedulerConfig:
    """Limits of a step.

    `max_num_batched_tokens` is the token budget of a step. `max_num_seqs` caps the running requests; unset, it is 256
    or the budget where that is less. `long_prefill_token_threshold` caps the tokens of one request in a step (0: no
    cap). With `scheduler_reserve_full_isl` a request is admitted only when its whole input fits the free blocks.
    `async_scheduling` plans a step before the results of the one before are taken in. It is upstream's default; here,
    where the model runs in the calling thread, it hides nothing and shows only the decisions.
    `stream_interval`: tokens of a request that are shown together, after its first, which is shown at once.
    `runner_type`: "generate" or "pooling", as the model turns out to be.
    `disable_chunked_mm_input`: a chunk of a prompt does not end within an item, where that can be avoided.
    `max_num_encoder_input_tokens`, `encoder_cache_size`: embeddings that the encoder computes in a step, and that are
    kept; both as many as the budget's tokens, and no fewer than the largest item has.
    `disable_hybrid_kv_cache_manager`: a model with full and with sliding layers keeps all blocks of all layers.
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int | None = None
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    scheduling_policy: str = "fcfs"
    async_scheduling: bool = False
    disable_hybrid_kv_cache_manager: bool = False
    stream_interval: int = 1
    runner_type: str = "generate"
    disable_chunked_mm_input: bool = False
    max_num_encoder_input_tokens: int = field(init=False)
    encoder_cache_size: int = field(init=False)

    def __post_init__(self) -> None:
        whole_number("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        if self.max_num_seqs is None:
            self.max_num_seqs = min(256, self.max_num_batched_tokens)
        whole_number("max_num_seqs", self.max_num_seqs, 1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens must be at least max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_batched_tokens}"
            )
        whole_number("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        whole_number("stream_interval", self.stream_interval, 1)
        self.max_num_encoder_input_tokens = self.encoder_cache_size = self.max_num_batched_tokens
        one_of("scheduling_policy", self.scheduling_policy, POLICIES)
        for name in (
            "enable_chunked_prefill",
            "scheduler_reserve_full_isl",
            "async_scheduling",
            "disable_chunked_mm_input",
        ):
            flag(name, getattr(self, name))

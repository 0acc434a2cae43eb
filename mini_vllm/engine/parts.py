"""The parts of the engine that can be replaced, in one place: ours by default, a learner's where she plugs hers in.

Upstream has plug points of its own for the same need: the scheduler's class is a setting
(upstream/vllm/v1/core/sched/interface.py:36 — `SchedulerInterface`), attention backends and platforms are registered.

Nothing here knows the course. `parts_from_labs` asks whoever is installed as `mini_vllm.engine_parts` (an entry point,
see `plugins`), when somebody wants lab code in the engine, and only then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.core.block_pool import BlockPool
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.core.sched.utils import check_stop
from mini_vllm.plugins.engine_parts import ENGINE_PARTS_GROUP, load_provider
from mini_vllm.request import Request
from mini_vllm.sample.sampler import Sampler


class PartError(RuntimeError):
    """A part that was plugged in broke a rule of the engine; the message names the part, its lab and the rule.

    Attributes:
        part, lab: whose fault it is, for example "block pool" and "02-01".
        rule: the invariant broken ("I1" … "S5"), "" where the fault has no number.
    """

    def __init__(self, message: str, part: str = "", lab: str = "", rule: str = "") -> None:
        super().__init__(message)
        self.part, self.lab, self.rule = part, lab, rule


def make_scheduler(
    config: SchedulerConfig, kv_cache_manager: KVCacheManager, max_model_len: int, **held: Any
) -> Scheduler:
    """Our scheduler for these settings; `held`: what it holds beside them, by the names of `Scheduler`."""
    if not kv_cache_manager.coordinator.is_plain:
        from mini_vllm.core.sched.mamba_split import make_mamba_split

        coordinator = kv_cache_manager.coordinator
        held["mamba_split"] = make_mamba_split(coordinator.kv_cache_config, coordinator.use_eagle)
    if config.runner_type == "pooling":
        from mini_vllm.core.sched.pooling_scheduler import PoolingScheduler

        return PoolingScheduler(config, kv_cache_manager, max_model_len, **held)
    scheduler_class = AsyncScheduler if config.async_scheduling else Scheduler
    return scheduler_class(config, kv_cache_manager, max_model_len, **held)


@dataclass(frozen=True)
class EngineParts:
    """What `EngineCore` is put together from. Each is called as our own is.

    Attributes:
        block_pool: (num_blocks, enable_caching) -> a `BlockPool`.
        hash_block_tokens: hashes a full block; None: ours, of `core/kv_cache_utils.py`.
        scheduler: (config, kv_cache_manager, max_model_len, **held) -> a `Scheduler`; `held`: as its keywords.
        check_stop: (request, max_model_len) -> whether the request has ended.
        model: (model, its folder or None, config) -> the model that is served.
        vision_tower: (model, its folder or None, config) -> what encodes pictures in the place of the model's own
            `embed_multimodal`; None: that. It must give as many embeddings for each as the model's.
        sampler: () -> a `Sampler`.
        attention: backend class, see `attention/backends/registry.py`; None: the one that `attention_backend` names.
        dp_group: the ranks of all replicas, see `WorkerParts`.
        jump_forward: (vocabulary, tokenizer) -> a `JumpForward`, where the settings want one; None: ours.
        fit: (parts, config) -> the parts that serve under these settings; called once, before any of them is made.
        on_start: called once with the finished `EngineCore`.
        origins: part -> where it comes from, in words; empty: all ours.
    """

    block_pool: Callable[[int, bool], Any] = BlockPool
    hash_block_tokens: Callable[..., bytes] | None = None
    scheduler: Callable[..., Scheduler] = make_scheduler
    check_stop: Callable[[Request, int], bool] = check_stop
    model: Callable[[Any, str | None, Any], Any] = lambda model, folder, config: model
    vision_tower: Callable[[Any, str | None, Any], Callable[..., Sequence[Any]]] | None = None
    sampler: Callable[[], Sampler] = Sampler
    attention: Any = None
    dp_group: Any = None
    jump_forward: Any = None
    fit: Callable[[EngineParts, EngineConfig], EngineParts] = lambda parts, config: parts
    on_start: Callable[[Any], None] = lambda core: None
    origins: dict[str, str] = field(default_factory=dict)


def parts_from_labs(with_labs: str | Sequence[str] | EngineParts | None) -> EngineParts:
    """Parts from the labs of the course; which one came from where is printed to stderr.

    Args:
        with_labs: "all", or lab numbers such as ["02-01", "03-01"]. They are the learner's `starter.py`; the word
            "solution" takes the references instead. None: our own parts; ready-made parts are handed back.

    Raises:
        ImportError: nobody provides them, or the provider cannot be loaded; the message says what to run.
        ValueError: a name that is no lab with a plug.
    """
    if with_labs is None:
        return EngineParts()
    if isinstance(with_labs, EngineParts):
        return with_labs
    if not (isinstance(with_labs, Sequence) and with_labs and all(isinstance(x, str) for x in with_labs)):
        said = "must be a string or a list of strings, such as 'all' or ['02-01']"
        raise ValueError(f"with_labs {said}, got {with_labs!r}")
    return load_provider(ENGINE_PARTS_GROUP, "with_labs")(with_labs)

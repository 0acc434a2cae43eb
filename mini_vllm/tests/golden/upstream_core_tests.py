"""Runs the pinned release's own `tests/v1/core` against our scheduler and KV cache, through an adapter.

Run by hand from the repository root under the CPU build of the pinned release, with the config-only stand-ins of the
models that those tests name:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/upstream_core_tests.py

Each test function is upstream's, and so are its requests, specs and settings; in its module the names of what is under
test (`BlockPool`, `KVCacheManager`, `Scheduler`, …) are ours. A test counts as carried only where ours was made and
used. The result is the table in `docs/upstream-tests.md`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402
import vllm.v1.request  # noqa: E402, F401  # the installed one; below only `tests` comes from the pinned tree

sys.path.append(str(ROOT / "upstream"))

from mini_vllm import request as our_request  # noqa: E402
from mini_vllm.config.scheduler import SchedulerConfig  # noqa: E402
from mini_vllm.config.speculative import SpeculativeConfig  # noqa: E402
from mini_vllm.core import (  # noqa: E402
    block_pool,
    chunked_local_attention_manager,
    cross_attention_manager,
    encoder_cache_manager,
    kv_cache_groups,
    kv_cache_manager,
    kv_cache_utils,
    sliding_window_manager,
)
from mini_vllm.core.kv_cache_specs import ChunkedLocalAttentionSpec, CrossAttentionSpec, MambaSpec  # noqa: E402
from mini_vllm.core.sched import async_scheduler, request_table, scheduler, step_plan, utils  # noqa: E402
from mini_vllm.core.sched.drafts import Drafts  # noqa: E402
from mini_vllm.core.sched.encoder_inputs import EncoderInputs  # noqa: E402
from mini_vllm.distributed import kv_events  # noqa: E402
from mini_vllm.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from mini_vllm.multimodal import inputs  # noqa: E402
from mini_vllm.spec_decode.metrics import SpecDecodingStats  # noqa: E402

FILES = (
    "kv_cache_utils", "prefix_caching", "single_type_kv_cache_manager", "encoder_cache_manager", "scheduler",
    "async_scheduler",
)  # fmt: skip
USED: list[str] = []
# Tests that look at something which stands elsewhere here, or is not here.
WHY = {
    "test_prefix_cache_stats_disabled": "a switch for statistics; ours are always counted",
    "test_kv_cache_events_with_lora": "LoRA",
    "test_block_stored_event_group_idx": "events annotated when they are taken; ours, when made",
    "test_abort_request_when_structured_output_fsm_cannot_advance": "a method of upstream's class over a stand-in",
    "test_block_stored_event_group_idx_out_of_bounds": "events annotated when they are taken; ours, when made",
    "test_block_stored_event_group_idx_multiple_groups": "events annotated when they are taken; ours, when made",
    "test_scheduler_reset_prefix_cache": "a waiting queue that can be indexed",
    "test_scheduler_stats_waiting_queues": "queues of requests that wait for a grammar or a transfer",
    "test_scheduler_no_ec_connector_by_default": "an encoder cache connector",
    "test_remote_kv_promotion_keeps_fcfs_with_grammar_prefix": "a KV connector",
}


class NotOurs(Exception):
    """The test needs what is not here; the message names it."""


def need(absent: Any, what: str) -> None:
    """Raise where the test asks for something that is not here."""
    if absent:
        raise NotOurs(what)


def our_spec(spec: Any) -> Any:
    """Our twin of a spec."""
    common = {"block_size": spec.block_size}
    kind = type(spec).__name__
    if kind == "MambaSpec":
        dtypes = [str(dtype).removeprefix("torch.") for dtype in spec.dtypes]
        shapes = tuple((shape,) if isinstance(shape, int) else shape for shape in spec.shapes)  # its tests are lax here
        dtypes += dtypes[-1:] * (len(shapes) - len(dtypes))
        return MambaSpec(
            spec.block_size, shapes, tuple(dtypes), spec.page_size_padded, mamba_cache_mode=spec.mamba_cache_mode,
            num_speculative_blocks=spec.num_speculative_blocks,
        )  # fmt: skip
    ours = "FullAttentionSpec", "SlidingWindowSpec", "CrossAttentionSpec", "ChunkedLocalAttentionSpec"
    need(kind not in ours, f"layers of type {kind}")
    common |= {"num_kv_heads": spec.num_kv_heads, "head_size": spec.head_size}
    if kind == "ChunkedLocalAttentionSpec":
        return ChunkedLocalAttentionSpec(**common, attention_chunk_size=spec.attention_chunk_size)
    if kind == "CrossAttentionSpec":
        return CrossAttentionSpec(**common)
    if kind == "SlidingWindowSpec":
        return SlidingWindowSpec(**common, sliding_window=spec.sliding_window)
    return FullAttentionSpec(**common, sliding_window=spec.sliding_window)


class Pool(block_pool.BlockPool):
    """Takes the pool's calls in upstream's form too."""

    def __init__(
        self, num_gpu_blocks: int, enable_caching: bool = True, hash_block_size: int = 0,
        enable_kv_cache_events: bool = False, metrics_collector: Any = None,
    ) -> None:  # fmt: skip
        need(metrics_collector, "a metrics collector")
        USED.append("BlockPool")
        super().__init__(num_gpu_blocks, enable_caching, enable_kv_cache_events)
        self.hash_block_size = hash_block_size

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: list[int] | None = None) -> Any:
        if kv_cache_group_ids is None:
            return super().get_cached_block(block_hash)
        blocks = [
            super(Pool, self).get_cached_block(kv_cache_utils.make_block_hash_with_group_id(block_hash, group))
            for group in kv_cache_group_ids
        ]
        return None if None in blocks else blocks

    def cache_full_blocks(self, *args: Any, **kwargs: Any) -> None:
        if "request" not in kwargs:
            return super().cache_full_blocks(*args, **kwargs)
        spec = FullAttentionSpec(kwargs["block_size"], num_kv_heads=1, head_size=1)
        from mini_vllm.core.single_type_kv_cache_manager import FullAttentionManager

        request, group = kwargs["request"], kwargs["kv_cache_group_id"]
        need(getattr(request, "lora_request", None), "LoRA")
        manager = FullAttentionManager(spec, self, group, self.hash_block_size)
        manager._cache_block_mask = lambda *where: kwargs.get("block_mask")  # type: ignore[method-assign]
        manager.req_to_blocks[request.request_id] = kwargs["blocks"]
        manager.num_cached_block[request.request_id] = kwargs["num_cached_blocks"]
        manager.cache_blocks(request, kwargs["num_full_blocks"] * spec.block_size, spec.block_size + 1)
        if self.kv_event_queue:  # the pool's own event has no words about the spec
            self.kv_event_queue[-1].kv_cache_spec_kind = None
        return None

    def free_blocks(self, ordered_blocks: Any) -> None:
        """Without our check: some tests free blocks that they never took."""
        blocks = list(ordered_blocks)
        for block in blocks:
            block.ref_cnt -= 1
        self.free_block_queue.append_n([block for block in blocks if block.ref_cnt == 0 and not block.is_null])

    def evict_blocks(self, blocks: Any) -> None:
        super().evict_blocks([self.blocks[block] if isinstance(block, int) else block for block in blocks])


def make_manager(kv_cache_config: Any, max_model_len: int, hash_block_size: int = 0, **settings: Any) -> Any:
    """Our `KVCacheManager` from upstream's arguments."""
    need(settings.get("metrics_collector"), "a metrics collector")
    groups = [KVCacheGroupSpec(list(g.layer_names), our_spec(g.kv_cache_spec)) for g in kv_cache_config.kv_cache_groups]
    need(not groups, "a model without attention")
    USED.append("KVCacheManager")
    manager = kv_cache_manager.KVCacheManager(
        kv_cache_config=KVCacheConfig(kv_cache_config.num_blocks, [], groups),
        enable_caching=settings.get("enable_caching", True),
        max_model_len=max_model_len,
        block_pool=Pool,  # type: ignore[arg-type]
        max_num_batched_tokens=settings.get("max_num_batched_tokens"),
        enable_kv_cache_events=settings.get("enable_kv_cache_events", False),
        use_eagle=settings.get("use_eagle", False),
    )
    need(manager.hash_block_size != hash_block_size, "a hash block size of its own")
    manager.block_pool.hash_block_size = hash_block_size  # type: ignore[attr-defined]
    if not settings.get("log_stats"):
        manager.make_prefix_cache_stats = lambda: None  # type: ignore[attr-defined]
    return manager


class _InTheirForm:
    """Takes a manager's calls in upstream's form."""

    def __init__(self, spec: Any, block_pool: Any, enable_caching: bool, kv_cache_group_id: int, **caps: Any) -> None:
        USED.append(type(self).__name__)
        super().__init__(our_spec(spec), block_pool, kv_cache_group_id, spec.block_size, *caps.values())  # type: ignore[call-arg]
        for name in ("req_to_blocks", "num_cached_block"):
            setattr(self, name, _Default(list) if name == "req_to_blocks" else {})

    def allocate_new_computed_blocks(
        self, request_id: str, new_computed_blocks: Any, num_local_computed_tokens: int = 0,
        num_external_computed_tokens: int = 0,
    ) -> None:  # fmt: skip
        need(num_external_computed_tokens, "a KV connector")
        super().allocate_new_computed_blocks(request_id, new_computed_blocks, num_local_computed_tokens)  # type: ignore[misc]


class Window(_InTheirForm, sliding_window_manager.SlidingWindowManager):  # type: ignore[misc]
    """Sliding windows."""


class Chunked(_InTheirForm, chunked_local_attention_manager.ChunkedLocalAttentionManager):  # type: ignore[misc]
    """Chunks."""


class _Default(dict):  # type: ignore[type-arg]
    """A `defaultdict` whose `get` is a dict's."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __missing__(self, key: Any) -> Any:
        self[key] = self.make()
        return self[key]


class _Adapted:
    """What our scheduler is asked for and answers in upstream's form; mixed into both of them."""

    drafts: Any

    def __setattr__(self, name: str, value: Any) -> None:
        """A test of cross attention puts this manager there afterwards."""
        super().__setattr__(name, value)
        if name == "encoder_cache_manager" and isinstance(value, EncoderDecoderCacheManager):
            self.encoder = self.table.encoder = EncoderInputs(value, self.max_num_encoder_input_tokens)  # type: ignore

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        need(reset_connector, "a KV connector")
        return super().reset_prefix_cache(reset_running_requests)  # type: ignore[misc]

    def get_num_unfinished_requests(self) -> int:
        return len(self.requests)  # type: ignore[attr-defined]

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)  # type: ignore[attr-defined]

    def add_request(self, request: Any) -> None:
        request.num_cached_tokens = 0
        need(request.use_structured_output, "structured output")
        super().add_request(request)  # type: ignore[misc]

    def schedule(self) -> Any:
        output = super().schedule()  # type: ignore[misc]
        cached = output.scheduled_cached_reqs
        answer = {name: getattr(output, name) for name in type(output).__slots__}
        fields = {name: getattr(cached, name) for name in type(cached).__slots__}
        answer["scheduled_cached_reqs"] = SimpleNamespace(**fields, num_reqs=len(cached.req_ids))
        return SimpleNamespace(**answer, ours=output)

    def update_from_output(self, plan: Any, result: Any) -> Any:
        need(result.pooler_output and any(one is not None for one in result.pooler_output), "pooling")
        rows = SimpleNamespace(
            req_ids=result.req_ids,
            sampled_token_ids=result.sampled_token_ids,
            logprobs=None,
            errors={},
            prompt_logprobs_dict={},
            kv_connector_output=result.kv_connector_output,
        )
        drafts = getattr(plan, "scheduled_spec_decode_tokens", None) or {}
        ours = SimpleNamespace(
            num_scheduled_tokens=plan.num_scheduled_tokens, scheduled_spec_decode_tokens=drafts,
            num_invalid_spec_tokens={},
        )  # fmt: skip
        for request in self.requests.values():  # type: ignore[attr-defined]
            if not hasattr(request, "num_cached_tokens"):  # a test put it there itself
                request.num_cached_tokens = 0
        drafts = self.drafts
        if drafts is not None:  # upstream counts a step, ours since the start
            drafts.spec_decoding_stats = SpecDecodingStats.new(drafts.num_spec_tokens)
        outputs = super().update_from_output(ours, rows)  # type: ignore[misc]
        stats = drafts.spec_decoding_stats if drafts and drafts.spec_decoding_stats.num_drafts else None
        if not outputs and drafts is None:
            return {}
        return {0: SimpleNamespace(outputs=outputs, scheduler_stats=SimpleNamespace(spec_decoding_stats=stats))}


class OurScheduler(_Adapted, scheduler.Scheduler):  # type: ignore[misc]
    """Plain."""


class OurAsyncScheduler(_Adapted, async_scheduler.AsyncScheduler):  # type: ignore[misc]
    """One step ahead."""


def scheduler_maker(kind: type) -> Callable[..., Any]:
    """Makes our scheduler from upstream's arguments."""

    def make(vllm_config: Any, kv_cache_config: Any, block_size: int, **others: Any) -> Any:
        limits, cache = vllm_config.scheduler_config, vllm_config.cache_config
        for name in ("kv_transfer_config", "ec_transfer_config", "lora_config"):
            need(getattr(vllm_config, name, None), name.replace("_config", "").replace("_", " "))
        need(vllm_config.model_config.is_encoder_decoder, "an encoder")
        ours = SchedulerConfig(
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
            long_prefill_token_threshold=limits.long_prefill_token_threshold,
            enable_chunked_prefill=limits.enable_chunked_prefill,
            scheduler_reserve_full_isl=limits.scheduler_reserve_full_isl,
            scheduling_policy=limits.policy,
            async_scheduling=limits.async_scheduling,
        )
        longest = vllm_config.model_config.max_model_len
        manager = make_manager(
            kv_cache_config, longest, block_size, enable_caching=cache.enable_prefix_caching,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            use_eagle=vllm_config.speculative_config is not None and vllm_config.speculative_config.use_eagle(),
            expects_drafts=vllm_config.speculative_config is not None,
        )  # fmt: skip
        USED.append("Scheduler")
        drafts = vllm_config.speculative_config
        held = {"encoder": make_encoder(vllm_config)}
        if drafts is not None:
            held["drafts"] = Drafts(SpeculativeConfig(drafts.num_speculative_tokens, drafts.method, drafts.model))
        made = kind(ours, manager, longest, **held)
        made.max_num_encoder_input_tokens = held["encoder"].max_num_encoder_input_tokens
        return made

    return make


def make_encoder(vllm_config: Any) -> EncoderInputs:
    """Ours from upstream's settings, with the budgets that upstream finds for the model."""
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    budget, size = 0, 0
    if MULTIMODAL_REGISTRY.supports_multimodal_inputs(vllm_config.model_config):
        found = MultiModalBudget(vllm_config, MULTIMODAL_REGISTRY)
        budget, size = found.encoder_compute_budget, found.encoder_cache_size
    drafts, whole = vllm_config.speculative_config, vllm_config.scheduler_config.disable_chunked_mm_input
    shift = int(drafts is not None and drafts.use_eagle())
    return EncoderInputs(EncoderCacheManager(size), budget, whole, shift)


class EncoderCacheManager(encoder_cache_manager.EncoderCacheManager):
    """Notes that it is used."""

    def __init__(self, cache_size: int) -> None:
        USED.append("EncoderCacheManager")
        super().__init__(cache_size)


class EncoderDecoderCacheManager(encoder_cache_manager.EncoderDecoderCacheManager):
    """Notes that it is used."""

    def __init__(self, cache_size: int) -> None:
        USED.append("EncoderDecoderCacheManager")
        super().__init__(cache_size)


def request_block_hasher(block_size: int, caching_hash_fn: Callable[[Any], bytes]) -> Callable[[Any], list[bytes]]:
    """Ours, with upstream's hash function and start."""
    import vllm.v1.core.kv_cache_utils as theirs

    def hash_block(parent: bytes | None, token_ids: Any, extra_keys: Any = None) -> bytes:
        return caching_hash_fn((parent or theirs.NONE_HASH, tuple(token_ids), extra_keys))

    hasher = kv_cache_utils.get_request_block_hasher(block_size, hash_block)

    def block_hashes(request: Any) -> list[bytes]:
        need(request.prompt_embeds is not None, "prompts given as embeddings")
        USED.append("get_request_block_hasher")
        return hasher(request)

    return block_hashes


class Plugin:
    """Puts our names into upstream's test modules, and notes what became of each test."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        self.patched: set[str] = set()

    def pytest_itemcollected(self, item: Any) -> None:
        module = item.module
        if module.__name__ not in self.patched:
            self.patched.add(module.__name__)
            ours = {
                "BlockPool": Pool, "KVCacheManager": make_manager, "SlidingWindowManager": Window,
                "BlockHashToBlockMap": block_pool.BlockHashToBlockMap, "KVCacheBlock": kv_cache_utils.KVCacheBlock,
                "FreeKVCacheBlockQueue": self.queue, "BlockStored": kv_events.BlockStored,
                "BlockRemoved": kv_events.BlockRemoved, "AllBlocksCleared": kv_events.AllBlocksCleared,
                "make_block_hash_with_group_id": kv_cache_utils.make_block_hash_with_group_id,
                "get_block_hash": kv_cache_utils.get_block_hash, "get_group_id": kv_cache_utils.get_group_id,
                "EncoderCacheManager": EncoderCacheManager, "EncoderDecoderCacheManager": EncoderDecoderCacheManager,
                "get_request_block_hasher": request_block_hasher,
                "is_kv_cache_spec_uniform": self.uniform, "ChunkedLocalAttentionManager": Chunked,
                "Scheduler": scheduler_maker(OurScheduler),
            }  # fmt: skip
            for name, one in ours.items():
                if hasattr(module, name):
                    setattr(module, name, one)

    @staticmethod
    def queue(blocks: Any) -> Any:
        USED.append("FreeKVCacheBlockQueue")
        return kv_cache_utils.FreeKVCacheBlockQueue(blocks)

    @staticmethod
    def uniform(specs: Any) -> bool:
        USED.append("is_kv_cache_spec_uniform")
        return kv_cache_groups.is_kv_cache_spec_uniform({name: our_spec(spec) for name, spec in specs.items()})

    def pytest_runtest_setup(self, item: Any) -> None:
        USED.clear()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and not (report.failed or report.skipped):
            return
        name = report.nodeid.rpartition("/")[2]
        if not report.passed and (reason := WHY.get(name.partition("::")[2].partition("[")[0])):
            self.results[name] = f"needs {reason}"
        elif report.passed:
            about_ours = USED and "generate_block_hash_extra_keys" not in name  # only its requests are hashed by ours
            self.results[name] = "passes" if about_ours else "does not touch what is ours"
        elif "NotOurs" in (text := str(report.longrepr)):
            line = next(line for line in reversed(text.splitlines()) if "NotOurs:" in line)
            self.results[name] = "needs " + line.partition("NotOurs: ")[2]
        else:
            self.results[name] = "fails: " + str(report.longrepr).strip().splitlines()[-1][:150]


def adapt() -> None:
    """Upstream's requests with what ours say of themselves, and upstream's words for their states in our modules."""
    from vllm.multimodal.inputs import PlaceholderRange
    from vllm.v1.request import Request, RequestStatus

    for module in (scheduler, async_scheduler, request_table, step_plan, utils, our_request):
        module.RequestStatus = RequestStatus  # type: ignore[attr-defined]
    theirs = importlib.import_module("vllm.v1.core.encoder_cache_manager")
    theirs.EncoderDecoderCacheManager = EncoderDecoderCacheManager  # type: ignore[attr-defined]
    theirs = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager")
    theirs.CrossAttentionManager = cross_attention_manager.CrossAttentionManager  # type: ignore[attr-defined]
    Request.awaits_result = False
    PlaceholderRange.end = vars(inputs.PlaceholderRange)["end"]  # type: ignore[attr-defined]
    for word in ("will_reach_max_tokens", "try_promote", "start", "set_head_start", "make_output"):
        setattr(Request, word, vars(our_request.Request)[word])
    Request.awaits_result = False


def main() -> int:
    """argv: parts of `test_NAME.py`; prints a line a test."""
    helper: Any = importlib.import_module("tests.v1.core.utils")
    helper.Scheduler, helper.AsyncScheduler = scheduler_maker(OurScheduler), scheduler_maker(OurAsyncScheduler)
    adapt()
    plugin = Plugin()
    files = [f"{ROOT}/upstream/tests/v1/core/test_{name}.py" for name in sys.argv[1:] or FILES]
    pytest.main(["-q", "--noconftest", "-p", "no:cacheprovider", *files], plugins=[plugin])
    report(plugin)
    return 0


def report(plugin: Plugin) -> None:
    """A line a test, and how many there are of each kind."""
    for name, result in plugin.results.items():
        print(f"{name} | {result}")
    counts: dict[str, int] = {}
    for result in plugin.results.values():
        kind = result if result.startswith(("passes", "does")) else result.partition(":")[0].partition(" ")[0]
        counts[kind] = counts.get(kind, 0) + 1
    print(counts)


if __name__ == "__main__":
    sys.exit(main())

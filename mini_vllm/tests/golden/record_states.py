"""Drives the real `Scheduler` of vLLM 0.22.1 over groups of states, of cross attention and of chunked local attention,
and writes down its decisions.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_states.py 160

As `record_groups.py`; each step's record is what is scheduled, drafted and preempted, and a checksum over all that the
scheduler knows, the block tables, the free queue and the KV cache events among it. The known bugs
(`upstream_patches.py`, `upstream_state_patches.py`) are patched. The result is `scheduler-states.json.xz`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["PYTHONHASHSEED"] = "0"  # block hashes begin with it, on both sides
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2])]

import torch  # noqa: E402
from connector_workload import free_name, picks, scheduler_state  # noqa: E402
from draft_workload import proposed, verified  # noqa: E402
from record_groups import GroupRecorder  # noqa: E402
from record_scheduler import counts, make_scheduler, model_output, stand_in_model, write  # noqa: E402
from scheduler_workload import Workload, sampled_token  # noqa: E402
from state_workload import encoder_length, make_state_workload, short  # noqa: E402
from upstream_patches import CONNECTOR_PATCHES, PATCHES, applied  # noqa: E402
from upstream_state_patches import applied_to_states, why  # noqa: E402
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.encoder_cache_manager import EncoderDecoderCacheManager  # noqa: E402
from vllm.v1.core.kv_cache_utils import init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

from mini_vllm.core.kv_cache_utils import make_block_hash_with_group_id  # noqa: E402

STATE_LIKE = [*PATCHES, *CONNECTOR_PATCHES]


def make_spec(config: dict[str, Any], window: int | None, block_size: int, kind: str) -> Any:
    """The release's spec of a group."""
    if kind == "mamba":
        settings = config["mamba"]
        return MambaSpec(
            block_size, ((4, 4),), (torch.float32,), mamba_cache_mode=settings["mode"],
            num_speculative_blocks=settings["spec"],
        )  # fmt: skip
    common = {"block_size": block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if kind == "sliding":
        return SlidingWindowSpec(**common, sliding_window=window)
    if kind == "chunked":
        return ChunkedLocalAttentionSpec(**common, attention_chunk_size=window)
    return (CrossAttentionSpec if kind == "cross" else FullAttentionSpec)(**common)


class StateRecorder(GroupRecorder):
    """One workload. last: all that was compared of the last step."""

    def __init__(self, workload: Workload, model_folder: str) -> None:
        super().__init__(workload, model_folder)
        self.planned: dict[str, list[int]] = {}
        self.told: list[Any] = []
        self.last: dict[str, Any] = {}

    def _make_scheduler(self, model_folder: str) -> Scheduler:
        config = self.workload.config
        specs = [make_spec(config, *group) for group in config["groups"]]
        groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
        scheduler = make_scheduler(config, model_folder, groups=groups)
        if "mamba" in config:
            scheduler.need_mamba_block_aligned_split = config["mamba"]["mode"] == "align"
        if "encoder" in config:
            scheduler.is_encoder_decoder = True
            scheduler.max_num_encoder_input_tokens = config["encoder"]["budget"]
            scheduler.encoder_cache_manager = EncoderDecoderCacheManager(config["encoder"]["cache"])
        return scheduler

    def _make_request(self, arrival: Any) -> Any:
        planned = {name for output, _ in self.in_flight for name in output.num_scheduled_tokens}
        name = free_name(arrival.request_id, {*self.scheduler.requests, *planned})
        request = super()._make_request(replace(arrival, request_id=name))
        if "encoder" in self.workload.config:
            place = PlaceholderRange(offset=0, length=encoder_length(self.workload, name))
            request.mm_features = [MultiModalFeatureSpec(None, "audio", name, place)]
        return request

    def _abort(self, number: Any) -> None:
        names = picks(list(self.scheduler.requests), number)
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def _reset(self, running_too: bool) -> None:
        self.told.append(["reset", self.scheduler.reset_prefix_cache(reset_running_requests=running_too)])

    def _step(self, index: int) -> dict[str, Any]:
        self.index = index
        record = super()._step(index)
        state = scheduler_state(self.scheduler, [], self.hash_of)
        if "encoder" in self.workload.config:
            state.append(self.scheduler.encoder_cache_manager.num_free_slots)
        told, self.told = self.told, []
        self.last = {"record": record, "told": told, "state": state, "drafts": self.planned}
        return short(record, self.planned, [told, state])

    @staticmethod
    def hash_of(block: Any) -> bytes:
        """As ours has it."""
        key = block.block_hash
        return make_block_hash_with_group_id(key[:-4], int.from_bytes(key[-4:], "big"))

    def _update(self, output: Any) -> None:
        config, seed = self.workload.config, self.workload.seed
        self.planned = {name: list(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        self.told += [["encode", name, list(ids)] for name, ids in output.scheduled_encoder_inputs.items()]
        ids, sampled = list(output.num_scheduled_tokens), []
        for name in ids:
            due = not self.scheduler.requests[name].is_prefill_chunk
            sampled.append(self.sample(name) if due else [])
            self.num_sampled[name] += len(sampled[-1])
        numbers = config["aborts_in_flight"].get(self.index)
        if numbers and self.scheduler.requests:
            self._abort(numbers)
        self.in_flight.append((output, model_output(ids, [list(tokens) for tokens in sampled])))
        if config["async"] and ids and len(self.in_flight) < 2:
            return
        outputs = self.scheduler.update_from_output(*self.in_flight.popleft())
        for one in (one for group in outputs.values() for one in group.outputs):
            reason = None if one.finish_reason is None else str(one.finish_reason)
            cached = None if one.prefill_stats is None else one.prefill_stats.num_cached_tokens
            self.told.append([one.request_id, one.new_token_ids, reason, one.stop_reason, cached])
        if "drafts" in config and not config["async"]:
            drafts = [proposed(seed, name, self.num_sampled[name], config["drafts"]["k"]) for name in ids]
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))

    def sample(self, name: str) -> list[int]:
        """The next tokens of a request."""
        seed, count = self.workload.seed, self.num_sampled[name]
        if "drafts" not in self.workload.config:
            return [sampled_token(seed, name, count)]
        return verified(seed, name, count, self.planned.get(name, []))


def features_of(workload: Workload) -> set[str]:
    """What a workload exercises."""
    config = workload.config
    found = {*workload.features, "+".join(kind for _, _, kind in config["groups"]), f"kind={config['kind']}"}
    if "mamba" in config:
        found.add(f"mamba_cache_mode={config['mamba']['mode']}")
    if "drafts" in config:
        found |= {f"drafts={config['drafts']['method']}", f"num_speculative_blocks={config['drafts']['k']}"}
    return {name for name in found if "salt" not in name}


def main() -> None:
    num_workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 160
    init_none_hash(sha256)
    traces, features, events = [], Counter[str](), Counter[str]()
    with stand_in_model() as folder, applied(Scheduler, STATE_LIKE), applied_to_states():
        for seed in range(num_workloads):
            workload = make_state_workload(seed)
            recorder = StateRecorder(workload, folder)
            traces.append({"steps": recorder.run()})
            features.update(features_of(workload))
            events.update(recorder.events_seen)
    steps = [step for trace in traces for step in trace["steps"]]
    more = {
        **counts(traces, steps),
        "events": dict(events),
        "workloads_by_feature": dict(sorted(features.items())),
        "patches": {**{name: patch.why for name, patch in {**PATCHES, **CONNECTOR_PATCHES}.items()}, **why()},
    }
    write("scheduler-states.json.xz", f"record_states.py {num_workloads}", more, traces=traces)


if __name__ == "__main__":
    main()

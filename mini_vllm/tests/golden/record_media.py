"""Drives the real `Scheduler` of vLLM 0.22.1 over workloads with media and writes down its decisions.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_media.py 100

As `record_drafts.py`: what is scheduled, encoded, forgotten and preempted, and a checksum over all that scheduler and
encoder cache know. The stand-in model takes no media, so the encoder's budget and cache are put into the scheduler as
its own lines would. The known bugs (`upstream_patches.py`, `media_patches.py`) are patched. The result is
`scheduler-media.json.xz`.
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
import vllm.v1.core.kv_cache_utils as kv_cache_utils  # noqa: E402
from connector_workload import checksum_of, free_name, scheduler_state  # noqa: E402
from media_patches import HASH_PATCHES, MEDIA_PATCHES, HeldInputs  # noqa: E402
from media_workload import encoder_state, make_media_workload, short  # noqa: E402
from record_connector import ConnectorRecorder  # noqa: E402
from record_groups import GroupRecorder  # noqa: E402
from record_scheduler import counts, model_output, stand_in_model, write  # noqa: E402
from scheduler_workload import Workload  # noqa: E402
from upstream_patches import CONNECTOR_PATCHES, PATCHES, PIPELINE_PATCHES, applied  # noqa: E402
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.encoder_cache_manager import (  # noqa: E402
    EncoderCacheManager,
    EncoderDecoderCacheManager,
    compute_mm_encoder_budget,
)
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.outputs import DraftTokenIds  # noqa: E402

ALSO = ("several-end-in-their-order", "nothing-is-taken-back-for-what-is-dropped")
ALL = {**PATCHES, **{name: CONNECTOR_PATCHES[name] for name in ALSO}, **PIPELINE_PATCHES, **MEDIA_PATCHES}


def feature_of(item: Any) -> MultiModalFeatureSpec:
    """An item as the release has it."""
    mask = None if item.mask is None else torch.tensor(item.mask)
    where = PlaceholderRange(offset=item.offset, length=item.length, is_embed=mask)
    return MultiModalFeatureSpec(data=None, modality="image", identifier=item.identifier, mm_position=where)


def give_encoder(scheduler: Any, media: dict[str, Any]) -> None:
    """Budget and cache, as the scheduler makes them for a model that takes media."""
    limits = scheduler.scheduler_config
    limits.max_num_encoder_input_tokens, limits.encoder_cache_size = media["budget"], media["cache"]
    limits.disable_chunked_mm_input = media["whole"]
    budget, size = compute_mm_encoder_budget(limits, {"image": media["largest"]})
    scheduler.max_num_encoder_input_tokens, scheduler.is_encoder_decoder = budget, media["decoder"]
    scheduler.encoder_cache_manager = (
        HeldInputs.applied_to(EncoderDecoderCacheManager(size)) if media["decoder"] else EncoderCacheManager(size)
    )


def with_items(request: Any, arrival: Any) -> Any:
    """The request, whose blocks are hashed again with its items."""
    request.mm_features = [feature_of(item) for item in arrival.items]
    request.block_hashes.clear()
    request.update_block_hashes()
    return request


def media_plan(output: Any) -> dict[str, Any]:
    """What a plan says of media."""
    new = {one.req_id: [f.identifier for f in one.mm_features] for one in output.scheduled_new_reqs}
    freed = list(output.free_encoder_mm_hashes)
    return {"encoder": dict(output.scheduled_encoder_inputs), "items": new, "forgotten": freed}


class MediaRecorder(GroupRecorder):
    """One workload with media, and perhaps with drafts."""

    def __init__(self, workload: Workload, model_folder: str) -> None:
        super().__init__(workload, model_folder)
        give_encoder(self.scheduler, workload.config["media"])
        self.planned: dict[str, list[int]] = {}
        self.told: list[Any] = []
        self.plan: dict[str, Any] = {}
        self.seen: Counter[str] = Counter()
        self.last: dict[str, Any] = {}

    def _make_request(self, arrival: Any) -> Any:
        planned = {name for output, _ in self.in_flight for name in output.num_scheduled_tokens}
        name = free_name(arrival.request_id, {*self.scheduler.requests, *planned})
        return with_items(super()._make_request(replace(arrival, request_id=name)), arrival)

    _abort = ConnectorRecorder._abort
    sample, drafts = ConnectorRecorder.sample, ConnectorRecorder.drafts

    def _before(self, index: int) -> None:
        super()._before(index)
        if index in self.workload.config["encoder_resets"]:
            self.scheduler.reset_encoder_cache()

    def _step(self, index: int) -> dict[str, Any]:
        self.index = index
        record = {**super()._step(index), **self.plan}
        state = scheduler_state(self.scheduler, [], ConnectorRecorder.hash_of)
        told, self.told = self.told, []
        self.last = {"record": record, "told": told, "state": state, "drafts": self.planned}
        self.last["media"] = encoder_state(self.scheduler.encoder_cache_manager)
        return short(record, self.planned, [told, state, self.last["media"]])

    def _update(self, output: Any) -> None:
        self.planned = {name: list(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        self.plan = media_plan(output)
        encoded = sum(map(len, self.plan["encoder"].values()))
        self.seen.update(encoded=encoded, steps_with_encoding=encoded > 0, forgotten=len(self.plan["forgotten"]))
        ids, sampled = list(output.num_scheduled_tokens), []
        for name in ids:
            due = not self.scheduler.requests[name].is_prefill_chunk
            sampled.append(self.sample(name) if due else [])
            self.num_sampled[name] += len(sampled[-1])
        numbers = self.workload.config["aborts_in_flight"].get(self.index)
        if numbers and self.scheduler.requests:
            self._abort(numbers)
        self.in_flight.append((output, model_output(ids, [list(tokens) for tokens in sampled])))
        if self.workload.config["async"] and ids and len(self.in_flight) < 2:
            return
        for group in self.scheduler.update_from_output(*self.in_flight.popleft()).values():
            for one in group.outputs:
                reason = None if one.finish_reason is None else str(one.finish_reason)
                self.told.append([one.request_id, one.new_token_ids, reason, one.stop_reason])
        if "drafts" in self.workload.config and not self.workload.config["async"]:
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, self.drafts(ids)))


class MediaConnectorRecorder(ConnectorRecorder):
    """One workload with media and a KV connector, for `fuzz_media.py`."""

    def __init__(self, workload: Workload, model_folder: str) -> None:
        super().__init__(workload, model_folder)
        give_encoder(self.scheduler, workload.config["media"])
        self.plan: dict[str, Any] = {}

    def _make_request(self, arrival: Any) -> Any:
        return with_items(super()._make_request(arrival), arrival)

    def _step(self, index: int) -> dict[str, Any]:
        record = super()._step(index)
        self.last |= {"plan": self.plan, "media": encoder_state(self.scheduler.encoder_cache_manager)}
        return {**record, "more": checksum_of(self.plan, self.last["media"])}

    def _update(self, output: Any) -> None:
        self.plan = media_plan(output)
        super()._update(output)


def kinds_of(workload: Workload) -> set[str]:
    """What a workload exercises, for the counts in the trace's header."""
    config = workload.config
    media, drafts = config["media"], config.get("drafts", {"method": "none"})
    arrivals = [arrival for step in workload.arrivals for arrival in step]
    shared = Counter(item.identifier for arrival in arrivals for item in arrival.items)
    found = {
        *workload.features,
        f"groups={len(config['groups'])}",
        f"method={drafts['method']}",
        f"budget={'below' if media['budget'] < media['largest'] else 'from'} the largest item",
        f"cache={'below' if media['cache'] < media['largest'] else 'from'} the largest item",
        f"disable_chunked_mm_input={media['whole']}",
        f"encoder_decoder={media['decoder']}",
    }
    if any(len(arrival.items) > 1 for arrival in arrivals):
        found.add("several items")
    if any(item.mask for arrival in arrivals for item in arrival.items):
        found.add("is_embed")
    if any(count > 1 for count in shared.values()):
        found.add("shared items")
    if config["encoder_resets"]:
        found.add("reset_encoder_cache")
    if config["aborts_in_flight"]:
        found.add("aborts in flight")
    return found


def main() -> None:
    num_workloads = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    kv_cache_utils.init_none_hash(sha256)
    traces, features, seen = [], Counter(), Counter()
    with (
        stand_in_model() as folder,
        applied(Scheduler, list(ALL), MEDIA_PATCHES),
        applied(kv_cache_utils, list(HASH_PATCHES), HASH_PATCHES),
    ):
        for seed in range(num_workloads):
            workload = make_media_workload(seed)
            recorder = MediaRecorder(workload, folder)
            traces.append({"steps": recorder.run()})
            features.update(kinds_of(workload))
            seen.update(recorder.seen)
    steps = [step for trace in traces for step in trace["steps"]]
    more = {
        **counts(traces, steps),
        **dict(sorted(seen.items())),
        "workloads_by_feature": dict(sorted(features.items())),
        "patches": {name: patch.why for name, patch in {**ALL, **HASH_PATCHES}.items()},
    }
    write("scheduler-media.json.xz", f"record_media.py {num_workloads}", more, traces=traces)


if __name__ == "__main__":
    main()

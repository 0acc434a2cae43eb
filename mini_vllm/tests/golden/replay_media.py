"""A recorded workload with media through our scheduler: as `record_media.py`."""

from dataclasses import replace

import numpy as np

from mini_vllm.core.encoder_cache_manager import (
    EncoderCacheManager,
    EncoderDecoderCacheManager,
    compute_mm_encoder_budget,
)
from mini_vllm.core.sched.encoder_inputs import EncoderInputs
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput
from mini_vllm.tests.golden.connector_workload import checksum_of, free_name, scheduler_state
from mini_vllm.tests.golden.media_workload import encoder_state, short
from mini_vllm.tests.golden.replay import GroupReplay, limits_of
from mini_vllm.tests.golden.replay_connector import ConnectorReplay


def feature_of(item):
    """An item as ours has it."""
    mask = None if item.mask is None else np.array(item.mask)
    return MultiModalFeatureSpec(None, "image", item.identifier, PlaceholderRange(item.offset, item.length, mask))


def encoder_of(config):
    """What the scheduler of a workload holds for media."""
    media, limits = config["media"], limits_of(config)
    limits.disable_chunked_mm_input = media["whole"]
    limits.max_num_encoder_input_tokens, limits.encoder_cache_size = media["budget"], media["cache"]
    budget, size = compute_mm_encoder_budget(limits, {"image": media["largest"]})
    manager = EncoderDecoderCacheManager(size) if media["decoder"] else EncoderCacheManager(size)
    shift = int(config.get("drafts", {}).get("method") == "eagle")
    return EncoderInputs(manager, budget, media["whole"], shift)


def with_items(request, arrival):
    """The request, whose blocks are hashed again with its items."""
    request.mm_features = [feature_of(item) for item in arrival.items]
    request.block_hashes.clear()
    request.update_block_hashes()
    return request


def media_plan(output):
    """What a plan says of media."""
    new = {one.req_id: [f.identifier for f in one.mm_features] for one in output.scheduled_new_reqs}
    freed = list(output.free_encoder_mm_hashes)
    return {"encoder": dict(output.scheduled_encoder_inputs), "items": new, "forgotten": freed}


class MediaReplay(GroupReplay):
    """One workload with media, and perhaps with drafts."""

    def __init__(self, workload):
        super().__init__(workload)
        self.planned, self.told, self.plan = {}, [], {}

    def held(self, config):
        return {**super().held(config), "encoder": encoder_of(config)}

    def make_request(self, arrival):
        planned = {name for output, _ in self.in_flight for name in output.num_scheduled_tokens}
        name = free_name(arrival.request_id, {*self.scheduler.requests, *planned})
        return with_items(super().make_request(replace(arrival, request_id=name)), arrival)

    abort = ConnectorReplay.abort
    sample, drafts = ConnectorReplay.sample, ConnectorReplay.drafts

    def before(self, index):
        super().before(index)
        if index in self.workload.config["encoder_resets"]:
            self.scheduler.encoder_cache_manager.reset()

    def step(self, index):
        self.index = index
        record = {**super().step(index), **self.plan}
        state = scheduler_state(self.scheduler, [], lambda block: block.block_hash)
        told, self.told = self.told, []
        self.last = {"record": record, "told": told, "state": state, "drafts": self.planned}
        self.last["media"] = encoder_state(self.scheduler.encoder_cache_manager)
        return short(record, self.planned, [told, state, self.last["media"]])

    def update(self, output):
        self.planned = {name: list(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        self.plan = media_plan(output)
        ids, sampled = list(output.num_scheduled_tokens), []
        for name in ids:
            due = not self.scheduler.requests[name].is_prefill_chunk
            sampled.append(self.sample(name) if due else [])
            self.num_sampled[name] += len(sampled[-1])
        numbers = self.workload.config["aborts_in_flight"].get(self.index)
        if numbers and self.scheduler.requests:
            self.abort(numbers)
        rows = list(range(len(ids)))
        self.shuffle(rows)
        self.in_flight.append((output, ModelRunnerOutput([ids[row] for row in rows], [sampled[row] for row in rows])))
        if self.workload.config["async"] and ids and len(self.in_flight) < 2:
            return
        for one in self.scheduler.update_from_output(*self.in_flight.popleft()):
            reason = None if one.finish_reason is None else str(one.finish_reason)
            self.told.append([one.request_id, one.new_token_ids, reason, one.stop_reason])
        if "drafts" in self.workload.config and not self.workload.config["async"]:
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, self.drafts(ids)))


class MediaConnectorReplay(ConnectorReplay):
    """One workload with media and a KV connector."""

    def __init__(self, workload):
        super().__init__(workload)
        self.plan = {}

    def held(self, config):
        return {**super().held(config), "encoder": encoder_of(config)}

    def make_request(self, arrival):
        return with_items(super().make_request(arrival), arrival)

    def step(self, index):
        record = super().step(index)
        self.last |= {"plan": self.plan, "media": encoder_state(self.scheduler.encoder_cache_manager)}
        return {**record, "more": checksum_of(self.plan, self.last["media"])}

    def update(self, output):
        self.plan = media_plan(output)
        super().update(output)

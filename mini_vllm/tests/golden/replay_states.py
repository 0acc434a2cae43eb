"""A recorded workload over groups of states, cross attention or chunks through our scheduler: as `record_states.py`."""

from dataclasses import replace

from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.core.encoder_cache_manager import EncoderDecoderCacheManager
from mini_vllm.core.kv_cache_groups import get_kv_cache_config_from_groups
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.kv_cache_specs import ChunkedLocalAttentionSpec, CrossAttentionSpec, MambaSpec
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.drafts import Drafts
from mini_vllm.core.sched.encoder_inputs import EncoderInputs
from mini_vllm.core.sched.mamba_split import make_mamba_split
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput
from mini_vllm.request import RequestStatus
from mini_vllm.tests.golden.connector_workload import free_name, picks, scheduler_state
from mini_vllm.tests.golden.draft_workload import proposed, verified
from mini_vllm.tests.golden.replay import GroupReplay, limits_of
from mini_vllm.tests.golden.scheduler_workload import sampled_token
from mini_vllm.tests.golden.state_workload import encoder_length, short


def make_spec(config, window, block_size, kind):
    """Our spec of a group."""
    if kind == "mamba":
        mode, spec = config["mamba"]["mode"], config["mamba"]["spec"]
        return MambaSpec(block_size, ((4, 4),), ("float32",), mamba_cache_mode=mode, num_speculative_blocks=spec)
    common = {"block_size": block_size, "num_kv_heads": 1, "head_size": 1}
    if kind == "sliding":
        return SlidingWindowSpec(**common, sliding_window=window)
    if kind == "chunked":
        return ChunkedLocalAttentionSpec(**common, attention_chunk_size=window)
    return (CrossAttentionSpec if kind == "cross" else FullAttentionSpec)(**common)


def make_state_scheduler(workload, **held):
    """Our scheduler for the settings of a workload."""
    config = workload.config
    specs = [make_spec(config, *group) for group in config["groups"]]
    groups = [KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)]
    method = config["drafts"]["method"] if "drafts" in config else None
    manager = KVCacheManager(
        kv_cache_config=get_kv_cache_config_from_groups(groups, config["num_blocks"]),
        enable_caching=config["caching"],
        max_model_len=config["max_model_len"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        enable_kv_cache_events=True,
        use_eagle=method == "eagle",
        expects_drafts=method is not None,
    )
    if method is not None:
        drafts = SpeculativeConfig(config["drafts"]["k"], method, None if method == "ngram" else "stand-in")
        held["drafts"] = Drafts(drafts)
    if "encoder" in config:
        room = EncoderDecoderCacheManager(config["encoder"]["cache"])
        held["encoder"] = EncoderInputs(room, config["encoder"]["budget"])
    split = make_mamba_split(manager.kv_cache_config, method == "eagle")
    kind = AsyncScheduler if config["async"] else Scheduler
    return kind(limits_of(config), manager, config["max_model_len"], mamba_split=split, **held)


class StateReplay(GroupReplay):
    """One workload."""

    def __init__(self, workload):
        super().__init__(workload)
        self.planned, self.told, self.told_of = {}, [], set()

    def make_scheduler(self):
        return make_state_scheduler(self.workload, **self.held(self.workload.config))

    def make_request(self, arrival):
        planned = {name for output, _ in self.in_flight for name in output.num_scheduled_tokens}
        name = free_name(arrival.request_id, {*self.scheduler.requests, *planned})
        self.told_of.discard(name)
        request = super().make_request(replace(arrival, request_id=name))
        if "encoder" in self.workload.config:
            place = PlaceholderRange(0, encoder_length(self.workload, name))
            request.mm_features = [MultiModalFeatureSpec(None, "audio", name, place)]
        return request

    def abort(self, number):
        self.scheduler.finish_requests(picks(list(self.scheduler.requests), number), RequestStatus.FINISHED_ABORTED)

    def reset(self, running_too):
        self.told.append(["reset", self.scheduler.reset_prefix_cache(reset_running_requests=running_too)])

    def step(self, index):
        self.index = index
        record = super().step(index)
        state = scheduler_state(self.scheduler, [], lambda block: block.block_hash)
        if "encoder" in self.workload.config:
            state.append(self.scheduler.encoder_cache_manager.num_free_slots)
        told, self.told = self.told, []
        self.last = {"record": record, "told": told, "state": state, "drafts": self.planned}
        return short(record, self.planned, [told, state])

    def update(self, output):
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
            self.abort(numbers)
        rows = list(range(len(ids)))
        self.shuffle(rows)
        self.in_flight.append((output, ModelRunnerOutput([ids[row] for row in rows], [sampled[row] for row in rows])))
        if config["async"] and ids and len(self.in_flight) < 2:
            return
        for one in self.scheduler.update_from_output(*self.in_flight.popleft()):
            reason = None if one.finish_reason is None else str(one.finish_reason)
            cached = None if one.request_id in self.told_of else one.num_cached_tokens
            self.told_of.add(one.request_id)
            self.told.append([one.request_id, one.new_token_ids, reason, one.stop_reason, cached])
        if "drafts" in config and not config["async"]:
            drafts = [proposed(seed, name, self.num_sampled[name], config["drafts"]["k"]) for name in ids]
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))

    def sample(self, name):
        """The next tokens of a request."""
        seed, count = self.workload.seed, self.num_sampled[name]
        if "drafts" not in self.workload.config:
            return [sampled_token(seed, name, count)]
        return verified(seed, name, count, self.planned.get(name, []))

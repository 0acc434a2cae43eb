"""A recorded workload through our scheduler, and what is recorded of each step."""

import random
from collections import Counter, deque

from mini_vllm.config.scheduler import SchedulerConfig
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.core.kv_cache_groups import get_kv_cache_config_from_groups
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.kv_cache_utils import get_request_block_hasher
from mini_vllm.core.sched.async_scheduler import AsyncScheduler
from mini_vllm.core.sched.drafts import Drafts
from mini_vllm.core.sched.lora_slots import LoRASlots
from mini_vllm.core.sched.scheduler import Scheduler
from mini_vllm.distributed.kv_events import to_wire
from mini_vllm.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec
from mini_vllm.outputs import DraftTokenIds, ModelRunnerOutput
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.structured_output import StructuredOutputManager
from mini_vllm.structured_output.backend_mini import MiniBackend
from mini_vllm.structured_output.backend_types import TokenVocabulary
from mini_vllm.structured_outputs_params import StructuredOutputsParams
from mini_vllm.tests.golden import grammar_workload
from mini_vllm.tests.golden.draft_workload import proposed, short, verified
from mini_vllm.tests.golden.scheduler_workload import EOS, arrival_time, checksum, pick, sampled_token
from mini_vllm.utils.hashing import get_block_hasher, get_hash_fn_by_name


def limits_of(config):
    """The limits and the policy of a workload."""
    return SchedulerConfig(
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_num_seqs=config["max_num_seqs"],
        long_prefill_token_threshold=config["threshold"],
        enable_chunked_prefill=config.get("chunked", True),
        scheduling_policy=config["policy"],
        scheduler_reserve_full_isl=config["reserve"],
        async_scheduling=config["async"],
    )


def make_scheduler(config, **held):
    """Our scheduler for the settings of a workload."""
    groups = []
    for i, (window, block_size) in enumerate(config.get("groups", [(None, config["block_size"])])):
        common = {"block_size": block_size, "num_kv_heads": 1, "head_size": 64 // block_size}
        full = FullAttentionSpec(**common) if window is None else SlidingWindowSpec(**common, sliding_window=window)
        groups.append(KVCacheGroupSpec([f"layer.{i}"], full))
    manager = KVCacheManager(
        kv_cache_config=get_kv_cache_config_from_groups(groups, config["num_blocks"]),
        enable_caching=config["caching"],
        max_model_len=config["max_model_len"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        enable_kv_cache_events="groups" in config,
        use_eagle=config.get("drafts", {}).get("method") == "eagle",
        expects_drafts="drafts" in config,
    )
    limits = limits_of(config)
    if "drafts" in config:
        method, k = config["drafts"]["method"], config["drafts"]["k"]
        speculative = SpeculativeConfig(k, method, None if method == "ngram" else "stand-in")
        held["drafts"] = Drafts(speculative, held.get("structured_output_manager"))
    if "loras" in config:
        held["lora"] = LoRASlots(config["loras"]["max_loras"])
    return (AsyncScheduler if config["async"] else Scheduler)(limits, manager, config["max_model_len"], **held)


class Replay:
    """One workload through our scheduler; records are those of `record_scheduler.py`."""

    def __init__(self, workload):
        config = workload.config
        self.workload = workload
        self.scheduler = self.make_scheduler()
        self.in_flight = deque()
        hash_block = get_block_hasher(get_hash_fn_by_name("sha256")) if "groups" in config else None
        size = self.scheduler.kv_cache_manager.hash_block_size
        self.hasher = get_request_block_hasher(size, hash_block) if config["caching"] else None
        self.num_sampled = Counter()
        self.shuffle = random.Random(workload.seed).shuffle

    def held(self, config):
        """What the scheduler holds beside its limits and the cache."""
        return {}

    def make_scheduler(self):
        """For the settings of the workload."""
        return make_scheduler(self.workload.config, **self.held(self.workload.config))

    def step(self, index):
        scheduler = self.scheduler
        if index < len(self.workload.arrivals):
            self.before(index)
        output = scheduler.schedule()
        stats = scheduler.kv_cache_manager.prefix_cache_stats
        record = {
            **self.plan_record(output),
            "resumed": sorted(output.scheduled_cached_reqs.resumed_req_ids),
            "preempted": sorted(output.preempted_req_ids),
            "finished": sorted(output.finished_req_ids),
            "hits": [stats.queries, stats.hits, stats.preempted_queries, stats.preempted_hits],
        }
        self.update(output)
        free = scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()
        return {**record, "free": self.free_record([block.block_id for block in free])}

    def free_record(self, ids):
        """Of the free queue after the step."""
        return [len(ids), *ids[:4]]

    def plan_record(self, output):
        """Of the plan, with the block ids of the one group."""
        cached = output.scheduled_cached_reqs
        return {
            "tokens": output.num_scheduled_tokens,
            "new": [[new.req_id, new.block_ids[0], new.num_computed_tokens] for new in output.scheduled_new_reqs],
            "cached": [
                list(row)
                for row in zip(
                    cached.req_ids,
                    [ids[0] if ids else None for ids in cached.new_block_ids],
                    cached.num_computed_tokens,
                    cached.num_output_tokens,
                    strict=True,
                )
            ],
        }

    def before(self, index):
        for arrival in self.workload.arrivals[index]:
            self.add(self.make_request(arrival))
        abort, reset = self.workload.aborts[index], self.workload.resets[index]
        if abort is not None and self.scheduler.requests:
            self.abort(abort)
        if reset is not None:
            self.reset(reset)

    def make_request(self, arrival):
        params = SamplingParams(
            max_tokens=arrival.max_tokens,
            stop_token_ids=arrival.stop_token_ids,
            ignore_eos=arrival.ignore_eos,
            **self.more_params(arrival),
        )
        params.skip_reading_prefix_cache = arrival.skip_reading
        params.update_from_generation_config([], EOS)
        return Request(
            arrival.request_id,
            arrival.prompt,
            params,
            arrival_time=arrival_time(arrival),
            cache_salt=arrival.salt,
            priority=arrival.priority,
            block_hasher=self.hasher,
            lora_request=self.lora_request(arrival),
        )

    def abort(self, number):
        self.scheduler.finish_requests(pick(list(self.scheduler.requests), number), RequestStatus.FINISHED_ABORTED)

    def reset(self, running_too):
        self.scheduler.reset_prefix_cache(reset_running_requests=running_too)

    def more_params(self, arrival):
        """None without grammars."""
        return {}

    def lora_request(self, arrival):
        """None without adapters."""
        return None

    def add(self, request):
        """As the core does."""
        self.scheduler.add_request(request)

    def update(self, output):
        ids = list(output.num_scheduled_tokens)
        sampled = []
        for request_id in ids:
            due = not self.scheduler.requests[request_id].is_prefill_chunk
            token = sampled_token(self.workload.seed, request_id, self.num_sampled[request_id])
            sampled.append([token] if due else [])
            self.num_sampled[request_id] += due
        rows = list(range(len(ids)))
        self.shuffle(rows)  # a batch that was condensed has its rows in another order than the plan
        self.in_flight.append((output, ModelRunnerOutput([ids[row] for row in rows], [sampled[row] for row in rows])))
        if self.workload.config["async"] and ids and len(self.in_flight) < 2:
            return
        self.scheduler.update_from_output(*self.in_flight.popleft())


class GroupReplay(Replay):
    """With a list of block ids for each group, and a checksum over free queue and events: as `record_groups.py`."""

    def __init__(self, workload):
        self.wire = []
        super().__init__(workload)

    def held(self, config):
        return {"kv_event_publisher": self}

    def publish(self, batch):
        """As a publisher."""
        self.wire += [to_wire(event) for event in batch.events]

    def plan_record(self, output):
        cached = output.scheduled_cached_reqs
        rows = (cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens)
        return {
            "tokens": output.num_scheduled_tokens,
            "new": [[new.req_id, list(new.block_ids), new.num_computed_tokens] for new in output.scheduled_new_reqs],
            "cached": [[i, None if ids is None else list(ids), *rest] for i, ids, *rest in zip(*rows, strict=True)],
        }

    def free_record(self, ids):
        events, self.wire = self.wire, []
        return [len(ids), *ids[:4], checksum(ids, events)]


class DraftReplay(GroupReplay):
    """With drafts, proposed and accepted as `record_drafts.py` has it."""

    def step(self, index):
        record = super().step(index)
        state = {
            name: [r.num_computed_tokens, r.num_tokens, r.num_output_placeholders, len(r.spec_token_ids)]
            for name, r in self.scheduler.requests.items()
        }
        return short(record, self.planned, state)

    def stats(self):
        """As the recording counts."""
        stats = self.scheduler.drafts.spec_decoding_stats
        counts = [stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens]
        return [*counts, stats.num_accepted_tokens_per_pos]

    def update(self, output):
        seed, k = self.workload.seed, self.workload.config["drafts"]["k"]
        self.planned = {name: list(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        ids, sampled = list(output.num_scheduled_tokens), []
        for name in ids:
            due = not self.scheduler.requests[name].is_prefill_chunk
            new = verified(seed, name, self.num_sampled[name], self.planned.get(name, [])) if due else []
            sampled.append(new)
            self.num_sampled[name] += len(new)
        rows = list(range(len(ids)))
        self.shuffle(rows)
        self.in_flight.append((output, ModelRunnerOutput([ids[row] for row in rows], [sampled[row] for row in rows])))
        if self.workload.config["async"] and ids and len(self.in_flight) < 2:
            return
        self.scheduler.update_from_output(*self.in_flight.popleft())
        if not self.workload.config["async"]:
            drafts = [proposed(seed, name, self.num_sampled[name], k) for name in ids]
            self.scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))


class DraftsBeyondThinking(StructuredOutputManager):
    """Takes drafts that end the thinking, and those behind them, as the pinned release does."""

    def drafts_of_thinking(self, request, token_ids):
        return token_ids


class GrammarReplay(GroupReplay):
    """With grammars, compiled when the workload says so, and perhaps drafts: as `record_grammars.py`."""

    def __init__(self, workload):
        self.model, self.gate, self.last = grammar_workload.StandIn(workload), grammar_workload.Gate(workload), []
        super().__init__(workload)

    def held(self, config):
        settings, num_drafts = StructuredOutputsConfig(), config["drafts"]["k"] if "drafts" in config else 0
        vocabulary = TokenVocabulary(list(grammar_workload.TEXTS), [EOS], grammar_workload.VOCAB)
        manager = DraftsBeyondThinking(settings, config["max_num_seqs"], lambda: vocabulary, lambda: 0, num_drafts)
        manager.executor, manager.backend = self.gate, MiniBackend(settings, vocabulary)
        if config["reasoning"]:
            manager.reasoner_cls = grammar_workload.Reasoner
        return {**super().held(config), "structured_output_manager": manager}

    def more_params(self, arrival):
        found = self.workload.config["grammars"].get(arrival.request_id)
        return {} if found is None else {"structured_outputs": StructuredOutputsParams(regex=found[0])}

    def add(self, request):
        self.scheduler.structured_output_manager.grammar_init(request)
        super().add(request)

    def before(self, index):
        self.gate.step = index
        super().before(index)
        self.gate.open(index)

    def step(self, index):
        if index >= len(self.workload.arrivals):
            self.gate.open(index)
        self.told, self.legal = [], {}
        record = super().step(index)
        more = [self.told, self.legal, grammar_workload.state_of(self.scheduler)]
        return grammar_workload.short(record, self.planned, more)

    def plan_record(self, output):
        self.planned = {name: list(ids) for name, ids in output.scheduled_spec_decode_tokens.items()}
        return super().plan_record(output)

    def update(self, output):
        deferred = output.pending_structured_output_tokens
        if deferred:
            self.take_in()
            if "drafts" in self.workload.config:
                drafts = DraftTokenIds(list(self.last), self.model.drafts(self.last))
                self.scheduler.update_draft_token_ids_in_output(drafts, output)
        names, drafts = list(output.num_scheduled_tokens), output.scheduled_spec_decode_tokens
        grammar_output = self.scheduler.get_grammar_bitmask(output)
        self.legal = grammar_workload.legal_tokens(grammar_output, drafts)
        sampled = self.model.sample(names, self.is_due, drafts, grammar_output, deferred)
        rows = list(range(len(names)))
        self.shuffle(rows)
        model_output = ModelRunnerOutput([names[row] for row in rows], [sampled[row] for row in rows])
        self.in_flight.append((output, model_output))
        self.last = names
        if deferred or (self.workload.config["async"] and names and len(self.in_flight) < 2):
            return
        self.take_in()
        if "drafts" in self.workload.config and not self.workload.config["async"]:
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, self.model.drafts(names)))

    def is_due(self, name):
        """Whether a token is sampled for a request of the plan."""
        request = self.scheduler.requests.get(name)
        return request is not None and not request.is_prefill_chunk

    def take_in(self):
        """The oldest results."""
        self.told += grammar_workload.told(self.scheduler.update_from_output(*self.in_flight.popleft()))

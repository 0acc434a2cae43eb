// Continuous batching: decides, step by step, which request computes how many tokens. Twins:
// mini_vllm/core/sched/scheduler.py and request_table.py, with the policy "fcfs" and without async scheduling.
//
// There is no prefill phase and no decode phase. Each request has `num_tokens` that exist and `num_computed_tokens`
// that are in the KV cache; a step gives it some tokens to catch up with. A prompt is far behind, a decoding request is
// one behind, a chunk of a prompt is a part of the way.

import { RequestStatus } from "../../request.js";
import { StepPlan } from "./output.js";
import { check_stop } from "./utils.js";

/** @typedef {import("../../request.js").Request} Request */
/** @typedef {import("../kv_cache_manager.js").KVCacheManager} KVCacheManager */
/** @typedef {import("./output.js").SchedulerOutput} SchedulerOutput */

/**
 * @typedef {object} SchedulerConfig
 * @property {number} max_num_seqs requests that may run at one time
 * @property {number} max_num_batched_tokens budget of a step
 * @property {number} [long_prefill_token_threshold] most tokens of one request in a step; 0: no such cap
 * @property {boolean} [scheduler_reserve_full_isl] admit only whom the pool can hold as a whole; true
 */

/** @typedef {{request_id: string, new_token_ids: number[], finish_reason: string | null}} EngineCoreOutput */

/** Plans each step and takes in its results. */
export class Scheduler {
  /** @param {SchedulerConfig} config @param {KVCacheManager} kv_cache_manager @param {number} max_model_len */
  constructor(config, kv_cache_manager, max_model_len) {
    this.config = { long_prefill_token_threshold: 0, scheduler_reserve_full_isl: true, ...config };
    this.kv_cache_manager = kv_cache_manager;
    this.max_model_len = max_model_len;
    /** All unfinished requests. @type {Map<string, Request>} */
    this.requests = new Map();
    /** Those without blocks, new or preempted. @type {Request[]} */
    this.waiting = [];
    /** Those with blocks, in the order in which they are served. @type {Request[]} */
    this.running = [];
    /** Ended since the last plan. @type {Set<string>} */
    this.finished_req_ids = new Set();
  }

  /**
   * Plan one step, and count its tokens as computed. Running requests come first, so that decoding never waits for a
   * new prompt; then waiting ones, from the front, as long as budget, seats and blocks last. In a step that had to
   * preempt nobody new is admitted.
   * @returns {SchedulerOutput}
   */
  schedule() {
    const step = new StepPlan(this.config.max_num_batched_tokens);
    this._schedule_running(step);
    if (!step.preempted.length) this._schedule_waiting(step);
    const output = step.make_output(this.finished_req_ids);
    this.finished_req_ids = new Set();
    this._update_after_schedule(output);
    return output;
  }

  /** First phase. Where the pool refuses one of `running`, others are preempted for it, the last one first; the phase
   * ends when a request had to be preempted for itself. @param {StepPlan} step */
  _schedule_running(step) {
    for (let index = 0; index < this.running.length && step.token_budget > 0; index++) {
      const request = this.running[index];
      const num_new_tokens = this._clamp(request.num_tokens - request.num_computed_tokens, step.token_budget);
      let new_blocks;
      while (!(new_blocks = this.kv_cache_manager.allocate_slots(request, num_new_tokens))) {
        const victim = /** @type {Request} */ (this.running.pop());
        this._preempt_request(victim);
        step.preempted.push(victim);
        if (victim === request) return;
      }
      step.running.push(request);
      step.add(request, num_new_tokens, new_blocks);
    }
  }

  /** Second phase: what the prefix cache holds is a request's head start. One that does not fit ends the phase: nobody
   * overtakes. @param {StepPlan} step */
  _schedule_waiting(step) {
    while (this.waiting.length && step.token_budget > 0 && this.running.length < this.config.max_num_seqs) {
      const request = this.waiting[0];
      const [hits, num_hit_tokens] = this.kv_cache_manager.get_computed_blocks(request);
      const num_new_tokens = this._clamp(request.num_tokens - num_hit_tokens, step.token_budget);
      const full_sequence_must_fit = this.config.scheduler_reserve_full_isl;
      if (!this.kv_cache_manager.allocate_slots(request, num_new_tokens, hits, full_sequence_must_fit)) return;
      this.waiting.shift();
      this.running.push(request);
      (request.status === RequestStatus.PREEMPTED ? step.resumed : step.new).push(request);
      step.add(request, num_new_tokens, this.kv_cache_manager.get_blocks(request.request_id));
      request.status = RequestStatus.RUNNING;
      request.num_computed_tokens = num_hit_tokens;
      if (!request.output_token_ids.length) request.num_cached_tokens = num_hit_tokens;
    }
  }

  /** Tokens for one request in this step: what it lacks, its own cap, and what is left of the budget.
   * @param {number} num_new_tokens @param {number} token_budget */
  _clamp(num_new_tokens, token_budget) {
    const threshold = this.config.long_prefill_token_threshold || Infinity;
    return Math.min(num_new_tokens, threshold, token_budget);
  }

  /** Take the request's blocks and put it back at the front of the queue; its tokens are computed again later.
   * @param {Request} request */
  _preempt_request(request) {
    this.kv_cache_manager.free(request);
    request.status = RequestStatus.PREEMPTED;
    request.num_computed_tokens = 0;
    request.num_preemptions += 1;
    this.waiting.unshift(request);
  }

  /** Afterwards a request has caught up (`!is_prefill_chunk`) exactly when this step samples a token for it.
   * @param {SchedulerOutput} output */
  _update_after_schedule(output) {
    for (const [request_id, num_tokens] of output.num_scheduled_tokens) {
      const request = /** @type {Request} */ (this.requests.get(request_id));
      request.num_computed_tokens += num_tokens;
      request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens;
    }
  }

  /**
   * Append the sampled tokens, end what has ended, and report what is new. The order is that of the plan: it decides in
   * which order blocks are freed, and so which are reused first.
   * @param {SchedulerOutput} output
   * @param {Map<string, number>} sampled_token_ids of the requests that were due one
   * @returns {EngineCoreOutput[]}
   */
  update_from_output(output, sampled_token_ids) {
    const outputs = [];
    for (const request_id of output.num_scheduled_tokens.keys()) {
      const request = this.requests.get(request_id);
      const token_id = sampled_token_ids.get(request_id);
      if (!request || token_id === undefined) continue; // aborted meanwhile, or a chunk of a prompt
      request.append_output_token_id(token_id);
      if (check_stop(request, this.max_model_len)) this._free_request(request);
      outputs.push({ request_id, new_token_ids: [token_id], finish_reason: request.get_finished_reason() });
    }
    this.running = this.running.filter((request) => !request.is_finished());
    return outputs;
  }

  /** Queue a request, unless one of that id is here or it can never fit the pool. @param {Request} request */
  add_request(request) {
    const { request_id } = request;
    if (this.requests.has(request_id)) throw new Error(`request_id "${request_id}" belongs to an unfinished request`);
    this.kv_cache_manager.check_fits(request.num_prompt_tokens, request.max_tokens);
    this.requests.set(request_id, request);
    this.waiting.push(request);
  }

  /** End requests from outside; unknown ids are passed over. @param {string[]} request_ids @param {number} status */
  finish_requests(request_ids, status = RequestStatus.FINISHED_ABORTED) {
    for (const request_id of request_ids) {
      const request = this.requests.get(request_id);
      if (!request) continue;
      request.status = status;
      this._free_request(request);
    }
    this.running = this.running.filter((request) => !request.is_finished());
    this.waiting = this.waiting.filter((request) => !request.is_finished());
  }

  /** @param {Request} request */
  _free_request(request) {
    this.kv_cache_manager.free(request);
    this.finished_req_ids.add(request.request_id);
    this.requests.delete(request.request_id);
  }

  has_unfinished_requests() {
    return this.requests.size > 0;
  }

  /** Forget all cached contents; false, and nothing done, while requests hold blocks. With `reset_running_requests` the
   * running ones are preempted first, last one first, so that they come back in their order. */
  reset_prefix_cache(reset_running_requests = false) {
    while (reset_running_requests && this.running.length) {
      this._preempt_request(/** @type {Request} */ (this.running.pop()));
    }
    return this.kv_cache_manager.block_pool.reset_prefix_cache();
  }
}

// The plan of one step: what the scheduler tells the model runner. A request is described in full once, when it is
// first scheduled; afterwards only what changed is sent. Twins: mini_vllm/core/sched/output.py and step_plan.py.

/** @typedef {import("../../request.js").Request} Request */
/** @typedef {import("../kv_cache_utils.js").KVCacheBlock} KVCacheBlock */

/**
 * A request on its first step. `block_ids` is its block table (upstream: a list of them, one a KV cache group).
 * @typedef {object} NewRequestData
 * @property {string} req_id
 * @property {number[]} prompt_token_ids
 * @property {import("../../request.js").SamplingParams} sampling_params
 * @property {number[]} block_ids
 * @property {number} num_computed_tokens
 */

/**
 * Requests that the runner knows, as differences; the lists are aligned with `req_ids`. `new_block_ids[i]` is to be
 * appended to the block table, or replaces it where the request is in `resumed_req_ids`; null: no new block.
 * @typedef {object} CachedRequestData
 * @property {string[]} req_ids
 * @property {Set<string>} resumed_req_ids
 * @property {(number[] | null)[]} new_block_ids
 * @property {number[]} num_computed_tokens
 * @property {number[]} num_output_tokens
 */

/**
 * What to compute in one step. The order of `num_scheduled_tokens` is the order of scheduling.
 * @typedef {object} SchedulerOutput
 * @property {NewRequestData[]} scheduled_new_reqs
 * @property {CachedRequestData} scheduled_cached_reqs
 * @property {Map<string, number>} num_scheduled_tokens
 * @property {number} total_num_scheduled_tokens
 * @property {Set<string>} preempted_req_ids
 * @property {Set<string>} finished_req_ids ended since the last plan: the runner forgets them
 */

/** The plan while the scheduler is making it. `token_budget` is what is left. */
export class StepPlan {
  /** @param {number} token_budget */
  constructor(token_budget) {
    this.token_budget = token_budget;
    /** @type {Map<string, number>} */
    this.num_scheduled_tokens = new Map();
    /** @type {Map<string, KVCacheBlock[]>} */
    this.new_blocks = new Map();
    /** @type {Request[]} */
    this.running = [];
    /** @type {Request[]} */
    this.new = [];
    /** @type {Request[]} */
    this.resumed = [];
    /** @type {Request[]} */
    this.preempted = [];
  }

  /** Give `num_new_tokens` of the budget to a request.
   * @param {Request} request @param {number} num_new_tokens @param {KVCacheBlock[]} new_blocks */
  add(request, num_new_tokens, new_blocks) {
    this.num_scheduled_tokens.set(request.request_id, num_new_tokens);
    this.new_blocks.set(request.request_id, [...new_blocks]);
    this.token_budget -= num_new_tokens;
  }

  /** The finished plan. @param {Set<string>} finished_req_ids @returns {SchedulerOutput} */
  make_output(finished_req_ids) {
    return {
      scheduled_new_reqs: this.new.map((request) => ({
        req_id: request.request_id,
        prompt_token_ids: request.prompt_token_ids,
        sampling_params: request.sampling_params,
        block_ids: this._block_ids(request),
        num_computed_tokens: request.num_computed_tokens,
      })),
      scheduled_cached_reqs: this._make_cached_request_data(),
      num_scheduled_tokens: this.num_scheduled_tokens,
      total_num_scheduled_tokens: [...this.num_scheduled_tokens.values()].reduce((a, b) => a + b, 0),
      preempted_req_ids: new Set(this.preempted.map((request) => request.request_id)),
      finished_req_ids,
    };
  }

  /** @returns {CachedRequestData} */
  _make_cached_request_data() {
    const requests = [...this.running, ...this.resumed];
    const block_ids = requests.map((request) => this._block_ids(request));
    return {
      req_ids: requests.map((request) => request.request_id),
      resumed_req_ids: new Set(this.resumed.map((request) => request.request_id)),
      new_block_ids: block_ids.map((ids) => (ids.length ? ids : null)),
      num_computed_tokens: requests.map((request) => request.num_computed_tokens),
      num_output_tokens: requests.map((request) => request.output_token_ids.length),
    };
  }

  /** @param {Request} request */
  _block_ids(request) {
    return (this.new_blocks.get(request.request_id) ?? []).map((block) => block.block_id);
  }
}

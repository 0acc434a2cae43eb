// A request inside the engine: its tokens, its two counters and its state. Twin: mini_vllm/request.py.

/** @typedef {import("./core/kv_cache_utils.js").BlockHash} BlockHash */

/** States of a request. The order matters: everything after PREEMPTED has finished. */
export const RequestStatus = Object.freeze({
  WAITING: 1, RUNNING: 2, PREEMPTED: 3, FINISHED_STOPPED: 4, FINISHED_LENGTH_CAPPED: 5, FINISHED_ABORTED: 6,
});

/** The API's word for a finished state. @type {Record<number, string>} */
const FINISHED_REASONS = {
  [RequestStatus.FINISHED_STOPPED]: "stop",
  [RequestStatus.FINISHED_LENGTH_CAPPED]: "length",
  [RequestStatus.FINISHED_ABORTED]: "abort",
};

/**
 * How to choose tokens and when to stop; what is left out has the value given here.
 * @typedef {object} SamplingParams
 * @property {number} [max_tokens] 16
 * @property {number} [temperature] 1; 0 is greedy
 * @property {number} [top_k] 0: off
 * @property {number} [top_p] 1: off
 * @property {number} [seed] of the request's own random numbers; 0
 * @property {number[]} [stop_token_ids] none
 * @property {number | null} [eos_token_id] the model's; null: nothing but length ends the answer
 */

/**
 * One sequence to be continued. The whole engine turns on two counters: `num_tokens`, how many tokens exist, and
 * `num_computed_tokens`, how many of them have their keys and values in the cache. A step lets the second catch up with
 * the first; when it has, a token is sampled and the first moves on by one.
 */
export class Request {
  /**
   * @param {string} request_id unique among the unfinished requests
   * @param {number[]} prompt_token_ids at least one
   * @param {SamplingParams} sampling_params
   * @param {((request: Request) => BlockHash[]) | null} block_hasher null: no prefix caching
   */
  constructor(request_id, prompt_token_ids, sampling_params, block_hasher = null) {
    this.request_id = request_id;
    this.sampling_params = sampling_params;
    this.max_tokens = sampling_params.max_tokens ?? 16;
    this.prompt_token_ids = prompt_token_ids;
    this.num_prompt_tokens = prompt_token_ids.length;
    /** @type {number[]} */
    this.output_token_ids = [];
    this.all_token_ids = [...prompt_token_ids];

    /** @type {number} */
    this.status = RequestStatus.WAITING;
    this.num_computed_tokens = 0;
    this.is_prefill_chunk = false;
    this.num_preemptions = 0;
    this.num_cached_tokens = 0;

    this._block_hasher = block_hasher;
    /** Hashes of the full blocks, each computed once. @type {BlockHash[]} */
    this.block_hashes = [];
    this.update_block_hashes();
  }

  /** Tokens that exist: prompt and output. */
  get num_tokens() {
    return this.all_token_ids.length;
  }

  /** Append one sampled token, and the hash of the block that it may have filled. @param {number} token_id */
  append_output_token_id(token_id) {
    this.output_token_ids.push(token_id);
    this.all_token_ids.push(token_id);
    this.update_block_hashes();
  }

  update_block_hashes() {
    if (this._block_hasher) this.block_hashes.push(...this._block_hasher(this));
  }

  is_finished() {
    return this.status > RequestStatus.PREEMPTED;
  }

  /** Why the request ended; null while it has not. */
  get_finished_reason() {
    return FINISHED_REASONS[this.status] ?? null;
  }
}

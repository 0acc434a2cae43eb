// Turns a plan into arrays, runs the model over them, and samples. Twins: mini_vllm/worker/model_runner.py, states.py
// and input_batch.py.

import { PagedAttention, slot } from "../attention/paged_attention.js";
import { make_generator, sample } from "../sample/sampler.js";

/** @typedef {import("../core/sched/output.js").SchedulerOutput} SchedulerOutput */

/**
 * What the runner keeps of a request between steps.
 * @typedef {object} CachedRequestState
 * @property {number[]} token_ids prompt and output
 * @property {number[]} block_ids
 * @property {number} num_computed_tokens
 * @property {import("../request.js").SamplingParams} sampling_params
 * @property {() => number} generator
 */

export class ModelRunner {
  /**
   * @param {import("../models/llama.js").LlamaForCausalLM} model
   * @param {{num_blocks: number, block_size: number, max_num_seqs: number, max_num_batched_tokens: number}} config
   */
  constructor(model, config) {
    const { num_blocks, block_size, max_num_seqs, max_num_batched_tokens } = config;
    this.model = model;
    this.block_size = block_size;
    this.attention = new PagedAttention(model.config, num_blocks, block_size);
    /** @type {Map<string, CachedRequestState>} */
    this.requests = new Map();
    this.token_ids = new Int32Array(max_num_batched_tokens);
    this.logits_indices = new Int32Array(max_num_seqs);
    this.logits = new Float32Array(max_num_seqs * model.config.vocab_size);
    /** @type {import("../attention/paged_attention.js").AttentionMetadata} */
    this.metadata = {
      num_reqs: 0,
      query_start_loc: new Int32Array(max_num_seqs + 1),
      positions: new Int32Array(max_num_batched_tokens),
      slot_mapping: new Int32Array(max_num_batched_tokens),
      block_tables: [],
    };
  }

  /**
   * @param {SchedulerOutput} scheduler_output
   * @returns {Map<string, number>} the next token of each request that has caught up
   */
  execute_model(scheduler_output) {
    this._update_states(scheduler_output);
    const sampled_token_ids = new Map();
    const num_tokens = scheduler_output.total_num_scheduled_tokens;
    if (!num_tokens) return sampled_token_ids;
    const due = this._prepare_inputs(scheduler_output);
    this.model.forward(this.token_ids, num_tokens, this.attention, this.metadata);
    this.model.compute_logits(this.logits, this.logits_indices, due.length);
    const { vocab_size } = this.model.config;
    due.forEach((req_id, row) => {
      const state = this._state(req_id);
      const logits = this.logits.subarray(row * vocab_size, (row + 1) * vocab_size);
      const token_id = sample(logits, state.sampling_params, state.generator);
      state.token_ids.push(token_id);
      sampled_token_ids.set(req_id, token_id);
    });
    return sampled_token_ids;
  }

  /** Bring the copies of the requests in line with the plan. @param {SchedulerOutput} output */
  _update_states({ finished_req_ids, scheduled_new_reqs, scheduled_cached_reqs: cached }) {
    for (const req_id of finished_req_ids) this.requests.delete(req_id);
    for (const request of scheduled_new_reqs) {
      this.requests.set(request.req_id, {
        token_ids: [...request.prompt_token_ids],
        block_ids: [...request.block_ids],
        num_computed_tokens: request.num_computed_tokens,
        sampling_params: request.sampling_params,
        generator: make_generator(request.sampling_params.seed ?? 0),
      });
    }
    cached.req_ids.forEach((req_id, i) => {
      const state = this._state(req_id);
      state.num_computed_tokens = cached.num_computed_tokens[i];
      if (cached.resumed_req_ids.has(req_id)) state.block_ids = []; // the old ones were taken
      state.block_ids.push(...(cached.new_block_ids[i] ?? []));
    });
  }

  /** Lay the scheduled tokens of all requests behind one another. Returns the requests that are due a token.
   * @param {SchedulerOutput} output */
  _prepare_inputs({ num_scheduled_tokens }) {
    const { metadata, block_size } = this;
    const due = [];
    let row = 0, req = 0;
    metadata.block_tables = [];
    for (const [req_id, num_tokens] of num_scheduled_tokens) {
      const { token_ids, block_ids, num_computed_tokens } = this._state(req_id);
      metadata.block_tables.push(block_ids);
      for (let position = num_computed_tokens; position < num_computed_tokens + num_tokens; position++, row++) {
        this.token_ids[row] = token_ids[position];
        metadata.positions[row] = position;
        metadata.slot_mapping[row] = slot(block_ids, position, block_size);
      }
      metadata.query_start_loc[++req] = row;
      if (num_computed_tokens + num_tokens === token_ids.length) {
        this.logits_indices[due.length] = row - 1;
        due.push(req_id);
      }
    }
    metadata.num_reqs = req;
    return due;
  }

  /** @param {string} req_id */
  _state(req_id) {
    return /** @type {CachedRequestState} */ (this.requests.get(req_id));
  }
}

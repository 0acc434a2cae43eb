// The engine: text in, tokens out, one step at a time. Twins: mini_vllm/engine/llm_engine.py and engine/core.py.

import { get_request_block_hasher } from "../core/kv_cache_utils.js";
import { KVCacheManager } from "../core/kv_cache_manager.js";
import { Scheduler } from "../core/sched/scheduler.js";
import { LlamaForCausalLM } from "../models/llama.js";
import { read_safetensors } from "../model_loader/safetensors_reader.js";
import { Request } from "../request.js";
import { BPETokenizer } from "../tokenizers/bpe.js";
import { ModelRunner } from "../worker/model_runner.js";

/**
 * What a checkpoint folder holds.
 * @typedef {object} Checkpoint
 * @property {import("../models/llama.js").LlamaConfig} config config.json
 * @property {any} tokenizer tokenizer.json
 * @property {ArrayBuffer} weights model.safetensors
 */

/**
 * @typedef {object} EngineArgs
 * @property {number} [block_size] @property {number} [num_blocks] the null block included
 * @property {number} [max_model_len] @property {number} [max_num_seqs] @property {number} [max_num_batched_tokens]
 * @property {boolean} [enable_prefix_caching]
 */

/** @typedef {import("../core/sched/scheduler.js").EngineCoreOutput & {text: string}} RequestOutput */

export class LLMEngine {
  /** @param {Checkpoint} checkpoint @param {EngineArgs} args */
  constructor(checkpoint, args = {}) {
    const config = {
      block_size: 16, num_blocks: 128, max_model_len: checkpoint.config.max_position_embeddings, max_num_seqs: 8,
      max_num_batched_tokens: 64, enable_prefix_caching: true, ...args,
    };
    this.config = config;
    this.eos_token_id = checkpoint.config.eos_token_id;
    this.tokenizer = new BPETokenizer(checkpoint.tokenizer);
    const { block_size, num_blocks, max_model_len, enable_prefix_caching } = config;
    const kv_cache_manager = new KVCacheManager(num_blocks, block_size, enable_prefix_caching, max_model_len);
    this.scheduler = new Scheduler(config, kv_cache_manager, max_model_len);
    const tensors = read_safetensors(checkpoint.weights);
    const model = new LlamaForCausalLM(checkpoint.config, tensors, config.max_num_batched_tokens);
    this.model_runner = new ModelRunner(model, config);
    this._block_hasher = enable_prefix_caching ? get_request_block_hasher(block_size) : null;
    /** @type {Map<string, (id: number | null) => string>} */
    this._detokenizers = new Map();
  }

  /**
   * Queue a request. Throws where the prompt is empty, longer than the context, or can never fit the pool.
   * @param {string} request_id @param {number[]} prompt_token_ids
   * @param {import("../request.js").SamplingParams} params
   */
  add_request(request_id, prompt_token_ids, params = {}) {
    const { max_model_len } = this.config;
    if (!prompt_token_ids.length || prompt_token_ids.length >= max_model_len) {
      throw new Error(`a prompt must have 1 to ${max_model_len - 1} tokens, this one has ${prompt_token_ids.length}`);
    }
    const sampling_params = { eos_token_id: this.eos_token_id, ...params };
    this.scheduler.add_request(new Request(request_id, prompt_token_ids, sampling_params, this._block_hasher));
    this._detokenizers.set(request_id, this.tokenizer.make_detokenizer());
  }

  /** Schedule, run the model, take in its tokens. @returns {RequestOutput[]} */
  step() {
    const scheduler_output = this.scheduler.schedule();
    const sampled_token_ids = this.model_runner.execute_model(scheduler_output);
    const outputs = this.scheduler.update_from_output(scheduler_output, sampled_token_ids);
    return outputs.map((output) => ({ ...output, text: this._detokenize(output) }));
  }

  /** @param {import("../core/sched/scheduler.js").EngineCoreOutput} output */
  _detokenize({ request_id, new_token_ids, finish_reason }) {
    const detokenizer = /** @type {(id: number | null) => string} */ (this._detokenizers.get(request_id));
    let text = new_token_ids.map(detokenizer).join("");
    if (finish_reason) {
      text += detokenizer(null);
      this._detokenizers.delete(request_id);
    }
    return text;
  }

  /** End a request from outside. @param {string} request_id */
  abort_request(request_id) {
    this.scheduler.finish_requests([request_id]);
    this._detokenizers.delete(request_id);
  }

  has_unfinished_requests() {
    return this.scheduler.has_unfinished_requests();
  }
}

// Which blocks belong to which request: what the scheduler asks of the paged KV cache. pocket has one KV cache group,
// so what mini_vllm spreads over coordinator and managers stands in one class.
// Twin: mini_vllm/core/kv_cache_manager.py.

import { BlockPool } from "./block_pool.js";

/** @typedef {import("../request.js").Request} Request */
/** @typedef {import("./kv_cache_utils.js").KVCacheBlock} KVCacheBlock */

/** a / b, rounded up. @param {number} a @param {number} b */
const cdiv = (a, b) => Math.ceil(a / b);

/** Gives requests the slots they are about to write, and finds what has been computed before. */
export class KVCacheManager {
  /**
   * @param {number} num_blocks in the pool, the null block included
   * @param {number} block_size tokens per block
   * @param {boolean} enable_caching find equal prefixes again
   * @param {number} max_model_len cap on the tokens of one request
   */
  constructor(num_blocks, block_size, enable_caching, max_model_len) {
    this.block_size = block_size;
    this.enable_caching = enable_caching;
    this.max_model_len = max_model_len;
    this.block_pool = new BlockPool(num_blocks);
    /** Block table of each request that holds blocks. @type {Map<string, KVCacheBlock[]>} */
    this.req_to_blocks = new Map();
    /** How many of them are dealt with in the prefix cache, from the front. @type {Map<string, number>} */
    this.num_cached_block = new Map();
    /** Look-ups in tokens; those of preempted requests apart. */
    this.prefix_cache_stats = { queries: 0, hits: 0, preempted_queries: 0, preempted_hits: 0 };
  }

  /**
   * The longest prefix of the request whose keys and values are in the pool. At least one token is left to compute,
   * because its logits are needed: of a prompt that is there as a whole, the last block is computed again.
   * @param {Request} request
   * @returns {[KVCacheBlock[], number]} the blocks, not yet touched, and how many tokens they hold
   */
  get_computed_blocks(request) {
    if (!this.enable_caching) return [[], 0];
    const longest = Math.floor((request.num_tokens - 1) / this.block_size);
    const blocks = [];
    for (const block_hash of request.block_hashes.slice(0, longest)) {
      const block = this.block_pool.get_cached_block(block_hash);
      if (!block) break;
      blocks.push(block);
    }
    const num_tokens = blocks.length * this.block_size;
    const stats = this.prefix_cache_stats;
    if (request.num_preemptions) {
      stats.preempted_queries += request.num_tokens;
      stats.preempted_hits += num_tokens;
    } else {
      stats.queries += request.num_tokens;
      stats.hits += num_tokens;
    }
    return [blocks, num_tokens];
  }

  /**
   * Give the request slots for `num_new_tokens` more tokens, or refuse and give nothing. Full blocks are made findable
   * here, before their content is computed: a step writes the keys and values of all its tokens before it reads any.
   * @param {Request} request
   * @param {number} num_new_tokens to compute in this step, at least 1
   * @param {KVCacheBlock[]} hits what `get_computed_blocks` found; `num_computed_tokens` does not count them yet
   * @param {boolean} full_sequence_must_fit refuse unless all tokens of the request fit
   * @returns {KVCacheBlock[] | null} the new blocks, perhaps none; null: not enough free blocks
   */
  allocate_slots(request, num_new_tokens, hits = [], full_sequence_must_fit = false) {
    const { request_id } = request;
    const num_tokens = request.num_computed_tokens + hits.length * this.block_size + num_new_tokens;
    const num_slots = Math.min(num_tokens, this.max_model_len);
    const num_free = this.block_pool.get_num_free_blocks();
    if (full_sequence_must_fit && this._num_blocks_to_allocate(request_id, request.num_tokens, hits) > num_free) {
      return null;
    }
    if (this._num_blocks_to_allocate(request_id, num_slots, hits) > num_free) return null;
    if (!this.num_cached_block.has(request_id)) {
      this.block_pool.touch(hits);
      this.req_to_blocks.set(request_id, [...hits]);
      this.num_cached_block.set(request_id, hits.length);
    }
    const blocks = this.get_blocks(request_id);
    const new_blocks = this.block_pool.get_new_blocks(Math.max(cdiv(num_slots, this.block_size) - blocks.length, 0));
    blocks.push(...new_blocks);
    this._cache_blocks(request, Math.min(num_tokens, request.num_tokens));
    return new_blocks;
  }

  /** Blocks that the free queue would lose: new ones, and hits that nobody uses now. @private
   * @param {string} request_id @param {number} num_tokens slots wanted in all @param {KVCacheBlock[]} hits */
  _num_blocks_to_allocate(request_id, num_tokens, hits) {
    const num_held = this.get_blocks(request_id).length + hits.length;
    const num_unused_hits = hits.filter((block) => block.ref_cnt === 0).length;
    return Math.max(cdiv(num_tokens, this.block_size) - num_held, 0) + num_unused_hits;
  }

  /** Make the full blocks among the request's first `num_tokens` tokens findable. @private
   * @param {Request} request @param {number} num_tokens */
  _cache_blocks(request, num_tokens) {
    if (!this.enable_caching) return;
    const start = this.num_cached_block.get(request.request_id) ?? 0;
    const stop = Math.floor(num_tokens / this.block_size);
    if (start >= stop) return;
    this.block_pool.cache_full_blocks(request.block_hashes, this.get_blocks(request.request_id), start, stop);
    this.num_cached_block.set(request.request_id, stop);
  }

  /** Throw if a request of this size could never be finished, even alone in the pool. The last token's keys and values
   * are never needed, hence the - 1. @param {number} num_prompt_tokens @param {number} max_tokens */
  check_fits(num_prompt_tokens, max_tokens) {
    const longest = Math.min(num_prompt_tokens + max_tokens, this.max_model_len) - 1;
    const room = (this.block_pool.num_gpu_blocks - 1) * this.block_size;
    if (longest <= room) return;
    throw new Error(`prompt of ${num_prompt_tokens} tokens with max_tokens=${max_tokens} needs room for ${longest} ` +
      `tokens, but the KV cache holds ${room}: shorten it, or allow more blocks`);
  }

  /** Give back the request's blocks, last block first, so that the tail of a sequence is reused first.
   * @param {Request} request */
  free(request) {
    this.block_pool.free_blocks(this.get_blocks(request.request_id).reverse());
    this.req_to_blocks.delete(request.request_id);
    this.num_cached_block.delete(request.request_id);
  }

  /** The request's block table: entry i is the block of its tokens from i * block_size on.
   * @param {string} request_id */
  get_blocks(request_id) {
    return this.req_to_blocks.get(request_id) ?? [];
  }

  /** The same as ids. @param {string} request_id */
  get_block_ids(request_id) {
    return this.get_blocks(request_id).map((block) => block.block_id);
  }
}

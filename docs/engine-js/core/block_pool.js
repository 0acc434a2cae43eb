// The pool of KV cache blocks: which are free, in what order they are reused, and what content can be found again.
// Everything here is bookkeeping; the arrays are in attention/paged_attention.js. Twin: mini_vllm/core/block_pool.py.

import { FreeKVCacheBlockQueue, KVCacheBlock } from "./kv_cache_utils.js";

/** @typedef {import("./kv_cache_utils.js").BlockHash} BlockHash */

/**
 * Finds blocks by what they hold. Two blocks may hold the same: both stay findable, the older one is preferred.
 * One entry of the map holds all blocks whose hashes have the same value, in the order of their coming.
 */
export class BlockHashToBlockMap {
  constructor() {
    /** @type {Map<number, KVCacheBlock[]>} */
    this._cache = new Map();
  }

  /** The first block stored under `key` that is still there, or null. @param {BlockHash} key */
  get_one_block(key) {
    const blocks = this._cache.get(key.value) ?? [];
    return blocks.find((block) => block.block_hash?.equals(key)) ?? null;
  }

  /** Add one more block, which has its hash. @param {KVCacheBlock} block */
  insert(block) {
    const { value } = /** @type {BlockHash} */ (block.block_hash);
    const blocks = this._cache.get(value);
    if (blocks) blocks.push(block);
    else this._cache.set(value, [block]);
  }

  /** Remove a block, which still has its hash. @param {KVCacheBlock} block */
  pop(block) {
    const { value } = /** @type {BlockHash} */ (block.block_hash);
    const left = (this._cache.get(value) ?? []).filter((other) => other !== block);
    if (left.length) this._cache.set(value, left);
    else this._cache.delete(value);
  }
}

/**
 * Hands out blocks, takes them back, and keeps their content findable in between. Block 0 is the null block: never
 * handed out. A block is in the free queue exactly when its `ref_cnt` is 0, in the map exactly when it has a hash.
 */
export class BlockPool {
  /** @param {number} num_gpu_blocks the null block included */
  constructor(num_gpu_blocks) {
    if (num_gpu_blocks < 2) throw new Error(`num_blocks must be at least 2, got ${num_gpu_blocks}`);
    this.num_gpu_blocks = num_gpu_blocks;
    this.blocks = Array.from({ length: num_gpu_blocks }, (_, block_id) => new KVCacheBlock(block_id));
    this.free_block_queue = new FreeKVCacheBlockQueue(this.blocks);
    this.cached_block_hash_to_block = new BlockHashToBlockMap();
    this.null_block = this.free_block_queue.popleft_n(1)[0];
    this.null_block.is_null = true;
  }

  /** The block that holds this content, in use or free, or null. @param {BlockHash} block_hash */
  get_cached_block(block_hash) {
    return this.cached_block_hash_to_block.get_one_block(block_hash);
  }

  /**
   * Make `blocks[num_cached_blocks:num_full_blocks]` findable under the hashes of the same indices.
   * @param {BlockHash[]} block_hashes @param {KVCacheBlock[]} blocks
   * @param {number} num_cached_blocks @param {number} num_full_blocks
   */
  cache_full_blocks(block_hashes, blocks, num_cached_blocks, num_full_blocks) {
    for (let i = num_cached_blocks; i < num_full_blocks; i++) {
      if (blocks[i].block_hash) throw new Error(`block ${blocks[i].block_id} already has a hash`);
      blocks[i].block_hash = block_hashes[i];
      this.cached_block_hash_to_block.insert(blocks[i]);
    }
  }

  /** Take the blocks that were free the longest; their old content can no longer be found.
   * @param {number} num_blocks */
  get_new_blocks(num_blocks) {
    const blocks = this.free_block_queue.popleft_n(num_blocks);
    for (const block of blocks) {
      if (block.ref_cnt) throw new Error(`block ${block.block_id} was in the free queue with ref_cnt ${block.ref_cnt}`);
      this._maybe_evict_cached_block(block);
      block.ref_cnt = 1;
    }
    return blocks;
  }

  /** @param {KVCacheBlock} block */
  _maybe_evict_cached_block(block) {
    if (!block.block_hash) return;
    this.cached_block_hash_to_block.pop(block);
    block.block_hash = null;
  }

  /** Add one user to each block; a free one leaves the free queue, wherever it stands.
   * @param {KVCacheBlock[]} blocks */
  touch(blocks) {
    for (const block of blocks) {
      if (block.ref_cnt === 0) this.free_block_queue.remove(block);
      block.ref_cnt += 1;
    }
  }

  /**
   * Take one user from each block; those without any join the free queue in the order given, so that the first of them
   * is the first reused. Contents stay findable until then.
   * @param {KVCacheBlock[]} ordered_blocks
   */
  free_blocks(ordered_blocks) {
    for (const block of ordered_blocks) {
      if (block.ref_cnt <= 0) throw new Error(`block ${block.block_id} was freed more often than it was taken`);
      block.ref_cnt -= 1;
    }
    this.free_block_queue.append_n(ordered_blocks.filter((block) => block.ref_cnt === 0));
  }

  /** Forget all contents. Does nothing and returns false while any block is in use. */
  reset_prefix_cache() {
    if (this.get_num_free_blocks() !== this.num_gpu_blocks - 1) return false;
    for (const block of this.blocks) this._maybe_evict_cached_block(block);
    return true;
  }

  /** Blocks that can be handed out now. */
  get_num_free_blocks() {
    return this.free_block_queue.num_free_blocks;
  }
}

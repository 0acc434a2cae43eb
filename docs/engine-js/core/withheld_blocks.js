// Blocks that the page takes out of the pool while the engine runs, so that its slider can make memory scarce. No
// engine does this: vLLM fixes the number of blocks at start-up. The scheduler only finds fewer free blocks.

/** @typedef {import("./block_pool.js").BlockPool} BlockPool */
/** @typedef {import("./kv_cache_utils.js").KVCacheBlock} KVCacheBlock */

export class WithheldBlocks {
  /** @param {BlockPool} block_pool */
  constructor(block_pool) {
    this.block_pool = block_pool;
    this.wanted = 0;
    /** @type {KVCacheBlock[]} */
    this.blocks = [];
  }

  /** Take free blocks until there are `wanted`, or give back what is too much. To be called before each step, because
   * blocks that are in use can only be taken once their requests have ended or been preempted. */
  settle() {
    const missing = this.wanted - this.blocks.length;
    if (missing < 0) this.block_pool.free_blocks(this.blocks.splice(missing));
    else this.blocks.push(...this.block_pool.get_new_blocks(Math.min(missing, this.block_pool.get_num_free_blocks())));
  }
}

// A block, the hashes of full blocks, and the queue of the free ones. Twin: mini_vllm/core/kv_cache_utils.py.

/** Metadata of one physical block; the block itself is row `block_id` of the KV arrays. */
export class KVCacheBlock {
  /** @param {number} block_id */
  constructor(block_id) {
    this.block_id = block_id;
    this.ref_cnt = 0;
    this.is_null = false;
    /** Set exactly while the block is full and can be found by prefix caching. @type {BlockHash | null} */
    this.block_hash = null;
    // Links of the free queue; only FreeKVCacheBlockQueue touches them.
    /** @type {KVCacheBlock | null} */
    this.prev_free_block = null;
    /** @type {KVCacheBlock | null} */
    this.next_free_block = null;
  }
}

/**
 * What a full block holds: its tokens *and all before them*, since keys and values depend on every earlier token.
 *
 * Upstream chains SHA-256 digests and trusts them:
 * upstream/vllm/v1/core/kv_cache_utils.py:541 — `hash_block_tokens`.
 * A page has no synchronous SHA-256, so `value` is a short hash that may collide, and `equals` looks at the tokens.
 */
export class BlockHash {
  /**
   * @param {BlockHash | null} parent of the block before, null for the first
   * @param {number[]} token_ids `block_size` of them
   * @param {number} value 32 bits
   */
  constructor(parent, token_ids, value) {
    this.parent = parent;
    this.token_ids = token_ids;
    this.value = value;
  }

  /** Whether both stand for the same tokens, from the first of the sequence on. @param {BlockHash} other */
  equals(other) {
    /** @type {BlockHash | null} */
    let mine = this;
    /** @type {BlockHash | null} */
    let theirs = other;
    while (mine !== theirs) {
      if (!mine || !theirs || mine.value !== theirs.value) return false;
      const tokens = theirs.token_ids;
      if (mine.token_ids.some((token_id, i) => token_id !== tokens[i])) return false;
      [mine, theirs] = [mine.parent, theirs.parent];
    }
    return true;
  }
}

/** FNV-1a over the tokens, from the parent's value on, two bytes at a time.
 * @param {number} seed @param {number[]} token_ids */
export function fnv1a(seed, token_ids) {
  let value = seed ^ 0x811c9dc5;
  for (const token_id of token_ids) {
    value = Math.imul(value ^ (token_id & 0xffff), 0x01000193);
    value = Math.imul(value ^ (token_id >>> 16), 0x01000193);
  }
  return value >>> 0;
}

/**
 * A function that hashes those full blocks of a request that have no hash yet.
 * @param {number} block_size
 * @param {(seed: number, token_ids: number[]) => number} hash
 * @returns {(request: import("../request.js").Request) => BlockHash[]}
 */
export function get_request_block_hasher(block_size, hash = fnv1a) {
  return (request) => {
    const new_hashes = [];
    let parent = request.block_hashes.at(-1) ?? null;
    let start = request.block_hashes.length * block_size;
    for (; start + block_size <= request.num_tokens; start += block_size) {
      const token_ids = request.all_token_ids.slice(start, start + block_size);
      parent = new BlockHash(parent, token_ids, hash(parent ? parent.value : 0, token_ids));
      new_hashes.push(parent);
    }
    return new_hashes;
  };
}

/**
 * Free blocks in the order in which they will be reused: least recently freed first. A doubly linked list through the
 * blocks, because a block in the middle must leave in O(1) when a prefix hit claims it.
 */
export class FreeKVCacheBlockQueue {
  /** @param {KVCacheBlock[]} blocks */
  constructor(blocks) {
    this.num_free_blocks = 0;
    this.fake_free_list_head = new KVCacheBlock(-1);
    this.fake_free_list_tail = new KVCacheBlock(-1);
    link(this.fake_free_list_head, this.fake_free_list_tail);
    this.append_n(blocks);
  }

  /** Take the first `n` blocks. @param {number} n @returns {KVCacheBlock[]} */
  popleft_n(n) {
    if (n > this.num_free_blocks) throw new Error(`cannot pop ${n} blocks: ${this.num_free_blocks} are free`);
    const popped = [];
    for (let i = 0; i < n; i++) {
      const block = /** @type {KVCacheBlock} */ (this.fake_free_list_head.next_free_block);
      this.remove(block);
      popped.push(block);
    }
    return popped;
  }

  /** Take this block out, wherever it stands. @param {KVCacheBlock} block */
  remove(block) {
    if (!block.prev_free_block || !block.next_free_block) {
      throw new Error(`remove() of a block that is not in the free queue: ${block.block_id}`);
    }
    link(block.prev_free_block, block.next_free_block);
    block.prev_free_block = block.next_free_block = null;
    this.num_free_blocks -= 1;
  }

  /** Put the blocks at the end, in this order. @param {KVCacheBlock[]} blocks */
  append_n(blocks) {
    for (const block of blocks) {
      if (block.prev_free_block) throw new Error(`block ${block.block_id} was freed twice`);
      link(/** @type {KVCacheBlock} */ (this.fake_free_list_tail.prev_free_block), block);
      link(block, this.fake_free_list_tail);
    }
    this.num_free_blocks += blocks.length;
  }

  /** The blocks from first to last, for tests and pictures. */
  get_all_free_blocks() {
    const blocks = [];
    let block = this.fake_free_list_head.next_free_block;
    while (block && block !== this.fake_free_list_tail) {
      blocks.push(block);
      block = block.next_free_block;
    }
    return blocks;
  }
}

/** @param {KVCacheBlock} left @param {KVCacheBlock} right */
function link(left, right) {
  left.next_free_block = right;
  right.prev_free_block = left;
}

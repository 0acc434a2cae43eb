// Attention over keys and values that lie in blocks scattered over a pool. Twins: mini_vllm/attention/kv_cache.py and
// mini_vllm/attention/backends/.

/**
 * What a step looks like to attention; made by the model runner. Request r has the rows
 * `query_start_loc[r]` to `query_start_loc[r + 1]`.
 * @typedef {object} AttentionMetadata
 * @property {number} num_reqs
 * @property {Int32Array} query_start_loc [num_reqs + 1]
 * @property {Int32Array} positions [num_tokens]
 * @property {Int32Array} slot_mapping [num_tokens] where each token's key and value go
 * @property {number[][]} block_tables of each request
 */

/** The arrays of all layers, and attention through block tables. */
export class PagedAttention {
  /** @param {import("../models/llama.js").LlamaConfig} config @param {number} num_blocks @param {number} block_size */
  constructor(config, num_blocks, block_size) {
    this.block_size = block_size;
    this.num_heads = config.num_attention_heads;
    this.num_kv_heads = config.num_key_value_heads;
    this.head_dim = config.head_dim;
    this.kv_size = this.num_kv_heads * this.head_dim;
    const make = () => new Float32Array(num_blocks * block_size * this.kv_size);
    /** A key of `kv_size` numbers for each slot; slot = block_id * block_size + offset. */
    this.key_cache = Array.from({ length: config.num_hidden_layers }, make);
    this.value_cache = Array.from({ length: config.num_hidden_layers }, make);
    this._scores = new Float32Array(config.max_position_embeddings);
  }

  /**
   * Write the step's keys and values, then let each query look at all positions up to its own.
   * @param {Float32Array} out [num_tokens, num_heads * head_dim]
   * @param {Float32Array} qkv [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], rotated
   * @param {number} layer @param {AttentionMetadata} metadata
   */
  forward(out, qkv, layer, metadata) {
    const { query_start_loc, num_reqs, positions } = metadata;
    this._write(qkv, layer, metadata);
    for (let req = 0; req < num_reqs; req++) {
      const block_table = metadata.block_tables[req];
      for (let token = query_start_loc[req]; token < query_start_loc[req + 1]; token++) {
        for (let head = 0; head < this.num_heads; head++) {
          this._attend(out, qkv, layer, token, head, block_table, positions[token] + 1);
        }
      }
    }
  }

  /** @param {Float32Array} qkv @param {number} layer @param {AttentionMetadata} metadata */
  _write(qkv, layer, { query_start_loc, num_reqs, slot_mapping }) {
    const { kv_size } = this;
    const q_size = this.num_heads * this.head_dim, stride = q_size + 2 * kv_size;
    const keys = this.key_cache[layer], values = this.value_cache[layer];
    for (let token = 0; token < query_start_loc[num_reqs]; token++) {
      const from = token * stride + q_size, to = slot_mapping[token] * kv_size;
      for (let i = 0; i < kv_size; i++) {
        keys[to + i] = qkv[from + i];
        values[to + i] = qkv[from + kv_size + i];
      }
    }
  }

  /**
   * One query head of one token: softmax(q · K / √d) V over the first `seq_len` positions.
   * @param {Float32Array} out @param {Float32Array} qkv @param {number} layer
   * @param {number} token @param {number} head @param {number[]} block_table @param {number} seq_len
   */
  _attend(out, qkv, layer, token, head, block_table, seq_len) {
    const { head_dim, kv_size, num_heads, block_size, _scores: scores } = this;
    const keys = this.key_cache[layer], values = this.value_cache[layer];
    const kv_head = Math.floor((head * this.num_kv_heads) / num_heads); // grouped queries share a key head
    const q = token * (num_heads * head_dim + 2 * kv_size) + head * head_dim;
    const o = (token * num_heads + head) * head_dim;
    const scale = 1 / Math.sqrt(head_dim);
    let max = -Infinity, sum = 0;
    for (let position = 0; position < seq_len; position++) {
      const k = slot(block_table, position, block_size) * kv_size + kv_head * head_dim;
      const score = dot(qkv, q, keys, k, head_dim) * scale;
      scores[position] = score;
      if (score > max) max = score;
    }
    for (let i = 0; i < head_dim; i++) out[o + i] = 0;
    for (let position = 0; position < seq_len; position++) {
      const weight = Math.exp(scores[position] - max);
      sum += weight;
      const v = slot(block_table, position, block_size) * kv_size + kv_head * head_dim;
      for (let i = 0; i < head_dim; i++) out[o + i] += weight * values[v + i];
    }
    for (let i = 0; i < head_dim; i++) out[o + i] /= sum;
  }
}

/** Where a position of a request lies in the cache. @param {number[]} block_table @param {number} position
 * @param {number} block_size */
export function slot(block_table, position, block_size) {
  const block = Math.floor(position / block_size);
  return block_table[block] * block_size + (position - block * block_size);
}

/** Of n numbers from a[a0] and b[b0] on; n is a multiple of 4.
 * @param {Float32Array} a @param {number} a0 @param {Float32Array} b @param {number} b0 @param {number} n */
function dot(a, a0, b, b0, n) {
  let sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0; // four sums, for the same reason as in layers/linear.js
  for (let i = 0; i < n; i += 4) {
    sum0 += a[a0 + i] * b[b0 + i];
    sum1 += a[a0 + i + 1] * b[b0 + i + 1];
    sum2 += a[a0 + i + 2] * b[b0 + i + 2];
    sum3 += a[a0 + i + 3] * b[b0 + i + 3];
  }
  return sum0 + sum1 + sum2 + sum3;
}

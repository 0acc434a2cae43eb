// Positions as rotations. Twin: mini_vllm/layers/rotary_embedding.py.

/** Rotates queries and keys by their position; the two halves of a head are the pairs ("neox" style). */
export class RotaryEmbedding {
  /** @param {number} head_dim @param {number} theta base of the frequencies @param {number} max_position */
  constructor(head_dim, theta, max_position) {
    this.head_dim = head_dim;
    const half = head_dim / 2;
    this.cos = new Float32Array(max_position * half);
    this.sin = new Float32Array(max_position * half);
    for (let i = 0; i < half; i++) {
      const frequency = Math.fround(1 / Math.fround(theta ** Math.fround((2 * i) / head_dim)));
      for (let position = 0; position < max_position; position++) {
        const angle = Math.fround(position * frequency); // in float32, as everywhere
        this.cos[position * half + i] = Math.cos(angle);
        this.sin[position * half + i] = Math.sin(angle);
      }
    }
  }

  /**
   * Rotate, in place, the first `num_heads` heads of each row.
   * @param {Float32Array} x [num_tokens, stride] @param {number} stride @param {number} num_heads
   * @param {Int32Array} positions [num_tokens] @param {number} num_tokens
   */
  rotate(x, stride, num_heads, positions, num_tokens) {
    const { head_dim, cos, sin } = this;
    const half = head_dim / 2;
    for (let token = 0; token < num_tokens; token++) {
      const angle = positions[token] * half;
      for (let head = 0; head < num_heads; head++) {
        const start = token * stride + head * head_dim;
        for (let i = 0; i < half; i++) {
          const first = x[start + i], second = x[start + half + i];
          x[start + i] = first * cos[angle + i] - second * sin[angle + i];
          x[start + half + i] = second * cos[angle + i] + first * sin[angle + i];
        }
      }
    }
  }
}

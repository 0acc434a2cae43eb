// Twin: mini_vllm/layers/layernorm.py.

/**
 * Each row divided by its root mean square, times the weight.
 * @param {Float32Array} y [num_tokens, size] @param {Float32Array} x [num_tokens, size]
 * @param {Float32Array} weight [size] @param {number} num_tokens @param {number} eps
 */
export function rms_norm(y, x, weight, num_tokens, eps) {
  const size = weight.length;
  for (let start = 0; start < num_tokens * size; start += size) {
    let squares = 0;
    for (let i = 0; i < size; i++) squares += x[start + i] * x[start + i];
    const scale = 1 / Math.sqrt(squares / size + eps);
    for (let i = 0; i < size; i++) y[start + i] = x[start + i] * scale * weight[i];
  }
}

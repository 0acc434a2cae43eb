// A matrix product, the only place where time goes. Twin: mini_vllm/layers/linear.py.

/**
 * y = x Wᵀ for the first `num_tokens` rows.
 *
 * Four rows of W are taken at once: each x[i] is loaded once for four products, and the four sums do not wait for one
 * another. benchmarks/browser.py measures it beside the plain double loop. Sums run in float64, JavaScript's only kind.
 *
 * @param {Float32Array} y [num_tokens, out_features]
 * @param {Float32Array} x [num_tokens, in_features]
 * @param {Float32Array} w [out_features, in_features]; out_features is a multiple of 4
 * @param {number} num_tokens @param {number} in_features @param {number} out_features
 */
export function linear(y, x, w, num_tokens, in_features, out_features) {
  for (let row = 0; row < out_features; row += 4) {
    const w0 = row * in_features, w1 = w0 + in_features, w2 = w1 + in_features, w3 = w2 + in_features;
    for (let token = 0; token < num_tokens; token++) {
      const x0 = token * in_features;
      let sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
      for (let i = 0; i < in_features; i++) {
        const value = x[x0 + i];
        sum0 += value * w[w0 + i];
        sum1 += value * w[w1 + i];
        sum2 += value * w[w2 + i];
        sum3 += value * w[w3 + i];
      }
      const y0 = token * out_features + row;
      y[y0] = sum0;
      y[y0 + 1] = sum1;
      y[y0 + 2] = sum2;
      y[y0 + 3] = sum3;
    }
  }
}

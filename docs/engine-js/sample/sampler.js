// From logits to tokens. Twins: mini_vllm/sample/sampler.py and sample/ops/topk_topp_sampler.py.
//
// Greedy rows take the largest logit. The others: temperature, top-k, top-p, softmax, one draw. A draw is
// argmax(p / e) with exponential noise e, one number a token: token i wins with probability p[i].

/** Temperatures below this are greedy. */
const SAMPLING_EPS = 1e-5;

/**
 * The next token of one row.
 * @param {Float32Array} logits [vocab_size]; not changed
 * @param {import("../request.js").SamplingParams} params
 * @param {() => number} random the request's own stream, from 0 to 1
 * @returns {number}
 */
export function sample(logits, params, random) {
  const temperature = params.temperature ?? 1;
  if (temperature < SAMPLING_EPS) return argmax(logits);
  const filtered = logits.map((value) => value / temperature);
  apply_top_k(filtered, params.top_k ?? 0);
  apply_top_p(filtered, params.top_p ?? 1);
  return random_sample(softmax(filtered), random);
}

/** Index of the largest, the first of equals. @param {Float32Array | Float64Array} values */
export function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/** Mask all but the k likeliest, in place; ties at the k-th value stay.
 * @param {Float32Array} logits @param {number} k 0: off */
export function apply_top_k(logits, k) {
  if (k <= 0 || k >= logits.length) return;
  const threshold = logits.slice().sort()[logits.length - k];
  for (let i = 0; i < logits.length; i++) if (logits[i] < threshold) logits[i] = -Infinity;
}

/**
 * Keep the smallest set whose probability reaches p, in place: from the least likely up, tokens are masked while what
 * has been masked is at most 1 - p. One always stays.
 * @param {Float32Array} logits @param {number} p
 */
export function apply_top_p(logits, p) {
  if (p >= 1) return;
  const probs = softmax(logits);
  const ascending = Array.from(logits.keys()).sort((a, b) => logits[a] - logits[b]);
  let masked = 0;
  for (const token_id of ascending.slice(0, -1)) {
    masked += probs[token_id];
    if (masked > 1 - p) return;
    logits[token_id] = -Infinity;
  }
}

/** @param {Float32Array} logits @returns {Float64Array} */
export function softmax(logits) {
  const max = logits[argmax(logits)];
  const probs = Float64Array.from(logits, (value) => Math.exp(value - max));
  const sum = probs.reduce((a, b) => a + b, 0);
  return probs.map((value) => value / sum);
}

/** @param {Float64Array} probs @param {() => number} random */
function random_sample(probs, random) {
  return argmax(probs.map((p) => p / -Math.log(1 - random())));
}

/**
 * A stream of numbers from 0 to 1 (1 excluded) that a seed determines: Marsaglia's xorshift with 32 bits, after a
 * scramble that sets neighbouring seeds apart. numpy's streams are others, so seeded answers differ from mini_vllm's.
 * @param {number} seed
 * @returns {() => number}
 */
export function make_generator(seed) {
  let state = Math.imul((seed ^ 0x9e3779b9) | 0, 0x85ebca6b) || 1;
  const next = () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
  for (let i = 0; i < 16; i++) next();
  return next;
}

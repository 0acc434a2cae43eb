// The arithmetic of the widgets, without a page: the same formulas, in the same order, as the engine and the labs.
// The test suite runs this file against numbers that Python computed (docs/widgets/data/*.json, "expected").
(function (root) {
  "use strict";
  const GIB = 2 ** 30;
  const BLOCK_SIZE = 16;

  // Lab 00-02.
  function kvBytesPerToken(layers, kvHeads, headDim, bytes) {
    return 2 * layers * kvHeads * headDim * bytes;
  }

  // What vLLM works out at start-up. `share` is gpu_memory_utilization; activations are not counted.
  function capacity(model, gpu, { kvBytes, weightBytes, share, length, blockSize = BLOCK_SIZE }) {
    const [layers, heads, size, parameters] = model;
    const perToken = kvBytesPerToken(layers, heads, size, kvBytes);
    const weights = parameters * weightBytes;
    const available = Math.max(0, Math.trunc(gpu[0] * GIB * share) - weights);
    const blocks = Math.floor(available / (perToken * blockSize));
    const users = blocks / Math.ceil(length / blockSize);
    return { perToken, weights, available, blocks, tokens: Math.trunc(users * length), users };
  }

  // Lab 00-04, with the reads of the KV cache.
  function roofline(model, gpu, { batch, context, weightBytes, kvBytes }) {
    const [layers, heads, size, parameters] = model;
    const peak = gpu[1] * 1e12, bandwidth = gpu[2] * 1e9;
    const flops = 2 * parameters * batch;
    const kv = batch * context * kvBytesPerToken(layers, heads, size, kvBytes);
    const bytes = parameters * weightBytes + kv;
    const intensity = flops / bytes, ridge = peak / bandwidth;
    const attainable = Math.min(peak, intensity * bandwidth);
    return { ridge, intensity, attainable, kv, bytes, memoryBound: intensity < ridge, seconds: flops / attainable,
      tokensPerSecond: batch * attainable / flops, memoryTokensPerSecond: batch * bandwidth / bytes };
  }

  function softmax(logits) {
    let largest = -Infinity, sum = 0;
    for (const value of logits) largest = Math.max(largest, value);
    const probs = logits.map((value) => Math.exp(value - largest));
    for (const value of probs) sum += value;
    return probs.map((value) => value / sum);
  }

  function penalties(logits, knobs, promptIds, outputIds) {
    const { repetition_penalty: repetition = 1, frequency_penalty: frequency = 0, presence_penalty: presence = 0 } = knobs;
    const counts = new Map();
    for (const id of outputIds) counts.set(id, (counts.get(id) || 0) + 1);
    for (const id of new Set([...promptIds, ...outputIds])) {
      logits[id] = logits[id] > 0 ? logits[id] / repetition : logits[id] * repetition;
    }
    for (const [id, count] of counts) logits[id] -= frequency * count + presence;
  }

  function minP(logits, share) {
    const probs = softmax(logits);
    const threshold = share * probs.reduce((a, b) => Math.max(a, b), 0);
    probs.forEach((p, id) => { if (p < threshold) logits[id] = -Infinity; });
  }

  function topK(logits, k) {
    const threshold = Float64Array.from(logits).sort()[logits.length - k];
    logits.forEach((value, id) => { if (value < threshold) logits[id] = -Infinity; });
  }

  // From the least likely up, as the engine: masked while the cumulated probability is <= 1 - p; one always stays.
  function topP(logits, p) {
    const probs = softmax(logits);
    const order = probs.map((_, id) => id).sort((a, b) => logits[a] - logits[b] || a - b);
    let cumulated = 0;
    for (const id of order.slice(0, -1)) {
      cumulated += probs[id];
      if (cumulated > 1 - p) break;
      logits[id] = -Infinity;
    }
  }

  // Order of mini_vllm/sample/sampler.py: penalties; greedy rows stop; temperature, min-p, top-k, top-p, softmax.
  // Returns probabilities and, per stage, how many tokens are left.
  function samplerProbs(raw, knobs, promptIds, outputIds) {
    const { temperature = 1, min_p = 0, top_k = 0, top_p = 1 } = knobs;
    const logits = raw.slice(), left = {};
    const count = (stage) => { left[stage] = logits.reduce((n, value) => n + (value > -Infinity), 0); };
    penalties(logits, knobs, promptIds, outputIds);
    count("penalties");
    if (temperature < 1e-5) {
      let best = 0;
      logits.forEach((value, id) => { if (value > logits[best]) best = id; });
      return { greedy: true, token: best, left, probs: logits.map((_, id) => (id === best ? 1 : 0)) };
    }
    logits.forEach((value, id) => { logits[id] = value / Math.max(temperature, 0.01); });
    if (min_p > 0) minP(logits, min_p);
    count("min-p");
    if (top_k > 0 && top_k < logits.length) topK(logits, top_k);
    count("top-k");
    if (top_p < 1) topP(logits, top_p);
    count("top-p");
    return { greedy: false, left, probs: softmax(logits) };
  }

  // The exponential race: argmax(p / e). The noise is the browser's, not numpy's stream.
  function draw(probs, random = Math.random) {
    let best = 0, record = -1;
    probs.forEach((p, id) => {
      if (p === 0) return;
      const value = p / -Math.log(1 - random());
      if (value > record) { record = value; best = id; }
    });
    return best;
  }

  // A trace of `mini-vllm generate --trace`: throws an Error that says what is wrong with it.
  function checkTrace(trace) {
    if (!trace || trace.format !== "mini-vllm-trace") throw new Error("this is not a trace of mini-vllm generate --trace FILE");
    if (trace.version !== 1) throw new Error(`this player reads version 1 of the format, the file has ${trace.version}`);
    for (const name of ["config", "requests", "steps"]) if (!trace[name]) throw new Error(`the trace has no "${name}"`);
    if (!Array.isArray(trace.steps) || !trace.steps.length) throw new Error("the trace holds no step");
    return trace;
  }

  const api = { GIB, BLOCK_SIZE, kvBytesPerToken, capacity, roofline, softmax, samplerProbs, draw, checkTrace };
  if (typeof module !== "undefined" && module.exports) module.exports = api;
  else root.MiniVLLM = api;
})(typeof window !== "undefined" ? window : globalThis);

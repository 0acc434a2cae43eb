// The engine of docs/engine-js, measured under node for benchmarks/browser.py: a job as JSON, its result as the last line.
import { readFileSync } from "node:fs";
import { LLMEngine } from "../docs/engine-js/engine/llm_engine.js";
import { linear } from "../docs/engine-js/layers/linear.js";

const job = JSON.parse(process.argv[2]);
const read = (name) => readFileSync(`${job.model}/${name}`);
const seconds = (since) => (performance.now() - since) / 1e3;

function make_engine() {
  const file = read("model.safetensors");
  const weights = file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength);
  const [config, tokenizer] = ["config.json", "tokenizer.json"].map((name) => JSON.parse(read(name)));
  const args = { max_model_len: 512, num_blocks: 256, enable_prefix_caching: false, max_num_batched_tokens: 64 };
  return new LLMEngine({ config, tokenizer, weights }, args);
}

/** Requests that start together: seconds to the first token of the last of them, output tokens per second after it. */
function generate(engine, prompts) {
  prompts.forEach((prompt, i) => {
    engine.add_request(`${i}`, prompt, { max_tokens: job.output_len, temperature: 0, eos_token_id: null });
  });
  const begin = performance.now(), started = new Set();
  let first, since, count = 0;
  while (engine.has_unfinished_requests()) {
    const outputs = engine.step();
    if (since !== undefined) count += outputs.length;
    for (const { request_id } of outputs) started.add(request_id);
    if (since === undefined && started.size === prompts.length) [first, since] = [seconds(begin), performance.now()];
  }
  return { first_token_s: first, tokens_per_s: count / seconds(since) };
}

/** The product as anybody would write it first. */
function plain_linear(y, x, w, num_tokens, in_features, out_features) {
  for (let token = 0; token < num_tokens; token++) {
    for (let row = 0; row < out_features; row++) {
      let sum = 0;
      for (let i = 0; i < in_features; i++) sum += x[token * in_features + i] * w[row * in_features + i];
      y[token * out_features + row] = sum;
    }
  }
}

/** GFLOP/s of a product over the shapes of one layer after the other, as a step does them. */
function product_speed(product, num_tokens) {
  const shapes = Array.from({ length: 8 }, () => [[256, 512], [256, 256], [256, 1024], [512, 256]]).flat();
  const weights = shapes.map(([inner, outer]) => new Float32Array(inner * outer).fill(0.01));
  const x = new Float32Array(num_tokens * 512).fill(0.5), y = new Float32Array(num_tokens * 1024);
  const pass = () => shapes.forEach(([inner, outer], i) => product(y, x, weights[i], num_tokens, inner, outer));
  for (let i = 0; i < 3; i++) pass();
  const begin = performance.now(), rounds = Math.ceil(60 / num_tokens);
  for (let i = 0; i < rounds; i++) pass();
  const flops = 2 * num_tokens * shapes.reduce((sum, [inner, outer]) => sum + inner * outer, 0);
  return (rounds * flops) / seconds(begin) / 1e9;
}

const load_begin = performance.now(), engine = make_engine(), load_s = seconds(load_begin);
const batches = {};
for (const [batch, prompts] of Object.entries(job.prompts)) {
  batches[batch] = Array.from({ length: job.repeats }, () => generate(engine, prompts));
}
const products = Object.fromEntries([1, 50].map((rows) =>
  [rows, { blocks_of_four: product_speed(linear, rows), plain: product_speed(plain_linear, rows) }]));
console.log(JSON.stringify({ node: process.version, load_s, batches, products }));

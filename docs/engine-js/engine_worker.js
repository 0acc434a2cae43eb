// The engine's Web Worker: messages in, steps out. It never runs longer than one step before it looks at its messages.
//
// From the page: open, ask, abort, pool, forget, pace, pause, step, compare. To the page: progress, ready, asked,
// refused, step, idle, pool, comparing, compared, failed. docs/widgets/engine.js is the other end.

import { LLMEngine } from "./engine/llm_engine.js";
import { Playground, compare } from "./engine/playground.js";

const ARGS = { block_size: 8, num_blocks: 65, max_model_len: 512, max_num_seqs: 4, max_num_batched_tokens: 32 };

/** @type {Playground} */
let playground;
/** @type {import("./engine/llm_engine.js").Checkpoint} */
let checkpoint;
/** Milliseconds that a step should take at least, so that eyes can follow. */
let pace = 0;
let paused = false;
let running = false;

/** Lets waiting messages in; setTimeout would cost 4 ms a step. */
const turn = new MessageChannel();
const breathe = () => new Promise((go) => {
  turn.port1.onmessage = go;
  turn.port2.postMessage(0);
});
const sleep = (/** @type {number} */ ms) => new Promise((go) => setTimeout(go, ms));

/** @param {string} type @param {object} content */
const post = (type, content = {}) => self.postMessage({ type, ...content });

/** @param {URL} url */
async function get(url) {
  const response = await fetch(url);
  if (!response.ok || !response.body) throw new Error(`${url.pathname}: ${response.status}`);
  return response;
}

/** The bytes of a file, with news of how far it is. @param {URL} url */
async function download(url) {
  const { headers, body } = await get(url);
  const total = Number(headers.get("content-length")), reader = /** @type {ReadableStream} */ (body).getReader();
  /** @type {Uint8Array[]} */
  const parts = [];
  for (let loaded = 0; ;) {
    const { done, value } = await reader.read();
    if (done) return new Blob(/** @type {BlobPart[]} */ (parts)).arrayBuffer();
    parts.push(value);
    loaded += value.length;
    post("progress", { loaded, total: Math.max(total, loaded) });
  }
}

/** Step after step, as long as there is work. */
async function run() {
  if (running) return;
  running = true;
  while (playground.has_unfinished_requests() && !paused) {
    const begin = performance.now();
    step();
    const left = pace - (performance.now() - begin);
    await (left > 0 ? sleep(left) : breathe());
  }
  running = false;
  rest();
}

/** Says that there is nothing to do, if so. */
function rest() {
  if (!playground.has_unfinished_requests()) post("idle", { step: playground.look() });
}

function step() {
  const begin = performance.now();
  const played = playground.step();
  if (played) post("step", { step: played, milliseconds: performance.now() - begin });
}

/** @type {Record<string, (message: any) => any>} */
const HANDLERS = {
  async open({ model }) {
    const json = async (/** @type {string} */ name) => (await get(new URL(name, model))).json();
    const [config, tokenizer] = await Promise.all([json("config.json"), json("tokenizer.json")]);
    checkpoint = { config, tokenizer, weights: await download(new URL("model.safetensors", model)) };
    playground = new Playground(checkpoint, ARGS);
    post("ready", { config: { model: "pocket", enable_prefix_caching: true, ...ARGS } });
    rest();
  },
  /** All of them are queued before the next step. */
  ask({ questions }) {
    for (const { id, messages, params } of questions) {
      try {
        post("asked", { id, ...playground.ask(id, messages, params) });
      } catch (error) {
        post("refused", { id, message: /** @type {Error} */ (error).message });
      }
    }
    return run();
  },
  abort({ id }) {
    playground.engine.abort_request(id);
    rest();
  },
  pool({ num_blocks }) {
    post("pool", { num_blocks: playground.set_num_usable_blocks(num_blocks) });
    rest();
  },
  forget() {
    playground.forget();
    rest();
  },
  pace({ milliseconds }) {
    pace = milliseconds;
  },
  pause({ on }) {
    paused = on;
    return run();
  },
  step() {
    if (!playground.has_unfinished_requests()) return;
    step();
    rest();
  },
  async compare({ answers }) {
    const recorded = (await (await get(new URL(answers))).json()).answers;
    const engine = new LLMEngine(checkpoint, { num_blocks: 128, max_num_seqs: 8, max_num_batched_tokens: 32 });
    const begin = performance.now(), comparison = compare(engine, recorded);
    let state;
    while (!(state = comparison.next()).done) {
      post("comparing", { ended: state.value, total: recorded.length });
      await breathe();
    }
    post("compared", { ...state.value, total: recorded.length, milliseconds: performance.now() - begin });
  },
};

self.onmessage = async ({ data }) => {
  try {
    await HANDLERS[data.type](data);
  } catch (error) {
    post("failed", { message: /** @type {Error} */ (error).message });
  }
};

// An engine that can be played with: questions come and go, the pool shrinks and grows, each step is taken down.

import { record_trace } from "../core/sched/trace.js";
import { WithheldBlocks } from "../core/withheld_blocks.js";
import { apply_chat_template } from "./chat_template.js";
import { LLMEngine } from "./llm_engine.js";

/** @typedef {import("./chat_template.js").Message} Message */
/** @typedef {import("../request.js").SamplingParams} SamplingParams */
/** @typedef {import("../core/sched/trace.js").TraceStep & {withheld: number[]}} PlayedStep */

export class Playground {
  /** @param {import("./llm_engine.js").Checkpoint} checkpoint @param {import("./llm_engine.js").EngineArgs} args */
  constructor(checkpoint, args) {
    this.engine = new LLMEngine(checkpoint, args);
    this.trace = record_trace(this.engine);
    this.manager = this.engine.scheduler.kv_cache_manager;
    this.withheld = new WithheldBlocks(this.manager.block_pool);
  }

  /** Blocks that requests may use: neither the null block nor those withheld. */
  get num_usable_blocks() {
    return this.manager.block_pool.num_gpu_blocks - 1 - this.withheld.wanted;
  }

  /** Queue a question. Throws where it is too long for the model or for the pool as it is now.
   * @param {string} request_id @param {Message[]} messages @param {SamplingParams} params */
  ask(request_id, messages, params) {
    const prompt_token_ids = this.engine.tokenizer.encode(apply_chat_template(messages));
    const needed = this._most_blocks(prompt_token_ids.length, params.max_tokens ?? 16);
    if (needed > this.num_usable_blocks) {
      throw new Error(`this may need ${needed} blocks, and the pool has ${this.num_usable_blocks}: ` +
        "shorten the answer, or enlarge the pool");
    }
    this.engine.add_request(request_id, prompt_token_ids, params);
    return { num_prompt_tokens: prompt_token_ids.length, max_tokens: params.max_tokens ?? 16 };
  }

  /** Shrink or enlarge the pool; never below what one of the unfinished requests may need, or it could not end.
   * @param {number} num_blocks @returns {number} what it is now */
  set_num_usable_blocks(num_blocks) {
    let least = 1;
    for (const { num_prompt_tokens, max_tokens } of this.engine.scheduler.requests.values()) {
      least = Math.max(least, this._most_blocks(num_prompt_tokens, max_tokens));
    }
    const most = this.manager.block_pool.num_gpu_blocks - 1;
    this.withheld.wanted = most - Math.min(Math.max(num_blocks, least), most);
    this.withheld.settle();
    return this.num_usable_blocks;
  }

  /** Forget what prefix caching could find, as on a fresh page; false, and nothing done, while somebody runs. */
  forget() {
    const { wanted } = this.withheld;
    this.withheld.wanted = 0;
    this.withheld.settle();
    const done = this.engine.scheduler.reset_prefix_cache();
    this.withheld.wanted = wanted;
    this.withheld.settle();
    return done;
  }

  /** @param {number} num_prompt_tokens @param {number} max_tokens */
  _most_blocks(num_prompt_tokens, max_tokens) {
    return Math.ceil((num_prompt_tokens + max_tokens - 1) / this.manager.block_size);
  }

  /** One step of the engine, and what it looked like; null where there was nothing to do.
   * @returns {PlayedStep | null} */
  step() {
    this.withheld.settle();
    this.trace.steps = [];
    this.engine.step();
    const withheld = this.withheld.blocks.map((block) => block.block_id);
    return this.trace.steps.length ? { ...this.trace.steps[0], withheld } : null;
  }

  /** What it looks like between two steps. @returns {PlayedStep} */
  look() {
    const withheld = this.withheld.blocks.map((block) => block.block_id);
    return { ...this.trace.state(), scheduled: {}, preempted: [], cached: {}, sampled: {}, finished: {}, withheld };
  }

  has_unfinished_requests() {
    return this.engine.has_unfinished_requests();
  }
}

/**
 * Ask recorded questions, all at once, and compare the answers token by token.
 * @param {LLMEngine} engine @param {{messages: Message[], token_ids: number[], stops_at: number | null}[]} recorded
 * @returns {Generator<number, {equal: number, num_tokens: number}>} yields after each step how many have ended
 */
export function* compare(engine, recorded) {
  /** @type {Map<string, number[]>} */
  const answers = new Map();
  recorded.forEach(({ messages, token_ids }, i) => {
    const prompt_token_ids = engine.tokenizer.encode(apply_chat_template(messages));
    engine.add_request(`${i}`, prompt_token_ids, { max_tokens: token_ids.length + 1, temperature: 0 });
    answers.set(`${i}`, []);
  });
  while (engine.has_unfinished_requests()) {
    for (const output of engine.step()) answers.get(output.request_id)?.push(...output.new_token_ids);
    yield recorded.length - engine.scheduler.requests.size;
  }
  const equal = recorded.filter(({ token_ids, stops_at }, i) => {
    const mine = answers.get(`${i}`) ?? [], until = stops_at ?? Infinity; // beyond it float32 does not decide
    return `${mine.slice(0, until)}` === `${token_ids.slice(0, until)}`;
  }).length;
  return { equal, num_tokens: recorded.reduce((sum, { token_ids }) => sum + token_ids.length, 0) };
}

// A record of what the scheduler decided, step by step; the player draws it. Twin: mini_vllm/core/sched/trace.py, which
// writes the same entries for the same requests.

/** @typedef {import("../../engine/llm_engine.js").LLMEngine} LLMEngine */
/** @typedef {import("./output.js").SchedulerOutput} SchedulerOutput */
/** @typedef {import("../../request.js").Request} Request */

const MAX_FREE_BLOCKS = 64;
const MAX_PROMPT_CHARACTERS = 60;

/**
 * One step: the plan, the state right after `schedule`, and what the step brought. Fields are mini_vllm's.
 * @typedef {object} TraceStep
 * @property {string[]} running @property {string[]} waiting
 * @property {Record<string, [number, number]>} counters id -> num_computed_tokens, num_tokens
 * @property {Record<string, number[]>} tables id -> block ids
 * @property {number[]} free front of the queue first @property {number} num_free @property {number[]} findable
 * @property {Record<string, number>} scheduled id -> tokens @property {string[]} preempted
 * @property {Record<string, number>} cached id -> tokens found at admission
 * @property {Record<string, string[]>} sampled id -> pieces of text
 * @property {Record<string, string>} finished id -> reason
 */

/** Grows by one entry a step, from `record_trace` on. */
export class Trace {
  /** @param {LLMEngine} engine */
  constructor(engine) {
    this.engine = engine;
    /** @type {TraceStep[]} */
    this.steps = [];
  }

  /** Take down a plan; a step without tokens is passed over.
   * @param {SchedulerOutput} output @returns {TraceStep | null} */
  planned(output) {
    if (!output.total_num_scheduled_tokens && !output.preempted_req_ids.size) return null;
    const new_reqs = output.scheduled_new_reqs;
    const step = {
      ...this.state(),
      scheduled: Object.fromEntries(output.num_scheduled_tokens),
      preempted: [...output.preempted_req_ids].sort(),
      cached: Object.fromEntries(new_reqs.map((request) => [request.req_id, request.num_computed_tokens])),
      sampled: {},
      finished: {},
    };
    this.steps.push(step);
    return step;
  }

  /** Queues, counters and blocks as they are now. */
  state() {
    const { scheduler } = this.engine;
    const manager = scheduler.kv_cache_manager;
    const pool = manager.block_pool;
    const tables = Object.fromEntries(scheduler.running.map(({ request_id: id }) => [id, manager.get_block_ids(id)]));
    const free = pool.free_block_queue.get_all_free_blocks().slice(0, MAX_FREE_BLOCKS).map((block) => block.block_id);
    /** @type {TraceStep["counters"]} */
    const counters = {};
    for (const [id, request] of scheduler.requests) counters[id] = [request.num_computed_tokens, request.num_tokens];
    const shown = [...new Set([...free, ...Object.values(tables).flat()])].sort((a, b) => a - b);
    return {
      running: scheduler.running.map((request) => request.request_id),
      waiting: scheduler.waiting.map((request) => request.request_id),
      counters,
      tables,
      free,
      num_free: pool.get_num_free_blocks(),
      findable: shown.filter((block_id) => pool.blocks[block_id].block_hash),
    };
  }

  /** Take down what a step brought. @param {TraceStep} step @param {Map<string, number>} sampled_token_ids
   * @param {Map<string, Request>} requests those of its plan, also the ended ones */
  updated(step, sampled_token_ids, requests) {
    for (const [id, token_id] of sampled_token_ids) step.sampled[id] = [this.engine.tokenizer.decode([token_id])];
    for (const [id, request] of requests) {
      const reason = request.get_finished_reason();
      if (reason) step.finished[id] = reason;
    }
  }

  /** What the player shows of a request. @param {Request} request */
  describe({ request_id: id, prompt_token_ids, num_prompt_tokens, max_tokens }) {
    const words = this.engine.tokenizer.decode(prompt_token_ids);
    const prompt = words.length <= MAX_PROMPT_CHARACTERS ? words : `${words.slice(0, MAX_PROMPT_CHARACTERS - 1)}…`;
    return { id, prompt, num_prompt_tokens, max_tokens };
  }
}

/** Record an engine from now on: two calls of its scheduler are wrapped, and no decision is changed.
 * @param {LLMEngine} engine */
export function record_trace(engine) {
  const trace = new Trace(engine), { scheduler } = engine;
  const schedule = scheduler.schedule.bind(scheduler), update = scheduler.update_from_output.bind(scheduler);
  /** @type {TraceStep | null} */
  let step = null;
  scheduler.schedule = () => {
    const output = schedule();
    step = trace.planned(output);
    return output;
  };
  scheduler.update_from_output = (output, sampled_token_ids) => {
    const requests = new Map([...scheduler.requests].filter(([id]) => output.num_scheduled_tokens.has(id)));
    const outputs = update(output, sampled_token_ids);
    if (step) trace.updated(step, sampled_token_ids, requests);
    return outputs;
  };
  return trace;
}

// Runs the engine of docs/engine-js for course/tests/test_engine_js*.py: a list of jobs on stdin, their results on
// stdout, both as JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [root] = process.argv.slice(2);
const load = (path) => import(pathToFileURL(`${root}/docs/engine-js/${path}`).href);
const { get_request_block_hasher } = await load("core/kv_cache_utils.js");
const { KVCacheManager } = await load("core/kv_cache_manager.js");
const { Scheduler } = await load("core/sched/scheduler.js");
const { record_trace } = await load("core/sched/trace.js");
const { apply_chat_template } = await load("engine/chat_template.js");
const { LLMEngine } = await load("engine/llm_engine.js");
const { Playground, compare } = await load("engine/playground.js");
const { Request } = await load("request.js");
const sampler = await load("sample/sampler.js");
const { BPETokenizer } = await load("tokenizers/bpe.js");

const pocket = (name) => readFileSync(`${root}/models/pocket/${name}`);
const json = (name) => JSON.parse(pocket(name).toString("utf8"));
const tokenizer = new BPETokenizer(json("tokenizer.json"));

function checkpoint() {
  const file = pocket("model.safetensors");
  const weights = file.buffer.slice(file.byteOffset, file.byteOffset + file.byteLength);
  return { config: json("config.json"), tokenizer: json("tokenizer.json"), weights };
}

const make_engine = (args) => new LLMEngine(checkpoint(), args);

const HASHES = { fnv1a: undefined, constant: () => 7, sum: (seed, ids) => ids.reduce((a, b) => a + b, seed) % 3 };
const MUTATIONS = {
  "free order": ({ kv_cache_manager: manager }) => {
    const { free_blocks } = manager.block_pool;
    manager.block_pool.free_blocks = (blocks) => free_blocks.call(manager.block_pool, [...blocks].reverse());
  },
  "one block fewer hit": ({ kv_cache_manager: manager }) => {
    const { get_computed_blocks } = manager;
    manager.get_computed_blocks = (request) => {
      const [hits, count] = get_computed_blocks.call(manager, request);
      return count ? [hits.slice(0, -1), count - manager.block_size] : [hits, count];
    };
  },
  "preempt the oldest": (scheduler) => {
    const { schedule } = scheduler;
    scheduler.schedule = () => {
      scheduler.running.pop = function () { return this.shift(); };
      const output = schedule.call(scheduler);
      delete scheduler.running.pop;
      return output;
    };
  },
};

/** One workload of mini_vllm/tests/golden through our scheduler; records are those of record_scheduler.py. */
class Replay {
  constructor({ config, tokens }, { hash = "fnv1a", mutation } = {}) {
    this.tokens = tokens;
    this.num_sampled = {};
    this.hasher = config.caching ? get_request_block_hasher(config.block_size, HASHES[hash]) : null;
    const manager = new KVCacheManager(config.num_blocks, config.block_size, config.caching, config.max_model_len);
    const limits = {
      max_num_seqs: config.max_num_seqs, max_num_batched_tokens: config.max_num_batched_tokens,
      long_prefill_token_threshold: config.threshold, scheduler_reserve_full_isl: config.reserve,
    };
    this.scheduler = new Scheduler(limits, manager, config.max_model_len);
    if (mutation) MUTATIONS[mutation](this.scheduler);
  }

  step({ arrivals = [], abort = null, reset = null } = {}) {
    const { scheduler } = this;
    for (const { request_id, prompt, params } of arrivals) scheduler.add_request(new Request(request_id, prompt, params, this.hasher));
    if (abort !== null && scheduler.requests.size) {
      const ids = [...scheduler.requests.keys()].sort();
      scheduler.finish_requests([ids[abort % ids.length]]);
    }
    if (reset !== null) scheduler.reset_prefix_cache(reset);
    const output = scheduler.schedule(), cached = output.scheduled_cached_reqs;
    const stats = scheduler.kv_cache_manager.prefix_cache_stats;
    const record = {
      tokens: Object.fromEntries(output.num_scheduled_tokens),
      order: [...output.num_scheduled_tokens.keys()],
      new: output.scheduled_new_reqs.map((one) => [one.req_id, one.block_ids, one.num_computed_tokens]),
      cached: cached.req_ids.map((id, i) => [id, cached.new_block_ids[i], cached.num_computed_tokens[i], cached.num_output_tokens[i]]),
      resumed: [...cached.resumed_req_ids].sort(),
      preempted: [...output.preempted_req_ids].sort(),
      finished: [...output.finished_req_ids].sort(),
      hits: [stats.queries, stats.hits, stats.preempted_queries, stats.preempted_hits],
    };
    scheduler.update_from_output(output, this.sampled(output));
    const free = scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks().map((block) => block.block_id);
    return { ...record, free: [free.length, ...free.slice(0, 4)] };
  }

  sampled(output) {
    const sampled = new Map();
    for (const id of output.num_scheduled_tokens.keys()) {
      if (this.scheduler.requests.get(id).is_prefill_chunk) continue;
      const index = this.num_sampled[id] ?? 0;
      sampled.set(id, this.tokens[id][index]);
      this.num_sampled[id] = index + 1;
    }
    return new Map([...sampled].reverse()); // the order of rows is not the plan's
  }
}

/** Requests that arrive before certain steps; the trace, the answers and what the preemptions and hits were. */
function run({ engine: args, arrivals }) {
  const engine = make_engine(args), trace = record_trace(engine), answers = {}, requests = [];
  for (let step = 0; step < 10_000; step++) {
    for (const { id, messages, prompt, params } of arrivals[step] ?? []) {
      const ids = messages ? tokenizer.encode(apply_chat_template(messages)) : [1, ...tokenizer.encode(prompt)];
      engine.add_request(id, ids, params);
      requests.push(engine.scheduler.requests.get(id));
      answers[id] = { prompt_token_ids: ids, token_ids: [], text: "" };
    }
    for (const { request_id, new_token_ids, text, finish_reason } of engine.step()) {
      const answer = answers[request_id];
      answer.token_ids.push(...new_token_ids);
      answer.text += text;
      answer.finish_reason = finish_reason;
    }
    if (!engine.has_unfinished_requests() && !Object.keys(arrivals).some((at) => Number(at) > step)) break;
  }
  for (const request of requests) {
    answers[request.request_id].num_preemptions = request.num_preemptions;
    answers[request.request_id].num_cached_tokens = request.num_cached_tokens;
  }
  const kept = engine.model_runner.requests.size;
  return { answers, kept, steps: trace.steps, requests: requests.map((request) => trace.describe(request)) };
}

/** What the page does: before certain steps questions are asked or the pool is resized. */
function play({ engine, events }) {
  const playground = new Playground(checkpoint(), engine), steps = [], said = [], texts = {};
  const last = Math.max(...Object.keys(events));
  for (let at = 0; at <= last || playground.has_unfinished_requests(); at++) {
    for (const { ask, pool, forget } of events[at] ?? []) {
      try {
        if (forget) said.push(playground.forget());
        else if (ask) playground.ask(ask.id, ask.messages, ask.params);
        else said.push(playground.set_num_usable_blocks(pool));
      } catch (error) {
        said.push(error.message);
      }
    }
    const step = playground.step();
    if (step) steps.push(step);
    for (const [id, pieces] of Object.entries(step?.sampled ?? {})) texts[id] = (texts[id] ?? "") + pieces.join("");
  }
  return { steps, said, texts, num_free: playground.manager.block_pool.get_num_free_blocks() };
}

/** The page's own comparison with answers.json. */
function compare_all({ recorded, engine }) {
  const comparison = compare(make_engine(engine), recorded);
  let state;
  while (!(state = comparison.next()).done);
  return state.value;
}

const JOBS = {
  replay: ({ workload, steps, ...options }) => {
    const replay = new Replay(workload, options);
    const records = Array.from({ length: steps }, (_, index) => replay.step(workload.steps[index]));
    return { records, unfinished: replay.scheduler.requests.size };
  },
  encode: ({ texts }) => texts.map((text) => tokenizer.encode(text)),
  decode: ({ lists }) => lists.map((ids) => tokenizer.decode(ids)),
  template: ({ conversations }) => conversations.map(apply_chat_template),
  filter: ({ rows }) => rows.map(({ logits, temperature, top_k, top_p }) => {
    const row = Float32Array.from(logits, (value) => value / temperature);
    sampler.apply_top_k(row, top_k);
    sampler.apply_top_p(row, top_p);
    return [...sampler.softmax(row)];
  }),
  draw: ({ logits, params, draws }) => {
    const random = sampler.make_generator(params.seed);
    return Array.from({ length: draws }, () => sampler.sample(Float32Array.from(logits), params, random));
  },
  run, play, compare: compare_all,
};

const jobs = JSON.parse(readFileSync(0, "utf8"));
const results = jobs.map(({ job, ...args }) => JOBS[job](args));
process.stdout.write(JSON.stringify(results));

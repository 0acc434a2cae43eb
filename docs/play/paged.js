// <play-paged>: PagedAttention's bookkeeping to play with. The pool, its free queue and the prefix cache are the modules
// of docs/engine-js, which the tests hold against mini_vllm; scenes.json of the recorder says what each question plays.

import { KVCacheManager } from "../engine-js/core/kv_cache_manager.js";
import { get_request_block_hasher } from "../engine-js/core/kv_cache_utils.js";
import { Request } from "../engine-js/request.js";
import { data, define, h } from "./core.js";

export const BLOCK_SIZE = 4, NUM_BLOCKS = 13; // the null block included
const words = (text) => text.split(" ");

/** Requests made of words over a real block pool: one word is one token here. */
export class PagedWorld {
  constructor(num_blocks = NUM_BLOCKS) {
    this.manager = new KVCacheManager(num_blocks, BLOCK_SIZE, true, 4096);
    this.hasher = get_request_block_hasher(BLOCK_SIZE);
    this.requests = new Map();
    this.contents = Array.from({ length: num_blocks }, () => []);
    this.ids = new Map();
    this.names = [];
    this.log = { hits: [], fresh: [] };
  }

  token(word) {
    if (!this.ids.has(word)) this.ids.set(word, this.names.push(word) - 1);
    return this.ids.get(word);
  }

  /** A new request: its whole prompt is scheduled at once. Returns how many blocks were found, or null: no room. */
  send(name, text) {
    const request = new Request(name, words(text).map((word) => this.token(word)), {}, this.hasher);
    const [hits, found] = this.manager.get_computed_blocks(request);
    const fresh = this.manager.allocate_slots(request, request.num_tokens - found, hits);
    if (!fresh) return null;
    this.requests.set(name, request);
    this.took(request, hits, fresh);
    return hits.length;
  }

  /** One more word of the answer, and its slot. Returns false where no block is left. */
  write(name, word) {
    const request = this.requests.get(name), full = request.num_tokens % BLOCK_SIZE === 0;
    if (full && !this.manager.block_pool.get_num_free_blocks()) return false;
    request.append_output_token_id(this.token(word));
    this.took(request, [], this.manager.allocate_slots(request, 1));
    return true;
  }

  took(request, hits, fresh) {
    request.num_computed_tokens = request.num_tokens;
    const table = this.manager.get_block_ids(request.request_id);
    for (const [i, block] of table.entries()) {
      this.contents[block] = request.all_token_ids.slice(i * BLOCK_SIZE, (i + 1) * BLOCK_SIZE).map((id) => this.names[id]);
    }
    this.log = { hits: hits.map((b) => b.block_id), fresh: fresh.map((b) => b.block_id) };
  }

  end(name) {
    this.manager.free(this.requests.get(name));
    this.requests.delete(name);
    this.log = { hits: [], fresh: [] };
  }

  text(name) {
    return this.requests.get(name).all_token_ids.map((id) => this.names[id]).join(" ");
  }

  play(ops) {
    const results = ops.map(([what, ...given]) => this[what](...given) ?? null);
    return results.at(-1);
  }

  /** What the recorder writes down of mini_vllm too. */
  state() {
    const pool = this.manager.block_pool;
    return {
      tables: Object.fromEntries([...this.requests.keys()].map((name) => [name, this.manager.get_block_ids(name)])),
      ref_cnt: pool.blocks.slice(1).map((block) => block.ref_cnt),
      free: pool.free_block_queue.get_all_free_blocks().map((block) => block.block_id),
      findable: pool.blocks.slice(1).filter((block) => block.block_hash).map((block) => block.block_id),
    };
  }
}

/** The state after each act, for the tests. */
export function states(ops) {
  const world = new PagedWorld();
  return ops.map((op) => { world.play([op]); return world.state(); });
}

/** The world before a question's last act, and after it. */
export function before(scene) {
  const world = new PagedWorld();
  world.play(scene.before);
  return world;
}

/** The answer of each question, from the world after its act. */
export const TRUTH = {
  blocks: (w) => w.state().tables.A.length,
  share: (w) => w.log.hits.length,
  chain: (w) => w.log.hits.length,
  whole: (w) => w.log.hits.length,
  free: (w, was) => w.state().free.length - was.state().free.length,
  victim: (w) => `block ${w.log.fresh[0]}`,
  return: (w) => w.log.hits.length,
};

const ASK = {
  blocks: ["A's prompt has 14 tokens (one word is one token here) and a block holds 4. How many blocks does A take?",
    "Three full ones and one that is half full: ⌈14 / 4⌉. The two empty slots are all the waste there is; the next two words of the answer go into them."],
  share: ["B asks another question behind the same words. How many of A's blocks does B use instead of computing its own?",
    "The first twelve words are equal, so three full blocks are. Their reference counts are 2 now. The fourth differs, and a block is shared as a whole or not at all."],
  chain: ["C's teacher is a judge. Its third block holds the very words of A's third block, “. What is a”. How many blocks does C share?",
    "One. A block's name is a hash over its tokens and the name of the block before it, because keys and values depend on every earlier token. After the first difference nothing matches, equal words or not."],
  whole: ["B sends exactly A's prompt, 12 words in three full blocks. How many of them does it use?",
    "Two. The last token has to be computed once more, because its logits choose the next word; and reuse goes by whole blocks. vLLM looks for hits among all tokens but the last, for the same reason."],
  free: ["A holds four blocks and B shares three of them. A ends. How many blocks go to the free queue?",
    "One, the block that A had for itself. The shared three go from reference count 2 to 1 and stay where they are: B still reads them."],
  victim: ["A has ended, and all free blocks are its own. C comes and needs one block. Which one is overwritten?",
    "The tail of A. Blocks are freed last block first, and the queue is served from its front. Whoever comes back with A's beginning has the better chance to find it."],
  return: ["A's user comes back: same prompt, A's answer, a new question. C and D have each taken a block meanwhile. How many blocks does A's second turn find?",
    "Eviction ate A from its end, so its beginning is there still. Had the head been freed first, one lost block would have made all others useless: the chain needs its first link."],
};

const NAMES = "ABCDEF";

function stage(scenes) {
  let world = new PagedWorld(), picked = null, playing = false, asking = false, streak = 0;
  const root = h("div"), note = h("p", { class: "note", "aria-live": "polite" });
  const colour = (name) => `k${NAMES.indexOf(name) % 8}`;
  const who = (name) => h("span", { class: `who ${colour(name)}`, text: name });

  function show(text = "", incoming = null) {
    const state = world.state(), users = (id) => Object.keys(state.tables).filter((name) => state.tables[name].includes(id));
    const rows = Object.entries(state.tables).map(([name, table]) => h("div", { class: "req", "data-drop": playing ? name : null },
      who(name), h("div", { class: "table", role: "img", "aria-label": `block table of ${name}: ${table.join(", ")}` }, table.map((id, i) => {
        const others = users(id);
        return h("span", { class: `chip ${colour(others[0])} ${[...world.log.fresh, ...world.log.hits].includes(id) && name === last(state) ? "lit" : ""}` }, `${i}→${id}`, others.length > 1 ? h("small", { text: "shared" }) : null);
      })),
      playing ? h("div", { class: "acts" }, act("+ a word", () => write(name)), act("next turn", () => turn(name)), act("end", () => { world.end(name); show(`${name} has ended. Its full blocks can still be found until somebody overwrites them.`); })) : null));
    const seat = playing && NAMES.length > world.requests.size ? [h("div", { class: "req seat", "data-drop": "new" }, "○", picked ? act("put it here", () => drop(picked)) : h("span", { text: "drag a prompt here, or press it; dragged onto a request it speaks behind its words" }))] : [];
    root.replaceChildren(
      ...(incoming ? [h("div", { class: "sub", text: "arriving" }), h("div", { class: "req" }, who(incoming[0]), h("div", { class: "table" }, chunks(incoming[1]).map((part) => h("span", { class: `chip ghost ${colour(incoming[0])}`, text: part.join(" ") }))))] : []),
      ...(playing ? [tray()] : []),
      h("div", { class: "sub", text: "Block tables: logical → physical" }), h("div", { class: "reqs" }, rows.length || seat.length ? [rows, seat] : h("div", { class: "req seat", text: "nobody yet" })),
      h("div", { class: "sub", text: `The pool: ${state.free.length} of ${NUM_BLOCKS - 1} blocks free` }),
      h("div", { class: "blocks" }, world.contents.slice(1).map((content, i) => drawBlock(i + 1, content, users(i + 1), state))),
      h("div", { class: "sub", text: "Free queue: next to be overwritten first" }),
      h("div", { class: "row mono", role: "img", "aria-label": `free queue: ${state.free.join(", ")}` }, state.free.length ? state.free.map((id, i) => h("span", { class: `chip ${state.findable.includes(id) ? "k7" : ""}`, text: `${i ? "" : "▸ "}${id}` })) : "empty"),
      note);
    note.textContent = text;
  }

  const last = (state) => Object.keys(state.tables).at(-1);
  const chunks = (text) => words(text).reduce((parts, word, i) => (i % BLOCK_SIZE ? parts.at(-1).push(word) : parts.push([word]), parts), []);
  const act = (text, onclick) => h("button", { type: "button", text, onclick });

  function drawBlock(id, content, users, state) {
    const findable = state.findable.includes(id), lit = [...world.log.hits, ...world.log.fresh].includes(id);
    const label = users.length ? `block ${id}, used by ${users.join(" and ")}` : `block ${id}, free${findable ? ", its words can still be found" : ""}`;
    return h("div", { class: `block ${users.length ? `held ${colour(users[0])}` : "free"} ${users.length > 1 ? "shared" : ""} ${lit ? "lit" : ""}`, role: "img", "aria-label": `${label}: ${content.join(" ")}` },
      h("div", { class: "top" }, h("span", {}, `#${id}`, findable ? h("i", { class: "find" }) : null), users.length ? h("span", { class: "users" }, users.map(who)) : h("span", { text: "free" })),
      h("div", { class: "words" }, Array.from({ length: BLOCK_SIZE }, (_, i) => {
        const gone = !users.length && !findable;
        return h("span", { class: `word ${content[i] && !gone ? "" : "empty"}`, title: content[i] ?? "", text: gone ? "" : content[i] ?? "" });
      })));
  }

  // --- free play: prompts are dragged, or pressed and put down

  function tray() {
    const box = h("input", { type: "checkbox", onchange: () => { asking = box.checked; } });
    box.checked = asking;
    return h("div", { class: "tray" }, h("div", { class: "sub", text: "prompts" }), h("label", { class: "row", style: "gap:6px;font-size:13.5px" }, box, "ask me before each drop"), scenes.prompts.map((text) => {
      const button = h("button", { type: "button", class: "prompt", text, "aria-pressed": picked === text, onclick: () => { picked = picked === text ? null : text; show(picked ? "Put it into the empty seat, or onto a request to speak behind its words." : ""); root.querySelector(".seat button")?.focus({ preventScroll: true }); } });
      button.addEventListener("pointerdown", (event) => lift(event, text));
      return button;
    }));
  }

  function lift(event, text) {
    const from = [event.clientX, event.clientY];
    let ghost = null, over = null;
    const move = (e) => {
      if (!ghost && Math.hypot(e.clientX - from[0], e.clientY - from[1]) < 6) return;
      if (!ghost) root.append(ghost = h("div", { class: "drag", text }));
      ghost.style.cssText = `left:${e.clientX + 10}px;top:${e.clientY + 10}px`;
      over?.classList.remove("over");
      over = root.getRootNode().elementFromPoint(e.clientX, e.clientY)?.closest("[data-drop]");
      over?.classList.add("over");
    };
    const end = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      removeEventListener("pointercancel", end);
      if (!ghost) return;
      ghost.remove();
      if (over) setTimeout(() => drop(text, over.dataset.drop === "new" ? null : over.dataset.drop)); // after the click that ends a drag
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
    addEventListener("pointercancel", end);
  }

  /** A prompt in a seat of its own; onto a request: a new request that begins with that one's words. */
  function drop(text, onto = null) {
    picked = null;
    const name = [...NAMES].find((letter) => !world.requests.has(letter));
    if (!name) return show("All seats are taken: end somebody.");
    const all = onto ? `${world.text(onto)} ${text}` : text;
    if (!asking) return settle(name, all);
    show(`${name}: “${all}”. How many blocks will it find?`);
    const most = Math.floor(words(all).length / BLOCK_SIZE);
    note.append(h("span", { class: "options", role: "group", "aria-label": "your guess" }, Array.from({ length: most + 1 }, (_, n) => act(String(n), () => settle(name, all, n)))));
    note.querySelector("button").focus();
    return undefined;
  }

  /** The request comes; `guess` is what the reader expects it to find, or null. */
  function settle(name, text, guess = null) {
    const found = world.send(name, text);
    if (found === null) return show(`${name} needs more blocks than are free. In vLLM it would wait, or somebody would be preempted. End a request.`);
    const { hits, fresh } = world.log;
    if (guess !== null) streak = guess === found ? streak + 1 : 0;
    const verdict = guess === null ? "" : guess === found ? `✓ ${streak} in a row. ` : `✗ You said ${guess}. `;
    return show(`${verdict}${name}: ${found ? `found ${found} block${found > 1 ? "s" : ""} (${hits.join(", ")})` : "found nothing"}, took ${fresh.length} new (${fresh.join(", ")}).`);
  }

  function write(name) {
    const answer = scenes.answer, said = world.requests.get(name).output_token_ids.length;
    const done = world.write(name, answer[said % answer.length]);
    const grown = world.log.fresh.length ? `, which began block ${world.log.fresh[0]}` : " into a block that it has";
    show(done ? `${name} wrote a word${grown}.` : `No block is left for ${name}'s next word: here a scheduler preempts somebody.`);
  }

  /** The second turn of a chat: the request ends, and comes back with all it said and a new question. */
  function turn(name) {
    const text = `${world.text(name)} And why ?`;
    world.end(name);
    const found = world.send(name, text);
    show(found === null ? `${name}'s next turn does not fit.` : `${name}'s next turn found ${found} of its own blocks and took ${world.log.fresh.length} new.`);
  }

  return {
    node: root,
    scene(scene) {
      playing = false;
      world = before(scene);
      world.log = { hits: [], fresh: [] };
      show("", scene.act[0] === "send" ? scene.act.slice(1) : null);
    },
    reveal(scene) {
      world.play([scene.act]);
      show(scene.act[0] === "send" ? `Found: ${world.log.hits.join(", ") || "nothing"}. New: ${world.log.fresh.join(", ") || "none"}.` : `${scene.act[1]} has ended.`);
    },
    free() {
      playing = true;
      world = new PagedWorld();
      show("A dot beside a number: this block is full and can be found by its content, in use or free.");
    },
  };
}

/** Questions for the page, and, without a stage, for the tests. */
export function questions(scenes, view = null) {
  return Object.entries(ASK).map(([id, [ask, why]]) => {
    const scene = scenes.scenes[id];
    const answer = () => {
      const was = before(scene), world = before(scene);
      world.play([scene.act]);
      return TRUTH[id](world, was);
    };
    return { id, ask, answer, why: () => why, setup: () => view?.scene(scene), reveal: () => view?.reveal(scene),
      ...(scene.options ? { options: scene.options } : { number: { min: 0, max: 12, unit: "blocks" } }) };
  });
}

define("paged", async () => {
  const scenes = await data("paged"), view = stage(scenes);
  return { stage: view.node, questions: questions(scenes, view), free: view.free,
    lead: "Twelve physical blocks of four tokens, the pool, the free queue and the hashes of the engine. Say what will happen; then it happens." };
});

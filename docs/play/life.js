// <play-life>: two requests on pocket, step by step and call by call, as recorded from mini_vllm (recordings/life.py).

import { data, define, h, still } from "./core.js";

const LANES = ["front end", "core", "worker"], FORWARD = "the model's forward pass";
/** A call's name, with places where a narrow page may break it; the class is said where the method alone says nothing. */
const short = (name) => (/\.(forward|update)$/.test(name) ? name : name.replace(/^\w+\./, "")).replace(/([_.])/g, "$1\u200b");
const own = (text) => text.replace("\n", "").replace(/\n\n$/, "");

function stage({ steps, requests, config, arrivals }) {
  let at = 0, lit = 0, timer = null;
  const strips = h("div"), table = h("tbody"), calls = h("div", { class: "calls" }), title = h("div", { class: "sub" }), said = h("p", { class: "note", "aria-live": "polite", style: "min-height:3em" });
  const button = (text, onclick, more = {}) => h("button", { type: "button", text, onclick, ...more });
  const back = button("← a step back", () => show(at - 1)), on = button("next step →", () => show(at + 1)), slow = button("call by call", () => walk());
  const head = h("tr", {}, h("th", { scope: "col", text: "tokens given" }), steps.map((_, i) => h("th", { scope: "col", text: `step ${i + 1}` })));
  const bar = h("div", { class: "row", style: "margin:12px 0 4px" }, back, on, slow);

  /** Each token of a request: computed, in this step, known but not computed, or not yet there. */
  function strip({ id, num_prompt_tokens: prompt, max_tokens }, k) {
    const now = steps[at - 1], [computed, known] = now?.counters[id] ?? counters(id), fresh = now?.scheduled[id] ?? 0, said_ = now?.sampled[id]?.length ?? 0;
    const arrived = at > 0 && now.counters[id] || at > steps.findIndex((step) => id in step.counters);
    const cells = Array.from({ length: prompt + max_tokens }, (_, i) => {
      const state = !arrived ? "none" : i < computed - fresh ? "done" : i < computed ? "now" : i < known + said_ ? "known" : "none";
      return h("i", { class: `tick ${state} ${i >= prompt ? "out" : ""}` });
    });
    return h("div", { class: `strip k${k}`, role: "img", "aria-label": `${id}: ${arrived ? `${computed} computed of ${known + said_} tokens` : "not here yet"}` },
      h("span", { class: `who k${k}`, text: id }), h("div", { class: "ticks" }, cells), h("span", { class: "mono", text: arrived ? `${computed} / ${known + said_}` : "–" }));
  }

  /** Counters of a request that is not in this step's record: it has ended, or not come. */
  function counters(id) {
    const last = steps.slice(0, at).reverse().find((step) => id in step.counters);
    return last ? last.counters[id] : [0, 0];
  }

  function show(step, until = Infinity) {
    clearInterval(timer);
    at = Math.max(0, Math.min(step, steps.length));
    lit = until;
    draw();
  }

  function draw() {
    const now = steps[at - 1];
    strips.replaceChildren(...requests.map(strip));
    table.replaceChildren(...requests.map(({ id }, k) => h("tr", {}, h("td", {}, h("span", { class: `who k${k}`, text: id })), steps.map((step, i) => {
      const n = i < at ? step.scheduled[id] : undefined, text = i < at ? step.sampled[id]?.join("") : undefined;
      return h("td", { class: `given k${k} ${i === at - 1 ? "here" : ""}` }, n ? h("b", { text: n }) : "", text ? h("small", { text: `“${text.trim()}”` }) : "");
    }))));
    const path = now ? now.calls : arrivals[0];
    title.textContent = now ? `Step ${at}: who is called` : "Before the first step: A arrives";
    calls.replaceChildren(...LANES.map((lane) => h("b", { class: "lane", text: lane })), ...path.map(([lane, name], i) => h("span", {
      class: `call k${LANES.indexOf(lane) * 2} ${i < lit ? "" : "later"} ${i === lit - 1 ? "lit" : ""}`, style: `grid-column:${LANES.indexOf(lane) + 1};grid-row:${i + 2}`, title: name }, short(name))));
    said.textContent = now ? sentence(now) : `A: “${own(requests[0].prompt)}”, ${requests[0].num_prompt_tokens} tokens. B comes before step 2: “${own(requests[1].prompt)}”, ${requests[1].num_prompt_tokens} tokens. A step may compute ${config.max_num_batched_tokens} tokens.`;
    back.disabled = at === 0;
    on.disabled = at === steps.length;
  }

  function sentence({ scheduled, sampled, finished, counters: all }) {
    const parts = Object.entries(scheduled).map(([id, n]) => {
      const [computed, known] = all[id];
      return `${id} computes ${n} token${n > 1 ? "s" : ""}${computed < known ? `; ${known - computed} of its prompt are left, so nothing is sampled` : `, catches up and gets “${(sampled[id] ?? []).join("").trim()}”`}.`;
    });
    return [...parts, ...Object.entries(finished).map(([id, why]) => `${id} ends (${why}); its blocks go back.`)].join(" ");
  }

  /** Lights the calls of this step one after the other. */
  function walk() {
    if (at === 0) at = 1;
    clearInterval(timer);
    lit = still() ? Infinity : 0;
    draw();
    if (!still()) timer = setInterval(() => { lit += 1; draw(); if (lit >= steps[at - 1].calls.length) clearInterval(timer); }, 450);
  }

  const root = h("div", {}, strips, bar, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "tokens given, step by step" }, h("table", { class: "steps" }, h("thead", {}, head), table)), said, title, calls);
  return { node: root, show,
    look(step, hide) { bar.hidden = hide; title.hidden = calls.hidden = hide; show(step); },
    free() { this.look(0, false); } };
}

/** Questions for the page, and, without a stage, for the tests. */
export function questions({ steps, requests, config }, view = null) {
  const [a, b] = requests, budget = config.max_num_batched_tokens, of = (id) => steps.filter((step) => id in step.scheduled);
  const names = steps.find((step) => "A" in step.sampled).calls.map(([, name]) => name), both = of("B")[0];
  const ask = (id, question, more, why, answer, from, to) => ({ id, ask: question, ...more, why: () => why, answer, setup: () => view?.look(from, true), reveal: () => view?.look(to, false) });
  const number = (max, unit) => ({ number: { min: 0, max, unit } });
  return [
    ask("order", "One step. Which of these happens before the model runs?", { options: ["Sampler.forward", "check_stop", "KVCacheManager.allocate_slots"] },
      "The scheduler takes blocks for every token that it plans, before anybody computes. Sampling needs the logits, and check_stop needs the sampled token.",
      () => ["Sampler.forward", "check_stop", "KVCacheManager.allocate_slots"].find((name) => names.includes(name) && names.indexOf(name) < names.indexOf(FORWARD)), 0, 2),
    ask("first", `A's prompt has ${a.num_prompt_tokens} tokens, and a step may compute ${budget}. In which step does A get its first output token?`, number(9, ""),
      "In the step in which its computed tokens catch up with its prompt. The first chunk's last logits would predict a prompt token, which is known already, so nothing is sampled.",
      () => steps.findIndex((step) => "A" in step.sampled) + 1, 1, 2),
    ask("share", `B has ${b.num_prompt_tokens} tokens and arrives before step 2, in which A computes its last ${both.scheduled.A} prompt tokens. How many does B get in that step?`, number(20, "tokens"),
      "What is left of the budget. B does not wait for a step of its own, and its prompt is cut where the budget ends: chunked prefill.",
      () => both.scheduled.B, 1, 2),
    ask("rows", "And how many tokens are sampled in that step 2?", number(9, "tokens"),
      "One, A's. B has computed a piece of its prompt only. Eight rows go through the model, but the sampler sees one row a request that has caught up.",
      () => Object.keys(both.sampled).length, 1, 2),
    ask("passes", `A writes ${a.max_tokens} tokens. In how many steps does it take part?`, number(20, "steps"),
      "Two for the prompt, and the second of them samples already; then one for each further token: 2 + 5 − 1.",
      () => of("A").length, 2, steps.length),
    ask("computed", `A has ended with ${a.num_prompt_tokens} + ${a.max_tokens} tokens. For how many of them were keys and values computed?`, number(40, "tokens"),
      "P + n − 1. The last token is sampled and never run through the model: its keys and values would serve only the token after it.",
      () => of("A").at(-1).counters.A[0], steps.length - 1, steps.length),
  ];
}

define("life", async () => {
  const recorded = await data("life"), view = stage(recorded);
  return { stage: view.node, questions: questions(recorded, view), free: () => view.free(),
    lead: "Two questions to the course's model, recorded with every call. Each square is a token: outlined when it is known, filled when its keys and values are computed." };
});

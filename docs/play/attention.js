// <play-attention>: attention by hand with two numbers a vector, and what heads of pocket look at (recorded from
// mini_vllm in recordings/attention.py). `attend` is compared with the engine's on random vectors.

import { data, define, h, round, s, slider, tabs } from "./core.js";

/** One query over all keys: {scores, weights, output}. */
export function attend(q, keys, values) {
  const scores = keys.map((k) => k.reduce((sum, x, i) => sum + x * q[i], 0) / Math.sqrt(q.length));
  const most = Math.max(...scores), exps = scores.map((x) => Math.exp(x - most)), all = exps.reduce((a, b) => a + b, 0);
  const weights = exps.map((x) => x / all);
  return { scores, weights, output: values[0].map((_, i) => weights.reduce((sum, w, j) => sum + w * values[j][i], 0)) };
}

const percent = (x) => `${Math.round(100 * x)} %`;
const plain = (token) => token.replaceAll("\n", "↵").trim() || "·";

// --- by hand

function byHand({ keys: first, values }) {
  const keys = first.map((k) => [...k]), R = 95;
  let q = [1, 0], veiled = false;
  const svg = s("svg", { viewBox: "-150 -150 300 300", class: "plane", role: "img" }), body = h("tbody"), out = h("p", { class: "note mono", "aria-live": "polite" });
  const put = (angle, length) => { q = [length * Math.cos((angle * Math.PI) / 180), length * Math.sin((angle * Math.PI) / 180)]; draw(); };
  const turn = slider("direction", { min: -180, max: 180, step: 5, value: 0 }, (v) => `${v}°`, (v) => put(v, Math.hypot(...q)));
  const grow = slider("length", { min: 0, max: 8, step: 0.25, value: 1 }, (v) => v.toFixed(2), (v) => put(Number(turn.input.value), v));
  const tip = (v, most = 1.45) => { const n = Math.hypot(...v), to = n > most ? most / n : 1; return [R * v[0] * to, -R * v[1] * to]; };

  function arrow(v, k, label, thick) {
    const [x, y] = tip(v), a = Math.atan2(y, x), head = [2.6, -2.6].map((by) => `${x + 12 * Math.cos(a + by)} ${y + 12 * Math.sin(a + by)}`);
    return s("g", { class: `k${k}` }, s("path", { d: `M0 0 L${x} ${y} M${head[0]} L${x} ${y} L${head[1]}`, fill: "none", stroke: "var(--c)", "stroke-width": thick, "stroke-linecap": "round", opacity: thick > 5 ? 0.45 : 1 }),
      s("text", { x: label === "q" ? x / 2 - 14 * Math.sin(a) : x + 27 * Math.cos(a), y: label === "q" ? y / 2 + 14 * Math.cos(a) + 5 : y + 18 * Math.sin(a) + 5, "text-anchor": "middle", style: "fill:var(--c);font-weight:700;font-size:15px", text: label }));
  }

  function draw() {
    const { scores, weights, output } = attend(q, keys, values), groups = new Map();
    keys.forEach((k, i) => groups.set(String(k), [...(groups.get(String(k)) ?? []), i + 1]));
    svg.replaceChildren(s("circle", { r: R, fill: "none", class: "axis" }), s("path", { d: "M-140 0 H140 M0 -140 V140", class: "axis" }),
      ...[...groups].map(([, list]) => arrow(keys[list[0] - 1], list[0] - 1 ? 1 : 0, `k${list.join(" k")}`, 9)), Math.hypot(...q) ? arrow(q, 4, "q", 4) : "");
    svg.setAttribute("aria-label", `query ${q.map((x) => round(x, 2)).join(", ")}; keys ${keys.map((k) => k.join(", ")).join("; ")}`);
    body.replaceChildren(...keys.map((k, i) => h("tr", {}, h("td", { text: `token ${i + 1}` }), h("td", { class: "mono", text: `[${k.join(", ")}]` }), h("td", { class: "mono", text: `[${values[i].join(", ")}]` }),
      h("td", { class: "mono", text: veiled ? "?" : round(scores[i], 3) }), h("td", { class: "mono", text: veiled ? "?" : percent(weights[i]) }), h("td", { style: "width:26%" }, h("i", { class: `bar k${i === 1 ? 1 : 0}`, style: `width:${veiled ? 0 : 100 * weights[i]}%` })))));
    out.textContent = `q = [${q.map((x) => round(x, 2)).join(", ")}]${veiled ? "" : ` · output = [${output.map((x) => round(x, 3)).join(", ")}]`}`;
  }

  function aim(event) {
    const box = svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width - 0.5) * 300 / R, y = -((event.clientY - box.top) / box.height - 0.5) * 300 / R;
    set([x, y]);
  }

  function set(to) {
    q = to;
    turn.set(Math.round((Math.atan2(q[1], q[0]) * 180) / Math.PI / 5) * 5);
    grow.set(Math.hypot(...q));
    draw();
  }

  svg.addEventListener("pointerdown", (event) => { if (veiled) return; svg.setPointerCapture(event.pointerId); aim(event); });
  svg.addEventListener("pointermove", (event) => { if (svg.hasPointerCapture(event.pointerId)) aim(event); });
  const head = h("tr", {}, ["", "key", "value", "q·k / √2", "weight", ""].map((text) => h(text ? "th" : "td", { scope: text ? "col" : null, text })));
  const knobs = h("div", {}, turn.node, grow.node);
  return { node: h("div", { class: "hand" }, svg, h("div", {}, knobs, h("div", { class: "scroll" }, h("table", {}, h("thead", {}, head), body)), out)),
    look(to, hide) { veiled = hide; knobs.hidden = hide; set(to); } };
}

// --- a real head

function real({ tokens, heads, next }) {
  const names = Object.keys(heads);
  let name = names[0], from = tokens.length - 1, veiled = false;
  const row = h("div", { class: "looks", role: "group", "aria-label": "tokens; press one to see what it looks at" }), said = h("p", { class: "note", "aria-live": "polite" });
  const pick = tabs("head", names, (i) => { name = names[i]; draw(); });

  function draw(focus = false) {
    const weights = heads[name][from], best = weights.indexOf(Math.max(...weights));
    row.replaceChildren(...tokens.map((token, i) => h("button", { type: "button", class: `look ${i === from ? "from" : ""} ${i > from ? "future" : ""}`, disabled: veiled, "aria-pressed": i === from,
      style: `--w:${veiled || i > from ? 0 : weights[i]}`, onclick: () => { from = i; draw(true); } }, h("b", { text: plain(token) }), h("small", { text: i > from ? "–" : veiled ? "?" : percent(weights[i]) }))));
    if (focus) row.children[from].focus();
    said.textContent = veiled ? `${name} of pocket. The last token is about to look back.` : `“${plain(tokens[from])}” looks at “${plain(tokens[best])}” with ${percent(weights[best])} of its weight.${from === tokens.length - 1 ? ` The model goes on with “${next.trim()}”.` : ""}`;
  }

  return { node: h("div", {}, pick.node, row, said), look(which, at, hide) { [name, from, veiled] = [which, at, hide]; pick.set(names.indexOf(which)); pick.node.hidden = hide; draw(); } };
}

function stage(recorded) {
  const parts = [byHand(recorded), real(recorded)], which = tabs("what to look at", ["by hand", "heads of a real model"], (i) => open(i));
  const open = (i) => { which.set(i); parts.forEach(({ node }, k) => { node.hidden = k !== i; }); };
  const top = h("div", { style: "margin-bottom:12px" }, which.node);
  return { node: h("div", {}, top, parts.map(({ node }) => node)), look(i, ...given) { top.hidden = true; open(i); parts[i].look(...given); },
    free() { parts[1].look("layer 5, head 2", recorded.tokens.length - 1, false); this.look(0, [1, 0], false); top.hidden = false; } };
}

/** Questions for the page, and, without a stage, for the tests. */
export function questions(recorded, view = null) {
  const { keys, values, tokens, heads, visible } = recorded, last = tokens.length - 1;
  const hand = (id, q, ask, options, why) => ({ id, ask, options, why: () => why, answer: () => percent(attend(q, keys, values).weights[1]), setup: () => view?.look(0, q, true), reveal: () => view?.look(0, q, false) });
  const at = (name) => plain(tokens[heads[name][last].indexOf(Math.max(...heads[name][last]))]);
  const head = (id, name, ask, more, why, answer, from = last) => ({ id, ask, ...more, why: () => why, answer, setup: () => view?.look(1, name, from, true), reveal: () => view?.look(1, name, from, false) });
  return [
    hand("hand", [1, 0], "The query is [1, 0]. The keys of tokens 1 and 3 point the same way, that of token 2 stands across: its score is 0. What weight does token 2 get?", ["0 %", "11 %", "20 %", "33 %"],
      "A score of 0 is no weight of 0: e⁰ = 1, and the others have e^0.707 = 2.03 each. 1 / 5.06 is a fifth. Softmax never says never."),
    hand("longer", [2, 0], "The query becomes twice as long, [2, 0], in the same direction. What weight does token 2 get now?", ["20 %", "40 %", "11 %", "0 %"],
      "Longer vectors make larger scores, and the softmax sharper. That is why scores are divided by √d: vectors of many numbers would make them large, and nearly all the weight would go to one token."),
    hand("turn", [0, 1], "Now the query is [0, 1], exactly token 2's key. What weight does token 2 get?", ["34 %", "50 %", "67 %", "100 %"],
      "A perfect match wins, but against two: 2.03 of 4.03. With longer vectors the match could take nearly everything. Pull the query outwards in free play."),
    head("mask", "layer 5, head 2", "A real prompt of fifteen tokens on the course's model. The sixth of them, “a”, looks back. How many of its fifteen weights are above 0?", { number: { min: 0, max: 15, unit: "weights" } },
      "Six: itself and the five before it. The causal mask sets later scores to −∞. So a row never changes when text is appended, and keys and values can be kept.", () => visible[5], 5),
    head("before", "layer 1, head 1", "The model has written “A KV”. At which token does the last one, “KV”, look most in head 1 of layer 1?", { options: ["What", "KV", "block", "A"] },
      "At “A”, the token before it, with nearly all of its weight. Some heads do just that: they tell each token who stands before it, and later layers build on it.", () => at("layer 1, head 1")),
    head("induction", "layer 5, head 2", "Same place, four layers up: head 2 of layer 5. At which token does “KV” look now?", { options: ["What", "A", "block", "?"] },
      "At “block”, which followed “KV” when it occurred before, with 99 % of the weight. The model goes on with “block”. A head that finds what came next the last time is called an induction head; nobody programmed it.", () => at("layer 5, head 2")),
  ];
}

define("attention", async () => {
  const recorded = await data("attention"), view = stage(recorded);
  return { stage: view.node, questions: questions(recorded, view), free: () => view.free(),
    lead: "First three tokens with two numbers each, small enough for a pencil. Then the same arithmetic in heads of the course's model, on real text." };
});

// <play-router>: which experts get a token, the blocks that a grouped GEMM makes of it, and the tiles of a product. The
// scores are pocket-moe's (recordings/router.py); routing and blocks are compared with mini_vllm's on random scores.

import { data, define, h, round, s, slider, tabs } from "./core.js";

/** The best k experts of one token: softmax over all, the choice, divided by their sum. Of equals, the smaller id. */
export function fusedTopk(logits, k) {
  const most = Math.max(...logits), exps = logits.map((x) => Math.exp(x - most)), all = exps.reduce((a, b) => a + b, 0), scores = exps.map((x) => x / all);
  const ids = scores.map((_, e) => e).sort((a, b) => scores[b] - scores[a] || a - b).slice(0, k), sum = ids.reduce((total, e) => total + scores[e], 0);
  return { ids, weights: ids.map((e) => scores[e] / sum) };
}

/** Routing of all tokens, and assignments sorted by expert and padded to blocks; padding has the number of all. */
export function route(logits, k, blockSize) {
  const chosen = logits.map((row) => fusedTopk(row, k)), flat = chosen.flatMap(({ ids }) => ids), sorted = [], experts = [];
  const loads = logits[0].map((_, e) => flat.filter((id) => id === e).length);
  for (let e = 0; e < loads.length; e++) {
    const mine = flat.flatMap((id, i) => (id === e ? [i] : [])), blocks = Math.ceil(mine.length / blockSize);
    sorted.push(...mine, ...Array(blocks * blockSize - mine.length).fill(flat.length));
    experts.push(...Array(blocks).fill(e));
  }
  return { weights: chosen.map((one) => one.weights), ids: chosen.map((one) => one.ids), loads, sorted, experts };
}

/** Numbers that a product of M × K and K × N fetches with tiles of the result. */
export const traffic = (M, N, K, tileM, tileN) => M * K * Math.ceil(N / tileN) + K * N * Math.ceil(M / tileM);

const million = (n) => `${round(n / 1e6, n < 1e7 ? 1 : 0)} million`;
const plain = (token) => token.replace(/^<\|(\w+)\|>$/, "‹$1›").replaceAll("\n", "↵").trim() || "·";

// --- experts

function expertsView({ texts, top_k: k }) {
  const names = Object.keys(texts), sizes = [1, 4, 16];
  let text = names[0], size = 4, picked = null, veiled = false;
  const tokens = h("div", { class: "row", style: "gap:4px", role: "group", "aria-label": "tokens; press one to see its experts" }), rows = h("div", { class: "experts" }), said = h("p", { class: "note", "aria-live": "polite", style: "min-height:3em" });
  const pickText = tabs("text", names, (i) => { text = names[i]; picked = null; draw(); }), pickSize = tabs("rows in a block", sizes.map((n) => (n === 1 ? "no blocks" : `blocks of ${n}`)), (i) => { size = sizes[i]; draw(); }, 1);
  const tools = h("div", { class: "row", style: "gap:8px 18px;margin-bottom:10px" }, pickText.node, pickSize.node);

  function draw(focus = false) {
    const { tokens: list, logits } = texts[text], all = route(logits, k, size), numel = list.length * k;
    tokens.replaceChildren(...list.map((token, i) => h("button", { type: "button", class: `chip tokenbutton k${all.ids[i][0] % 8}`, "aria-pressed": i === picked, disabled: veiled, text: plain(token), style: veiled ? "--c:var(--line)" : null,
      onclick: () => { picked = i === picked ? null : i; draw(true); } })));
    if (focus && picked !== null) tokens.children[picked].focus();
    rows.replaceChildren(...all.loads.map((load, e) => {
      const first = all.experts.indexOf(e), blocks = all.experts.filter((id) => id === e).length;
      const cells = Array.from({ length: veiled ? 0 : blocks }, (_, b) => h("span", { class: "blockbox" }, all.sorted.slice((first + b) * size, (first + b + 1) * size).map((i) => {
        const pad = i === numel, at = Math.floor(i / k);
        return h("i", { class: `cell ${pad ? "pad" : ""} ${!pad && at === picked ? "hit" : ""} ${picked !== null && at !== picked ? "dim" : ""}`, title: pad ? "padding" : `${plain(list[at])}, weight ${round(all.weights[at][i % k], 2)}`, text: pad ? "" : plain(list[at]).slice(0, 4) });
      })));
      return h("div", { class: `expert k${e % 8}` }, h("b", { text: `E${e}` }), h("div", { class: "cells", role: "img", "aria-label": `expert ${e}: ${veiled ? "hidden" : `${load} rows in ${blocks} blocks`}` }, cells), h("span", { class: "mono", text: veiled ? "?" : load }));
    }));
    const used = all.sorted.length, one = picked === null ? null : all.ids[picked].map((e, i) => `expert ${e} (${round(all.weights[picked][i], 2)})`).join(" and ");
    said.textContent = veiled ? `${list.length} tokens, ${k} of 8 experts each: ${numel} rows of work.` : one ? `“${plain(list[picked])}” goes to ${one}.`
      : `${numel} rows for ${list.length} tokens. Busiest: ${round((Math.max(...all.loads) * 8) / numel, 2)} times the mean. ${size > 1 ? `${all.experts.length} blocks with ${used} rows, ${used - numel} of them padding.` : ""}`;
  }

  return { node: h("div", {}, tools, tokens, h("div", { class: "sub", text: "Rows of each expert" }), rows, said),
    look(which, block, hide) { [text, size, veiled, picked] = [which, block, hide, null]; pickText.set(names.indexOf(which)); pickSize.set(sizes.indexOf(block)); tools.hidden = hide; draw(); } };
}

// --- tiles of a product

function tilesView() {
  const sizes = [1, 4, 16, 32, 64, 128, 256, 512, 1024], side = 1024;
  let m = 7, n = 7, veiled = false;
  const svg = s("svg", { viewBox: "0 0 330 330", class: "plane", role: "img" }), facts = h("div", { class: "facts" });
  const rows = slider("tile, rows", { min: 0, max: 8, value: 5 }, (i) => String(sizes[i]), (i) => { m = i; draw(); });
  const cols = slider("tile, columns", { min: 0, max: 8, value: 5 }, (i) => String(sizes[i]), (i) => { n = i; draw(); });
  const knobs = h("div", {}, rows.node, cols.node);

  function draw() {
    const tm = sizes[m], tn = sizes[n], px = 200 / side, H = Math.max(tm * px, 1), W = Math.max(tn * px, 1), x = 110 + Math.floor(0.45 * side / tn) * tn * px, y = 110 + Math.floor(0.45 * side / tm) * tm * px;
    const line = (d) => s("path", { d, stroke: "var(--bg)", "stroke-width": 1, fill: "none" });
    const grid = [...(tn >= 32 ? Array.from({ length: side / tn }, (_, i) => line(`M${110 + i * tn * px} 110 v200`)) : []), ...(tm >= 32 ? Array.from({ length: side / tm }, (_, i) => line(`M110 ${110 + i * tm * px} h200`)) : [])];
    const box = (bx, by, w, t, fill, opacity = 1) => s("rect", { x: bx, y: by, width: w, height: t, fill, opacity, rx: 2 });
    const word = (tx, ty, text) => s("text", { x: tx, y: ty, "text-anchor": "middle", class: "dim", text });
    svg.replaceChildren(box(110, 110, 200, 200, "var(--c7)", 0.16), box(20, 110, 80, 200, "var(--c0)", 0.14), box(110, 20, 200, 80, "var(--c1)", 0.14), ...grid,
      box(20, y, 80, H, "var(--c0)", 0.8), box(x, 20, W, 80, "var(--c1)", 0.8), box(x, y, W, H, "var(--c2)"), word(60, 326, "A"), word(210, 326, "C"), word(60, 64, ""), word(321, 64, "B"));
    svg.setAttribute("aria-label", `a tile of ${tm} by ${tn} needs ${tm} rows of A and ${tn} columns of B`);
    const fetched = traffic(side, side, side, tm, tn), fact = (name, value, note) => h("div", { class: "fact" }, h("small", { text: name }), h("b", { text: veiled ? "?" : value }), h("small", { text: note }));
    facts.replaceChildren(fact("numbers fetched", million(fetched), "from A and B"), fact("reuse", round((2 * side ** 3) / fetched, 1), "uses of a number"), fact("sums kept", (tm * tn).toLocaleString("en"), "float32, on chip"), fact("tiles", Math.ceil(side / tm) * Math.ceil(side / tn), "of the result"));
  }

  return { node: h("div", { class: "hand" }, svg, h("div", {}, h("p", { class: "note", text: "C = A × B, all 1,024 × 1,024. One tile of C (green) needs a strip of A (blue) and a strip of B (orange), drawn shorter than they are." }), knobs, facts)),
    look(tm, tn, hide) { [m, n, veiled] = [sizes.indexOf(tm), sizes.indexOf(tn), hide]; rows.set(m); cols.set(n); knobs.hidden = hide; draw(); } };
}

function stage(recorded) {
  const parts = [expertsView(recorded), tilesView()], which = tabs("what to look at", ["experts and blocks", "tiles of a product"], (i) => open(i));
  const open = (i) => { which.set(i); parts.forEach(({ node }, k) => { node.hidden = k !== i; }); };
  const top = h("div", { style: "margin-bottom:12px" }, which.node);
  return { node: h("div", {}, top, parts.map(({ node }) => node)), look(i, ...given) { top.hidden = true; open(i); parts[i].look(...given); },
    free() { parts[1].look(128, 128, false); this.look(0, Object.keys(recorded.texts)[0], 4, false); top.hidden = false; } };
}

/** Questions for the page, and, without a stage, for the tests. */
export function questions(recorded, view = null) {
  const { texts, top_k: k, choose } = recorded, at = (name, size = 4) => route(texts[name].logits, k, size);
  const best = (name) => at(name).loads.indexOf(Math.max(...at(name).loads));
  const ask = (id, question, more, why, answer, ...look) => ({ id, ask: question, ...more, why: () => why, answer, setup: () => view?.look(...look, true), reveal: () => view?.look(...look, false) });
  return [
    ask("choose", "A token's scores for four experts are 0, 2, 1 and 0. The best two are taken, and their weights sum to 1. Which weights?", { options: ["0.50 and 0.50", "0.67 and 0.33", "0.73 and 0.27", "0.88 and 0.12"] },
      "The softmax over the chosen: e² / (e² + e¹) = 0.73. Softmax over all, choose, and divide by the sum is the same thing; upstream does it in that order.",
      () => fusedTopk(choose, k).weights.map((w) => w.toFixed(2)).join(" and "), 0, "a question", 4),
    ask("busiest", "The course's MoE model reads a sum: 28 tokens, 2 of 8 experts each, 56 rows of work in this layer. A fair share is 7. How many does the busiest expert get?", { options: ["8", "11", "19", "28"] },
      "19, over a third. Over all texts the experts of this layer are loaded evenly, as training wanted; within one kind of text they are not. Look who sits there: digits, blanks and signs.",
      () => String(Math.max(...at("a sum").loads)), 0, "a sum", 1),
    ask("again", "The same layer reads the beginning of a story. Is the same expert the busiest?", { options: ["yes, the same", "no, another"] },
      "Another, and by a small lead. What a batch consists of shows in the loads. With experts on several GPUs the fullest one sets the pace, so engines watch these counts and move experts about.",
      () => (best("a sum") === best("a story") ? "yes, the same" : "no, another"), 0, "a story", 1),
    ask("blocks", "The sum again. A tile of a GEMM belongs to one expert, so each expert's rows are rounded up to blocks of 4. The loads are 4, 6, 5, 2, 5, 9, 19 and 6. How many blocks?", { number: { min: 1, max: 60, unit: "blocks" } },
      "1 + 2 + 2 + 1 + 2 + 3 + 5 + 2. Fourteen would hold 56 rows if blocks could be shared; the rest is the price of sorting work by its weights.",
      () => at("a sum").experts.length, 0, "a sum", 4),
    ask("rows", "And with blocks of 16, as for small steps on a GPU: into how many rows do the 56 go?", { options: ["56", "64", "72", "144"] },
      "144: seven experts open one block each, and the busiest two. Padding costs less than it looks: masked rows fetch nothing, and the time goes into the weights of the experts that were touched.",
      () => String(at("a sum", 16).sorted.length), 0, "a sum", 16),
    ask("fetched", "A product of 1,024³ by three plain loops fetches 2,147 million numbers. With tiles of 128 × 128, how many?", { options: ["2 million", "17 million", "134 million", "1074 million"] },
      "Each number that is fetched is used 128 times before it is forgotten: 2,147 / 128 is 17. Try 64 × 256 in free play: the same area, and more to fetch.",
      () => million(traffic(1024, 1024, 1024, 128, 128)), 1, 128, 128),
  ];
}

define("router", async () => {
  const recorded = await data("router"), view = stage(recorded);
  return { stage: view.node, questions: questions(recorded, view), free: () => view.free(),
    lead: "The router of the course's MoE model on real text: who goes to which expert, and what the GPU makes of it. And tiles, from which every product is built." };
});

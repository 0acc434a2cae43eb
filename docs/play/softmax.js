// <play-softmax>: the online softmax, tile by tile. The algebra is that of mini_vllm/attention/ops/online_softmax.py, and
// the tests compare the two on random scores; exp is the browser's, so the last digit may differ.

import { data, define, h, round, tabs } from "./core.js";

/** What is kept of no key at all. */
export const identity = () => ({ m: -Infinity, denom: 0, acc: 0 });

/** The summary of one tile. */
export function tile(scores, values) {
  const m = Math.max(...scores), finite = m === -Infinity ? 0 : m, weights = scores.map((x) => Math.exp(x - finite));
  return { m, denom: weights.reduce((a, b) => a + b, 0), acc: weights.reduce((sum, w, i) => sum + w * values[i], 0) };
}

/** Both sets of keys in one: each side is rescaled to the common maximum. */
export function merge(a, b) {
  const m = Math.max(a.m, b.m), finite = m === -Infinity ? 0 : m, ca = Math.exp(a.m - finite), cb = Math.exp(b.m - finite);
  return { m, denom: ca * a.denom + cb * b.denom, acc: ca * a.acc + cb * b.acc };
}

export const finalize = ({ denom, acc }) => acc / (denom || 1);

/** All tiles in an order: the summary after each, and by what the totals before it were multiplied. */
export function run(scores, values, size, order = null, forget = false) {
  const starts = order ?? Array.from({ length: Math.ceil(scores.length / size) }, (_, i) => i);
  let kept = identity();
  return starts.map((which) => {
    const part = tile(scores.slice(which * size, (which + 1) * size), values.slice(which * size, (which + 1) * size));
    const merged = merge(kept, part), correction = Math.exp(kept.m - merged.m), own = Math.exp(part.m - merged.m);
    kept = forget ? { m: merged.m, denom: kept.denom + own * part.denom, acc: kept.acc + own * part.acc } : merged;
    return { which, correction, ...kept };
  });
}

function stage({ scores: first, values }) {
  let scores = first, size = 4, order = [0, 1, 2], at = 0, veiled = false;
  const chart = h("div", { class: "keys" }), facts = h("div", { class: "facts" }), said = h("p", { class: "note", "aria-live": "polite", style: "min-height:3em" });
  const button = (text, onclick) => h("button", { type: "button", text, onclick });
  const back = button("← back", () => show(at - 1)), on = button("next tile →", () => show(at + 1));
  const sizes = [1, 2, 4, 6, 12], pick = tabs("tile size", sizes.map((n) => `tiles of ${n}`), (i) => { size = sizes[i]; order = straight(); show(0); }, 2);
  const straight = () => Array.from({ length: scores.length / size }, (_, i) => i);
  const turn = button("other way round", () => { order = [...order].reverse(); show(0); });
  const fresh = button("new scores", () => { scores = scores.map(() => Math.round(Math.random() * 60 - 10) / 10); show(0); });
  const tools = h("div", { class: "row", style: "margin-bottom:10px" }, pick.node, turn, fresh);

  const bars = first.map((_, i) => {
    const bar = h("i", { class: "weight" }), label = h("span", { class: "mono" }), box = h("div", { class: "key" }, h("div", { class: "well" }, bar), label);
    return { bar, label, box, i };
  });
  chart.append(...bars.map(({ box }) => box));

  function show(step) {
    at = Math.max(0, Math.min(step, order.length));
    const states = run(scores, values, size, order), now = at ? states[at - 1] : { ...identity(), correction: 1 };
    const place = new Map(order.map((which, i) => [which, i]));
    for (const { bar, label, box, i } of bars) {
      const which = Math.floor(i / size), turnOf = place.get(which), seen = turnOf < at;
      box.className = `key k${which % 7} ${seen ? "seen" : ""} ${turnOf === at - 1 ? "fresh" : ""} ${i % size === 0 && i ? "first" : ""}`;
      bar.style.height = `${seen ? 100 * Math.exp(scores[i] - now.m) : 0}%`;
      label.textContent = scores[i];
      box.title = `score ${scores[i]}, value ${values[i]}`;
    }
    const fact = (name, value, note) => h("div", { class: "fact" }, h("small", { text: name }), h("b", { class: "mono", text: veiled && at ? "?" : value }), h("small", { text: note }));
    facts.replaceChildren(fact("m", now.m === -Infinity ? "−∞" : round(now.m, 2), "highest so far"), fact("correction", at > 1 ? round(now.correction) : "–", "times all before"),
      fact("denom", round(now.denom), "Σ e^(s−m)"), fact("acc", round(now.acc), "Σ e^(s−m) v"), fact("out", at ? round(finalize(now)) : "–", "acc / denom"));
    const once = finalize(tile(scores, values));
    said.textContent = veiled ? "" : !at ? "Nothing read yet. A bar will show a key's weight against the highest score so far." : at === order.length
      ? `All tiles read: out = ${round(finalize(now), 6)}. With all scores at once: ${round(once, 6)}.`
      : now.correction === 1 || at === 1 ? "The maximum stands where it stood: what was summed before stays as it is." : `A higher score: all bars before it, denom and acc are multiplied by ${round(now.correction)}.`;
    back.disabled = at === 0;
    on.disabled = at === order.length;
  }

  const root = h("div", {}, tools, chart, h("div", { class: "row", style: "margin:10px 0" }, back, on), facts, said);
  return {
    node: root,
    look(given, way, step, hide) {
      [scores, size, order, veiled] = [given, 4, way, hide];
      pick.set(2);
      tools.hidden = true;
      back.hidden = on.hidden = hide;
      show(step);
    },
    free() {
      [scores, size, order, veiled] = [first, 4, [0, 1, 2], false];
      pick.set(2);
      tools.hidden = back.hidden = on.hidden = false;
      show(0);
    },
  };
}

/** Questions for the page, and, without a stage, for the tests. */
export function questions(given, view = null) {
  const { scores, values, climbing } = given, ways = [0, 1, 2], back = [2, 1, 0];
  const ask = (id, question, more, why, answer, list = scores, order = ways, step = 2, from = step - 1) => ({ id, ask: question, ...more, why: () => why, answer,
    setup: () => view?.look(list, order, from, false), reveal: () => view?.look(list, order, step, false) });
  const share = (forget) => {
    const states = run(scores, values.map((_, i) => (i < 4 ? 1 : 0)), 4, ways, forget).at(-1);
    return finalize(states);
  };
  return [
    ask("correction", "The highest score so far is 2. The second tile brings a 4. By what are the totals of the first tile multiplied?", { options: ["7.3891", "1", "0.5", "0.1353"] },
      "By e^(2−4). Each ballot was weighed against 2 and should be weighed against 4; the factor is the same for all of them, so two totals are multiplied and no score has to be read again.",
      () => round(run(scores, values, 4, ways)[1].correction)),
    ask("quiet", "The third tile's highest score is 3.5, below the 4 that was seen. By what are the totals multiplied now?", { options: ["0.6065", "1", "1.6487"] },
      "By 1: the maximum stays, so nothing counted before changes. The new tile's own weights are measured against 4.",
      () => round(run(scores, values, 4, ways)[2].correction), scores, ways, 3),
    ask("order", "Here the tiles climb: their highest scores are 1, 2 and 4. Forwards, that takes two corrections. How many of them, other than 1, if the last tile is read first?", { number: { min: 0, max: 3, unit: "corrections" } },
      "None. The highest score of all comes first, and the later tiles are weighed right at once. The result is the same in either order; kernels read tiles as it suits the memory.",
      () => run(climbing, values, 4, back).slice(1).filter(({ correction }) => correction !== 1).length, climbing, back, 3, 0),
    ask("forget", "A kernel forgets the correction. Whose values does its output favour, with the scores of question 1?", { options: ["nobody's: it is right", "those of the last tile", "those of the first tile"] },
      "Those of the first tile: they were weighed against 2, and nobody scaled them down to 4. Where the highest score happens to lie in the first tile the bug does not show, so that tests on random data pass now and then.",
      () => (share(true) > share(false) + 1e-9 ? "those of the first tile" : share(true) < share(false) - 1e-9 ? "those of the last tile" : "nobody's: it is right"), scores, ways, 3, 1),
    ask("merge", "Two parts of a long context were summed apart: m = 2, denom = 1.5 and m = 4, denom = 1.2. What is denom of both together?", { options: ["1.2", "1.403", "2.7", "12.2836"] },
      "1.5 × e^(2−4) + 1.2. The same rule that takes in a tile also joins two halves, in any order: that is how one long request is spread over the whole GPU (§4.6).",
      () => round(merge({ m: 2, denom: 1.5, acc: 0 }, { m: 4, denom: 1.2, acc: 0 }).denom)),
  ];
}

define("softmax", async () => {
  const recorded = await data("softmax"), view = stage(recorded);
  return { stage: view.node, questions: questions(recorded, view), free: view.free,
    lead: "Twelve keys pass by in tiles. Three numbers are kept. Watch all the old weights shrink at once when a higher score turns up." };
});

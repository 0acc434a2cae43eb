// <play-launch>: the two lanes of a decode step, drawn from lab 05-04's capture on an H200. The capture holds counts and
// sums, so kernels are drawn equally long and evenly spaced; lengths of steps, numbers and busy time are measured.

import { data, define, h, tabs } from "./core.js";

const WAYS = ["eager", "compiled", "graphs in pieces", "graph", "compiled + graph"];
const SAID = { eager: "every kernel from Python", compiled: "fewer, larger kernels", "graphs in pieces": "graphs between attention", graph: "one graph for the whole step", "compiled + graph": "both" };
const percent = (x) => `${Math.round(100 * x)} %`;

/** Share of the step in which the GPU works. */
export const busy = ({ gpu_busy_ms, ms_per_step }) => gpu_busy_ms / ms_per_step;

function stage({ runs, machine }) {
  const models = Object.keys(runs), batches = Object.keys(runs[models[0]]), zooms = [1, 4, 16, 64];
  let model = models[1], batch = "1", zoom = 1, shown = WAYS, veiled = false;
  const rows = h("div", { class: "lanes" }), said = h("p", { class: "note", "aria-live": "polite" });
  const pickModel = tabs("model", models, (i) => { model = models[i]; draw(); }, 1), pickBatch = tabs("batch", batches.map((b) => `batch ${b}`), (i) => { batch = batches[i]; draw(); });
  const pickZoom = tabs("zoom", zooms.map((z) => (z === 1 ? "whole step" : `${z}×`)), (i) => { zoom = zooms[i]; draw(); });
  const tools = h("div", { class: "row", style: "gap:8px 18px;margin-bottom:12px" }, pickModel.node, pickBatch.node, pickZoom.node);

  /** A lane of n equal marks, so many of them drawn as one that the eye can tell them apart; `share` is filled. */
  function lane(kind, k, n, share, length) {
    const group = Math.ceil((n * 10) / (Math.max(rows.clientWidth - 40, 260) * length * zoom)), marks = n / group;
    return h("div", { class: "lane-row", title: `one mark stands for ${group}` }, h("small", { text: kind }), h("div", { class: "track" },
      h("div", { class: `marks k${k}`, style: `width:${length * 100 * zoom}%;--p:${100 / marks}%;--f:${share === null ? "2px" : `${(100 / marks) * share}%`}` })));
  }

  function draw() {
    const all = runs[model][batch], longest = Math.max(...WAYS.map((way) => all[way].ms_per_step));
    rows.replaceChildren(...shown.map((way) => {
      const run = all[way], length = run.ms_per_step / longest, hidden = veiled && way === shown.at(-1);
      return h("div", { class: "way" }, h("div", { class: "way-head" }, h("b", { text: way }), h("span", { text: SAID[way] }),
        h("span", { class: "mono", text: hidden ? "?" : `${run.ms_per_step} ms · ${run.kernels} kernels · ${run.launching_calls} launch${run.launching_calls === 1 ? "" : "es"} · GPU busy ${percent(busy(run))}` })),
      hidden ? h("div", { class: "track veil", text: "?" }) : [lane("CPU", 1, run.launching_calls, null, length), lane("GPU", 0, run.kernels, busy(run), length)]);
    }));
    said.textContent = `All lanes share one axis: ${(longest / zoom).toPrecision(3)} ms from left to right. ${machine}. CPU: a line for a launch. GPU: filled while it works. Where there are too many to see, one mark stands for several. Lengths, counts and busy time are measured; single times are not in the capture, so marks are drawn alike and evenly spaced.`;
  }

  return {
    node: h("div", {}, tools, rows, said),
    look(at, ways, hide) {
      [model, batch, shown, veiled, zoom] = ["qwen3-0.6b", at, ways, hide, 1];
      tools.hidden = true;
      draw();
    },
    free() {
      [model, batch, shown, veiled, zoom] = [models[1], "1", WAYS, false, 1];
      pickModel.set(1);
      pickBatch.set(0);
      pickZoom.set(0);
      tools.hidden = false;
      draw();
    },
  };
}

/** Questions for the page, and, without a stage, for the tests. */
export function questions({ runs }, view = null) {
  const one = runs["qwen3-0.6b"]["1"], eight = runs["qwen3-0.6b"]["8"], ms = (way, run = one) => run[way].ms_per_step;
  const ask = (id, question, more, why, answer, ways, batch = "1") => ({ id, ask: question, ...more, why: () => why, answer, setup: () => view?.look("1", ways, true), reveal: () => view?.look(batch, ways, false) });
  return [
    ask("idle", "Qwen3-0.6B's shape on an H200, one request, no graph: 823 kernels in a decode step of 9.2 ms. For how much of it is the GPU at work?", { options: ["97 %", "48 %", "22 %", "79 %"] },
      "2.1 ms of 9.2. Each kernel is finished long before the next message comes. The GPU is not slow and not full: it waits for the CPU.",
      () => percent(busy(one.eager)), ["eager"]),
    ask("batch", "The same with eight requests instead of one: eight times as many tokens. How long is the eager step now?", { options: ["8.0 times as long", "4.1 times as long", "2.3 times as long", "1.1 times as long"] },
      "Hardly longer: the launches are nearly as many, and they set the pace. A time that does not depend on the batch, and is far longer than reading the weights, is the CPU's signature.",
      () => `${(ms("eager", eight) / ms("eager")).toFixed(1)} times as long`, ["eager"], "8"),
    ask("calls", "Now the whole step is one CUDA graph. With how many launching calls does the CPU start the 823 kernels?", { number: { min: 1, max: 999, unit: "calls" } },
      "One. The graph was recorded once, with its shapes and addresses, and is replayed by a single message. The kernels are the same, and so is the time that the GPU is busy.",
      () => one.graph.launching_calls, ["eager", "graph"]),
    ask("which", "Only one of two is allowed: the compiler, which makes 348 kernels of 823 but launches each; or the graph, which keeps 823 and launches once. Which gives the shorter step at batch 1?", { options: ["the compiler", "the graph"] },
      "The graph: 2.4 ms against 4.3. The compiler saves memory traffic and launches, but 348 launches from Python still take longer than the work.",
      () => (ms("graph") < ms("compiled") ? "the graph" : "the compiler"), ["compiled", "graph"]),
    ask("gain", "And both together, compiled and in one graph. How fast is the step compared with eager?", { options: ["1.6 times as fast", "3.8 times as fast", "6.3 times as fast", "19.4 times as fast"] },
      "9.2 ms become 1.5, and the GPU is busy for nine tenths of it. More is not to be had by launching better: from here on the kernels have to become faster.",
      () => `${(ms("eager") / ms("compiled + graph")).toFixed(1)} times as fast`, ["eager", "compiled + graph"]),
  ];
}

define("launch", async () => {
  const recorded = await data("launch"), view = stage(recorded);
  return { stage: view.node, questions: questions(recorded, view), free: view.free,
    lead: "A decode step has two lanes: the CPU sends kernels, the GPU runs them. These are measured steps of a real GPU." };
});

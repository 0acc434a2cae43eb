// <mv-kv-memory> and <mv-roofline>: two napkins, for a model and a card.
(function () {
  "use strict";
  const { h, s, control, slider, select, data, define, bytes, number } = window.MiniUI;
  const { capacity, roofline, GIB } = window.MiniVLLM;
  const WIDTHS = { "16-bit": 2, "8-bit": 1, "4-bit": 0.5 };
  const LENGTHS = Array.from({ length: 12 }, (_, i) => 64 * 2 ** i);
  const power = (value) => (Number(value) < 0 ? 0 : 2 ** Number(value));

  function shared(table) {
    const model = select(Object.keys(table.models), "Llama-3-8B"), gpu = select(Object.keys(table.gpus), "A100 80GB SXM");
    const weights = select(Object.keys(WIDTHS)), kv = select(["16-bit", "8-bit"]);
    return { model, gpu, weights, kv,
      chosen: () => ({ model: table.models[model.value], gpu: table.gpus[gpu.value], weightBytes: WIDTHS[weights.value], kvBytes: WIDTHS[kv.value] }),
      controls: [control("Model", model), control("Card", gpu), control("Weights", weights), control("KV cache", kv)] };
  }

  function fact(label) {
    const value = h("strong");
    return { value, node: h("div", { class: "mv-fact" }, value, h("span", { text: label })) };
  }

  async function memory(host) {
    const table = await data("arithmetic.json"), base = shared(table);
    const share = slider(0.5, 0.98, 0.01, 0.9), length = slider(0, LENGTHS.length - 1, 1, 5);
    const facts = { users: fact("sequences of that length at once"), perToken: fact("KV cache per token"), perSeq: fact("per sequence"), blocks: fact("blocks of 16 tokens") };
    const bar = h("div", { class: "mv-budget mv-memory", role: "img" }), said = h("p", { class: "mv-said", "aria-live": "polite" });
    host.replaceChildren(
      h("div", { class: "mv-bar" }, h("span", { class: "mv-title", text: "KV memory: how many users fit?" })),
      h("div", { class: "mv-controls" }, ...base.controls, control("Tokens per sequence", length, (i) => number(LENGTHS[i])),
        control("gpu_memory_utilization", share, (v) => Number(v).toFixed(2))),
      h("div", { class: "mv-facts" }, ...Object.values(facts).map((f) => f.node)), bar, said);
    const update = () => {
      const chosen = base.chosen(), tokens = LENGTHS[length.value];
      const found = capacity(chosen.model, chosen.gpu, { ...chosen, share: Number(share.value), length: tokens });
      facts.users.value.textContent = found.users >= 10 ? number(Math.floor(found.users)) : (Math.floor(found.users * 100) / 100).toString();
      facts.perToken.value.textContent = bytes(found.perToken);
      facts.perSeq.value.textContent = bytes(found.perToken * tokens);
      facts.blocks.value.textContent = number(found.blocks);
      const total = chosen.gpu[0] * GIB, weights = Math.min(found.weights, total), kv = Math.min(found.available, total - weights);
      bar.replaceChildren(...[["mv-c0", "weights", weights], ["mv-c2", "KV cache", kv], ["mv-rest", "left out", total - weights - kv]]
        .map(([kind, name, n]) => h("span", { class: kind, style: `width:${100 * n / total}%`, title: `${name}: ${bytes(n)}`, text: n / total > 0.12 ? `${name} ${bytes(n)}` : "" })));
      bar.setAttribute("aria-label", `weights ${bytes(weights)}, KV cache ${bytes(kv)} of ${bytes(total)}`);
      said.textContent = found.available ? `GPU KV cache size: ${number(found.tokens)} tokens. Activations are not counted here; vLLM measures them at start-up.`
        : "The weights alone do not fit: split the model over cards, or store it in fewer bits.";
    };
    host.addEventListener("input", update);
    update();
  }

  const W = 640, H = 340, LEFT = 64, RIGHT = 26, TOP = 18, BOTTOM = 46;
  const X = [-1, 4], Y = [10.5, 15.5]; // powers of ten: FLOP per byte, FLOP per second
  const px = (value) => LEFT + (W - LEFT - RIGHT) * (Math.log10(value) - X[0]) / (X[1] - X[0]);
  const py = (value) => H - BOTTOM - (H - TOP - BOTTOM) * (Math.log10(value) - Y[0]) / (Y[1] - Y[0]);

  function axes() {
    const parts = [], label = (x, y, words, anchor) => s("text", { x, y, "text-anchor": anchor, class: "mv-axis" }, words);
    for (let e = X[0]; e <= X[1]; e += 1) {
      parts.push(s("line", { x1: px(10 ** e), x2: px(10 ** e), y1: TOP, y2: H - BOTTOM, class: "mv-grid" }), label(px(10 ** e), H - BOTTOM + 16, String(10 ** e), "middle"));
    }
    for (let e = 11; e <= 15; e += 1) {
      parts.push(s("line", { x1: LEFT, x2: W - RIGHT, y1: py(10 ** e), y2: py(10 ** e), class: "mv-grid" }), label(LEFT - 6, py(10 ** e) + 4, `${10 ** (e - 12)} T`, "end"));
    }
    parts.push(label((LEFT + W) / 2, H - 8, "FLOP per byte read", "middle"), label(LEFT, 12, "FLOP/s", "end"));
    return parts;
  }

  function words(found, chosen) {
    const speed = `${number(found.tokensPerSecond)} tokens/s for all, a step of ${(found.seconds * 1000).toPrecision(3)} ms`;
    if (!found.memoryBound) return `Bound by arithmetic: ${speed}. More requests at once no longer help.`;
    const kv = Math.round(100 * found.kv / found.bytes);
    return `Bound by memory: ${speed}. ${kv} % of the bytes read are KV cache; the chip does ${(100 * found.attainable / (chosen.gpu[1] * 1e12)).toPrecision(2)} % of its arithmetic.`;
  }

  async function roof(host) {
    const table = await data("arithmetic.json"), base = shared(table);
    const batch = slider(0, 11, 1, 0), context = slider(-1, 17, 1, 10);
    const line = s("path", { class: "mv-roof" }), ridge = s("line", { class: "mv-ridge", y1: TOP, y2: H - BOTTOM });
    const drop = s("line", { class: "mv-drop" }), dot = s("circle", { r: 7, class: "mv-dot" }), mark = s("text", { class: "mv-axis" });
    const svg = s("svg", { viewBox: `0 0 ${W} ${H}`, class: "mv-plot", role: "img" }, ...axes(), ridge, mark, line, drop, dot);
    const said = h("p", { class: "mv-said", "aria-live": "polite" });
    host.replaceChildren(
      h("div", { class: "mv-bar" }, h("span", { class: "mv-title", text: "Roofline of a decode step" })),
      h("div", { class: "mv-controls" }, ...base.controls, control("Requests in the batch", batch, (v) => number(power(v))),
        control("Context of each", context, (v) => `${number(power(v))} tokens`)), svg, said);
    const update = () => {
      const chosen = base.chosen();
      const found = roofline(chosen.model, chosen.gpu, { ...chosen, batch: power(batch.value), context: power(context.value) });
      const peak = chosen.gpu[1] * 1e12, bandwidth = chosen.gpu[2] * 1e9;
      const x = Math.max(px(10 ** X[0]), Math.min(px(found.intensity), W - RIGHT)), y = Math.min(py(found.attainable), H - BOTTOM);
      line.setAttribute("d", `M${px(10 ** X[0])} ${py(bandwidth * 10 ** X[0])} L${px(found.ridge)} ${py(peak)} L${W - RIGHT} ${py(peak)}`);
      for (const [name, value] of [["x1", px(found.ridge)], ["x2", px(found.ridge)]]) ridge.setAttribute(name, value);
      mark.setAttribute("x", px(found.ridge) + 6);
      mark.setAttribute("y", H - BOTTOM - 6);
      mark.textContent = `ridge ${Math.round(found.ridge)}`;
      for (const [name, value] of [["x1", x], ["x2", x], ["y1", y], ["y2", H - BOTTOM]]) drop.setAttribute(name, value);
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", y);
      said.textContent = `Intensity ${found.intensity.toPrecision(3)} FLOP/byte. ${words(found, chosen)}`;
      svg.setAttribute("aria-label", said.textContent);
    };
    host.addEventListener("input", update);
    update();
  }

  define("mv-kv-memory", memory);
  define("mv-roofline", roof);
})();

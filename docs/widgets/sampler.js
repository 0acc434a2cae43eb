// <mv-sampler>: real logits of the committed model, and what each knob makes of them.
(function () {
  "use strict";
  const { h, control, slider, data, define, number } = window.MiniUI;
  const { samplerProbs, draw } = window.MiniVLLM;
  const SHOWN = 16, DRAWS = 1000;
  // name, least, most, step, off, what it does
  const KNOBS = [
    ["repetition_penalty", 1, 2, 0.05, 1], ["frequency_penalty", -2, 2, 0.1, 0], ["presence_penalty", -2, 2, 0.1, 0],
    ["temperature", 0, 2, 0.05, 1], ["min_p", 0, 0.5, 0.01, 0], ["top_k", 0, 40, 1, 0], ["top_p", 0.05, 1, 0.01, 1],
  ];

  function bars(recorded) {
    return recorded.shown.slice(0, SHOWN).map(([id, text]) => {
      const bar = h("span", { class: "mv-c0" }), hits = h("span", { class: "mv-hits" }), value = h("td", { class: "mv-number" });
      const row = h("tr", {}, h("td", {}, h("code", { text: JSON.stringify(text) })), h("td", { class: "mv-number", text: recorded.logits[id].toFixed(2) }),
        value, h("td", { class: "mv-wide" }, h("span", { class: "mv-meter" }, bar, hits)));
      return { id, row, bar, hits, value };
    });
  }

  async function build(host) {
    const recorded = await data("sampler.json");
    const inputs = Object.fromEntries(KNOBS.map(([name, least, most, step, off]) => [name, slider(least, most, step, off)]));
    const rows = bars(recorded), said = h("p", { class: "mv-said", "aria-live": "polite" });
    const heads = ["token", "logit", "probability", "bar"];
    let probs = [];
    const reset = h("button", { type: "button", text: "reset", onclick: () => {
      for (const [name, , , , off] of KNOBS) { inputs[name].value = off; inputs[name].dispatchEvent(new Event("input", { bubbles: true })); }
    } });
    const drawMany = h("button", { type: "button", class: "mv-primary", text: `draw ${number(DRAWS)} times`, onclick: () => {
      const counts = new Map();
      for (let i = 0; i < DRAWS; i += 1) { const id = draw(probs); counts.set(id, (counts.get(id) || 0) + 1); }
      for (const { id, hits } of rows) { hits.style.left = `${100 * (counts.get(id) || 0) / DRAWS}%`; hits.hidden = false; }
    } });
    host.replaceChildren(
      h("div", { class: "mv-bar" }, h("span", { class: "mv-title", text: "Sampler playground" }), reset, drawMany),
      h("p", { class: "mv-about" }, "models/pocket continues ", h("code", { text: recorded.prompt }), h("b", { text: recorded.output }), h("b", { text: " …" })),
      h("div", { class: "mv-controls" }, ...KNOBS.map(([name]) => control(name, inputs[name], (v) => v))), said,
      h("table", { class: "mv-table mv-tokens" },
        h("thead", {}, h("tr", {}, ...heads.map((text) => h("th", { scope: "col", text })))), h("tbody", {}, ...rows.map((r) => r.row))));
    const update = () => {
      const knobs = Object.fromEntries(KNOBS.map(([name]) => [name, Number(inputs[name].value)]));
      const found = samplerProbs(recorded.logits, knobs, recorded.prompt_token_ids, recorded.output_token_ids);
      probs = found.probs;
      for (const { id, row, bar, hits, value } of rows) {
        value.textContent = probs[id] ? probs[id].toFixed(4) : "out";
        row.classList.toggle("mv-out", !probs[id]);
        bar.style.width = `${100 * probs[id]}%`;
        hits.hidden = true;
      }
      const inShown = rows.reduce((sum, { id }) => sum + probs[id], 0);
      said.textContent = found.greedy ? "Temperature 0: the likeliest token after the penalties is taken, and nothing is drawn."
        : `Tokens left of ${number(recorded.logits.length)}: after min-p ${number(found.left["min-p"])}, top-k ${number(found.left["top-k"])}, top-p ${number(found.left["top-p"])}. ` +
          `These ${SHOWN} hold ${(100 * inShown).toFixed(1)} % of the probability.`;
    };
    host.addEventListener("input", update);
    update();
  }

  define("mv-sampler", build);
})();

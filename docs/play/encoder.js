// <play-encoder>: four requests with pictures on pocket-vl, and what the encoder cache holds, as recorded from mini_vllm
// (recordings/encoder.py). `replay` keeps the cache's books again, from the plans alone; the tests compare the two.

import { data, define, h } from "./core.js";

/** What each step encodes and forgets, what the cache holds while it runs, and afterwards; from who computes how much. */
export function replay({ requests, steps, config }) {
  const size = config.max_num_batched_tokens, computed = Object.fromEntries(requests.map(({ id }) => [id, 0]));
  const users = new Map(), large = new Map(), freeable = []; // a Map remembers in which order its keys came
  const held = () => [...users].map(([name, ids]) => [name, [...ids].sort()]);
  const free = () => size - [...users.keys()].reduce((sum, name) => sum + large.get(name), 0);
  return steps.map(({ scheduled }) => {
    const encoded = {}, evicted = [];
    for (const [id, n] of Object.entries(scheduled)) {
      const { pictures, places } = requests.find((request) => request.id === id);
      places.forEach(([offset, length], i) => {
        const name = pictures[i], from = computed[id];
        if (offset >= from + n || offset + length <= from) return; // not reached yet, or passed
        if (!users.has(name)) {
          while (free() < length) { const oldest = freeable.shift(); users.delete(oldest); evicted.push(oldest); }
          (encoded[id] ??= []).push(name);
          large.set(name, length);
          users.set(name, new Set());
        } else if (freeable.includes(name)) freeable.splice(freeable.indexOf(name), 1);
        users.get(name).add(id);
      });
    }
    const during = held(), left = free();
    for (const [id, n] of Object.entries(scheduled)) {
      const { pictures, places } = requests.find((request) => request.id === id);
      computed[id] += n;
      places.forEach(([offset, length], i) => {
        const who = users.get(pictures[i]);
        if (offset + length <= computed[id] && who?.delete(id) && !who.size) freeable.push(pictures[i]);
      });
    }
    return { encoded, evicted, held: during, free: left, after: held() };
  });
}

const list = (names) => names.join(" and ");
const all = (encoded) => Object.values(encoded).flat();
const needed = (ids) => (ids.length ? `needed by ${list(ids)}` : "needed by nobody");

function stage(recorded) {
  const { requests, steps, names, config } = recorded, size = config.max_num_batched_tokens, books = replay(recorded);
  let at = 0, after = false;
  const colour = (name) => `k${names.indexOf(name)}`;
  const rows = h("tbody"), bar = h("div", { class: "shelf", role: "img" }), title = h("div", { class: "sub" }), said = h("p", { class: "note", "aria-live": "polite", style: "min-height:4.5em" });
  const button = (text, onclick) => h("button", { type: "button", text, onclick });
  const back = button("← back", () => show(after || !at ? at : at - 1, after ? false : at > 0)), on = button("next →", () => (at && !after ? show(at, true) : show(at + 1, false)));
  const tools = h("div", { class: "row", style: "margin:12px 0 4px" }, back, on);
  const head = h("tr", {}, h("th", { scope: "col", text: "tokens" }), steps.map((_, i) => h("th", { scope: "col", text: `step ${i + 1}` })));

  function show(step, then) {
    at = Math.max(0, Math.min(step, steps.length));
    after = at > 0 && then;
    draw();
  }

  function draw() {
    const now = at ? books[at - 1] : { held: [], after: [], free: size, encoded: {}, evicted: [] }, content = after ? now.after : now.held;
    rows.replaceChildren(...requests.map(({ id, pictures, before }, k) => h("tr", {},
      h("td", { style: "white-space:nowrap" }, h("span", { class: `who k${k + 3}`, text: id }), " ", before < Math.max(at, 1) ? pictures.map((name) => h("span", { class: `chip ${colour(name)}`, text: name })) : ""),
      steps.map(({ scheduled }, i) => h("td", { class: `given k${k + 3} ${i === at - 1 ? "here" : ""}` }, i < at && scheduled[id] ? h("b", { text: scheduled[id] }) : "", i < at && books[i].encoded[id] ? h("small", { text: `new: ${books[i].encoded[id].join(", ")}` }) : "")))));
    const width = (n) => `flex:${n} 1 0`, large = 64;
    bar.replaceChildren(...content.map(([name, ids]) => h("div", { class: `kept ${colour(name)} ${ids.length ? "" : "ghost"}`, style: width(large) }, h("b", { text: name }), h("small", { text: ids.length ? list(ids) : "nobody" }))),
      h("div", { class: "kept ghost", style: width(size - large * content.length) }, h("small", { text: size - large * content.length })));
    bar.setAttribute("aria-label", `the cache, ${size} embeddings: ${content.map(([name, ids]) => `picture ${name}, ${needed(ids)}`).join("; ") || "empty"}; ${size - large * content.length} free`);
    title.textContent = at ? `The encoder cache ${after ? "after" : "in"} step ${at}: ${size - large * content.length} free` : "The encoder cache before the first step";
    said.textContent = at ? sentence(now) : `Room for ${size} embeddings, and as many tokens a step. A picture takes ${large}. A asks about a picture of the digit ${names[0]}. Prefix caching is off.`;
    [back.disabled, on.disabled] = [!at, at === steps.length && after];
    const here = rows.querySelector(".here");
    if (here) wide.scrollLeft = here.offsetLeft + here.offsetWidth - wide.clientWidth; // a phone shows the step that is told
  }

  function sentence({ encoded, evicted, held, after: later }) {
    if (after) {
      const dropped = held.filter(([name, ids]) => ids.length && !later.find(([other]) => other === name)?.[1].length).map(([name]) => name);
      return dropped.length ? `The prompt has passed ${list(dropped)}: keys and values are in the blocks, and nobody needs the rows. They stay until room is wanted.` : "Nothing changed hands.";
    }
    const who = Object.entries(steps[at - 1].scheduled).map(([id, n]) => `${id} computes ${n}`).join(", ");
    const found = held.filter(([name, ids]) => ids.some((id) => !(encoded[id] ?? []).includes(name))).map(([name]) => name);
    return `${who}. ${evicted.length ? `${list(evicted)} is forgotten for its room. ` : ""}${all(encoded).length ? `Encoded: ${list(all(encoded))}. ` : "Nothing is encoded. "}${found.length ? `${list(found)} was there.` : ""}`;
  }

  const table = h("table", { class: "steps" }, h("thead", {}, head), rows);
  const wide = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "tokens and pictures, step by step" }, table);
  return { node: h("div", {}, wide, tools, title, bar, said),
    look(step, then, hide) { tools.hidden = hide; show(step, then); },
    free() { this.look(0, false, false); } };
}

/** Questions for the page, and, without a stage, for the tests. */
export function questions(recorded, view = null) {
  const books = replay(recorded), size = recorded.config.max_num_batched_tokens, [eight, nine, nought] = recorded.names;
  const ask = (id, question, more, why, answer, from, to) => ({ id, ask: question, ...more, why: () => why, answer, setup: () => view?.look(...from, true), reveal: () => view?.look(...to, false) });
  return [
    ask("passed", `Step 1 computes all 78 tokens of A's prompt, picture ${eight} among them. A goes on to write its answer. What is in the encoder cache after the step?`,
      { options: ["nothing", `${eight}, needed by A`, `${eight}, needed by nobody`] },
      "The rows were needed until their tokens had been computed. From then on A reads keys and values, and no rows. They stay, since room is not wanted yet: somebody may send the picture again.",
      () => { const [name, ids] = books[0].after[0]; return `${name}, ${needed(ids)}`; }, [1, false], [1, true]),
    ask("again", `B asks another question about picture ${eight}. Its 78 tokens are computed in step 3, because prefix caching is off. How many pictures does that step encode?`, { number: { min: 0, max: 4, unit: "pictures" } },
      "None. The key is a hash of the picture alone, so it is found behind any text and for any request. The model still computes all 78 tokens.",
      () => all(books[2].encoded).length, [2, true], [3, false]),
    ask("both", `C comes with two other pictures, ${nine} and ${nought}, in a prompt of 142 tokens. B takes 1 of the 140 tokens of step 4. Which pictures are encoded in it?`, { options: ["none", nine, `${nine} and ${nought}`] },
      "139 tokens reach into the second picture and past it, so both are needed now, and 128 embeddings are within the budget of 140.",
      () => list(all(books[3].encoded)) || "none", [3, true], [4, false]),
    ask("free", `Room is ${size}, and picture ${eight} lies in the cache, needed by nobody. How many places are free while step 4 runs?`, { number: { min: 0, max: size, unit: "places" } },
      `64 of picture ${eight} were given up, and 2 × 64 are taken. Room that nobody needs is as good as free, until somebody asks for what lay there.`,
      () => books[3].free, [3, true], [4, false]),
    ask("victim", `D asks about picture ${eight} once more, and it has to be encoded again. For its 64 places something must go. What?`, { options: [nine, nought, `${nine} and ${nought}`] },
      `Of what nobody needs the one that has waited longest goes first. Both were passed in the same step, and ${nine} stood before ${nought}. One is enough: 12 + 64 places.`,
      () => list(books[4].evicted), [4, true], [5, false]),
    ask("total", "Four requests have shown five pictures, three of them the same. How often did the encoder run over a picture?", { number: { min: 0, max: 9, unit: "times" } },
      `Four. With room for three pictures it would have been three: ${eight} would still have been there for D.`,
      () => books.reduce((sum, { encoded }) => sum + all(encoded).length, 0), [5, true], [7, true]),
  ];
}

define("encoder", async () => {
  const recorded = await data("encoder"), view = stage(recorded);
  return { stage: view.node, questions: questions(recorded, view), free: () => view.free(),
    lead: "Four requests with pictures on pocket-vl, recorded. A picture's rows are kept for its tokens, and longer while there is room. “New” is what a step encodes; dashed is what nobody needs." };
});

// What all playgrounds share: elements, one look, a question with a guess, a score. Plain modules, no build, no request
// to another server. A playground is a custom element with a shadow root, so that no theme's style sheet reaches in.
// Node imports these files too (course/tests/test_play.py): nothing here touches a page before it is asked to.

const HERE = import.meta.url;
const STORE = "mini-vllm-play";

/** Playgrounds in the order of the course, with the number of their questions. */
export const PLAYGROUNDS = {
  tokenizer: { title: "Text becomes tokens", phase: "00", questions: 6 },
  attention: { title: "Attention by hand", phase: "00", questions: 6 },
  life: { title: "The life of a request", phase: "01", questions: 6 },
  paged: { title: "Blocks, shared and evicted", phase: "02", questions: 7 },
  softmax: { title: "Softmax while the keys go by", phase: "04", questions: 5 },
  launch: { title: "Who waits for whom", phase: "05", questions: 5 },
  bits: { title: "The bits of a number", phase: "06", questions: 7 },
  router: { title: "Experts, tokens and tiles", phase: "07", questions: 6 },
  encoder: { title: "What the encoder keeps", phase: "13", questions: 6 },
};

/** h("div", {class: "x", text: "…", onclick: f}, child, …); a null child is left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-") && value != null) node.setAttribute(name, value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null));
  return node;
}

export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
export const round = (value, digits = 4) => String(Number(value.toFixed(digits)));

/** A recording of docs/play/record.py. */
export async function data(name) {
  return read(`data/${name}.json`);
}

/** A JSON file of the website, addressed from this folder. */
export async function read(path) {
  const response = await fetch(new URL(path, HERE));
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

// --- the score: the first answer to each question counts, and all playgrounds share the store

function kept() {
  try {
    return JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    return {}; // private windows may have no store: then nothing is kept
  }
}

function keep(answers) {
  try {
    localStorage.setItem(STORE, JSON.stringify(answers));
  } catch { /* the score then lasts as long as the page */ }
  memory = answers;
  document.dispatchEvent(new Event("play-score"));
}

let memory = null;

export const score = {
  all: () => ({ ...memory, ...kept() }),
  first: (name, id) => score.all()[`${name}/${id}`],
  add(name, id, right) {
    const key = `${name}/${id}`, answers = score.all();
    if (!(key in answers)) keep({ ...answers, [key]: right });
  },
  count(name) {
    const mine = Object.entries(score.all()).filter(([key]) => !name || key.startsWith(`${name}/`));
    return { right: mine.filter(([, right]) => right).length, asked: mine.length };
  },
  forget() {
    memory = {};
    keep({});
  },
};

// --- the look

let sheet = null;

async function dress(host) {
  sheet ??= (async () => new CSSStyleSheet().replace(await (await fetch(new URL("core.css", HERE))).text()))();
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  root.adoptedStyleSheets = [await sheet];
  const shade = () => host.toggleAttribute("data-dark", onDark(host));
  const later = () => { shade(); setTimeout(shade, 350); };
  shade();
  const watch = new MutationObserver(later);
  for (const node of [document.documentElement, document.body]) watch.observe(node, { attributes: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  return root;
}

/** Whether the ground under an element is dark, whatever the theme calls its schemes. */
function onDark(host) {
  for (let node = host.parentElement; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    const [r, g, b, alpha = 1] = (colour.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
    if (alpha > 0.5) return (r * 0.3 + g * 0.59 + b * 0.11) * (colour.startsWith("color(") ? 255 : 1) < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/**
 * Makes <play-NAME>. `build` gets the element and returns
 * {lead, stage: a node, questions: [{id, ask, options | number, answer(), why(guess), setup?(), reveal?()}], free?()}.
 * `answer()` computes the truth; `why` may be text or a node. `options` are words; `number` is {min, max, unit}.
 */
export function define(name, build) {
  if (!globalThis.customElements) return;
  customElements.define(`play-${name}`, class extends HTMLElement {
    async connectedCallback() {
      if (this.started) return;
      this.started = true;
      try {
        const root = await dress(this);
        const part = await build(this);
        root.replaceChildren(card(name, part));
        this.dataset.ready = "";
      } catch (error) {
        (this.shadowRoot ?? this.attachShadow({ mode: "open" })).replaceChildren(h("p", { text: `This playground could not start: ${error.message}` }));
        throw error;
      }
    }
  });
}

function card(name, { lead, stage, questions, free }) {
  const { title, phase } = PLAYGROUNDS[name];
  const chip = h("span", { class: "score", title: "right first guesses: here, and in all playgrounds" });
  const show = () => {
    const all = Object.values(PLAYGROUNDS).reduce((sum, { questions: n }) => sum + n, 0);
    chip.textContent = `★ ${score.count(name).right}/${questions.length} here · ${score.count().right}/${all} in all`;
  };
  document.addEventListener("play-score", show);
  addEventListener("storage", show);
  show();
  return h("section", { class: "card", "aria-label": `Playground: ${title}` },
    h("header", {}, h("div", {}, h("span", { class: "kicker", text: `Phase ${phase} · guess first` }), h("div", { class: "title", text: title })), chip,
      h("p", { class: "lead", text: lead })), quiz(name, questions, free), h("div", { class: "stage" }, stage));
}

// --- question, guess, truth

function quiz(name, questions, free) {
  const box = h("div", { class: "quiz" }), dots = h("nav", { class: "dots", "aria-label": `questions: ${PLAYGROUNDS[name].title}` });
  const body = h("div", { class: "body" }), said = h("div", { class: "said", "aria-live": "polite" });
  let at = 0;
  const mark = () => dots.replaceChildren(...questions.map((q, i) => {
    const first = score.first(name, q.id);
    const state = first === undefined ? "open" : first ? "right" : "wrong";
    return h("button", { type: "button", class: `dot ${state}`, "aria-current": i === at ? "step" : null,
      "aria-label": `question ${i + 1}, ${state}`, text: first === undefined ? i + 1 : first ? "✓" : "✗", onclick: () => go(i) });
  }), free ? h("button", { type: "button", class: "dot play", "aria-current": at === questions.length ? "step" : null, text: "free play", onclick: () => go(questions.length) }) : null);
  const focusBody = () => body.querySelector("input, button")?.focus({ preventScroll: true });

  function go(i, focus = true) {
    at = i;
    said.replaceChildren();
    mark();
    if (i >= questions.length) {
      body.replaceChildren(h("p", { class: "ask", text: "Now it is yours: change what you like, and guess before you look." }));
      free();
      return;
    }
    const q = questions[i];
    q.setup?.();
    body.replaceChildren(h("p", { class: "ask" }, h("b", { text: `${i + 1}. ` }), q.ask), control(q, (guess) => tell(q, guess)));
    if (focus) focusBody();
  }

  function tell(q, guess) {
    const truth = q.answer(), right = String(guess) === String(truth);
    score.add(name, q.id, right);
    q.reveal?.(guess);
    mark();
    for (const node of body.querySelectorAll("button, input")) node.disabled = true;
    for (const node of body.querySelectorAll("[data-value]")) node.classList.toggle("truth", node.dataset.value === String(truth));
    const last = at + 1 >= questions.length;
    const next = h("button", { type: "button", class: "primary", text: last ? (free ? "Free play →" : "Once more") : "Next question →", onclick: () => go(last && !free ? 0 : at + 1) });
    const unit = q.number?.unit ? ` ${truth === 1 ? q.number.unit.replace(/s$/, "") : q.number.unit}` : "";
    const verdict = right ? `✓ Right: ${truth}${unit}.` : `✗ You said ${guess}; it is ${truth}${unit}.`;
    said.replaceChildren(h("p", { class: `verdict ${right ? "right" : "wrong"}`, text: verdict }), h("p", {}, q.why(guess)), next);
    next.focus({ preventScroll: true });
  }

  box.append(dots, body, said);
  go(Math.max(0, questions.findIndex((q) => score.first(name, q.id) === undefined)), false);
  return box;
}

/** Buttons to choose from, or a number with steppers; Enter and the button hand the guess over. */
function control(q, done) {
  if (q.options) {
    const words = typeof q.options === "function" ? q.options() : q.options;
    return h("div", { class: "options", role: "group", "aria-label": "your guess" },
      words.map((word) => h("button", { type: "button", class: "option", "data-value": word, text: word, onclick: (e) => { e.target.classList.add("chosen"); done(word); } })));
  }
  const { min = 0, max = 99, unit = "" } = q.number;
  const input = h("input", { type: "number", inputmode: "numeric", min, max, step: 1, "aria-label": `your guess ${unit}` });
  const turn = (by) => {
    input.value = Math.min(max, Math.max(min, input.value === "" ? min : Number(input.value) + by));
    input.dispatchEvent(new Event("input"));
  };
  const submit = h("button", { type: "submit", class: "primary", text: "That is my guess", disabled: true });
  input.addEventListener("input", () => { submit.disabled = input.value === "" || !Number.isInteger(Number(input.value)); });
  return h("form", { class: "number", onsubmit: (e) => { e.preventDefault(); if (!submit.disabled) done(Number(input.value)); } },
    h("button", { type: "button", class: "step", "aria-label": "one less", text: "−", onclick: () => turn(-1) }), input,
    h("button", { type: "button", class: "step", "aria-label": "one more", text: "+", onclick: () => turn(1) }),
    h("span", { class: "unit", text: unit }), submit);
}

/** A labelled slider: {node, input}. `words` turns its value into text. */
export function slider(label, { min, max, step = 1, value }, words, change) {
  const input = h("input", { type: "range", min, max, step, value, "aria-label": label });
  const shown = h("output", { text: words(value) });
  input.addEventListener("input", () => { shown.textContent = words(Number(input.value)); change(Number(input.value)); });
  const set = (to) => { input.value = to; shown.textContent = words(Number(input.value)); };
  return { node: h("label", { class: "slider" }, h("span", { text: label }), input, shown), input, set };
}

/** A row of buttons of which one is pressed. */
export function tabs(label, words, change, chosen = 0) {
  const set = (i) => buttons.forEach((b, k) => b.setAttribute("aria-pressed", k === i));
  const buttons = words.map((text, i) => h("button", { type: "button", class: "tab", text, onclick: () => { set(i); change(i); } }));
  set(chosen);
  return { node: h("div", { class: "tabs", role: "group", "aria-label": label }, buttons), set };
}

// --- <play-score>: all of them on one card

/** The score as text to pass on: a row of squares for each playground that was begun. */
export function squares() {
  const rows = Object.entries(PLAYGROUNDS).map(([name, { title, questions }]) => {
    const { right, asked } = score.count(name);
    return asked ? `${"🟩".repeat(right)}${"🟥".repeat(asked - right)}${"⬜".repeat(questions - asked)} ${title}` : "";
  });
  return rows.filter(Boolean).join("\n");
}

if (globalThis.customElements) {
  customElements.define("play-score", class extends HTMLElement {
    async connectedCallback() {
      if (this.started) return;
      this.started = true;
      const root = await dress(this), list = h("div", { class: "board" }), total = h("div", { class: "title" });
      const copy = h("button", { type: "button", text: "copy as squares", onclick: async () => {
        const all = `${document.title.split(" - ").at(-1)} ${total.textContent}\n${squares()}`;
        const done = Promise.resolve(all).then((text) => navigator.clipboard.writeText(text)); // no clipboard without https
        copy.textContent = await done.then(() => "copied", () => "the browser refused");
      } });
      const show = () => {
        const all = Object.values(PLAYGROUNDS).reduce((sum, p) => sum + p.questions, 0);
        total.textContent = `★ ${score.count().right} of ${all}`;
        [copy.textContent, copy.disabled] = ["copy as squares", !score.count().asked];
        list.replaceChildren(...Object.entries(PLAYGROUNDS).map(([name, { title, phase, questions }]) => {
          const { right, asked } = score.count(name);
          const pips = Array.from({ length: questions }, (_, i) => h("i", { class: i < right ? "right" : i < asked ? "wrong" : "" }));
          return h("a", { href: `#play-${name}` }, h("small", { text: phase }), h("span", { text: title }), h("span", { class: "pips", role: "img", "aria-label": `${right} right of ${questions}` }, pips));
        }));
      };
      document.addEventListener("play-score", show);
      addEventListener("storage", show);
      show();
      root.replaceChildren(h("section", { class: "card", "aria-label": "Your score" }, h("header", {}, total,
        h("div", { class: "row" }, copy, h("button", { type: "button", text: "start afresh", onclick: () => { score.forget(); location.reload(); } }))), list));
      this.dataset.ready = "";
    }
  });
}

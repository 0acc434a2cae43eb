// <mv-engine>: pocket answers in this page. The engine runs in a Web Worker (docs/engine-js/engine_worker.js); here are the
// questions, the answers and the knobs.
(function () {
  "use strict";
  const { h, control, slider, select, define, bytes, number } = window.MiniUI;
  const base = document.currentScript.src;
  const SYSTEM = "You are a patient teacher. Answer in one short sentence.";
  const PACES = { "4 steps a second": 250, "10 steps a second": 100, "as fast as it can": 0 };
  const MOST = 64; // blocks, without the null block: ARGS of the worker
  const EXAMPLES = [
    { ask: ["What is a KV block?"] },
    { ask: ["What is preemption?"] },
    { ask: ["What is 47 + 85?"] },
    { ask: ["Tell me a joke."] },
    { ask: ["Give me a JSON object with name Ada, age 36 and city London."] },
    { ask: ["Tell me a story about a dragon and a lamp."], longest: 160 },
    // Those of the page's questions: always in a pool of this size that holds nothing yet.
    { label: "Two at once", pool: 64, ask: ["What is a KV block?", "What is a block table?"] },
    { label: "The same question twice", pool: 64, ask: ["What is prefix caching?", "What is prefix caching?"] },
    { label: "Three in a pool of 16", pool: 16, ask: ["What is a KV block?", "What is a block table?", "What is attention?"] },
  ];

  const nameOf = (n) => String.fromCharCode(65 + (n % 26)) + (n < 26 ? "" : Math.floor(n / 26) + 1);
  const button = (text, onclick, attributes = {}) => h("button", { type: "button", text, onclick, ...attributes });

  class EngineWidget {
    constructor(host) {
      this.host = host;
      this.asked = new Map(); // id -> its card
      this.unanswered = 0;
      this.spent = { tokens: 0, milliseconds: 0 };
      this.status = h("p", { role: "status" });
      this.spoken = h("p", { class: "mv-spoken", role: "status" }); // answers as a whole, for who hears them
      this.welcome();
    }

    send(type, content = {}) {
      this.worker.postMessage({ type, ...content });
    }

    // Before the first click: nothing has been fetched.
    welcome() {
      this.start = button("Fetch pocket and start (11.6 MB)", () => this.open(), { class: "mv-primary" });
      this.progress = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "download of the weights" });
      this.host.replaceChildren(
        h("div", { class: "mv-bar" }, h("span", { class: "mv-title", text: "The engine, in this page" }), this.start),
        this.progress, this.status,
      );
      this.status.textContent = "The weights come from this website's own files, once. Nothing that you type leaves the page.";
    }

    open() {
      this.start.disabled = true;
      this.progress.hidden = false;
      this.worker = new Worker(new URL("../engine-js/engine_worker.js", base), { type: "module" });
      this.worker.onmessage = ({ data }) => this[`on_${data.type}`](data);
      this.worker.onerror = (event) => this.on_failed({ message: event.message || "the worker could not start" });
      this.send("open", { model: new URL("../models/pocket/", base).href });
    }

    on_progress({ loaded, total }) {
      this.progress.value = loaded / total;
      this.status.textContent = `${bytes(loaded)} of ${bytes(total)}`;
    }

    on_failed({ message }) {
      this.status.textContent = `That went wrong: ${message}`;
      if (this.start.isConnected) this.start.disabled = false;
    }

    on_ready({ config }) {
      this.answers = h("ol", { class: "mv-answers", tabindex: 0, "aria-label": "answers" });
      const picture = h("div", { class: "mv-live" });
      this.host.replaceChildren(
        h("div", { class: "mv-bar" }, h("span", { class: "mv-title", text: "The engine, in this page" }), this.makeButtons()),
        this.makeForm(), this.makeExamples(), this.makeKnobs(), this.status, this.answers, this.spoken, picture, this.makeComparison(),
      );
      this.player = new window.MiniLivePlayer(picture, config);
      this.status.textContent = "pocket is here. Ask one question, or two at once.";
      this.send("pace", { milliseconds: PACES[this.pace.value] });
      this.inputs[0].focus({ preventScroll: true });
    }

    makeForm() {
      const input = (label, value) => h("input", { type: "text", value, "aria-label": label, placeholder: label, maxlength: 600, autocomplete: "off" });
      this.inputs = [input("first question", "What is a KV block?"), input("second question, if you like", "")];
      const ask = (event) => {
        event.preventDefault();
        this.ask(this.inputs.map((one) => one.value.trim()).filter(Boolean));
      };
      return h("form", { class: "mv-ask", onsubmit: ask }, ...this.inputs, h("button", { type: "submit", class: "mv-primary", text: "Ask" }));
    }

    makeExamples() {
      const buttons = EXAMPLES.map(({ label, ask, longest, pool }) => button(label || ask[0], () => {
        if (pool) {
          if (!this.unanswered) this.send("forget");
          this.setPool(pool);
        }
        this.ask(ask, longest);
      }));
      return h("div", { class: "mv-bar mv-examples", role: "group", "aria-label": "examples" }, ...buttons);
    }

    makeKnobs() {
      this.pool = slider(4, MOST, 1, MOST);
      this.pool.addEventListener("input", () => this.send("pool", { num_blocks: Number(this.pool.value) }));
      this.longest = slider(16, 192, 16, 64);
      this.temperature = slider(0, 1.5, 0.1, 0);
      this.pace = select(Object.keys(PACES), "10 steps a second");
      this.pace.addEventListener("change", () => this.send("pace", { milliseconds: PACES[this.pace.value] }));
      this.shared = select(["the same for all", "none"], "the same for all");
      const first = [control("Blocks in the pool", this.pool, (n) => `${n} of ${MOST}`), control("Pace", this.pace)];
      const more = [control("Longest answer", this.longest, (n) => `${n} tokens`),
        control("Temperature", this.temperature, (t) => (Number(t) ? t : "greedy")), control("System turn", this.shared)];
      const hidden = h("div", { class: "mv-controls", hidden: true }, ...more);
      const open = button("More knobs", () => {
        hidden.hidden = !hidden.hidden;
        open.setAttribute("aria-expanded", String(!hidden.hidden));
      }, { "aria-expanded": "false" });
      return h("div", {}, h("div", { class: "mv-controls" }, ...first, open), hidden);
    }

    makeButtons() {
      this.pause = button("❚❚ pause", () => this.setPaused(!this.paused));
      this.one = button("one step", () => {
        this.setPaused(true);
        this.send("step");
      });
      this.stop = button("stop all", () => {
        for (const [id, card] of this.asked) if (!card.done) this.end(id, "abort"), this.send("abort", { id });
      });
      const forget = button("forget the cache", () => this.send("forget"));
      return h("span", { class: "mv-bar" }, this.pause, this.one, this.stop, forget);
    }

    makeComparison() {
      this.compared = h("output", { class: "mv-value" });
      this.compareButton = button("Compare with the recording", () => {
        this.compareButton.disabled = true;
        this.send("compare", { answers: new URL("../engine-js/answers.json", base).href });
      });
      return h("div", { class: "mv-bar mv-compare" }, this.compareButton, this.compared);
    }

    setPaused(on) {
      this.paused = on;
      this.pause.textContent = on ? "▶ go on" : "❚❚ pause";
      this.send("pause", { on });
    }

    setPool(num_blocks) {
      this.pool.value = num_blocks;
      this.pool.dispatchEvent(new Event("input", { bubbles: true }));
    }

    ask(questions, longest = Number(this.longest.value)) {
      if (!questions.length) return;
      if (!this.unanswered) {
        this.player.clear();
        this.spent = { tokens: 0, milliseconds: 0 };
      }
      this.unanswered += questions.length;
      this.status.textContent = "";
      const system = this.shared.value === "none" ? [] : [{ role: "system", content: SYSTEM }];
      this.send("ask", { questions: questions.map((question) => {
        const id = nameOf(this.asked.size), colour = this.asked.size % 8;
        this.addCard(id, question, colour);
        const params = { max_tokens: longest, temperature: Number(this.temperature.value), seed: this.asked.size };
        return { id, messages: [...system, { role: "user", content: question }], params };
      }) });
    }

    addCard(id, question, colour) {
      const state = h("span", { class: "mv-value", text: "waiting" }), speed = h("span", { class: "mv-speed" }), text = h("p", { class: "mv-text" });
      const item = h("li", {}, h("div", { class: "mv-bar" }, h("span", { class: `mv-chip mv-c${colour}`, text: id }), h("b", { text: question }), state, speed), text);
      this.asked.set(id, { item, state, speed, text, question, colour, tokens: 0, work: 0, first: null, done: false });
      this.answers.prepend(item);
      while (this.answers.children.length > 8) this.answers.lastChild.remove();
    }

    on_asked({ id, num_prompt_tokens, max_tokens }) {
      const { question, colour } = this.asked.get(id);
      this.player.add({ id, prompt: question, colour, num_prompt_tokens, max_tokens });
    }

    on_refused({ id, message }) {
      this.end(id, "refused");
      this.status.textContent = `${id} is refused: ${message}.`;
    }

    on_step({ step, milliseconds }) {
      for (const card of this.asked.values()) if (!card.done) card.work += milliseconds;
      for (const [id, pieces] of Object.entries(step.sampled)) {
        const card = this.asked.get(id);
        if (card.done) continue;
        card.first ??= card.work;
        card.text.append(...pieces);
        card.tokens += pieces.length;
        this.spent.tokens += pieces.length;
      }
      this.spent.milliseconds += milliseconds;
      for (const id of [...step.waiting, ...step.running]) this.setState(id, step);
      for (const [id, reason] of Object.entries(step.finished)) this.end(id, reason);
      this.player.append(step);
    }

    setState(id, step) {
      const card = this.asked.get(id);
      if (card.done) return;
      const word = step.running.includes(id) ? "running" : step.preempted.includes(id) || card.preempted ? "preempted" : "waiting";
      card.preempted ||= step.preempted.includes(id);
      card.state.textContent = `${word}, ${card.tokens} tokens`;
      card.speed.textContent = this.speed(card);
    }

    // The engine's own time since the question came, without the pauses that a slow pace makes between its steps.
    speed({ tokens, work, first }) {
      if (first === null) return "";
      const later = tokens > 1 && work > first ? `, ${number((1e3 * (tokens - 1)) / (work - first))} tokens/s` : "";
      return `first after ${number(first)} ms${later}`;
    }

    end(id, reason) {
      const card = this.asked.get(id);
      if (card.done) return; // stopped while its last step was under way
      card.done = true;
      this.unanswered -= 1;
      card.state.textContent = { stop: `${card.tokens} tokens`, length: `${card.tokens} tokens, cut off`, abort: "stopped", refused: "refused" }[reason];
      card.speed.textContent = this.speed(card);
      if (reason === "stop" || reason === "length") this.spoken.textContent = `${id}: ${card.text.textContent}`;
    }

    on_idle({ step }) {
      this.player.append(step);
      if (this.unanswered) return; // asked while this message was under way
      const { tokens, milliseconds } = this.spent;
      if (tokens) this.player.about.textContent = `${number(tokens)} tokens in ${number(milliseconds)} ms of work.`;
      this.host.setAttribute("data-idle", this.asked.size);
    }

    on_pool({ num_blocks }) {
      if (Number(this.pool.value) === num_blocks) return;
      this.pool.value = num_blocks;
      this.pool.closest(".mv-control").querySelector("output").textContent = `${num_blocks} of ${MOST}: one request may need so many`;
    }

    on_comparing({ ended, total }) {
      this.compared.textContent = `${ended} of ${total} answers …`;
    }

    on_compared({ equal, total, num_tokens, milliseconds }) {
      this.compareButton.disabled = false;
      this.compared.textContent = `${equal} of ${total} answers equal mini_vllm's, token by token (${number(num_tokens)} tokens, ` +
        `${number((1e3 * num_tokens) / milliseconds)} a second).`;
    }
  }

  define("mv-engine", (host) => { host.engine = new EngineWidget(host); });
})();

// <mv-scheduler>: plays a trace of mini_vllm's scheduler, step by step.
(function () {
  "use strict";
  const { h, define, data, select, number } = window.MiniUI;
  const { checkTrace } = window.MiniVLLM;
  const MAX_CELLS = 256, PLAY_MS = 900, COLOURS = 8;
  const HEADS = ["id", "request", "state", "computed / tokens", "this step", "block table"];

  const list = (names) => names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : String(names[0]);

  class Player {
    constructor(host, scenes) {
      this.host = host;
      this.scenes = scenes;
      this.timer = null;
      this.build();
      this.open(scenes[host.dataset.scene] ? host.dataset.scene : Object.keys(scenes)[0]);
    }

    // What stands above the buttons: the choice of a recording, and what it is about.
    heading() {
      this.scene = select(Object.keys(this.scenes));
      this.scene.setAttribute("aria-label", "recorded scene");
      this.scene.addEventListener("change", () => this.open(this.scene.value));
      this.file = h("input", { type: "file", accept: ".json,application/json", class: "mv-file", onchange: () => this.load(this.file.files[0]) });
      this.about = h("p", { class: "mv-about" });
      return [h("div", { class: "mv-bar" }, h("span", { class: "mv-title", text: "Scheduler player" }), this.scene,
        h("label", { class: "mv-open" }, this.file, "your own trace …")), this.about];
    }

    build() {
      const heading = this.heading();
      this.play = h("button", { type: "button", class: "mv-primary", onclick: () => this.toggle() });
      const button = (text, label, go) => h("button", { type: "button", "aria-label": label, text, onclick: () => { this.stop(); go(); } });
      this.scrub = h("input", { type: "range", min: 0, step: 1, value: 0, "aria-label": "step",
        oninput: () => { this.stop(); this.show(Number(this.scrub.value)); } });
      this.where = h("output", { class: "mv-where" });
      this.said = h("p", { class: "mv-said", "aria-live": "polite" });
      this.budget = h("div", { class: "mv-budget", role: "img" });
      this.budgetText = h("span", { class: "mv-value" });
      this.rows = h("tbody", { role: "rowgroup" });
      this.blocks = h("div", { class: "mv-blocks", role: "img" });
      this.free = h("code", { class: "mv-free" });
      this.freeText = h("span", { class: "mv-value" });
      this.host.replaceChildren(
        ...heading,
        h("div", { class: "mv-bar" }, button("|◀", "first step", () => this.show(0)), button("◀", "one step back", () => this.show(this.at - 1)),
          this.play, button("▶|", "one step on", () => this.show(this.at + 1)), this.scrub, this.where),
        this.said,
        h("div", { class: "mv-head" }, h("span", { text: "Token budget of this step" }), this.budgetText), this.budget,
        h("table", { class: "mv-table mv-requests", role: "table" }, h("thead", { role: "rowgroup" },
          h("tr", { role: "row" }, ...HEADS.map((text) => h("th", { role: "columnheader", scope: "col", text })))), this.rows),
        h("div", { class: "mv-head" }, h("span", { text: "KV blocks" }), this.freeText), this.blocks,
        h("div", { class: "mv-head" }, h("span", { text: "Free queue, next to be handed out first" })), this.free,
      );
      this.stop();
    }

    open(name) {
      this.scene.value = name;
      this.use(this.scenes[name]);
    }

    async load(file) {
      if (!file) return;
      try {
        this.use(checkTrace(JSON.parse(await file.text())));
        this.about.textContent = `${file.name}: ${this.trace.steps.length} steps of ${this.trace.config.model}.`;
      } catch (error) {
        this.stop();
        this.said.textContent = `${file.name}: ${error.message}`;
      }
    }

    use(trace) {
      this.stop();
      this.trace = trace;
      this.colour = Object.fromEntries(trace.requests.map((request, i) => [request.id, i % COLOURS]));
      this.about.textContent = trace.about || "";
      this.scrub.max = trace.steps.length - 1;
      this.show(trace.start || 0);
    }

    toggle() {
      if (this.timer) return this.stop();
      if (this.at === this.trace.steps.length - 1) this.show(0);
      this.play.textContent = "❚❚ pause";
      this.timer = setInterval(() => {
        if (this.at < this.trace.steps.length - 1) this.show(this.at + 1);
        else this.stop();
      }, PLAY_MS);
    }

    stop() {
      clearInterval(this.timer);
      this.timer = null;
      this.play.textContent = "▶ play";
    }

    show(at) {
      this.at = Math.max(0, Math.min(at, this.trace.steps.length - 1));
      this.step = this.trace.steps[this.at];
      this.scrub.value = this.at;
      this.where.textContent = `step ${this.at + 1} of ${this.trace.steps.length}`;
      this.said.textContent = this.sentence();
      this.drawBudget();
      this.rows.replaceChildren(...this.trace.requests.filter((r) => this.state(r.id) !== "not here yet").map((r) => this.row(r)));
      this.drawBlocks();
    }

    sentence() {
      const { scheduled, preempted, cached, finished } = this.step, said = [];
      const before = this.at ? this.trace.steps[this.at - 1].finished : {};
      for (const id of Object.keys(before)) said.push(`${id} has ended, its blocks are free.`);
      for (const id of preempted) said.push(`${id} is preempted: its blocks go to those before it, and it waits at the front.`);
      for (const [id, hit] of Object.entries(cached)) said.push(`${id} is admitted${hit ? `, ${hit} tokens found in the prefix cache` : ""}.`);
      const running = this.at ? this.trace.steps[this.at - 1].running : [];
      for (const [id, n] of Object.entries(scheduled)) {
        if (this.at && !running.includes(id) && !(id in cached)) {
          said.push(`${id} is back: ${this.step.counters[id][0] - n} of its ${this.step.counters[id][1]} tokens found again, ${n} computed again.`);
        }
        const [computed, tokens] = this.step.counters[id];
        if (computed < tokens) said.push(`${id} gets ${n} tokens of its prompt and is not sampled: ${tokens - computed} are still missing.`);
      }
      for (const [id, reason] of Object.entries(finished)) said.push(`${id} gets its last token (${reason}).`);
      return [...said, ...this.quietly()].join(" ");
    }

    // A step in which nobody comes or goes: who decodes, and who had to open a new block for it.
    quietly() {
      const { scheduled, counters, tables, sampled, num_free } = this.step, said = [];
      const before = this.at ? this.trace.steps[this.at - 1].tables : {};
      const decoding = Object.keys(scheduled).filter((id) => scheduled[id] === 1 && counters[id][0] === counters[id][1] && sampled[id]);
      if (decoding.length) said.push(`${list(decoding)} ${decoding.length > 1 ? "get one token each" : "gets one token"}.`);
      for (const id of decoding) {
        const held = before[id] || [], fresh = (tables[id] || []).slice(held.length);
        if (held.length && fresh.length) said.push(`${id}'s last block was full: it takes block ${list(fresh)}.`);
      }
      return said.concat(decoding.length ? [`${number(num_free)} ${num_free === 1 ? "block is" : "blocks are"} free.`] : []);
    }

    state(id) {
      if (this.step.running.includes(id)) return "running";
      if (this.step.waiting.includes(id)) {
        const been = this.trace.steps.slice(0, this.at + 1).some((step) => step.preempted.includes(id));
        return been ? "preempted" : "waiting";
      }
      return this.trace.steps.slice(0, this.at).some((step) => id in step.finished || id in step.counters) ? "finished" : "not here yet";
    }

    drawBudget() {
      const total = this.trace.config.max_num_batched_tokens;
      const used = Object.values(this.step.scheduled).reduce((a, b) => a + b, 0);
      this.budgetText.textContent = `${used} of ${number(total)} tokens`;
      this.budget.setAttribute("aria-label", Object.entries(this.step.scheduled).map(([id, n]) => `${id}: ${n}`).join(", ") + ` of ${total}`);
      this.budget.replaceChildren(...Object.entries(this.step.scheduled).map(([id, n]) =>
        h("span", { class: `mv-c${this.colour[id]}`, style: `width:${100 * n / total}%`, title: `${id}: ${n} tokens`, text: n / total > 0.04 ? `${id} ${n}` : "" })));
    }

    row(request) {
      const { id } = request, state = this.state(id);
      const [computed, tokens] = this.step.counters[id] || this.last(id);
      const widest = Math.max(...this.trace.requests.map((r) => r.num_prompt_tokens + (r.max_tokens || 64)));
      const bar = h("span", { class: "mv-progress", style: `width:${100 * tokens / widest}%` },
        h("span", { class: `mv-c${this.colour[id]}`, style: `width:${100 * computed / tokens}%` }));
      const cells = [
        [h("span", { class: `mv-chip mv-c${this.colour[id]}`, text: id })],
        this.words(request),
        [state],
        [h("span", { class: "mv-count", text: `${computed} / ${tokens}` }), bar],
        [String(this.step.scheduled[id] ?? "–")],
        [h("code", { text: (this.step.tables[id] || []).slice(0, 24).join(" ") || "–" })],
      ];
      // The roles keep it a table for screen readers on a phone, where the style sheet makes cards of the rows.
      return h("tr", { class: `mv-${state}`, role: "row" }, ...cells.map((content, i) => h("td", { role: "cell", "data-head": HEADS[i] }, ...content)));
    }

    words({ id, prompt }) {
      const output = this.trace.steps.slice(0, this.at + 1).flatMap((step) => step.sampled[id] || []).join("");
      return [h("span", { text: prompt.trim() }), h("b", { text: output })];
    }

    last(id) {
      for (let at = this.at; at >= 0; at -= 1) if (this.trace.steps[at].counters[id]) return this.trace.steps[at].counters[id];
      return [0, 1];
    }

    drawBlocks() {
      const total = this.trace.config.num_blocks, owners = {};
      for (const [id, table] of Object.entries(this.step.tables)) for (const block of table) (owners[block] ||= []).push(id);
      const findable = new Set(this.step.findable), withheld = new Set(this.step.withheld);
      const before = new Set(this.at ? Object.values(this.trace.steps[this.at - 1].tables).flat() : []);
      this.blocks.replaceChildren(...Array.from({ length: Math.min(total, MAX_CELLS) }, (_, block) => {
        const by = owners[block] || [];
        const words = block === 0 ? "the null block" : by.length ? `of ${by.join(" and ")}` : withheld.has(block) ? "withheld" : "free";
        const owned = `mv-c${this.colour[by[0]]}${before.has(block) ? "" : " mv-lit"}`;
        const kind = block === 0 ? "mv-null" : by.length ? owned : withheld.has(block) ? "mv-withheld" : "mv-freeblock";
        return h("span", { class: `${kind}${findable.has(block) ? " mv-findable" : ""}${by.length > 1 ? " mv-shared" : ""}`,
          title: `block ${block}: ${words}${findable.has(block) ? ", findable by its hash" : ""}`, text: block });
      }));
      this.freeText.textContent = `${number(this.step.num_free)} of ${number(total - 1 - withheld.size)} free · dot: findable by its hash · ring: shared`;
      this.blocks.setAttribute("aria-label", this.freeText.textContent);
      const more = this.step.num_free - this.step.free.length;
      this.free.textContent = (this.step.free.join(" → ") || "empty") + (more > 0 ? ` → … ${number(more)} more` : "");
    }
  }

  window.MiniPlayer = Player; // live.js makes one that grows
  define("mv-scheduler", async (host) => { host.player = new Player(host, await data("scheduler.json")); });
})();

// A scheduler player whose trace grows while the engine runs: steps come in, the last one is shown unless somebody looks
// at an earlier one. Below the player's own pictures stands what each request was given, step by step.
(function () {
  "use strict";
  const { h } = window.MiniUI;
  const COLUMNS = 24;

  class LivePlayer extends window.MiniPlayer {
    constructor(host, config) {
      const idle = { scheduled: {}, preempted: [], cached: {}, sampled: {}, finished: {}, counters: {}, running: [], waiting: [], tables: {},
        free: [], num_free: config.num_blocks - 1, findable: [], withheld: [] };
      super(host, { live: { config, requests: [], steps: [idle] } });
    }

    heading() {
      this.scene = {};
      this.about = h("p", { class: "mv-about" });
      return [];
    }

    // The player's parts in another order: the blocks first, and what looks back last.
    build() {
      super.build();
      const head = (part) => part.previousElementSibling;
      const [back, blocks, free, budget] = [head(this.said), head(this.blocks), head(this.free), head(this.budget)];
      const table = this.rows.parentElement;
      this.queue = h("p", { class: "mv-queue" });
      this.history = h("table", { class: "mv-table mv-steps" });
      this.said.setAttribute("aria-live", "off"); // ten steps a second are not for reading aloud
      this.host.replaceChildren(
        this.said, this.queue, blocks, this.blocks, free, this.free, table, budget, this.budget,
        h("div", { class: "mv-head" }, h("span", { text: "Tokens that each request was given, step by step" })),
        h("div", { class: "mv-scroll", tabindex: 0, role: "region", "aria-label": "tokens of each request, step by step" }, this.history),
        h("div", { class: "mv-head" }, h("span", { text: "Look back" })), back, this.about,
      );
    }

    // A new round: its requests and its steps only.
    clear() {
      this.stop();
      this.trace.requests = [];
      this.trace.steps = this.trace.steps.slice(-1);
      this.colour = {};
      this.about.textContent = "";
      this.show(0);
    }

    add(request) {
      this.trace.requests.push(request);
      this.colour[request.id] = request.colour;
      if (this.at === this.trace.steps.length - 1) this.show(this.at);
    }

    // A look at the idle engine gives way to what comes next: the first real step of a round is step 1.
    append(step) {
      const following = this.at === this.trace.steps.length - 1 || this.pending, last = this.trace.steps.at(-1);
      if (!Object.keys(last.scheduled).length && !last.preempted.length) this.trace.steps.pop();
      this.trace.steps.push(step);
      this.scrub.max = this.trace.steps.length - 1;
      this.where.textContent = `step ${this.at + 1} of ${this.trace.steps.length}`;
      if (!following || this.pending) return;
      this.pending = true; // steps may come faster than frames
      requestAnimationFrame(() => {
        this.pending = false;
        this.show(this.trace.steps.length - 1);
      });
    }

    show(at) {
      super.show(at);
      const { running, waiting } = this.step;
      this.queue.textContent = `Running: ${running.join(", ") || "nobody"}. Waiting, front first: ${waiting.join(" → ") || "nobody"}.`;
      this.drawHistory();
    }

    sentence() {
      const said = super.sentence();
      if (Object.keys(this.step.scheduled).length || said !== "Every running request gets one token.") return said;
      return this.step.findable.length ? "Nothing runs. What was computed can still be found." : "Nothing runs, and the pool is empty.";
    }

    words({ prompt }) {
      return [h("span", { text: prompt })];
    }

    drawHistory() {
      const first = Math.max(0, this.at + 1 - COLUMNS), steps = this.trace.steps.slice(first, this.at + 1);
      const heads = steps.map((_, i) => h("th", { scope: "col", text: first + i + 1 }));
      const rows = this.trace.requests.map(({ id }) => h("tr", {}, h("th", { scope: "row" }, h("span", { class: `mv-chip mv-c${this.colour[id]}`, text: id })),
        ...steps.map((step) => this.cell(step, id))));
      this.history.replaceChildren(h("thead", {}, h("tr", {}, h("th", { scope: "col", text: "step" }), ...heads)), h("tbody", {}, ...rows));
      this.history.parentElement.scrollLeft = this.history.offsetWidth;
    }

    cell(step, id) {
      if (step.preempted.includes(id)) return h("td", { class: "mv-lost", title: "preempted", text: "✕" });
      if (!(id in step.scheduled)) return h("td", { text: step.waiting.includes(id) ? "…" : "" });
      const hit = step.cached[id], title = hit ? `${hit} more were found in the prefix cache` : null;
      return h("td", { class: `mv-given mv-c${this.colour[id]}`, title, text: hit ? `${step.scheduled[id]} +${hit}` : step.scheduled[id] });
    }
  }

  window.MiniLivePlayer = LivePlayer;
})();

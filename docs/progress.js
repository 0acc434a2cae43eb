// What the reader has done, kept in this browser: labs on the map of the engine, answers to the self-checks.
// Nothing is sent anywhere. `course progress --export` writes a file, and the end of an address, that this page reads.
(function () {
  "use strict";
  const KEY = "vllm-from-the-inside";
  const LAB = /^\d\d-\d\d$/;

  function load() {
    try {
      const found = JSON.parse(localStorage.getItem(KEY)) || {};
      return { labs: found.labs || {}, quiz: found.quiz || {} };
    } catch { return { labs: {}, quiz: {} }; } // no storage here, or not ours
  }
  function save() {
    try { localStorage.setItem(KEY, JSON.stringify(state)); } catch { /* kept for this page only */ }
  }
  const state = load();
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // Labs that are done, by their numbers; others stay as they are.
  function done(labs) {
    const known = labs.filter((lab) => LAB.test(lab));
    for (const lab of known) state.labs[lab] = true;
    save();
    return known.length;
  }
  // The end of an address, #progress=00-01.00-02, is read once and taken away.
  const given = /^#progress=(.*)$/.exec(location.hash);
  if (given) {
    done(given[1].split("."));
    history.replaceState(null, "", location.pathname + location.search);
  }
  function labsOf(text) {
    const file = JSON.parse(text);
    if (file.format !== "course-progress" || !Array.isArray(file.labs)) throw new Error("this is not a file of course progress --export");
    return file.labs.map(String);
  }

  const map = document.querySelector(".map");
  function drawMap(said = "") {
    for (const one of all("[data-lab]", map)) {
      const is = state.labs[one.dataset.lab] === true;
      if (one.localName === "input") one.checked = is;
      else one.classList.toggle("is-done", is);
    }
    const labs = [...new Set(all("i[data-lab]", map).map((one) => one.dataset.lab))];
    for (const box of all(".map-box", map)) {
      const pips = all("i", box), left = pips.filter((pip) => !pip.classList.contains("is-done")).length;
      box.classList.toggle("is-done", !left);
      box.setAttribute("aria-label", `${box.querySelector(".map-part").textContent}, ${pips.length - left} of ${pips.length} labs done`);
    }
    const right = Object.values(state.quiz).filter((score) => score === true).length;
    map.querySelector(".map-score").textContent =
      `${labs.filter((lab) => state.labs[lab]).length} of ${labs.length} labs done, ${right} self-check${right === 1 ? "" : "s"} right. ${said}`;
  }
  const panelOf = (box) => document.getElementById(box.hash.slice(1));
  // The home page has one panel; the others come from the map's own page with the first click.
  async function fetchPanels(address) {
    const answer = await fetch(address);
    if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const panel of all(".map-panel", page)) {
      if (document.getElementById(panel.id)) continue;
      for (const link of all("a", panel)) link.setAttribute("href", new URL(link.getAttribute("href"), address).href);
      prepare(map.querySelector(".map-panels").appendChild(document.importNode(panel, true)));
    }
    drawMap();
  }
  function prepare(panel) {
    for (const row of all("li[data-lab]", panel)) {
      const lab = row.dataset.lab, box = Object.assign(document.createElement("input"), { type: "checkbox", ariaLabel: `${lab} is done` });
      box.dataset.lab = lab;
      row.prepend(box, " ");
      box.addEventListener("change", () => {
        if (box.checked) state.labs[lab] = true;
        else delete state.labs[lab];
        save();
        drawMap();
      });
    }
  }
  async function openBox(box) {
    for (const other of all(".map-box", map)) other.toggleAttribute("aria-current", other === box);
    try { if (!panelOf(box)) await fetchPanels(box.href.split("#")[0]); }
    catch { location.href = box.href; } // the page itself, then
    if (!box.hasAttribute("aria-current")) return; // another was opened meanwhile
    for (const panel of all(".map-panel", map)) panel.classList.toggle("is-open", panel === panelOf(box));
  }
  if (map) {
    map.classList.add("is-live");
    map.querySelector(".map-bar").hidden = false;
    map.querySelector(".map-panels").setAttribute("aria-live", "polite");
    all(".map-panel", map).forEach(prepare);
    const boxes = all(".map-box", map);
    boxes.forEach((box, at) => {
      box.addEventListener("click", async (event) => {
        event.preventDefault();
        await openBox(box);
        const panel = map.querySelector(".map-panel.is-open"), below = panel.getBoundingClientRect();
        if (below.top > innerHeight - 120) panel.scrollIntoView({ block: "nearest" });
      });
      box.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const next = boxes[(at + step + boxes.length) % boxes.length];
        next.focus();
        openBox(next);
      });
    });
    map.querySelector("input[type=file]").addEventListener("change", async (event) => {
      const file = event.target.files[0];
      if (!file) return;
      try { drawMap(`${done(labsOf(await file.text()))} read from ${file.name}.`); }
      catch (error) { drawMap(`${file.name}: ${error.message}`); }
    });
    openBox(boxes.find((box) => box.hash === location.hash) || boxes.find((box) => box.hash === "#map-scheduler"));
    drawMap();
  }

  // A self-check: its answers become buttons, the fold with the reason opens by the first of them.
  const checks = all(".quiz");
  function drawScores() {
    const right = checks.filter((check) => state.quiz[check.dataset.quiz] === true).length;
    for (const check of checks) check.querySelector(".quiz-score").textContent = `${right} of ${checks.length} right on this page`;
  }
  for (const check of checks) {
    const answers = all("ol > li", check), fold = check.querySelector("details");
    const mark = (chosen) => {
      answers.forEach((one, at) => {
        one.classList.toggle("is-right", at === Number(check.dataset.answer));
        one.classList.toggle("is-wrong", at === chosen && at !== Number(check.dataset.answer));
        one.firstChild.setAttribute("aria-pressed", String(at === chosen));
      });
      fold.open = true;
    };
    answers.forEach((one, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...one.childNodes);
      one.append(button);
      button.addEventListener("click", () => { // the first answer counts
        if (!(check.dataset.quiz in state.quiz)) state.quiz[check.dataset.quiz] = at === Number(check.dataset.answer);
        save();
        mark(at);
        drawScores();
      });
    });
    check.append(Object.assign(document.createElement("p"), { className: "quiz-score" }));
    check.classList.add("is-live");
  }
  if (checks.length) drawScores();
})();

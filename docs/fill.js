// The recorded run on the home page: 24 blocks of the KV cache, filled token by token. The page comes with the fullest
// step drawn by docs/site_fill.py, and so it stays for who wants no motion or has no JavaScript.
(function () {
  "use strict";
  const box = document.querySelector(".fill");
  if (!box) return;
  const run = JSON.parse(box.querySelector("script").textContent), size = run.block_size;
  const blocks = [...box.querySelectorAll(".fill-pool i")], said = [...box.querySelectorAll(".fill-said li")];
  const where = box.querySelector(".fill-step"), button = box.querySelector("button");
  const frames = [];
  let tables = {}, texts = {};
  for (const step of run.steps) { // each step whole: who has which blocks, how full, and what is said so far
    tables = Object.fromEntries(Object.keys(step.n || {}).map((name) => [name, step.t?.[name] || tables[name]]));
    texts = { ...texts };
    for (const [name, piece] of Object.entries(step.s || {})) texts[name] = (texts[name] || "") + piece;
    frames.push({ ...step, tables, texts });
  }
  const ended = new Set();
  for (const frame of frames) {
    frame.ended = new Set(ended);
    for (const name of frame.e || []) ended.add(name);
  }

  function show(at) {
    const frame = frames[at], owners = {}, full = {};
    run.requests.forEach(([name], colour) => (frame.tables[name] || []).forEach((block, i) => {
      (owners[block] ||= []).push(colour);
      full[block] = Math.max(full[block] || 0, Math.min(size, frame.n[name] - i * size));
    }));
    blocks.forEach((block, i) => {
      const mine = owners[i + 1] || [];
      block.className = mine.length > 1 ? "is-shared" : mine.length ? `is-${mine[0]}` : frame.f?.includes(i + 1) ? "is-kept" : "";
      block.style.setProperty("--full", mine.length ? full[i + 1] / size : 0);
    });
    run.requests.forEach(([name], colour) => {
      const state = frame.w?.includes(name) ? "preempted" : frame.ended.has(name) ? "done" : name in frame.tables ? "" : "not yet";
      said[colour].className = `is-${colour}${state && ` is-${state.replace(" ", "-")}`}`;
      said[colour].querySelector("span").textContent = frame.texts[name] || "";
      said[colour].querySelector("em").textContent = state;
    });
    where.textContent = `step ${at + 1} of ${frames.length}`;
  }

  let at = run.still, timer = 0;
  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(() => { at = (at + 1) % (frames.length + 8); show(Math.min(at, frames.length - 1)); }, 180) : 0;
    button.textContent = on ? "❚❚ stop" : "▶ play";
  }
  button.hidden = false;
  let wanted = !matchMedia("(prefers-reduced-motion: reduce)").matches;
  button.addEventListener("click", () => { wanted = !timer; play(wanted); });
  if (wanted) at = -1;
  play(false);
  new IntersectionObserver(([seen]) => play(seen.isIntersecting && wanted)).observe(box); // nothing moves where nobody looks
  box.fill = { show, frames };
})();

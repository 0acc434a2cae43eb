// What is wider than the column scrolls by itself; with this it also does for somebody who has only a keyboard.
(function () {
  "use strict";
  const WIDE = ".md-typeset__scrollwrap, .md-typeset__table, .formula, .md-typeset pre, .md-typeset pre > code, .md-typeset p:has(> .figure)";
  function reachable() {
    for (const box of document.querySelectorAll(WIDE)) {
      const wide = box.clientWidth > 0 && box.scrollWidth > box.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(box).overflowX);
      if (wide) box.tabIndex = 0;
      else if (box.tabIndex === 0) box.removeAttribute("tabindex");
      box.classList.toggle("is-wide", wide);
      if (wide && !box.hint) {
        box.hint = Object.assign(document.createElement("span"), { className: "wide-hint", ariaHidden: "true", textContent: "goes on to the right →" });
        box.addEventListener("scroll", () => edges(box), { passive: true });
      }
      if (wide) {
        (box.localName === "code" ? box.parentElement : box).before(box.hint);
        edges(box);
      } else if (box.hint) box.hint.remove();
    }
  }
  function edges(box) {
    box.classList.toggle("is-begun", box.scrollLeft > 1);
    box.classList.toggle("is-ended", box.scrollLeft + box.clientWidth >= box.scrollWidth - 1);
  }
  addEventListener("load", reachable);
  addEventListener("resize", reachable);
  document.addEventListener("toggle", reachable, true); // what was folded has a width now
})();

// The glossary's box: terms whose name or definition has the words stay, and headings that have such terms.
(function () {
  "use strict";
  const box = document.getElementById("glossary-filter");
  if (!box) return;
  box.parentElement.hidden = false;
  const groups = []; // {heading, parts, terms: [{parts, text}]}
  for (const part of document.querySelectorAll("article > h2 ~ *, article > h2")) {
    if (part.localName === "h2") groups.push({ parts: [part], terms: [] });
    else if (part.localName === "h3") groups.at(-1).terms.push({ parts: [part], text: part.firstChild.textContent.toLowerCase() });
    else if (groups.length) {
      const term = groups.at(-1).terms.at(-1);
      (term || groups.at(-1)).parts.push(part);
      if (term) term.text += ` ${part.textContent.toLowerCase()}`;
    }
  }
  const all = groups.reduce((sum, group) => sum + group.terms.length, 0), said = box.parentElement.querySelector("output");
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const group of groups) {
      let here = 0;
      for (const term of group.terms) {
        const fits = words.every((word) => term.text.includes(word));
        here += fits;
        for (const part of term.parts) part.hidden = !fits;
      }
      for (const part of group.parts) part.hidden = words.length > 0 && !here;
      shown += here;
    }
    said.textContent = words.length ? `${shown} of ${all}` : "";
  });
})();

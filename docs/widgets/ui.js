// Small helpers for the widgets' pages: elements, labelled controls, data files.
(function () {
  "use strict";
  const base = document.currentScript.src;

  // h("div", {class: "x", text: "…", onclick: f}, child, …)
  function h(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "text") node.textContent = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  }

  function s(tag, attributes = {}, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  let serial = 0;
  // A labelled control; `show` turns its value into the words beside the label.
  function control(label, input, show) {
    input.id = `mv-${++serial}`;
    const value = h("output", { for: input.id, class: "mv-value" });
    const update = () => { value.textContent = show ? show(input.value) : ""; };
    input.addEventListener("input", update);
    update();
    return h("div", { class: "mv-control" }, h("label", { for: input.id, text: label }), value, input);
  }

  function slider(min, max, step, value) {
    return h("input", { type: "range", min, max, step, value });
  }

  function select(names, chosen) {
    return h("select", {}, ...names.map((name) => h("option", { value: name, text: name, selected: name === chosen })));
  }

  async function data(name) {
    const response = await fetch(new URL(`data/${name}`, base));
    if (!response.ok) throw new Error(`${name}: ${response.status}`);
    return response.json();
  }

  // <tag> fills itself by build(element) and says so where that fails.
  function define(tag, build) {
    customElements.define(tag, class extends HTMLElement {
      connectedCallback() {
        if (this.started) return;
        this.started = true;
        this.classList.add("mv-widget");
        Promise.resolve(build(this)).then(
          () => this.setAttribute("data-ready", ""),
          (error) => { this.replaceChildren(h("p", { class: "mv-error", text: `This picture could not start: ${error.message}` })); },
        );
      }
    });
  }

  const number = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
  const bytes = (n) => {
    const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (n >= 1024 && at < 4) { n /= 1024; at += 1; }
    return `${at && n < 100 ? n.toFixed(1).replace(/\.0$/, "") : number.format(n)} ${units[at]}`;
  };
  window.MiniUI = { h, s, control, slider, select, data, define, bytes, number: (n) => number.format(n) };
})();

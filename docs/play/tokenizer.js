// <play-tokenizer>: byte-pair encoding, merge by merge. The tokenizer is docs/engine-js/tokenizers/bpe.js with pocket's
// own tokenizer.json; the tests hold both, and the steps shown here, against mini_vllm's.

import { BPETokenizer } from "../engine-js/tokenizers/bpe.js";
import { data, define, h, read } from "./core.js";

/** How a word becomes tokens: the state before each merge, which pair is merged, and its rank (the lower, the earlier).
 * Returns [{pieces: [[byte, …], …], at, rank}, …]; the last entry has no pair left, so its `at` is -1. */
export function mergeSteps(tokenizer, word) {
  const char = (byte) => tokenizer.chars[byte];
  let pieces = [...new TextEncoder().encode(word)].map((byte) => [byte]);
  const steps = [], name = (piece) => piece.map(char).join("");
  for (;;) {
    let rank = Infinity, at = -1;
    for (let i = 0; i + 1 < pieces.length; i++) {
      const found = tokenizer.ranks.get(`${name(pieces[i])} ${name(pieces[i + 1])}`) ?? Infinity;
      if (found < rank) [rank, at] = [found, i];
    }
    steps.push({ pieces, at, rank: at < 0 ? -1 : rank });
    if (at < 0) return steps;
    pieces = [...pieces.slice(0, at), [...pieces[at], ...pieces[at + 1]], ...pieces.slice(at + 2)];
  }
}

/** pocket's tokenizer, with the printable character of each byte beside it. */
export function makeTokenizer(spec) {
  const tokenizer = new BPETokenizer(spec);
  tokenizer.chars = [];
  for (const [text, id] of tokenizer.vocab) {
    if (tokenizer.id_to_bytes[id].length === 1 && [...text].length === 1) tokenizer.chars[tokenizer.id_to_bytes[id][0]] = text;
  }
  return tokenizer;
}

/** The steps of many words, for the tests. */
export function stepsOf(spec, list) {
  const tokenizer = makeTokenizer(spec);
  return list.map((word) => mergeSteps(tokenizer, word));
}

/** Bytes as a reader sees them: text where they are some, else hexadecimal. */
function words(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes)).replaceAll(" ", "·").replaceAll("\n", "↵");
  } catch {
    return [...bytes].map((byte) => byte.toString(16).padStart(2, "0").toUpperCase()).join(" ");
  }
}

function stage(tokenizer, examples) {
  let steps = [], shown = 0;
  const input = h("input", { type: "text", "aria-label": "text to cut into tokens", style: "flex:1 1 12em;font-size:16px", value: examples[0] });
  const tokens = h("div", { class: "row", role: "img" }), facts = h("p", { class: "note", "aria-live": "polite" });
  const pick = h("div", { class: "tabs", role: "group", "aria-label": "which word" }), rows = h("div", { class: "merges scroll", tabindex: 0, role: "region", "aria-label": "merges, from bytes on" }), said = h("p", { class: "note", "aria-live": "polite" });
  const back = h("button", { type: "button", text: "← back", onclick: () => show(shown - 1) });
  const on = h("button", { type: "button", text: "next merge →", onclick: () => show(shown + 1) });
  const all = h("button", { type: "button", text: "all", onclick: () => show(steps.length - 1) });
  const cut = h("div", {}, h("div", { class: "sub", text: "tokens and their ids" }), tokens, facts);
  const how = h("div", {}, h("div", { class: "sub", text: "One word, merge by merge" }), pick, h("div", { class: "row", style: "margin:8px 0" }, back, on, all), rows, said);
  input.addEventListener("input", () => use(input.value));

  function use(text, word = 0) {
    const ids = tokenizer.encode(text), bytes = new TextEncoder().encode(text).length;
    tokens.replaceChildren(...ids.map((id, i) => h("span", { class: `chip tok k${i % 7}` }, h("b", { text: words(tokenizer.id_to_bytes[id]) }), h("small", { text: id }))));
    tokens.setAttribute("aria-label", ids.map((id) => `${words(tokenizer.id_to_bytes[id])} is ${id}`).join(", "));
    const count = [...text].length, plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
    facts.textContent = ids.length ? `${plural(ids.length, "token")} for ${plural(count, "character")} (${plural(bytes, "byte")}): ${(count / ids.length).toFixed(1)} characters a token.` : "Type something.";
    const list = [...new Set(tokenizer._split_words(text))].slice(0, 12);
    pick.replaceChildren(...list.map((one, i) => h("button", { type: "button", class: "tab mono", text: words(new TextEncoder().encode(one)), "aria-pressed": i === word, onclick: () => { use(text, i); pick.children[i].focus(); } })));
    steps = list.length ? mergeSteps(tokenizer, list[word]) : [];
    show(0);
  }

  function show(step) {
    shown = Math.max(0, Math.min(step, steps.length - 1));
    back.disabled = shown <= 0;
    on.disabled = all.disabled = shown >= steps.length - 1;
    rows.replaceChildren(...steps.slice(0, shown + 1).map(({ pieces, at }, row) => h("div", { class: "merge" }, h("small", { text: row || "bytes" }),
      pieces.map((piece, i) => h("span", { class: `chip ${at >= 0 && (i === at || i === at + 1) ? "k1" : ""} ${row && row === shown && i === steps[row - 1].at ? "k2 lit" : ""}`, text: words(piece) })))));
    const step_ = steps[shown];
    if (!step_) said.textContent = "";
    else if (step_.at < 0) said.textContent = `No pair of neighbours is in the list of merges: ${step_.pieces.length === 1 ? "one token" : `${step_.pieces.length} tokens`} after ${steps.length - 1} merges.`;
    else said.textContent = `Of all neighbours in the list, ${words(step_.pieces[step_.at])} + ${words(step_.pieces[step_.at + 1])} comes first: merge number ${step_.rank + 1} of ${tokenizer.ranks.size}.`;
  }

  const root = h("div", {}, h("div", { class: "row" }, input, h("div", { class: "tabs" }, examples.slice(0, 4).map((text) => h("button", { type: "button", class: "tab", text, onclick: () => { input.value = text; use(text); } })))), cut, how);
  return {
    node: root,
    look(text, hidden) {
      input.value = text;
      root.hidden = hidden;
      use(text);
    },
    reveal(text) {
      this.look(text, false);
      show(steps.length - 1);
    },
  };
}

/** Questions for the page, and, without a stage, for the tests. given: {spec} or {tokenizer}. */
export function questions(given, view = null) {
  const tokenizer = given.tokenizer ?? makeTokenizer(given.spec);
  const count = (text) => tokenizer.encode(text).length;
  const number = { min: 1, max: 30, unit: "tokens" };
  const ask = (id, text, question, why, more = {}) => ({
    id, ask: question, number, answer: () => count(text), why: () => why, ...more,
    setup: () => view?.look(text, true), reveal: () => view?.reveal(text),
  });
  const rivals = ["PagedAttention", "strawberry", "hello", "tokens"], pairs = ["t + o", "o + k", "k + e", "e + n"];
  return [
    ask("sentence", "What is a KV block?", "The course's model has 4,096 tokens in its vocabulary. Into how many does it cut “What is a KV block?”?",
      "Six: each of these words is common in its training text, and the space belongs to the word behind it. Only the question mark stands alone."),
    ask("space", " hello", "“hello” is one token. How many is “ hello”, with a space in front, as in the middle of a sentence?",
      "Three. With the space it is another string of bytes, and no list of merges leads to one piece. A stray space at the end of a prompt can cost quality for the same reason."),
    ask("digits", "1234567", "How many tokens is the number 1234567?",
      "Seven: this tokenizer never merges digits, so that each place of a number is a token, and arithmetic can be learned. Llama 3 takes up to three digits at a time."),
    ask("elephant", "🐘", "One elephant, 🐘. How many tokens?",
      "Four, one for each byte of its UTF-8. Byte-level BPE knows all 256 bytes, so that nothing is ever unknown, but what was rare in training is dear."),
    ask("first", "token", "“token” starts as five bytes. Which two are merged first?",
      "The pair that stands earliest in the list of merges, wherever it stands in the word: not the leftmost, and not the longest match. In training this pair was the most frequent of the four.",
      { number: undefined, options: pairs, answer: () => {
        const { pieces, at } = mergeSteps(tokenizer, "token")[0];
        return `${words(pieces[at])} + ${words(pieces[at + 1])}`;
      } }),
    ask("portrait", rivals.join(" "), "One of these costs more tokens than the others. Which?",
      "A tokenizer is a portrait of its training text. pocket's speaks of vLLM all day, so “PagedAttention” became one piece; strawberries do not grow there.",
      { number: undefined, options: rivals, answer: () => rivals.reduce((most, word) => (count(word) > count(most) ? word : most)) }),
  ];
}

define("tokenizer", async () => {
  const [recorded, spec] = await Promise.all([data("tokenizer"), read("../models/pocket/tokenizer.json")]);
  const tokenizer = makeTokenizer(spec), view = stage(tokenizer, recorded.examples);
  return { stage: view.node, questions: questions({ tokenizer }, view), free: () => view.look(recorded.examples[0], false),
    lead: "The tokenizer of the course's model, at work in this page. It starts from bytes and merges neighbours in the order in which training found them." };
});

// The search of the website, around the theme's worker. What stands in the field while somebody types is made of words
// alone, so that no mark of lunr's language is an error ("head-", "PagedAttention p"); small words of a question do not
// count; and a place whose heading says what is asked comes before one that only mentions it. The theme's worker, whose
// name stands behind the ? of this one's address, is fetched with the first index.
"use strict";
const SETUP = 0, QUERY = 2, RESULT = 3;
const SMALL = new Set(("a an and are as at be been but by can could did do does for from had has have how i if in into is it its me my of on or our " +
  "should so some than that the their them then there these they this to was we were what when where which who why will with would you your").split(" "));
const CHINESE = /\p{sc=Han}/u;
const KINDS = [[/^GLOSSARY\//, 0.8], [/\/00-guide\/|^phase-[^/]*\/$/, 0.2], [/\/EXERCISES\/|\/CHEATSHEET\/|\/plan\//, -0.2], [/^benchmarks\//, -0.6]];
// What counts beside the words of a text: a heading that says what is asked, one that says no more, all that is asked
// said by a page's address, title and heading together, a name of code that stands there letter by letter, and words
// that stand there in the order in which they are asked, as of a message that somebody has copied.
const HEADING = 4, NAMED = 3, PLACE = 1.5, LETTERS = 1.5, ORDER = 3;
const NAME = /[\w.-]*\w[_.]\w[\w.-]*/g;
const wordsOf = (text) => text.toLowerCase().replace(/<[^>]*>|&\w+;/g, " ").match(/[\p{L}\p{N}]+/gu) || [];
const apart = (text) => text.replace(/(?<=[a-z]{2})(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})/g, " "); // PagedAttention, but vLLM
const pageOf = (location) => location.split("#")[0];
const places = new Map(), alike = new Map(), counts = new Map(), forms = new Map(), stems = new Map();
let size = 1, asked = [], names = [], pairs = [], typed = "", ours = new Set();

function stem(word) {
  if (!stems.has(word)) stems.set(word, self.lunr.stemmer(new self.lunr.Token(word, {})).toString().replace(/(?<=.{4}[st])ion$/, "")); // preemption
  return stems.get(word);
}
const rarity = (word) => Math.log(1 + (size + 1) / (1 + (counts.get(word) || 0)));
const worth = (words) => words.reduce((sum, word) => sum + rarity(word), 0);
const content = (words) => (words.some((word) => !SMALL.has(word)) ? words.filter((word) => !SMALL.has(word)) : words);
const stemmed = (text) => [...new Set(content(wordsOf(text)).map(stem))];

// What each heading says, in how many places a word stands, and which words have one stem.
function learn(docs) {
  size = docs.length;
  for (const doc of docs) {
    const said = [stemmed(doc.title), stemmed(apart(doc.title))];
    places.set(doc.location, { said, doc });
    alike.set(`${said[0]}`, (alike.get(`${said[0]}`) || 0) + 1); // a heading that every lab has tells little
    const here = new Set();
    for (const word of new Set([...wordsOf(doc.text), ...wordsOf(doc.title)])) {
      const root = stem(word);
      here.add(root);
      if (!forms.has(root)) forms.set(root, new Set());
      forms.get(root).add(word);
    }
    for (const root of here) counts.set(root, (counts.get(root) || 0) + 1);
  }
  for (const doc of docs) { // a page by its address and its title: phase-03-continuous-batching-scheduler/INTERVIEW/
    const page = places.get(pageOf(doc.location));
    if (page) page.page ||= stemmed(`${pageOf(doc.location)} ${apart(page.doc.title)}`);
  }
}

function completions(begin) {
  const found = [];
  for (const [root, words] of forms) for (const word of words) if (word !== begin && word.startsWith(begin)) found.push([counts.get(root), word]);
  return found.sort((a, b) => b[0] - a[0]).slice(0, 30).map(([, word]) => word);
}

// A finished word is looked for in all its forms ("preempted" finds "preemption"); the last one may be half a word.
function cleaned(query) {
  names = (query.toLowerCase().match(NAME) || []).filter((name) => name.length > 3);
  asked = [];
  pairs = [];
  typed = wordsOf(query).join(" ");
  ours = new Set();
  if (CHINESE.test(query)) return query.replace(/[^\p{L}\p{N}]+/gu, " ").trim();
  const all = wordsOf(query), words = [...new Set(content(all))], end = all.at(-1);
  const last = /[\p{L}\p{N}]$/u.test(query) && (all.length === 1 || (end.length > 1 && words.includes(end))) ? end : null;
  pairs = all.length > 2 ? all.slice(1).map((word, i) => ` ${all[i]} ${word}${i === all.length - 2 && last ? "" : " "}`) : [];
  asked = words.map((word) => ({ stem: stem(word), begin: word === last ? word : null }));
  const more = words.slice(1).map((word, i) => words[i] + word); // BlockPool, for who asks for a block pool
  for (const word of words) more.push(...[...(forms.get(stem(word)) || [])].filter((form) => form !== word));
  const short = last !== null && last.length < 4; // so many words begin like this that only the commonest are looked for
  if (short) more.push(...completions(last));
  ours = new Set(more);
  return [...words.flatMap((word) => (word === last && !short ? [`${word}^4`, word] : [`${word}^4`])), ...[...ours].map((word) => `${word}^1`)].join(" ");
}

// How well a word of a heading is the one that is asked: the beginning of a longer one is a little less.
const fit = (one, word) => (word === one.stem ? 1 : one.begin !== null && word.startsWith(one.begin) ? 0.6 + 0.4 * one.begin.length / word.length : 0);

// [how alike a heading and what is asked are, how much of what is asked it says]: 1 where they are the same.
function likeness(said) {
  let shared = 0, meant = 0;
  for (const one of asked) {
    const [best, word] = said.reduce((most, each) => (fit(one, each) > most[0] ? [fit(one, each), each] : most), [0, one.stem]);
    shared += best * rarity(word);
    meant += rarity(word);
  }
  return [shared / Math.sqrt(Math.max(worth(said) * meant, 1e-9)), shared / Math.max(meant, 1e-9)];
}

// How many pairs of neighbours in what is asked are neighbours here.
function inOrder(place) {
  if (!pairs.length) return 0;
  place.words ||= ` ${wordsOf(`${place.doc.title} ${place.doc.text}`).join(" ")} `;
  return pairs.filter((pair) => place.words.includes(pair)).length / pairs.length;
}

function ordered(items) {
  const best = Math.max(1e-9, ...items.flat().map((one) => one.score));
  for (const group of items) {
    const page = places.get(pageOf(group[0].location))?.page || [];
    for (const one of group) {
      for (const word of Object.keys(one.terms)) if (ours.has(word) && !one.terms[word]) delete one.terms[word]; // not "missing"
      if (one.score === 0) continue; // the page of sections that were found, without a word of its own
      const place = places.get(one.location), { said, doc } = place;
      const like = Math.max(...said.map((words) => likeness(words)[0])), often = 1 + Math.log(alike.get(`${said[0]}`));
      const [, told] = likeness([...new Set([...page, ...said.flat()])]);
      const text = `${doc.title} ${doc.text}`.toLowerCase(), letters = names.filter((name) => text.includes(name)).length / (names.length || 1);
      const kind = KINDS.reduce((sum, [where, more]) => sum + (where.test(one.location) ? more : 0), 0);
      one.score = Math.max(1e-6, one.score / best + (HEADING * like ** 2 * (names.length ? 0.5 : 1) + (like > 0.99 ? NAMED : 0)) / often + (wordsOf(doc.title).join(" ") === typed ? 1 : 0) +
        PLACE * told ** 2 + LETTERS * letters + ORDER * inOrder(place) ** 2 + kind);
    }
    group.sort((a, b) => b.score - a.score);
  }
  return items.sort((a, b) => b[0].score - a[0].score);
}

const send = self.postMessage.bind(self);
self.postMessage = (message) => {
  if (message.type === RESULT) message.data.items = ordered(message.data.items);
  send(message);
};
self.addEventListener("message", (event) => {
  const { type, data } = event.data;
  if (type === SETUP && !self.lunr) {
    event.stopImmediatePropagation();
    importScripts(`assets/javascripts/workers/${self.location.search.slice(1)}`); // it listens from now on
    learn(data.docs);
    self.dispatchEvent(new MessageEvent("message", { data: event.data }));
  } else if (type === QUERY) event.data.data = cleaned(data);
});

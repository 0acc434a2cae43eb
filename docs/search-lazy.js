// The search index holds back until somebody wants to search: Material asks for it as soon as a page opens, and it is
// several times as heavy as everything else together. This file comes before the theme's and delays that one request.
// Should a later theme ask in another way, the index is simply loaded at once again.
(function () {
  "use strict";
  const wanted = new Promise((go) => {
    const begin = (event) => { if (event.target.matches?.(".md-search__input, #__search")) go(); };
    document.addEventListener("focusin", begin); // a click, Tab, and the keys /, s and f
    document.addEventListener("change", begin); // the magnifying glass on a phone
    if (new URLSearchParams(location.search).has("h")) go(); // the page is to mark a word that was searched
  });
  const { open, send } = XMLHttpRequest.prototype;
  const held = new WeakSet();

  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    if (/\/search\/search_index\.json$/.test(url)) held.add(this);
    return open.call(this, method, url, ...rest);
  };
  XMLHttpRequest.prototype.send = function (body) {
    if (held.has(this)) wanted.then(() => send.call(this, body));
    else send.call(this, body);
  };
})();

// Who types a term of the glossary gets its definition first. The index cannot do that: it also looks for longer words
// that begin alike, and weighs them more where they are rarer ("scheduler" would bring SchedulerOutput).
addEventListener("DOMContentLoaded", () => {
  "use strict";
  const results = document.querySelector(".md-search-result__list"), field = document.querySelector(".md-search__input");
  if (!results || !field) return;
  const plain = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, " ").trim();
  const watch = new MutationObserver(() => {
    const wanted = plain(field.value);
    const link = wanted && [...results.querySelectorAll('a[href*="GLOSSARY/"][href*="#"]')].find((one) =>
      plain(one.querySelector("h1, h2")?.textContent || "") === wanted);
    const item = link && link.closest(".md-search-result__item");
    if (!item || (results.firstElementChild === item && item.firstElementChild === link)) return;
    item.prepend(link);
    results.prepend(item);
  });
  watch.observe(results, { childList: true, subtree: true });
});

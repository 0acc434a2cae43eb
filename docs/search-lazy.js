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

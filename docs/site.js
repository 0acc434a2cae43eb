// What is wider than the column scrolls by itself; with this it also does for somebody who has only a keyboard.
(function () {
  "use strict";
  function reachable() {
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset__table, .formula, .md-typeset pre, .md-typeset pre > code")) {
      const wide = box.scrollWidth > box.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(box).overflowX);
      if (wide) box.tabIndex = 0;
      else if (box.tabIndex === 0) box.removeAttribute("tabindex");
    }
  }
  addEventListener("load", reachable);
  addEventListener("resize", reachable);
})();

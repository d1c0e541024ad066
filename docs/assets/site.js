// Names and places in the order of tabs that the theme leaves out, also of what it adds later.
function complete() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-code__nav").forEach((nav, index) => nav.setAttribute("aria-label", `Code ${index + 1}`));
  document.querySelectorAll("pre > code, .md-typeset__scrollwrap").forEach((box) => box.setAttribute("tabindex", "0"));
}
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
complete();

"use strict";
// Filters the claims; everything it reads was escaped when the page was made.
const claims = [...document.querySelectorAll(".claim")];
const [language, winner, text, count] = ["language", "winner", "text", "count"].map(
  (id) => document.getElementById(id));
function show() {
  const wanted = text.value.toLowerCase();
  let shown = 0;
  for (const claim of claims) {
    const keep = (!language.value || claim.dataset.language === language.value)
      && (!winner.value || claim.dataset.winner === winner.value)
      && (!wanted || claim.textContent.toLowerCase().includes(wanted));
    claim.hidden = !keep;
    shown += keep;
  }
  count.textContent = shown + " of " + claims.length + " claims";
}
for (const control of [language, winner, text]) control.addEventListener("input", show);
show();

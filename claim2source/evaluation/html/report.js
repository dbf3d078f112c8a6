"use strict";
// Filters and sorts; all data were escaped when the page was made.
const byId = (id) => document.getElementById(id);
const list = byId("list");
const claims = [...list.children];
const ranks = new Map(claims.map((claim) => [claim, claim.dataset.ranks.split(" ").map(Number)]));
const texts = new Map();
const [language, tag, order, text] = ["language", "tag", "order", "text"].map(byId);
let rankFilters = [];  // [system, lowest, highest rank] of a number in the table of ranks

function textOf(claim) {
  if (!texts.has(claim)) texts.set(claim, claim.textContent.toLowerCase());
  return texts.get(claim);
}

function show() {
  const wanted = text.value.toLowerCase();
  let shown = 0;
  for (const claim of claims) {
    const keep = (!language.value || claim.dataset.language === language.value)
      && (!tag.value || claim.dataset.tag === tag.value)
      && rankFilters.every(([system, low, high]) => {
        const rank = ranks.get(claim)[system];
        return rank >= low && rank <= high;
      })
      && (!wanted || textOf(claim).includes(wanted));
    claim.hidden = !keep;
    shown += keep;
  }
  byId("count").textContent = shown + " of " + claims.length + " claims";
}

function sort() {
  const depth = (claim) => ranks.get(claim)[order.value] || Infinity;  // 0: not found
  const sorted = order.value === "" ? claims : [...claims].sort(
    (a, b) => depth(a) === depth(b) ? 0 : depth(b) - depth(a));
  list.append(...sorted);
}

function filterRanks(ranges, label) {
  rankFilters = ranges;
  byId("clear").hidden = !ranges.length;
  byId("clear").textContent = "Rank " + label + ": show all again";
  show();
}

// A link to a claim opens it, whatever the filters are.
function open() {
  const target = /^#claim-/.test(location.hash) && byId(location.hash.slice(1));
  const claim = target && target.closest(".claim");
  if (!claim) return;
  claim.open = true;
  claim.hidden = false;
  target.scrollIntoView();
}

for (const control of [language, tag, text]) control.addEventListener("input", show);
order.addEventListener("input", sort);
byId("clear").addEventListener("click", () => filterRanks([], ""));
for (const link of document.querySelectorAll("a[data-ranks]")) {
  link.addEventListener("click", () => filterRanks(
    link.dataset.ranks.split(" ").map((range) => range.split(":").map(
      (part) => part === "inf" ? Infinity : Number(part))),
    link.dataset.label));
}
addEventListener("hashchange", open);

// Column heads of tables of numbers sort their rows: texts up, numbers down, then reversed.
const value = (row, at) => {
  const cell = row.children[at].textContent;
  const number = parseFloat(cell.replace(/^[<>]/, ""));
  return Number.isNaN(number) || at === 0 ? cell : number;
};
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const rows = [...table.tBodies[0].rows];
      const numbers = rows.some((row) => typeof value(row, at) === "number");
      const up = head.ariaSort ? head.ariaSort === "descending" : !numbers;
      rows.sort((a, b) => {
        const [x, y] = [value(a, at), value(b, at)];
        if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;  // "-" comes last
        return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
      });
      for (const other of heads) other.ariaSort = null;
      head.ariaSort = up ? "ascending" : "descending";
      table.tBodies[0].append(...rows);
    });
  });
}

// A box with wider content shows that it scrolls.
const boxes = document.querySelectorAll(".scroll");
function hint() {
  for (const box of boxes) box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
}
addEventListener("resize", hint);
for (const one of document.querySelectorAll("details")) one.addEventListener("toggle", hint);

show();
open();
hint();

// The page works without this script, which adds progress, copying, a history in the browser, and
// tables of posts.
"use strict";
const form = document.getElementById("ask"), post = document.getElementById("post");
const answer = document.getElementById("answer"), progress = document.getElementById("progress");
const earlier = document.getElementById("history"), find = document.getElementById("find");
const many = document.getElementById("many"), file = document.getElementById("file");
const table = document.getElementById("table");
const stages = JSON.parse(progress.dataset.stages);
const words = JSON.parse(document.querySelector("main").dataset.words);
const KEY = "claim2source.posts", DRAFT = "claim2source.draft", MOST = 20;
// The server answers in the language of the page.
const LANGUAGE = { "accept-language": document.documentElement.lang };
let request = null;

// A text in the page's language; {fields} are filled.
function t(text, values = {}) {
  return (words[text] ?? text).replace(/\{(\w+)\}/g, (field, name) => values[name] ?? field);
}

function element(name, { text, ...attributes } = {}, ...children) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function showProblem(place, reason) {
  place.replaceChildren(element("p", { class: "problem", role: "alert", text: reason }));
}

function showAnswer(html) {
  answer.innerHTML = html; // escaped by the server
  showCopyButtons();
  answer.focus({ preventScroll: true });
  answer.scrollIntoView({ block: "start" });
}

function showCopyButtons() {
  for (const button of answer.querySelectorAll(".copy, .copy-link")) button.hidden = false;
}

// The current part of the work and its time, because re-rankers and language models are slow.
function showProgress() {
  const start = Date.now();
  let part = "waiting";
  const show = () => {
    const place = stages.indexOf(part);
    const values = {
      part: names[part] ?? part, step: place + 1, steps: stages.length,
      seconds: Math.round((Date.now() - start) / 1000),
    };
    progress.textContent = place < 0
      ? t("{part}, {seconds} s", values)
      : t("{part} (step {step} of {steps}), {seconds} s", values);
  };
  show();
  progress.hidden = false;
  const timer = setInterval(show, 1000);
  return {
    update(name) { part = name; show(); },
    end() { clearInterval(timer); progress.hidden = true; },
  };
}

const names = { waiting: t("waiting"), translation: t("translation"), search: t("search"), sentences: t("sentences") };

function filters() {
  const values = {};
  for (const [name, value] of new FormData(form)) {
    if (name !== "post" && name !== "ui" && value) values[name] = value;
  }
  return values;
}

// Yield the parsed lines of a response. Throws its error if it was refused.
async function* lines(response) {
  if (!response.ok) {
    const problem = await response.json();
    throw new Error(problem.field ? `${label(problem.field)}: ${problem.error}` : problem.error);
  }
  let text = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let read = await reader.read(); !read.done; read = await reader.read()) {
    text += read.value;
    const whole = text.split("\n");
    text = whole.pop();
    for (const line of whole) yield JSON.parse(line);
  }
}

// The form names a field by its label.
function label(field) {
  const input = form.elements.namedItem(field);
  const text = [...input?.labels?.[0]?.childNodes ?? []].find((one) => one.nodeType === 3 && one.data.trim());
  return text ? text.data.trim() : field;
}

function reasonText(error) {
  return error instanceof TypeError ? t("The server cannot be reached.") : error.message;
}

async function ask() {
  const question = { ...filters(), post: post.value };
  if (question.fetch) question.fetch = true;
  if (question.k) question.k = Number(question.k);
  request?.abort();
  const mine = request = new AbortController();
  const watch = showProgress();
  find.disabled = true;
  answer.setAttribute("aria-busy", "true");
  try {
    const response = await fetch("/answer", {
      method: "POST",
      headers: { ...LANGUAGE, "content-type": "application/json" },
      body: JSON.stringify(question),
      signal: mine.signal,
    });
    if (response.ok) remember(post.value);
    let done = false;
    for await (const line of lines(response)) {
      if (line.part) watch.update(line.part);
      if (line.error) showProblem(answer, line.error);
      if (line.html) showAnswer(line.html);
      done = done || Boolean(line.error || line.html);
    }
    if (!done) throw new Error(t("The server stopped before it answered; try again."));
  } catch (error) {
    if (request === mine) showProblem(answer, reasonText(error));
  } finally {
    watch.end();
    if (request === mine) {
      find.disabled = false;
      answer.removeAttribute("aria-busy");
    }
  }
}

// Tables of posts.

let stop = null;

async function askTable(chosen) {
  if (chosen.size > Number(many.dataset.bytes)) {
    table.hidden = false;
    showProblem(table, t("{name} is larger than 2 MB: divide it, or use claim2source find --input.", { name: chosen.name }));
    return;
  }
  stop?.abort();
  const mine = stop = new AbortController();
  const shown = newTable(chosen.name, mine);
  try {
    const values = filters();
    delete values.k;
    const address = `/table?${new URLSearchParams({ ...values, name: chosen.name })}`;
    const headers = { ...LANGUAGE, "content-type": "application/octet-stream" };
    const response = await fetch(address, { method: "POST", headers, body: chosen, signal: mine.signal });
    for await (const line of lines(response)) shown.add(line);
  } catch (error) {
    if (stop !== mine) return; // another file has replaced it
    if (mine.signal.aborted) shown.problem(t("Stopped."));
    else shown.problem(reasonText(error));
  }
  if (stop === mine) shown.end();
}

function newTable(name, controller) {
  const title = element("h2", { text: name, dir: "auto" });
  const bar = element("progress", { value: 0, "aria-label": t("Posts that have an answer") });
  const status = element("p", { role: "status", text: t("reading the file") });
  const halt = element("button", { type: "button", text: t("Stop") });
  const body = element("tbody");
  const head = element("tr", {},
    element("th", { scope: "col", text: t("Post") }),
    element("th", { scope: "col", text: t("Verdict") }),
    element("th", { scope: "col", text: t("Best paper") }));
  const rows = element("table", { class: "posts" }, element("thead", {}, head), body);
  const buttons = element("p", { class: "row" }, halt);
  const box = element("div", { class: "table-progress" }, bar, status, buttons);
  table.replaceChildren(title, box);
  table.hidden = false;
  halt.addEventListener("click", () => controller.abort());
  const csv = [], counts = new Map();
  let total = 0, done = 0;
  const tell = () => {
    const parts = [...counts].map(([text, count]) => `${text} ${count}`);
    status.textContent = [t("{done} of {total} posts", { done, total }), ...parts].join(" · ");
  };
  table.focus({ preventScroll: true });
  table.scrollIntoView({ block: "start" });
  return {
    add(line) {
      csv.push(line.csv);
      if (line.posts !== undefined) {
        total = bar.max = line.posts;
        if (line.note) box.append(element("p", { class: "note", text: line.note }));
        table.append(rows);
      } else {
        done += 1;
        bar.value = done;
        const text = line.label ?? t("Error");
        counts.set(text, (counts.get(text) ?? 0) + 1);
        body.append(tableRow(line));
      }
      tell();
    },
    problem(reason) {
      box.append(element("p", { class: "problem", role: "alert", text: reason }));
    },
    end() {
      bar.remove();
      halt.remove();
      if (done === 0) status.remove();
      else offer(buttons, csv, name);
    },
  };
}

function offer(buttons, csv, name) {
  const content = new Blob(["\ufeff", ...csv], { type: "text/csv;charset=utf-8" });
  const link = element("a", {
    class: "download", href: URL.createObjectURL(content),
    download: `${name.replace(/\.[^.]*$/, "")}-papers.csv`, text: t("Download the table (CSV)"),
  });
  const hadFocus = document.activeElement === document.body;
  buttons.append(link);
  if (hadFocus) link.focus({ preventScroll: true });
}

function tableRow(line) {
  const short = line.post.length > 200 ? `${line.post.slice(0, 200)}…` : line.post;
  const own = element("th", { scope: "row", dir: "auto" });
  if (line.answer) own.append(element("a", { href: line.answer, text: short }));
  else own.textContent = short;
  const verdict = element("td"), paper = element("td");
  if (line.error) {
    verdict.append(element("strong", { class: "state", text: line.label ?? t("Error") }));
    paper.append(element("span", { class: "problem", text: line.error }));
    return element("tr", {}, own, verdict, paper);
  }
  const state = { found: "found", uncertain: "uncertain", "not here": "absent" }[line.verdict] ?? "unjudged";
  verdict.append(element("strong", { class: `state ${state}`, text: line.label }));
  if (line.present) verdict.append(element("span", { class: "note", text: ` ${line.present}` }));
  if (line.title) {
    paper.append(line.link
      ? element("a", { href: line.link, rel: "noreferrer noopener", dir: "auto", text: line.title })
      : element("span", { dir: "auto", text: line.title }));
    if (line.retracted) paper.append(" ", element("strong", { class: "problem", text: line.retracted }));
    paper.append(element("p", { class: "note", dir: "auto", text: line.about }));
    if (line.sentence) paper.append(element("p", { class: "finding", dir: "auto", text: line.sentence }));
  }
  return element("tr", {}, own, verdict, paper);
}

function hasFiles(event) {
  return [...event.dataTransfer?.types ?? []].includes("Files");
}

for (const name of ["dragenter", "dragover"]) {
  addEventListener(name, (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    many.classList.add("over");
  });
}
addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) many.classList.remove("over");
});
addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  many.classList.remove("over");
  if (event.dataTransfer.files.length) askTable(event.dataTransfer.files[0]);
});
file.addEventListener("change", () => {
  if (file.files.length) askTable(file.files[0]);
  file.value = ""; // so that the same file can be chosen again
});
many.hidden = false;

// Earlier posts.

function readHistory() {
  try {
    const posts = JSON.parse(localStorage.getItem(KEY));
    return Array.isArray(posts) ? posts.filter((one) => typeof one === "string") : [];
  } catch {
    return [];
  }
}

function remember(text) {
  const posts = [text, ...readHistory().filter((one) => one !== text)].slice(0, MOST);
  try {
    localStorage.setItem(KEY, JSON.stringify(posts));
  } catch {} // a browser may refuse to store data
  showHistory();
}

function showHistory() {
  const posts = readHistory();
  earlier.hidden = posts.length === 0;
  earlier.querySelector("ol").replaceChildren(...posts.map((text) => {
    const button = element("button", {
      type: "button", dir: "auto", text: text.length > 120 ? `${text.slice(0, 120)}…` : text,
    });
    button.addEventListener("click", () => { post.value = text; post.focus(); ask(); });
    return element("li", {}, button);
  }));
}

// Copying: the button confirms it for a moment.
async function copy(text, button, fallback) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = t("Copied");
    setTimeout(() => { button.textContent = name; }, 2000);
  } catch { // not allowed: select it, so that a key press copies it
    getSelection().selectAllChildren(fallback());
  }
}

function copyBibtex(button) {
  const text = button.closest(".paper").querySelector("pre");
  copy(text.textContent, button, () => {
    button.closest(".paper").querySelector("details").open = true;
    return text;
  });
}

function copyLink(button) {
  const link = answer.querySelector(".permalink");
  copy(link.href, button, () => {
    link.textContent = link.href;
    return link;
  });
}

// Another language is another page: the post and its answer are kept, but not in the URL.
function keepDraft() {
  const draft = { ...filters(), post: post.value, found: answer.querySelector(".best") !== null };
  try {
    sessionStorage.setItem(DRAFT, JSON.stringify(draft));
  } catch {} // it is typed again
}

function restoreDraft() {
  let draft = null;
  try {
    draft = JSON.parse(sessionStorage.getItem(DRAFT));
    sessionStorage.removeItem(DRAFT);
  } catch {}
  if (draft === null || typeof draft !== "object" || post.value) return;
  for (const input of form.elements) {
    if (input.type === "checkbox") input.checked = draft[input.name] === input.value;
    else if (input.name !== "ui" && draft[input.name]) input.value = draft[input.name];
  }
  if (draft.found && post.value) ask();
}

form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
post.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
answer.addEventListener("click", (event) => {
  if (event.target.matches(".copy")) copyBibtex(event.target);
  if (event.target.matches(".copy-link")) copyLink(event.target);
});
document.querySelector(".languages").addEventListener("click", (event) => {
  if (event.target.matches("a")) keepDraft();
});
document.getElementById("forget").addEventListener("click", () => {
  localStorage.removeItem(KEY);
  showHistory();
});
if (post.value && answer.querySelector(".best")) remember(post.value);
showCopyButtons();
showHistory();
restoreDraft();

// The page works without this: it adds progress, copying, and a history that stays in the browser.
"use strict";
const form = document.getElementById("ask"), post = document.getElementById("post");
const answer = document.getElementById("answer"), progress = document.getElementById("progress");
const earlier = document.getElementById("history"), find = document.getElementById("find");
const stages = JSON.parse(progress.dataset.stages);
const KEY = "claim2source.posts", MOST = 20;
let request = null;

function showProblem(reason) {
  const line = document.createElement("p");
  line.className = "problem";
  line.setAttribute("role", "alert");
  line.textContent = reason;
  answer.replaceChildren(line);
}

function showAnswer(html) {
  answer.innerHTML = html; // escaped by the server
  showCopyButtons();
  answer.focus({ preventScroll: true });
  answer.scrollIntoView({ block: "nearest" });
}

function showCopyButtons() {
  for (const button of answer.querySelectorAll(".copy")) button.hidden = false;
}

// What is being done, and for how long: a re-ranker or a language model takes its time.
function showProgress() {
  const start = Date.now();
  let part = "waiting";
  const show = () => {
    const place = stages.indexOf(part);
    const step = place < 0 ? "" : ` (${place + 1} of ${stages.length})`;
    progress.textContent = `${part}${step}, ${Math.round((Date.now() - start) / 1000)} s`;
  };
  show();
  progress.hidden = false;
  const timer = setInterval(show, 1000);
  return {
    update(name) { part = name; show(); },
    end() { clearInterval(timer); progress.hidden = true; },
  };
}

async function ask() {
  const question = { post: post.value };
  for (const [name, value] of new FormData(form)) {
    if (name === "fetch") question.fetch = true;
    else if (name !== "post" && value) question[name] = name === "k" ? Number(value) : value;
  }
  request?.abort();
  const mine = request = new AbortController();
  const watch = showProgress();
  find.disabled = true;
  answer.setAttribute("aria-busy", "true");
  try {
    const response = await fetch("/answer", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(question),
      signal: mine.signal,
    });
    if (!response.ok) {
      const problem = await response.json();
      throw new Error(problem.field ? `${problem.field}: ${problem.error}` : problem.error);
    }
    remember(post.value);
    let text = "", done = false;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      text += read.value;
      const lines = text.split("\n");
      text = lines.pop();
      for (const line of lines.map(JSON.parse)) {
        if (line.part) watch.update(line.part);
        if (line.error) showProblem(line.error);
        if (line.html) showAnswer(line.html);
        done = done || Boolean(line.error || line.html);
      }
    }
    if (!done) throw new Error("the server stopped in the middle; try again");
  } catch (error) {
    if (request === mine) showProblem(error instanceof TypeError ? "the server cannot be reached" : error.message);
  } finally {
    watch.end();
    if (request === mine) {
      find.disabled = false;
      answer.removeAttribute("aria-busy");
    }
  }
}

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
  } catch {} // a browser may keep nothing
  showHistory();
}

function showHistory() {
  const posts = readHistory();
  earlier.hidden = posts.length === 0;
  earlier.querySelector("ol").replaceChildren(...posts.map((text) => {
    const line = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.textContent = text.length > 120 ? `${text.slice(0, 120)}…` : text;
    button.addEventListener("click", () => { post.value = text; post.focus(); ask(); });
    line.append(button);
    return line;
  }));
}

async function copyBibtex(button) {
  const text = button.closest("li").querySelector("pre");
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy BibTeX"; }, 2000);
  } catch { // not allowed here: select it, so that a key press copies it
    button.closest("li").querySelector("details").open = true;
    getSelection().selectAllChildren(text);
  }
}

form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
post.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
answer.addEventListener("click", (event) => {
  if (event.target.matches(".copy")) copyBibtex(event.target);
});
document.getElementById("forget").addEventListener("click", () => {
  localStorage.removeItem(KEY);
  showHistory();
});
if (post.value && answer.querySelector(".papers")) remember(post.value);
showCopyButtons();
showHistory();

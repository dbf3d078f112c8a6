// Buttons to mark which paper a post means, or that it is none of these.
"use strict";
(() => {
  const place = document.getElementById("answer"), date = document.querySelector("#ask [name=date]");

  async function keep(mark) {
    const response = await fetch("/api/v1/marks", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(mark),
    });
    if (response.ok) return;
    const problem = await response.json();
    throw new Error(problem.error);
  }

  function addButton(block, about, day) {
    const button = document.createElement("button"), status = document.createElement("span");
    const paper = block.dataset.paper || null;
    button.type = "button";
    button.className = "mark";
    button.setAttribute("aria-pressed", "false");
    button.textContent = paper === null ? t("None of these") : t("This is it");
    status.setAttribute("role", "status");
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        await keep({ post: about.post, lang: about.lang, date: day, paper, index: block.dataset.index || "" });
        for (const other of place.querySelectorAll("button.mark")) {
          other.setAttribute("aria-pressed", "false");
          other.nextElementSibling.textContent = "";
        }
        button.setAttribute("aria-pressed", "true");
        status.textContent = ` ${t("Kept")}`;
      } catch (error) {
        const reason = error instanceof TypeError ? t("the server cannot be reached") : error.message;
        status.textContent = ` ${reason}`;
      } finally {
        button.disabled = false;
        button.focus();
      }
    });
    block.append(button, status);
  }

  function addButtons() {
    const about = document.getElementById("marked-post");
    if (about === null) return;
    for (const block of place.querySelectorAll(".marks:empty")) {
      addButton(block, about.dataset, date?.value || null);
    }
  }

  new MutationObserver(addButtons).observe(place, { childList: true });
  addButtons();
})();

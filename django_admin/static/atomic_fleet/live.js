// Keeps the part of a page that changes up to date. Without it the page is as it was when it was loaded.
"use strict";
(() => {
  const part = document.querySelector("[data-live]");
  const line = document.querySelector("[data-live-status]");
  if (!part || !line) return;
  const said = line.querySelector("[data-live-said]");
  const pause = line.querySelector("[data-live-pause]");
  const every = Number(part.dataset.everyMs);
  const address = part.dataset.live + (part.dataset.query ? "?" + part.dataset.query : "");
  const FOCUSABLE = "a[href], button, input, select, summary, [tabindex]";
  let paused = false;
  let shown = null;

  const say = (text) => {
    said.textContent = text;
  };

  // What the reader has chosen, and where they are, outlives what is put in its place.
  const replace = (html) => {
    if (html === shown) return;
    shown = html;
    const chosen = new Set([...part.querySelectorAll("input:checked")].map((box) => box.value));
    const at = part.contains(document.activeElement) ? document.activeElement : null;
    const place = [...part.querySelectorAll(FOCUSABLE)].indexOf(at);
    const focused = at && (at.id ? "#" + CSS.escape(at.id) : at.getAttribute("href") ? `a[href="${CSS.escape(at.getAttribute("href"))}"]` : null);
    const opened = [...part.querySelectorAll("details[open]")].map((table) => table.id);
    const scrolled = [...part.querySelectorAll(".fleet-scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
    part.innerHTML = html;
    for (const table of part.querySelectorAll("details")) table.open = opened.includes(table.id);
    for (const box of part.querySelectorAll("input[type=checkbox]")) box.checked = chosen.has(box.value);
    part.querySelectorAll(".fleet-scroll").forEach((box, place) => {
      [box.scrollLeft, box.scrollTop] = scrolled[place] || [0, 0];
    });
    // What has neither a name nor an address is where it was: a table that scrolls, what opens one.
    const again = focused ? part.querySelector(focused) : part.querySelectorAll(FOCUSABLE)[place];
    again?.focus({ preventScroll: true });
  };

  const selecting = () => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  };

  const turn = async () => {
    if (!paused && !document.hidden && !selecting()) {
      try {
        const answer = await fetch(address, { headers: { Accept: "application/json" }, credentials: "same-origin", redirect: "error" });
        if (answer.status === 404) {
          say("It is gone.");
          return;
        }
        const found = await answer.json();
        if (paused) {
          // asked before the pause: what was read is kept on the page
        } else if (found.html !== undefined) {
          replace(found.html);
          say("Updated " + new Date().toLocaleTimeString() + ".");
        } else {
          say("Not up to date: " + found.trouble);
        }
      } catch (error) {
        say("Not up to date: the site does not answer.");
      }
    }
    setTimeout(turn, every);
  };

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on updating" : "Pause updates";
  });
  line.hidden = false;
  say("Updates by itself.");
  setTimeout(turn, every);
})();

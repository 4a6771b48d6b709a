// Begins the page: enters, follows the server, shows the view that the address names, and hears the keys.

import { costs } from "./costs.js";
import { el, fill, tell } from "./dom.js";
import { Overview } from "./overview.js";
import { RunView } from "./run.js";
import { Runs } from "./runs.js";
import { Stream } from "./stream.js";
import { enter, read } from "./session.js";

const KEYS = [
  ["j k", "next, previous run"],
  ["Enter", "open the run"],
  ["Esc", "back to the list"],
  ["/", "filter"],
  ["a", "answer the question"],
  ["s", "stop the run"],
  ["1 2 …", "parts of the run"],
  ["m", "more runs"],
  ["?", "these keys"],
];
const TOLD_MS = 5000;

const main = document.getElementById("main");
const filter = document.getElementById("filter");
const runs = new Runs();
const overview = new Overview(runs);
let view = overview;
let listed = "#/"; // the address of the list that was shown last, with its filter

/** Tell the person something for a while. */
function say(words) {
  const told = document.getElementById("told");
  tell(told, words);
  clearTimeout(say.timer);
  say.timer = setTimeout(() => told.replaceChildren(), TOLD_MS);
}

/** Ask the person, and return whether the answer is yes. */
function sure(question, yes) {
  const dialog = document.getElementById("sure");
  return new Promise((done) => {
    const button = (text, answer, kind) => {
      const click = () => {
        done(answer);
        dialog.close();
      };
      return el("button", { type: "button", class: kind, on: { click } }, text);
    };
    fill(dialog, el("p", {}, question), el("div", { class: "actions" }, button("No", false, null), button(yes, true, "main danger")));
    dialog.onclose = () => dialog.open || done(false);
    dialog.showModal();
  });
}

const stream = new Stream(
  (kind, data) => {
    if (kind === "log") return view.take?.(data);
    runs.take(data);
    const asking = runs.all.filter((row) => row.pendingQuestions).length;
    if (view === overview) document.title = `${asking ? `(${asking}) ` : ""}subagents`;
    view.show?.();
  },
  (words, closed) => {
    tell(document.getElementById("connection"), words);
    const isTyped = [...main.querySelectorAll("textarea")].some((text) => text.value); // to be copied out
    if (closed && !isTyped) fill(main, el("p", { class: "bad" }, words));
  },
);

/** Return a part of the address as text; a part that is not valid text, as in a forged link, becomes empty. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

/** Show what the address names: the list with a filter, a run with one of its parts, or the costs. */
function route() {
  const [path, query] = location.hash.slice(1).split("?");
  const [, kind, id, tab] = path.split("/").map(decoded);
  filter.value = new URLSearchParams(query).get("q") ?? "";
  for (const link of document.querySelectorAll("[data-view]")) {
    if ((link.dataset.view === "costs") === (kind === "costs")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (kind === "run" && id) showRun(id, tab);
  else if (kind === "costs") showCosts();
  else showList();
}

function showList() {
  const left = view.runId;
  view = overview;
  listed = location.hash;
  overview.filter = filter.value;
  if (main.firstChild !== overview.element) fill(main, overview.element);
  if (left) overview.choose(left);
  document.title = "subagents";
  stream.follow(null);
}

function showRun(id, tab) {
  if (view.runId !== id) {
    view = new RunView(id, runs, say, sure);
    fill(main, view.element);
    main.focus(); // else the keyboard and a screen reader stay where the list was
  }
  view.tab = tab;
  stream.follow(id);
}

async function showCosts() {
  const mine = (view = {});
  fill(main, el("p", { class: "quiet" }, "Adding up …"));
  stream.follow(null);
  try {
    const found = await read("/page/costs");
    if (view === mine) fill(main, costs(found));
  } catch (error) {
    fill(main, el("p", { class: "bad" }, error.message));
  }
}

filter.addEventListener("input", () => {
  const query = filter.value ? `?${new URLSearchParams({ q: filter.value })}` : "";
  history.replaceState(null, "", `#/${query}`);
  showList();
});

function help() {
  const dialog = document.getElementById("keys");
  fill(dialog, el("dl", {}, KEYS.map(([key, does]) => [el("dt", {}, key), el("dd", {}, does)])), el("button", { type: "button", on: { click: () => dialog.close() } }, "Close"));
  dialog.showModal();
}
document.getElementById("help").addEventListener("click", help);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  main.focus();
});

const PRESSED = {
  j: () => view.move?.(1),
  k: () => view.move?.(-1),
  ArrowDown: () => view.move?.(1),
  ArrowUp: () => view.move?.(-1),
  "/": () => filter.focus(),
  "?": help,
  a: () => view.answer?.(),
  s: () => view.stop?.(),
  m: () => view.more?.(),
  Escape: () => (location.hash = view === overview ? "#/" : listed),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = /^(INPUT|TEXTAREA)$/.test(event.target.tagName);
  if (typing && event.key === "Escape") return event.target.blur();
  if (typing) return;
  const part = view.element?.querySelectorAll(".tabs a")[event.key - 1];
  if (part) location.hash = part.hash;
  else if (event.key in PRESSED) {
    if (view === overview || !event.key.startsWith("Arrow")) event.preventDefault();
    PRESSED[event.key]();
  }
});

setInterval(() => view.tick?.(), 1000);
window.addEventListener("hashchange", route);
try {
  await enter();
  route();
} catch (error) {
  fill(main, el("p", { class: "bad" }, error.message));
}

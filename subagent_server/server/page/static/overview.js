// The list of all runs, in groups and trees.

import { el, fill, tell } from "./dom.js";
import { age, clock, dollars, elapsed, shortId, tokens } from "./format.js";
import { GROUPS, about, lookOf } from "./runs.js";

const SHOWN_AT_ONCE = 300;

export class Overview {
  #runs;
  #filter = "";
  #chosen = null;
  #lines = new Map();
  #groups = new Map();
  #older;
  #told;
  #foot;
  element = el("div", { class: "overview" }, el("h1", { class: "skip" }, "Runs"));

  constructor(runs) {
    this.#runs = runs;
    for (const [key, title] of GROUPS) {
      const heading = el("h2", { id: `group-${key}` });
      const list = el("ol", { class: "runs", "aria-labelledby": `group-${key}` });
      const group = { title, heading, list, most: SHOWN_AT_ONCE };
      const click = () => this.#showMore(group);
      group.more = el("button", { type: "button", class: "more", hidden: true, on: { click } });
      group.part = el("section", { class: `group ${key}` }, heading, list, group.more);
      const part = group.part;
      this.#groups.set(key, group);
      this.element.append(part);
    }
    this.empty = el("p", { class: "quiet empty" });
    this.#older = el("button", { type: "button", on: { click: () => this.#askOlder() } }, "Older runs");
    this.#told = el("span", { class: "quiet", role: "status" });
    this.#foot = el("p", { class: "foot" }, this.#older, " ", this.#told);
    this.element.append(this.empty, this.#foot);
  }

  /** Keep only the runs that a filter fits. */
  set filter(text) {
    if (this.#filter !== text.trim()) tell(this.#told, "");
    this.#filter = text.trim();
    this.show();
  }

  /** Show the runs as they are now. Lines that stay are changed in place. */
  show() {
    const found = this.#runs.groups(this.#filter);
    const focused = document.activeElement;
    const there = new Set();
    for (const [key, group] of this.#groups) {
      const lines = found[key].slice(0, group.most);
      const hidden = found[key].length - lines.length;
      group.part.hidden = !lines.length;
      const counted = key === "needs" ? found[key].filter(({ row }) => row.pendingQuestions) : found[key];
      tell(group.heading, `${group.title} ${counted.length}`);
      group.more.hidden = !hidden;
      tell(group.more, `Show ${Math.min(hidden, SHOWN_AT_ONCE)} of ${hidden} more`);
      place(group.list, lines.map(({ row, depth }) => {
        there.add(row.runId);
        return this.#line(row, depth);
      }));
    }
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true }); // it has moved
    for (const id of this.#lines.keys()) if (!there.has(id)) this.#lines.delete(id);
    const hasOlder = this.#runs.hasOlder(this.#filter);
    this.#older.hidden = !hasOlder;
    tell(this.#older, this.#filter ? "Search older runs" : "Older runs");
    this.#foot.hidden = !hasOlder && !this.#told.textContent;
    this.empty.hidden = there.size > 0;
    if (!this.#runs.isRead) fill(this.empty, "Loading …");
    else fill(this.empty, this.#filter ? "No run fits the filter." : "No runs yet: `subagent run AGENT PROMPT` starts one.");
  }

  /** Show more of what is there, else ask for older runs. */
  more() {
    const group = [...this.#groups.values()].find((each) => !each.part.hidden && !each.more.hidden);
    if (group) this.#showMore(group);
    else if (!this.#older.hidden) this.#askOlder();
  }

  #showMore(group) {
    group.most += SHOWN_AT_ONCE;
    this.show();
  }

  async #askOlder() {
    const filter = this.#filter;
    this.#older.disabled = true;
    try {
      const { lookedAt, found } = await this.#runs.older(filter);
      if (filter === this.#filter) tell(this.#told, `${found} found among ${lookedAt} older runs.`);
    } catch (error) {
      tell(this.#told, error.message);
    }
    this.#older.disabled = false;
    this.#groups.get("done").most += SHOWN_AT_ONCE;
    this.show();
  }

  /** Show the times as they are now. */
  tick() {
    for (const [id, line] of this.#lines) {
      const row = this.#runs.get(id);
      if (row) times(line, row);
    }
  }

  #line(row, depth) {
    let line = this.#lines.get(row.runId);
    if (!line) {
      line = made(row);
      this.#lines.set(row.runId, line);
    }
    const [sign, word, kind] = lookOf(row);
    line.item.style.setProperty("--depth", depth);
    line.link.className = `run ${kind}`;
    tell(line.sign, sign);
    tell(line.word, word);
    tell(line.agent, row.agent ?? "");
    tell(line.about, about(row));
    tell(line.tokens, tokens(row.tokens));
    tell(line.cost, dollars(row.costUsd));
    times(line, row);
    return line.item;
  }

  /** Put the focus on a run, so that who comes back from it is where they were. */
  choose(id) {
    this.#lines.get(id)?.link.focus();
  }

  /** Move the choice by so many lines, and return whether there was one to move to. */
  move(by) {
    const links = [...this.element.querySelectorAll("section:not([hidden]) a.run")];
    if (!links.length) return;
    const now = links.indexOf(document.activeElement);
    const next = now < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, now + by));
    links[next].focus();
    links[next].scrollIntoView({ block: "nearest" });
  }
}

function made(row) {
  const parts = Object.fromEntries(
    ["sign", "word", "agent", "about", "time", "tokens", "cost", "age"].map((name) => [name, el("span", { class: name })]),
  );
  parts.sign.setAttribute("aria-hidden", "true");
  const id = el("span", { class: "id", title: row.runId }, shortId(row.runId));
  const link = el(
    "a",
    { class: "run", href: `#/run/${encodeURIComponent(row.runId)}` },
    el("span", { class: "state" }, parts.sign, " ", parts.word),
    el("span", { class: "who" }, parts.agent),
    parts.about,
    id,
    parts.tokens,
    parts.cost,
    parts.time,
    parts.age,
  );
  return { ...parts, link, item: el("li", {}, link) };
}

function times(line, row) {
  tell(line.time, elapsed(row));
  tell(line.age, row.over ? age(row.endedAt ?? row.createdAt) : "");
  const title = clock(row.createdAt);
  if (line.time.title !== title) line.time.title = title;
}

/** Make `wanted` the children of a list, and move only what stands elsewhere. */
function place(list, wanted) {
  let at = list.firstElementChild;
  for (const item of wanted) {
    if (item === at) at = at.nextElementSibling;
    else list.insertBefore(item, at);
  }
  while (at) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
}

// One run: its state, its questions, its log, its result and its other files.

import { changes } from "./changes.js";
import { conversation, programs } from "./conversation.js";
import { el, fill, tell, visible } from "./dom.js";
import { clock, dollars, elapsed, shortId, tokens } from "./format.js";
import { LogView } from "./log.js";
import { built, code } from "./markdown.js";
import { Questions } from "./questions.js";
import { about, lookOf } from "./runs.js";
import { open, read, runPath, send } from "./session.js";

const TABS = ["log", "result", "calls", "changes", "conversation", "programs", "files", "task"];
const SETTLE_MS = 200;
/** How much of a file is shown. */
const MOST_CHARACTERS = 200_000;

export class RunView {
  #runs;
  #say;
  #sure;
  #facts = null;
  #revision;
  #asked = 0;
  #answered = 0;
  #waiting = null;
  #isSending = false;
  #log = new LogView();
  #head = el("h1");
  #figures = el("p", { class: "figures" });
  #actions = el("div", { class: "actions" });
  #family = el("nav", { class: "family", "aria-label": "Tree" });
  #tabs = el("nav", { class: "tabs", "aria-label": "Parts of the run" });
  #part = el("div", { class: "part" });
  #questions;
  #shown = null;

  constructor(runId, runs, say, sure) {
    this.runId = runId;
    this.#runs = runs;
    this.#say = say;
    this.#sure = sure;
    this.#questions = new Questions(runId, say);
    this.element = el("div", { class: "one" }, this.#family, el("div", { class: "top" }, this.#head, this.#actions), this.#figures, this.#questions.element, this.#tabs, this.#part);
    this.#load();
  }

  /** Show a part: one of TABS. */
  set tab(name) {
    this.tabName = TABS.includes(name) ? name : "log";
    this.#shown = null;
    this.#show();
  }

  take(log) {
    if (log.run === this.runId) this.#log.take(log);
  }

  /** The rows have changed: look at the run again if this one is among them. */
  show() {
    const revision = JSON.stringify(this.#runs.get(this.runId)); // undefined: too old for the list, or removed
    if (revision !== this.#revision) {
      this.#revision = revision;
      clearTimeout(this.#waiting);
      this.#waiting = setTimeout(() => this.#load(), SETTLE_MS);
    }
    this.#showHead();
  }

  tick() {
    this.#showFigures();
    this.#questions.tick();
  }

  answer() {
    return this.#questions.focus();
  }

  async stop() {
    const row = this.#row();
    if (row.over) return this.#say("It has ended.");
    if (await this.#sure(`Stop ${row.agent ?? "this run"}, and the runs that it started?`, "Stop")) await this.#do("/stop", "Stopped.");
  }

  async again() {
    const made = await this.#do("/rerun", "Started once more.");
    if (made) location.hash = `#/run/${made.runId}`;
  }

  async goOn(prompt) {
    const made = await this.#do("/continue", "It continues, as a new run.", { prompt });
    if (made) location.hash = `#/run/${made.runId}`;
  }

  async #do(what, done, body = {}) {
    if (this.#isSending) return null; // a double click is meant as one: a run costs
    this.#isSending = true;
    try {
      const answer = await send(runPath(this.runId, what), body);
      this.#say(done);
      return answer;
    } catch (error) {
      this.#say(error.message);
      return null;
    } finally {
      this.#isSending = false;
    }
  }

  async #load() {
    const asked = ++this.#asked;
    try {
      const facts = await read(runPath(this.runId));
      if (asked < this.#answered) return; // a later look was answered sooner
      this.#facts = facts;
      this.#answered = asked;
    } catch (error) {
      if (!this.#facts) fill(this.#part, el("p", { class: "bad" }, error.message));
      else if (error.status === 404) this.#say("The run was removed.");
      return;
    }
    this.#questions.show(this.#facts.questions);
    this.#show();
  }

  /** Whether anything is known of the run yet: until then it neither works nor has it ended. */
  #isKnown() {
    return Boolean(this.#facts || this.#runs.get(this.runId));
  }

  /** The row of the run; from its facts if the list does not have it. */
  #row() {
    const view = this.#facts?.view ?? {};
    return (
      this.#runs.get(this.runId) ?? {
        ...view,
        runId: this.runId,
        createdAt: this.#facts?.created,
        endedAt: this.#facts?.ended,
        over: this.#facts?.over ?? false,
        pendingQuestions: (view.messages ?? []).length,
        costUsd: view.usage?.costUsd,
      }
    );
  }

  #show() {
    this.#showHead();
    this.#showTabs();
    this.#showPart();
  }

  #showHead() {
    if (!this.#isKnown()) return;
    const row = this.#row();
    const [sign, word, kind] = lookOf(row);
    this.#head.className = kind;
    tell(this.#head, `${sign} ${row.agent ?? ""}${row.label ? ` · ${row.label}` : ""}`);
    this.#head.title = word;
    this.#showFigures();
    this.#showActions(row);
    this.#showFamily();
    document.title = visible(`${sign} ${row.agent ?? shortId(this.runId)} · subagents`);
  }

  #showFigures() {
    if (!this.#isKnown()) return;
    const row = this.#row();
    const usage = this.#facts?.view.usage ?? {};
    const turns = usage.turns ? `${usage.turns} turn${usage.turns === 1 ? "" : "s"}` : "";
    const parts = [lookOf(row)[1], elapsed(row), turns, row.tokens ? `${tokens(row.tokens)} tokens` : "", dollars(row.costUsd), this.runId];
    tell(this.#figures, parts.filter(Boolean).join("  ·  "));
  }

  #showActions(row) {
    const key = `${row.over}${row.unreadable ?? ""}`;
    if (this.#actions.dataset.key === key) return;
    this.#actions.dataset.key = key;
    const button = (title, does, hint) => el("button", { type: "button", title: hint, on: { click: does } }, title);
    fill(
      this.#actions,
      row.over ? null : button("Stop", () => this.stop(), "s"),
      row.over ? button("Continue", () => this.#askToGoOn(), "Carry it on, as a new run") : null,
      row.over ? button("Run again", () => this.again(), "The same task, as a new run") : null,
    );
  }

  #askToGoOn() {
    const open = this.#questions.element.querySelector(".card.reply textarea");
    if (open) return open.focus();
    const text = el("textarea", { rows: "2", "aria-label": "What it should do next", placeholder: "What it should do next (may be empty)" });
    const form = el("div", { class: "card reply" }, text, el("button", { type: "button", class: "main", on: { click: () => this.goOn(text.value) } }, "Continue"));
    this.#questions.element.append(form);
    text.focus();
  }

  #showFamily() {
    const parent = this.#facts?.parentRunId;
    const children = this.#runs.children(this.runId);
    const ids = [parent, ...children.map((row) => row.runId)].join();
    const states = children.map((row) => lookOf(row)[1]).join();
    if (this.#family.dataset.key === ids + states) return;
    this.#family.dataset.key = ids + states;
    const link = (id) => {
      const row = this.#runs.get(id) ?? { runId: id };
      const [sign, , kind] = lookOf(row);
      return el("a", { class: kind, href: `#/run/${encodeURIComponent(id)}`, title: about(row) }, `${sign} ${row.agent ?? shortId(id)}`);
    };
    fill(this.#family, parent ? ["started by ", link(parent), " "] : null, children.length ? ["started ", children.map((row) => [link(row.runId), " "])] : null);
  }

  #showTabs() {
    const has = { calls: this.#facts?.calls, changes: this.#facts?.view.worktree, programs: this.#facts?.programs, files: this.#facts?.files?.length };
    const shown = TABS.filter((name) => has[name] !== undefined ? has[name] || name === this.tabName : !(name in has));
    const key = [this.tabName, ...shown].join();
    if (this.#tabs.dataset.key === key) return;
    this.#tabs.dataset.key = key;
    const focused = this.#tabs.contains(document.activeElement) && document.activeElement.hash;
    fill(
      this.#tabs,
      shown.map((name) => el("a", { href: `#/run/${encodeURIComponent(this.runId)}/${name}`, "aria-current": name === this.tabName ? "page" : null }, name[0].toUpperCase() + name.slice(1))),
    );
    if (focused) [...this.#tabs.children].find((each) => each.hash === focused)?.focus();
  }

  #showPart() {
    const kept = { log: "", calls: this.#facts?.calls, files: this.#facts?.files };
    const key = `${this.tabName}:${this.tabName in kept ? kept[this.tabName] : [this.#facts?.view.revision, this.#facts?.view.status]}`;
    if (this.#shown === key || (!this.#facts && this.tabName !== "log")) return;
    this.#shown = key;
    const parts = { log: () => this.#log.element, calls: () => code(this.#facts.calls), result: () => this.#result(), task: () => this.#task(), files: () => this.#files() };
    if (this.tabName in parts) this.#fillPart(parts[this.tabName]());
    else this.#fetched(key);
    if (this.tabName === "log") this.#log.scrollBack();
  }

  /** Show the nodes of a part; what a person has opened or closed in it stays so. */
  #fillPart(nodes) {
    const folds = () => [...this.#part.querySelectorAll("details")];
    const were = this.#part.dataset.tab === this.tabName ? folds().map((each) => each.open) : [];
    this.#part.dataset.tab = this.tabName;
    fill(this.#part, nodes);
    for (const [at, each] of folds().slice(0, were.length).entries()) each.open = were[at];
  }

  async #fetched(key) {
    try {
      const found = await read(runPath(this.runId, `/${this.tabName}`));
      if (this.#shown !== key) return;
      const shown = {
        changes: () => changes(this.#facts.view.worktree ?? {}, found, this.runId),
        programs: () => programs(found.programs),
        conversation: () => conversation(found.messages),
      };
      const nodes = shown[this.tabName]();
      this.#fillPart(nodes.length ? nodes : el("p", { class: "quiet" }, "Nothing yet."));
    } catch (error) {
      if (this.#shown === key) fill(this.#part, el("p", { class: "bad" }, error.message));
    }
  }

  #result() {
    const { view, resultTree } = this.#facts;
    const parts = [];
    if (view.error) parts.push(el("section", { class: "card bad" }, el("h3", { "aria-level": "2" }, view.error.code), el("p", { class: "text" }, view.error.message), view.error.hint ? el("p", { class: "quiet" }, view.error.hint) : null));
    if (view.summary && !view.result?.startsWith(view.summary)) parts.push(el("p", { class: "text" }, view.summary));
    if ("output" in view) parts.push(code(JSON.stringify(view.output, null, 2)));
    if (view.result) parts.push(el("div", { class: "prose" }, resultTree ? built(resultTree) : code(view.result)));
    if (view.resultTruncated || view.outputOmitted) parts.push(el("p", { class: "quiet" }, `\`subagent show ${this.runId}\` prints the whole of it.`));
    for (const warning of view.warnings ?? []) parts.push(el("p", { class: "warning" }, warning));
    return parts.length ? parts : el("p", { class: "quiet" }, "It has no result yet.");
  }

  #task() {
    const { request, sandbox, directory, created, questions } = this.#facts;
    const pairs = [
      ["Started", clock(created)],
      ["Directory", request.cwd],
      ["Model", request.model],
      ["Sandbox", sandbox],
      ["Inputs", request.inputs?.join("\n")],
      ["Files of the run", directory],
    ].filter(([, value]) => value);
    const answered = questions.filter((each) => each.answer);
    return [
      el("dl", {}, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])),
      request.error ? el("p", { class: "bad" }, request.error) : code(request.prompt ?? ""),
      answered.map((each) => el("section", { class: "card" }, el("p", { class: "text" }, each.question), el("p", { class: "text quiet" }, `${each.answeredBy ?? ""}: ${each.answer}`))),
    ];
  }

  #files() {
    const list = el("ul", { class: "files" });
    for (const name of this.#facts.files) {
      const shown = el("div");
      const show = async () => {
        try {
          const answer = await open(runPath(this.runId, `/files/${encodeURIComponent(name)}`));
          const text = await answer.text();
          const left = text.length - MOST_CHARACTERS;
          const more = left > 0 ? el("p", { class: "quiet" }, `${left.toLocaleString("en")} characters more are in the file.`) : null;
          fill(shown, code(text.slice(0, MOST_CHARACTERS)), more);
        } catch (error) {
          fill(shown, el("p", { class: "bad" }, error.message));
        }
      };
      list.append(el("li", {}, el("button", { type: "button", on: { click: show } }, name), shown));
    }
    return list;
  }
}

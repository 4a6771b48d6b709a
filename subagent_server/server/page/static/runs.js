// All runs as the server has sent them: their groups, their trees, and which of them a filter keeps.

import { read } from "./session.js";

export const GROUPS = [
  ["needs", "Needs you"],
  ["working", "Working"],
  ["done", "Done"],
];

const LOOKS = {
  completed: ["✔", "completed", "good"],
  failed: ["✘", "failed", "bad"],
  stopped: ["■", "stopped", "quiet"],
};

/** Return the sign, the word and the kind of colour of a row's state. */
export function lookOf(row) {
  if (row.unreadable) return ["?", "unreadable", "bad"];
  if (row.pendingQuestions) return ["?", "asks you", "asks"];
  if (LOOKS[row.status] && !row.over) return ["◌", "ending", "quiet"];
  if (LOOKS[row.status]) return LOOKS[row.status];
  if (row.waitingForSlot) return ["○", "waits", "quiet"];
  return row.status === "ready" ? ["○", "starts", "quiet"] : ["●", "working", "works"];
}

export class Runs {
  isRead = false; // whether the server has sent them
  #rows = new Map();
  #older = new Map();
  #hasOlder = false;
  #searched = null; // the filter of the older runs, and the run before which the search goes on

  /** Take news of the server. */
  take({ all, rows = [], gone = [], older }) {
    if (all) {
      this.isRead = true;
      this.#rows = new Map();
      this.#forgetOlder();
    }
    if (older !== undefined) this.#hasOlder = older;
    for (const id of gone) {
      this.#rows.delete(id);
      this.#older.delete(id);
    }
    for (const row of rows) this.#rows.set(row.runId, row);
  }

  get(id) {
    return this.#rows.get(id) ?? this.#older.get(id);
  }

  get all() {
    return [...new Map([...this.#older, ...this.#rows]).values()];
  }

  /** Whether the server may have older runs that this filter fits. */
  hasOlder(filter) {
    return this.#hasOlder && !(this.#searched?.filter === filter && this.#searched.before === null);
  }

  /** Ask for older runs, and return how many were looked at and how many were found. */
  async older(filter) {
    if (this.#searched?.filter !== filter) this.#forgetOlder();
    const ended = [...this.#rows.values()].filter((row) => row.over).map((row) => row.runId);
    const before = this.#searched?.before ?? ended.reduce((one, other) => (one < other ? one : other), "z"); // behind every id
    const found = await read(`/page/older?${new URLSearchParams({ before, q: filter })}`);
    for (const row of found.rows) this.#older.set(row.runId, row);
    this.#searched = { filter, before: found.before };
    return { lookedAt: found.lookedAt, found: found.rows.length };
  }

  #forgetOlder() {
    this.#older = new Map();
    this.#searched = null;
  }

  children(id) {
    return this.all.filter((row) => row.parentRunId === id).sort(byId);
  }

  /**
   * Return for each group its lines, a run and its depth: whole trees, each in the group of its most urgent
   * run, the newest tree first. With a filter only the trees with a run that it keeps.
   */
  groups(filter) {
    const below = new Map();
    const tops = [];
    for (const row of this.all) {
      if (row.parentRunId && this.get(row.parentRunId)) {
        if (!below.has(row.parentRunId)) below.set(row.parentRunId, []);
        below.get(row.parentRunId).push(row);
      } else tops.push(row);
    }
    const found = { needs: [], working: [], done: [] };
    for (const top of tops.sort((a, b) => byId(b, a))) {
      const lines = [...walk(top, below, 0, new Set())];
      if (filter && !lines.some(({ row }) => keeps(filter, row))) continue;
      found[groupOf(lines)].push(...lines);
    }
    return found;
  }
}

function* walk(row, below, depth, seen) {
  if (seen.has(row.runId)) return; // states are data: a circle ends here
  seen.add(row.runId);
  yield { row, depth };
  for (const child of (below.get(row.runId) ?? []).sort(byId)) yield* walk(child, below, depth + 1, seen);
}

function groupOf(lines) {
  if (lines.some(({ row }) => row.pendingQuestions)) return "needs";
  return lines.some(({ row }) => !row.over) ? "working" : "done";
}

const byId = (a, b) => (a.runId < b.runId ? -1 : 1);

/** The subject of a row, in one line. */
export const about = (row) =>
  [row.label, row.unreadable ?? (row.pendingQuestions ? null : row.summary) ?? row.liveReason ?? (row.waitingForSlot ? "waits for a slot" : row.doing)]
    .filter(Boolean)
    .join(" · ");

/** Whether each word of a filter is in the row. */
function keeps(filter, row) {
  const text = [row.runId, row.agent, row.status, lookOf(row)[1], row.startedBy, about(row)].join("\n").toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

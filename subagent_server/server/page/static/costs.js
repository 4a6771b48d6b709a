// The costs of the runs of this root, by agent and by day.

import { el } from "./dom.js";
import { dollars, duration, tokens } from "./format.js";

const HEAD = ["Runs", "Completed", "Failed", "Stopped", "Time", "Tokens", "Cost"];

const KINDS = ["inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens"];

/** The mark of a sum with an unknown part. */
const mark = (sum, ...names) => (names.some((name) => sum.atLeast?.includes(name)) ? "≥" : "");

const all = (sum) => {
  const told = KINDS.map((kind) => sum[kind]).filter((count) => count !== null);
  return told.length ? mark(sum, ...KINDS) + tokens(told.reduce((one, other) => one + other)) : "-";
};

const line = (name, sum) =>
  el(
    "tr",
    {},
    el("th", { scope: "row" }, name),
    [sum.runs, sum.completed, sum.failed, sum.stopped, duration(sum.seconds), all(sum), mark(sum, "costUsd") + dollars(sum.costUsd)].map((text) =>
      el("td", {}, String(text ?? "")),
    ),
  );

const table = (each, entries) =>
  el(
    "section",
    { class: "costs" },
    el("h2", {}, `By ${each.toLowerCase()}`),
    el(
      "div",
      { class: "wide", role: "group", "aria-label": "Table", tabindex: "0" }, // so that keys scroll it
      el("table", {}, el("thead", {}, el("tr", {}, [each, ...HEAD].map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, entries.map(([name, sum]) => line(name, sum)))),
    ),
  );

/** Return the view of the sums that the server has made. */
export const costs = ({ total, byAgent, byDay }) => [
  el("h1", { class: "skip" }, "Costs"),
  table("Agent", [...[...byAgent].sort((a, b) => Number(b.costUsd ?? 0) - Number(a.costUsd ?? 0)).map((sum) => [sum.agent, sum]), ["All", total]]),
  table("Day", [...byDay].reverse().map((sum) => [sum.day, sum])),
];

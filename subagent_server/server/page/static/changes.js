// The changes of a run in its git worktree: its branch and place, and the patch, a part for each file.

import { el } from "./dom.js";
import { code } from "./markdown.js";

const MOST_OPEN = 10;

/** Return the elements of a worktree, as a view has it, and of its patch. */
export function changes(worktree, { diff, cut }, runId) {
  const [, ...files] = `\n${diff}`.split(/^diff --git /m);
  return [
    facts(worktree),
    files.length ? files.map((file) => part(file, files.length <= MOST_OPEN)) : el("p", { class: "quiet" }, "It has changed nothing."),
    cut ? el("p", { class: "quiet" }, `That is the beginning: \`subagent show ${runId} --diff\` prints the whole of it.`) : null,
  ];
}

function facts(worktree) {
  const counts = ["commits", "files"].filter((name) => name in worktree).map((name) => `${worktree[name]} ${worktree[name] === 1 ? name.slice(0, -1) : name}`);
  if ("insertions" in worktree) counts.push(`+${worktree.insertions} −${worktree.deletions}`);
  if (worktree.merged) counts.push("merged");
  const pairs = [
    ["Branch", [worktree.branch, ...counts].join("  ·  ")],
    ["From", `${String(worktree.base ?? "").slice(0, 12)} of ${worktree.from}`],
    ["Left behind", worktree.leftBehind],
    ["Notes", worktree.notes?.join("\n")],
    ["To merge", worktree.next?.replaceAll("`", "")],
  ].filter(([, value]) => value);
  return el("dl", {}, pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
}

function part(file, open) {
  const [head] = file.split("\n", 1);
  const at = file.search(/^@@ /m);
  const lines = at < 0 ? [] : file.slice(at).split("\n");
  const count = (sign) => lines.filter((line) => line[0] === sign).length;
  const name = /^\+\+\+ b\/(.*)$/m.exec(file)?.[1] ?? /^--- a\/(.*)$/m.exec(file)?.[1] ?? head;
  const figures = at < 0 ? "" : `+${count("+")} −${count("-")}`;
  const patch = at < 0 ? file : file.slice(at);
  return el("details", { class: "file", open }, el("summary", {}, el("b", {}, name), " ", el("span", { class: "quiet" }, figures)), code(patch, "diff"));
}

// The conversation of a run with its model; inputs and outputs of tools are folded.

import { el } from "./dom.js";
import { code } from "./markdown.js";

const SHORT = 120;

/** Return the elements of the messages of a conversation. */
export const conversation = (messages) =>
  messages.map((message) => {
    const content = Array.isArray(message.content) ? message.content : [{ type: "text", text: message.content ?? "" }];
    return el("article", { class: `message ${message.role === "assistant" ? "agent" : "other"}` }, content.map(block));
  });

function block(block) {
  if (typeof block !== "object" || block === null) return el("p", { class: "text" }, String(block));
  switch (block.type) {
    case "text":
      return el("p", { class: "text" }, block.text ?? "");
    case "thinking":
      return folded("thinking", "", el("p", { class: "text" }, block.thinking ?? ""));
    case "tool_use":
    case "server_tool_use":
      return folded(`→ ${block.name}`, JSON.stringify(block.input ?? {}), code(JSON.stringify(block.input ?? {}, null, 2)));
    case "tool_result":
      return folded(block.is_error ? "← failed" : "←", plain(block.content), code(plain(block.content)));
    default:
      return folded(String(block.type), "", code(JSON.stringify(block, null, 2)));
  }
}

const plain = (content) =>
  typeof content === "string"
    ? content
    : (Array.isArray(content) ? content : []).map((part) => part?.text ?? `[${part?.type}]`).join("\n");

function folded(title, hint, body) {
  const short = hint.replace(/\s+/g, " ").slice(0, SHORT);
  return el("details", {}, el("summary", {}, el("b", {}, title), " ", el("span", { class: "quiet" }, short)), body);
}

/** Return the elements of the programs of code mode. */
export const programs = (found) =>
  found.map((program) =>
    el(
      "article",
      { class: "program" },
      el("h3", {}, `Program ${program.program}`, el("span", { class: "quiet" }, program.outcome === null ? " its end is not known" : ` outcome ${program.outcome}`)),
      code(program.code, "python"),
      program.calls.length ? folded(`${program.calls.length} records of calls`, "", code(program.calls.map((call) => JSON.stringify(call)).join("\n"))) : null,
      program.output ? code(program.output) : el("p", { class: "quiet" }, "It printed nothing."),
    ),
  );

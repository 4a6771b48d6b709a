// Builds the elements of a Markdown text from the tree that the server has made of it.

import { add, el } from "./dom.js";

const ELEMENTS = new Set(
  "p h1 h2 h3 h4 h5 h6 ul ol li blockquote hr br em strong s table thead tbody tr th td code pre a".split(" "),
);

/** Return the nodes of a tree: texts, and `[element, attribute, children]`. */
export function built(nodes) {
  return nodes.map((node) => {
    if (typeof node === "string") return node; // `add` makes it visible, as all texts
    const [name, attribute, children] = node;
    if (!ELEMENTS.has(name)) return built(children);
    if (name === "pre") return code(children[0] ?? "", attribute);
    if (name === "a") return link(attribute, children);
    const made = el(/^h[1-6]$/.test(name) ? "h4" : name, {});
    add(made, built(children));
    return name === "table" ? el("div", { class: "wide", role: "group", "aria-label": "Table", tabindex: "0" }, made) : made;
  });
}

function link(address, children) {
  const safe = /^(https?|mailto):/i.test(address) ? address : null;
  const made = el("a", { href: safe, target: "_blank", rel: "noopener noreferrer", title: address });
  add(made, built(children));
  return made;
}

/** Return a block of code; a diff has its lines coloured. */
export function code(text, language) {
  const block = el("pre", { class: "code", tabindex: "0" });
  if (language !== "diff" && language !== "patch") {
    add(block, [text]);
    return block;
  }
  for (const line of text.trimEnd().split("\n")) {
    const kind = /^(\+\+\+|---|@@)/.test(line) ? "quiet" : line[0] === "+" ? "good" : line[0] === "-" ? "bad" : null;
    block.append(el("span", { class: kind }, line), "\n");
  }
  return block;
}

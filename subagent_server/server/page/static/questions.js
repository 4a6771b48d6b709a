// The open questions of a run, each with a place for the answer.

import { el, tell } from "./dom.js";
import { left } from "./format.js";
import { runPath, send } from "./session.js";

/** By run and question: an answer that was typed and not sent, for who comes back to it. */
const drafts = new Map();

export class Questions {
  #runId;
  #say;
  #cards = new Map();
  element = el("div", { class: "questions" });

  constructor(runId, say) {
    this.#runId = runId;
    this.#say = say;
  }

  /** Show these questions. A card that is there stays, with what was typed into it. */
  show(questions) {
    const open = new Map(questions.filter((each) => each.status === "pending_parent_reply").map((each) => [each.messageId, each]));
    for (const [id, card] of this.#cards) {
      if (open.has(id)) continue;
      const isOurs = card.element.querySelector("button:disabled");
      if (!isOurs) this.#say("The question was answered elsewhere, or nobody waits for the answer any more.");
      card.element.remove();
      this.#cards.delete(id);
    }
    for (const [id, question] of open) {
      if (this.#cards.has(id)) continue;
      const card = this.#card(question);
      this.#cards.set(id, card);
      this.element.append(card.element);
    }
  }

  tick() {
    for (const card of this.#cards.values()) if (card.question.expiresAt) tell(card.expires, left(card.question.expiresAt));
  }

  /** Put the cursor where the first answer goes, and on no option: a space in what is typed would take it. */
  focus() {
    const first = this.element.querySelector("textarea");
    first?.focus();
    return first !== null;
  }

  #card(question) {
    const expires = el("span", { class: "quiet" }, question.expiresAt ? left(question.expiresAt) : "");
    const text = el("textarea", { rows: "2", "aria-label": "Your answer", placeholder: "Your answer" });
    const options = (question.options ?? []).map((option) =>
      el("button", { type: "button", class: "option", on: { click: () => this.#answer(question, option, element) } }, option),
    );
    const answer = () => this.#answer(question, text.value, element);
    const key = `${this.#runId} ${question.messageId}`;
    text.value = drafts.get(key) ?? "";
    text.addEventListener("input", () => drafts.set(key, text.value));
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) answer();
    });
    const element = el(
      "section",
      { class: "card asks", "aria-label": "Question" },
      el("h3", { "aria-level": "2" }, "It asks ", expires),
      el("p", { class: "text" }, question.question),
      options.length ? el("div", { class: "options" }, options) : null,
      el("div", { class: "reply" }, text, el("button", { type: "button", class: "main", title: "Ctrl-Enter", on: { click: answer } }, "Answer")),
    );
    return { element, expires, question };
  }

  async #answer(question, answer, card) {
    if (!answer.trim()) return this.#say("An answer needs some text.");
    const buttons = card.querySelectorAll("button");
    for (const button of buttons) button.disabled = true;
    try {
      await send(runPath(this.#runId, "/reply"), { messageId: question.messageId, answer });
      this.#say("Answered.");
    } catch (error) {
      this.#say(error.message);
      for (const button of buttons) button.disabled = false;
    }
  }
}

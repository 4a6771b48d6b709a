// The log of a run as it grows. It stays at its end until somebody scrolls up.

import { el, visible } from "./dom.js";

const MOST_LINES = 2000;
const MOST_CHARACTERS = 4000;
const END = Number.MAX_SAFE_INTEGER;
const KINDS = [
  [/^\d\d:\d\d:\d\d ── /, "turn"],
  [/^\d\d:\d\d:\d\d → /, "call"],
  [/^\d\d:\d\d:\d\d ← /, "answer"],
  [/^\d\d:\d\d:\d\d \? /, "asks"],
  [/^\d\d:\d\d:\d\d ✔ /, "good"],
  [/^\d\d:\d\d:\d\d [✘⚠!] /, "bad"],
  [/^\d\d:\d\d:\d\d [·▶■] /, "quiet"],
  [/^ {9}/, null],
];

const CLOCK = /^(\d\d):(\d\d)(?=:\d\d )/;
const DAY = /, (\d{4}-\d\d-\d\d) \(times in UTC\)$/;

/** Minutes that the reader's clock was behind UTC when the log began, now if no line says when that was. */
const behindUtc = (moment) => (moment ? new Date(moment) : new Date()).getTimezoneOffset();

export class LogView {
  #behind = behindUtc();
  #lines = el("div", { class: "lines" });
  #dropped = el("p", { class: "quiet", hidden: true }, "Earlier lines are in the file; `subagent logs -n 10000 RUN` prints 10,000 events.");
  #kind = "said";
  #top = END;
  element = el("section", { class: "log", "aria-label": "Log", tabindex: "0", on: { scroll: () => this.#note() } }, this.#dropped, this.#lines);

  #note() {
    const { scrollHeight, scrollTop, clientHeight } = this.element;
    this.#top = scrollHeight - scrollTop - clientHeight < 40 ? END : scrollTop;
  }

  /** Show the lines that were shown before: an element loses how far it was scrolled when it leaves the page. */
  scrollBack() {
    this.element.scrollTop = this.#top;
  }

  /** Take a part of the log; with `first` it is the beginning of what is shown, and `earlier` lines may be left out. */
  take({ first, text, earlier, error }) {
    if (first) {
      this.#top = END;
      this.#lines.replaceChildren();
      this.#dropped.hidden = !earlier;
    }
    if (error) this.#lines.append(el("p", { class: "bad" }, error));
    const made = document.createDocumentFragment();
    for (const line of text ? text.split("\n").slice(-MOST_LINES) : []) made.append(this.#line(line));
    this.#lines.append(made);
    this.#drop();
    if (this.#top === END) this.scrollBack();
  }

  /** A line with its time, which the file has in UTC, in that of the reader. */
  #local(line) {
    const day = CLOCK.test(line) && DAY.exec(line);
    if (day) this.#behind = behindUtc(`${day[1]}T${line.slice(0, 8)}Z`);
    const two = (number) => String(number).padStart(2, "0");
    return line.replace(DAY, ", $1 (your local time)").replace(CLOCK, (_, hours, minutes) => {
      const all = (Number(hours) * 60 + Number(minutes) - this.#behind + 2880) % 1440;
      return `${two(Math.floor(all / 60))}:${two(all % 60)}`;
    });
  }

  #line(utc) {
    const line = this.#local(utc);
    const found = KINDS.find(([form]) => form.test(line));
    if (found?.[1]) this.#kind = found[1];
    else if (!found) this.#kind = "said";
    const cut = line.length > MOST_CHARACTERS ? `${line.slice(0, MOST_CHARACTERS)} … ${line.length - MOST_CHARACTERS} characters more` : line;
    const made = document.createElement("div");
    made.className = this.#kind;
    made.textContent = visible(cut) || "\u00a0";
    return made;
  }

  #drop() {
    const over = this.#lines.childElementCount - MOST_LINES;
    if (over <= 0) return;
    for (let i = 0; i < over; i++) this.#lines.firstElementChild.remove();
    this.#dropped.hidden = false;
  }
}

// The one event stream of this tab. After a break it connects again by itself and sends everything anew.

import { doubt, open, Refused } from "./session.js";

/** The server sends something every 15 s, so a connection that is silent for longer has been lost on the way. */
const SILENT_MS = 40_000;
const AGAIN_MS = [500, 1000, 2000, 5000];

/** Calls `hear(kind, data)` for each event, and `state(words)` when the connection comes or goes. */
export class Stream {
  #hear;
  #state;
  #run = null;
  #ending = null;
  #tries = 0;

  constructor(hear, state) {
    this.#hear = hear;
    this.#state = state;
    document.addEventListener("visibilitychange", () => this.#again());
  }

  /** Follow all runs, and the log of this run (null: of none). */
  follow(run) {
    if (this.#ending !== null && run === this.#run) return;
    this.#run = run;
    this.#again();
  }

  #again() {
    this.#ending?.abort();
    this.#ending = new AbortController();
    if (document.visibilityState === "hidden") return doubt(); // a hidden tab holds no connection, so it sees no end
    this.#keep(this.#ending.signal);
  }

  async #keep(signal) {
    while (!signal.aborted) {
      let words = "The server is away; this page comes back by itself.";
      try {
        const query = this.#run === null ? "" : `?run=${encodeURIComponent(this.#run)}`;
        const answer = await open(`/page/events${query}`, signal);
        await this.#readAll(answer.body);
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 401) return this.#state(error.message, true);
        if (error instanceof Refused) words = error.message;
      }
      if (signal.aborted) return;
      doubt();
      this.#state(words);
      await new Promise((done) => setTimeout(done, AGAIN_MS[Math.min(this.#tries++, AGAIN_MS.length - 1)]));
    }
  }

  async #readAll(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const silent = setTimeout(() => reader.cancel(), SILENT_MS);
      const { value, done } = await reader.read().finally(() => clearTimeout(silent));
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) this.#one(event);
    }
  }

  #one(event) {
    const found = /^event: (\w+)\ndata: (.*)$/s.exec(event);
    if (found?.[1] === "fault") throw new Refused(500, JSON.parse(found[2]));
    this.#state("");
    this.#tries = 0;
    if (found) this.#hear(found[1], JSON.parse(found[2]));
  }
}

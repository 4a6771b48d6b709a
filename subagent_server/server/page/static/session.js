// The session of this browser, and requests in its name.
//
// It dies with the server that made it. A page that has lost its server sends nothing but the session's `knock`,
// which opens nothing, until an answer has the session's `proof`: whoever else has the port by then has none.

const KEY = "subagent-session";
const ENDED = "The server that this page was open on has ended: run `subagent page` again.";

let proven = null;

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** Take the one-time code out of the address, if there is one, and change it for a session. */
export async function enter() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code === null) return;
  history.replaceState(null, "", "#/");
  const answer = await fetch("/page/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ code }),
    redirect: "error",
  });
  if (answer.ok) {
    localStorage.setItem(KEY, await answer.text());
    proven = Promise.resolve();
  } else if (!localStorage.getItem(KEY)) throw new Refused(answer.status, (await answer.json()).error);
}

/** The server may have gone since: nothing is sent to it until it has proved that it is the same. */
export const doubt = () => (proven = null);

async function prove() {
  const { knock, proof } = JSON.parse(localStorage.getItem(KEY) ?? "{}");
  if (!knock) throw new Refused(401, "This page is not open: run `subagent page`.");
  const answer = await fetch("/page/server", { headers: { "Subagent-Knock": knock }, redirect: "error", cache: "no-store" });
  if (answer.status >= 500) throw new Error(`The server answered ${answer.status}.`);
  const found = await answer.json().catch(() => ({}));
  if (found.proof === proof) return;
  localStorage.removeItem(KEY);
  throw new Refused(401, ENDED);
}

/** Send a request in the name of the session to the server that made it, and to no other. */
async function request(path, facts) {
  proven ??= prove();
  try {
    await proven;
    const { secret } = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    const headers = { ...facts.headers, Authorization: `Bearer ${secret}` };
    return await checked(await fetch(path, { ...facts, headers, redirect: "error" }));
  } catch (error) {
    if (!facts.signal?.aborted && (!(error instanceof Refused) || error.status === 401)) doubt();
    if (error instanceof TypeError) throw new Error("The server does not answer: try again when it is back."); // of `fetch`
    throw error;
  }
}

async function checked(answer) {
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, body.error ?? `The server answered ${answer.status}.`);
}

/** Return the response to a GET, whose body may be a stream. */
export const open = (path, signal) => request(path, { signal });

/** Return the JSON of a GET. */
export const read = async (path) => (await open(path)).json();

/** Send a change, and return its answer. */
export const send = async (path, body = {}) =>
  (await request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();

/** The address of a run on the server. */
export const runPath = (id, rest = "") => `/page/runs/${encodeURIComponent(id)}${rest}`;

// The session of this browser, and requests in its name.

const KEY = "subagent-session";

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
  });
  if (answer.ok) localStorage.setItem(KEY, (await answer.json()).session);
  else if (!localStorage.getItem(KEY)) throw new Refused(answer.status, (await answer.json()).error);
}

const headers = () => ({ Authorization: `Bearer ${localStorage.getItem(KEY) ?? ""}` });

async function checked(answer) {
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, body.error ?? `The server answered ${answer.status}.`);
}

/** Return the response to a GET, whose body may be a stream. */
export const open = async (path, signal) => checked(await fetch(path, { headers: headers(), signal }));

/** Return the JSON of a GET. */
export const read = async (path) => (await open(path)).json();

/** Send a change, and return its answer. */
export const send = async (path, body = {}) =>
  (
    await checked(
      await fetch(path, {
        method: "POST",
        headers: { ...headers(), "Content-Type": "application/json" },
        body: JSON.stringify(body),
      }),
    )
  ).json();

/** The address of a run on the server. */
export const runPath = (id, rest = "") => `/page/runs/${encodeURIComponent(id)}${rest}`;
